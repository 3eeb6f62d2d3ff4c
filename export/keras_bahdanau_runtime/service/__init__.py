"""The inference service: models behind HTTP and gRPC."""
