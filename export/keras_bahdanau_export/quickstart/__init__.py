"""The quickstart: a small task, and a run through all of the package."""
