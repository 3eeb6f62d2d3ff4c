"""The models, and what they generate."""
