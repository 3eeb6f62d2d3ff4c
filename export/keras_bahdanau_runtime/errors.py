"""Exceptions of the runtime and of the export, and imports of optional packages.

A wrong argument raises an `ArgumentError`, which is a `ValueError`. The other classes are for
problems that the caller cannot see from the arguments alone.

    ArgumentError                  (a ValueError) has the name of the argument
    └── MissingArtifactError       the path of an artifact is that of something else
    ArtifactError
    ├── CorruptArtifactError       damaged, incomplete or tampered with
    ├── UnsupportedArtifactError   intact, but not for this version or this use
    ├── RunError                   onnxruntime could not run the graph
    │   └── LimitError             the run exceeded its time or memory limit
    ├── UnsupportedModelError      the model contains an operation without an ONNX operator
    ├── ParityError                the exported graph and the Keras model differ too much
    └── PrecisionError             reduced precision costs more quality than allowed
    MissingDependencyError         (an ImportError) an optional package is not installed
"""

import importlib
import os
import reprlib
from typing import Any

_quotes = reprlib.Repr()
_quotes.maxstring = _quotes.maxother = _quotes.maxlong = 80
_quotes.maxlist = _quotes.maxtuple = _quotes.maxdict = _quotes.maxset = 8
_quotes.maxlevel = 3


def quote(value: Any) -> str:
    """Return the `repr` of data for a message: bounded in length, on one line, for any value.

    Example:

    >>> quote(list(range(1000)))
    '[0, 1, 2, 3, 4, 5, 6, 7, ...]'
    """
    return f"{_quotes.repr(value):.300}"


class ArgumentError(ValueError):
    """An argument has a value that it must not have; `argument_error` makes it.

    Args:
        message: str. Only the message, so that Keras can add the arguments of a layer to it.

    Attributes:
        name: str. Name of the argument, or `None` for an error to which Keras added arguments.
    """

    name: str | None = None


class MissingArtifactError(ArgumentError):
    """The path of an artifact is not a folder, or is that of a training run."""


def argument_error(
    name: str | tuple[str, ...],
    expectation: str,
    value: Any = None,
    *,
    received: str | None = None,
    of: str | None = None,
    kind: type[ArgumentError] = ArgumentError,
) -> ArgumentError:
    """Return the error of an argument with a value that it must not have.

    Args:
        name: str, or tuple of str. Name of the argument, or of those that contradict each other.
            The attribute `name` of the error is the first.
        expectation: str. What the argument must do, as the text after "must": "be positive".
        value: The value of the argument, which the message quotes.
        received: str. What the message says instead of `value`; empty for nothing.
        of: str. The class or function that has the argument; `None` if that is clear.
        kind: Class of the error.

    Example:

    >>> argument_error("units", "be a positive integer", 0)
    ArgumentError('Argument `units` must be a positive integer. Received: 0')
    """
    received = quote(value) if received is None else received
    names = (name,) if isinstance(name, str) else name
    quoted = [f"`{each}`" for each in names]
    listed = " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
    if of is not None:
        listed += f" of {of}"
    message = f"Argument{'s' * (len(names) > 1)} {listed} must {expectation}"
    message += "" if message.endswith((".", "?", "!")) else "."
    error = kind(f"{message} Received: {received}" if received else message)
    error.name = names[0]
    return error


class ArtifactError(Exception):
    """Base class of the errors of artifacts."""


class CorruptArtifactError(ArtifactError):
    """A file of the artifact is missing, damaged, or does not match the manifest."""


class UnsupportedArtifactError(ArtifactError):
    """The artifact is intact, but this version cannot use it (for example, a newer format)."""


class RunError(ArtifactError):
    """A graph was opened, but running it failed."""


class LimitError(RunError):
    """A run exceeded its time or memory limit."""


class UnsupportedModelError(ArtifactError):
    """The model contains an operation that has no ONNX operator."""


class ParityError(ArtifactError):
    """The exported graph and the Keras model differ by more than the tolerance."""


class PrecisionError(ArtifactError):
    """The model loses more quality in float16 or int8 than the tolerance allows."""


class MissingDependencyError(ImportError):
    """An optional package is not installed; the message contains the pip command to install it.

    Args:
        package: str. Name of the package that could not be imported.
        extra: str. The extra of `keras-bahdanau` that installs it.
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


# Set before onnxruntime is imported: otherwise its telemetry writes events to a database in the
# user's home folder and uploads them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


KERAS_BACKENDS = ("tensorflow", "jax", "torch")


def missing_keras(package: str) -> ImportError:
    """Return the error for a missing Keras or backend, with the command to install it.

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
    """Import an optional package, or raise an error with the command to install it.

    Args:
        package: str. Name of the module to import.
        extra: str. The extra of `keras-bahdanau` that installs it.

    Returns:
        The imported module.

    Raises:
        MissingDependencyError: The package is not installed. An installed but broken package
            raises its own error.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        # For `google.protobuf`, the missing module may be `google`.
        if not f"{package}.".startswith(f"{error.name}."):
            raise
        raise MissingDependencyError(package, extra) from error
