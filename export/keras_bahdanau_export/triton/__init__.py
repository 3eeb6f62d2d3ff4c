"""A model repository for Triton Inference Server."""
