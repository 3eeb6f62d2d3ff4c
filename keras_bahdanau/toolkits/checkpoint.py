"""Checkpoints of PyTorch toolkits: safe reading, the weights, and what has no equivalent here."""

import argparse
import pickle
import re
from pathlib import Path

from keras_bahdanau_runtime.errors import require


def load_checkpoint(path):
    """Load a PyTorch checkpoint without running code that is stored in it.

    A checkpoint is a pickle, which can run any code. `torch.load(weights_only=True)` accepts only
    tensors, plain Python values and `argparse.Namespace`, in which two of the toolkits store their
    options. Scalars and arrays of NumPy, such as a best score, are skipped: they become
    `_NumPyValue`s.

    Args:
        path: The file.

    Returns:
        The stored dict.

    Raises:
        ValueError: If the file is missing, is no checkpoint, or contains other classes.
        MissingDependencyError: If torch is not installed.
    """
    torch = require("torch", extra="torch")
    path = Path(path)
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(
            f"Argument `path` must be a checkpoint. Received: {str(path)!r}, which {reason}"
        )
    try:
        with torch.serialization.safe_globals(_allowed_classes()):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        # The rest of torch's message recommends loading the file without this protection.
        name = re.search(r"GLOBAL (\S+)", str(error))
        problem = f"which contains {name[1]}" if name else "which is incomplete or another file"
        raise ValueError(
            "Argument `path` must be a PyTorch checkpoint of only tensors, plain values and "
            "argparse.Namespace, because other classes and functions can run any code. "
            f"Received: {str(path)!r}, {problem}"
        ) from error
    if not isinstance(checkpoint, dict):
        raise ValueError(
            "Argument `path` must be a checkpoint, which is a dict. "
            f"Received: {str(path)!r}, which contains {type(checkpoint).__name__}"
        )
    return checkpoint


class _NumPyValue:
    """A NumPy scalar, array or dtype without its value, which no importer reads.

    The functions of NumPy that restore them are not called, because they trust their arguments.
    """

    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        pass


def _allowed_classes():
    names = ["numpy.dtype", "numpy.ndarray"]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # NumPy 1 and 2
        names += [f"{module}.scalar", f"{module}._reconstruct"]
    return [argparse.Namespace, *((_NumPyValue, name) for name in names)]


class Weights:
    """The weights of a checkpoint, and the reasons why a model cannot be imported.

    Args:
        path: The checkpoint, for messages.
        tensors: Dict of tensors by name.
    """

    def __init__(self, path, tensors):
        self.path = path
        self._arrays = {
            name: tensor.detach().float().numpy()
            for name, tensor in tensors.items()
            if hasattr(tensor, "detach")
        }
        self._unused = set(self._arrays)
        self._reasons = []

    def __contains__(self, name):
        return name in self._arrays

    def take(self, name):
        """Return a weight as a float32 array, and mark it as used."""
        if name not in self._arrays:
            raise self.error(f"no weight {name}")
        self._unused.discard(name)
        return self._arrays[name]

    def get(self, name):
        """Return a weight like `take`, or `None` if it is missing."""
        return self.take(name) if name in self else None

    def refuse(self, reason):
        """Add a reason why the model cannot be imported, such as an option and its value."""
        self._reasons.append(reason)

    def require_option(self, name, value, *supported):
        """Add a reason unless the value of an option is one of those supported."""
        if value not in supported:
            self.refuse(f"{name} {value!r}")

    def check_options(self):
        """Raise one `ValueError` with all reasons, if there are any."""
        if self._reasons:
            raise self.error("; ".join(self._reasons))

    def check_used(self):
        """Raise a `ValueError` if there are weights that were not taken."""
        if self._unused:
            raise self.error(f"other weights: {', '.join(sorted(self._unused))}")

    def error(self, problem):
        """Return the `ValueError` of a model with a problem, such as an unsupported option."""
        return ValueError(
            "Argument `path` must be a recurrent model with attention that has an equivalent here. "
            f"Received: {str(self.path)!r}, which has {problem}"
        )


def option(options, name, default=None):
    """Return an option of a dict or an `argparse.Namespace`, or the default if it is missing."""
    if isinstance(options, dict):
        return options.get(name, default)
    return getattr(options, name, default)
