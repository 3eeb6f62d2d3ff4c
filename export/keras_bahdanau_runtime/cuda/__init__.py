"""Code that needs a GPU: a search whose steps are CUDA graphs."""
