"""Check of the shape and dtype of tensors."""

import keras

from keras_bahdanau_runtime.errors import argument_error

# How the names of their dtypes begin.
_KINDS = {"ints": ("int", "uint"), "bool": "bool", "floats": ("float", "bfloat")}


def check_shape(name, value, pattern, kind=None, note="", of=None, **sizes):
    """Raise a `ValueError` that names the wrong axis unless a tensor has the shape of a pattern.

    Args:
        name: Name of the argument.
        value: A tensor or array, or a shape, which is a tuple.
        pattern: Names of the axes. A number is the size of its axis, and an axis such as "batch|1"
            may also have the size 1.
        kind: "ints", "bool" or "floats", the required dtypes; `None` for any.
        note: Text after the expected shape in the message.
        of: Name of the layer or function, for the message.
        **sizes: Sizes of axes by name, `None` where they are unknown.

    Example:

    >>> import numpy as np
    >>> check_shape("mask", np.ones((3, 4)) > 0, "batch time", "bool", batch=3, time=5)
    Traceback (most recent call last):
    ValueError: Argument `mask` must be bool of shape (3, 5). Received: ... whose axis `time` is 4
    """
    axes = pattern.split()
    names = [axis.removesuffix("|1") for axis in axes]
    expected = [int(axis) if axis.isdigit() else sizes.get(axis) for axis in names]
    is_shape = isinstance(value, tuple)
    shape = value if is_shape else getattr(value, "shape", None)
    dtype = None if kind is None or shape is None else _dtype_name(value)
    wrong = ""
    if shape is not None and len(shape) == len(axes):
        for index, (axis, size, known) in enumerate(zip(axes, shape, expected, strict=True)):
            is_one = axis.endswith("|1") and size == 1
            if not (is_one or None in (size, known) or size == known):
                label = index if axis.isdigit() else f"`{names[index].replace('_', ' ')}`"
                wrong = f", whose axis {label} is {size}"
                break
        else:
            if kind is None or dtype.startswith(_KINDS[kind]):
                return
    labels = [
        label.replace("_", " ") if known is None else str(known)
        for label, known in zip(names, expected, strict=True)
    ]
    form = f"({', '.join(labels)}{',' * (len(labels) == 1)})" if axes else "a single number"
    if shape is None:
        received = repr(value)
    else:
        received = f"{'' if kind is None else f'{dtype} of '}shape {tuple(shape)}{wrong}"
    if kind is not None:
        form = f"{kind} of shape {form}"
    raise argument_error(name, f"be {form}{note}", received=received, of=of)


def _dtype_name(tensor):
    try:
        return keras.backend.standardize_dtype(tensor.dtype)
    except ValueError:  # a dtype of NumPy that no tensor has, such as that of strings
        return str(tensor.dtype)
