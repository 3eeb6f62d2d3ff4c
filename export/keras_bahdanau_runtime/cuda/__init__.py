"""Runs on a GPU: a search whose step CUDA records, and what runs on the CPU there."""
