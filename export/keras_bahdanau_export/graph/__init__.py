"""The ONNX graph: its writer, recurrent operators and passes."""
