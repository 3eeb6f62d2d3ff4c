"""CUDA support of exported graphs: a search split at its loop, and operators left to the CPU."""
