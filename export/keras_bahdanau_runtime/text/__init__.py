"""Text on its way to ids and back, and what is said about it."""
