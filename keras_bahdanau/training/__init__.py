"""Losses, metrics, callbacks and whole training runs."""
