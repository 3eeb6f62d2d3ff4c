"""From a Keras model to an artifact that runs without Keras."""

import importlib
from typing import Any

__all__ = ["ExportOptions", "export", "verify", "write_triton_repository"]

_HOMES = {
    "ExportOptions": "options",
    "export": "exporter",
    "verify": "parity",
    "write_triton_repository": "triton.layout",
}


def __getattr__(name: str) -> Any:
    # Lazy, because some import Keras, and the command must be able to run without it.
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
