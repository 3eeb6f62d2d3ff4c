"""Passes that rewrite an ONNX graph into a smaller and faster equivalent one."""
