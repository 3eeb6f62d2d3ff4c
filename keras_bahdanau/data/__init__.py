"""Batches for training."""
