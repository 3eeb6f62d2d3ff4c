"""Code that needs a GPU: a search whose step CUDA records as a graph."""
