"""Rewrites of a written ONNX graph."""
