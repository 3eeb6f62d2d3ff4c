"""From a trained model to a running service.

`export` writes an artifact, and `Translator` runs it without Keras.
"""

import importlib
from typing import Any

from keras_bahdanau_export.errors import (
    ArtifactError,
    CorruptArtifactError,
    MissingDependencyError,
    ParityError,
    UnsupportedArtifactError,
)
from keras_bahdanau_export.runtime import Translation, Translator

__all__ = [
    "ArtifactError",
    "CorruptArtifactError",
    "MissingDependencyError",
    "ParityError",
    "Translation",
    "Translator",
    "UnsupportedArtifactError",
    "export",
]


def __getattr__(name: str) -> Any:
    # Lazy, because the exporter imports Keras and the runtime must not.
    if name == "export":
        return importlib.import_module("keras_bahdanau_export.exporter").export
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
