"""Everything that can go wrong with an artifact, on one page.

A mistake in an argument is a `ValueError`, as everywhere in Python; these classes are for what the
caller could not have known from the arguments alone.

    ArtifactError
    ├── CorruptArtifactError       damaged, incomplete or tampered with
    ├── UnsupportedArtifactError   whole, but not for this version or this use
    ├── RunError                   onnxruntime could not run the graph
    │   └── LimitError             it took longer, or more memory, than was allowed
    ├── UnsupportedModelError      the model holds what ONNX cannot say
    ├── ParityError                the written graph does not say what the Keras model says
    └── PrecisionError             smaller numbers cost more quality than was allowed
    MissingDependencyError         (an ImportError) an optional package is not installed
"""

import importlib
import os
from typing import Any


class ArtifactError(Exception):
    """Base class of what can be wrong with an artifact."""


class CorruptArtifactError(ArtifactError):
    """A file of the artifact is missing, damaged, or not what the manifest says."""


class UnsupportedArtifactError(ArtifactError):
    """The artifact is whole, but this version cannot use it (for example, a newer format)."""


class RunError(ArtifactError):
    """The graph was opened, but a run of it failed."""


class LimitError(RunError):
    """A run took longer, or more memory, than it was given."""


class UnsupportedModelError(ArtifactError):
    """The model holds an operation that ONNX has no operator for."""


class ParityError(ArtifactError):
    """The exported graph and the Keras model disagree by more than is allowed."""


class PrecisionError(ArtifactError):
    """The model loses more quality in float16 or int8 than is allowed."""


class MissingDependencyError(ImportError):
    """An optional package is not installed; the message holds the pip command that installs it.

    Args:
        package: str. Name of the package that could not be imported.
        extra: str. The extra of `keras-bahdanau` that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"The package {package!r} is not installed. Install it with: "
            f'pip install "keras-bahdanau[{extra}]"',
            name=package,
        )
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.package, self.extra)


# Before onnxruntime is imported, which else writes a database of events into the home of its user
# and sends them to its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


KERAS_BACKENDS = ("tensorflow", "jax", "torch")


def missing_keras(package: str) -> ImportError:
    """What to raise where Keras, or its backend, is not installed; it says what to install.

    Args:
        package: str. "keras", or the name of the backend.
    """
    if package == "keras":
        return ImportError(
            "keras_bahdanau needs Keras and a backend. Install both with: "
            'pip install "keras-bahdanau[tensorflow]", or with [jax] or [torch]. An artifact runs '
            "without Keras: import keras_bahdanau_runtime.",
            name=package,
        )
    return ImportError(
        f"Keras is set to the backend {package!r}, which is not installed. Install it with: "
        f'pip install "keras-bahdanau[{package}]", or set KERAS_BACKEND to another '
        '("tensorflow", "jax" or "torch").',
        name=package,
    )


def require(package: str, extra: str) -> Any:
    """Imports an optional package, or says how to install it.

    Args:
        package: str. Name of the module to import.
        extra: str. The extra of `keras-bahdanau` that brings it.

    Returns:
        The imported module.

    Raises:
        MissingDependencyError: The package is not installed. A package that is there but broken
            raises its own error.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # Of `google.protobuf`, `google` may be what is missing.
        if not f"{package}.".startswith(f"{error.name}."):
            raise
        raise MissingDependencyError(package, extra) from error
