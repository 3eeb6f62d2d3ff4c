"""Weights and options of a model of another toolkit, checked when they are taken."""

import functools

import numpy as np

from keras_bahdanau.toolkits.checkpoint import StoredTensor
from keras_bahdanau_runtime.errors import argument_error

# Merged weights of a model may have this many times as many numbers as those of the checkpoint.
_MAX_GROWTH = 16
MAX_LAYERS = 16


class Weights:
    """The weights of a checkpoint, and the reasons why a model cannot be imported.

    Args:
        checkpoint: The `Checkpoint`.
        tensors: Dict of `StoredTensor`s by name. Other values in it are ignored, unless they have
            the name of a weight.

    Raises:
        ValueError: If the tensors declare more numbers than the file has.
    """

    def __init__(self, checkpoint, tensors):
        self.path = checkpoint.path
        self._names = tensors.keys()
        self._tensors = {
            name: tensor for name, tensor in tensors.items() if isinstance(tensor, StoredTensor)
        }
        checkpoint.check_size(self._tensors.values())
        self._checkpoint = checkpoint
        self._unused = set(self._tensors)
        self._reasons = []

    def __contains__(self, name):
        return name in self._names

    @functools.cached_property
    def _contents(self):
        return self._checkpoint.read(tensor for tensor in self._tensors.values() if tensor.is_float)

    def take(self, name, *shape):
        """Return a weight as a float32 array, and mark it as used.

        Args:
            name: Name of the weight.
            *shape: Its expected sizes, `None` for any size above 0.

        Raises:
            ValueError: If the weight is missing, is no dense tensor, has another shape, is not of
                floats, or has a value that is not finite in float32.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            is_other = name in self
            raise self.error(
                f"a weight {name} of another form" if is_other else f"no weight {name}"
            )
        fits = len(tensor.shape) == len(shape) and all(
            size > 0 and expected in (None, size)
            for size, expected in zip(tensor.shape, shape, strict=True)
        )
        if not fits:
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            raise self.error(f"a weight {name} of shape {tensor.shape} instead of ({expected})")
        if not tensor.is_float:
            raise self.error(f"a weight {name} of type {tensor.storage.type.name}")
        self._unused.discard(name)
        array = tensor.view(self._contents[tensor.storage])
        if not np.isfinite(array).all():
            raise self.error(f"NaN or infinity in the weight {name}")
        return array

    def get(self, name, *shape):
        """Return a weight like `take`, or `None` if it is missing."""
        return self.take(name, *shape) if name in self else None

    def check_growth(self, count, reason):
        """Raise a `ValueError` if a merged weight is much larger than the checkpoint.

        Args:
            count: Number of numbers of the merged weight.
            reason: Name of the merged weight, for the message.
        """
        total = sum(tensor.count for tensor in self._tensors.values())
        if count > _MAX_GROWTH * total:
            raise self.error(f"{total} numbers, but {reason} would need {count}")

    def refuse(self, reason):
        """Add a reason why the model cannot be imported, such as an option and its value."""
        self._reasons.append(reason)

    def require_option(self, name, value, *supported):
        """Add a reason unless the value of an option is one of those supported."""
        if value not in supported:
            self.refuse(f"{name} {describe(value)}")

    def check_options(self):
        """Raise one `ValueError` with all reasons, if there are any."""
        if self._reasons:
            raise self.error("; ".join(self._reasons))

    def check_used(self):
        """Raise a `ValueError` if there are weights that were not taken."""
        if self._unused:
            names = sorted(ascii(str(name))[1:-1][:80] for name in self._unused)
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            raise self.error(f"other weights: {', '.join(names[:20])}{more}")

    def error(self, problem):
        """Return the `ValueError` of a model with a problem, such as an unsupported option."""
        return argument_error(
            "path",
            "be a recurrent model with attention that has an equivalent here",
            received=f"{str(self.path)!r}, which has {problem}",
        )


class Fields:
    """The values of a checkpoint or a configuration by name, checked when they are read.

    Args:
        path: The file, for messages.
        values: Dict of values.
        prefix: Names of the fields that contain this one, with a dot after each.
    """

    def __init__(self, path, values, prefix=""):
        self._path, self._values, self._prefix = path, values, prefix

    def get(self, name, default=None):
        """Return a value of any type, or the default if it is missing."""
        return self._values.get(name, default)

    def dict(self, name):
        """Return a dict; an empty one for a value that is missing or `None`."""
        return self._check(name, dict, "a mapping", self._values.get(name)) or {}

    def section(self, name):
        """Return the `Fields` of a dict."""
        return Fields(self._path, self.dict(name), f"{self._prefix}{name}.")

    def list(self, name):
        """Return a list of strings; an empty one for a value that is missing or `None`."""
        items = self._check(name, list, "a list", self._values.get(name)) or []
        for index, item in enumerate(items):
            self._check(f"{name}[{index}]", str, "text", item, allows_none=False)
        return items

    def text(self, name, default):
        """Return a string, or the default if it is missing."""
        value = self._values.get(name, default)
        return self._check(name, str, "text", value, allows_none=False)

    def flag(self, name, default):
        """Return a bool, which may be written as 0 or 1; or the default if it is missing."""
        value = self._values.get(name, default)
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise self._error(name, "true or false", value)
        return bool(value)

    def _check(self, name, kind, noun, value, allows_none=True):
        if not isinstance(value, kind) and not (allows_none and value is None):
            raise self._error(name, noun, value)
        return value

    def _error(self, name, noun, value):
        return argument_error(
            "path",
            f"have {noun} as {self._prefix}{name}",
            received=f"{str(self._path)!r}, which has {describe(value)}",
        )


def describe(value):
    """Return a short form of a value for messages. A container may be too large or deep to show."""
    if isinstance(value, str):
        return repr(value[:80])
    if value is None or isinstance(value, bool | int | float):
        return repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "a large int"
    return f"a {type(value).__name__}"
