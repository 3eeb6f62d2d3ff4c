"""Graphs on a GPU: a search cut at its loop, and what runs on the CPU there."""
