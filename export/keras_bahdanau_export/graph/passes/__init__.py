"""Rewrites of a written ONNX graph; `optimizer` runs them in their order."""
