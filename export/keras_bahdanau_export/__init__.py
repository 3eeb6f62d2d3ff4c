"""Export a Keras model to an artifact that runs without Keras."""

import importlib
from typing import Any

__all__ = ["ExportOptions", "ModelCard", "export", "verify", "write_triton_repository"]

_MODULES = {
    "ExportOptions": "options",
    "ModelCard": "model_card",
    "export": "exporter",
    "verify": "parity",
    "write_triton_repository": "triton.repository",
}


def __getattr__(name: str) -> Any:
    # Lazy because some of these modules import Keras, and the command must run without it.
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
