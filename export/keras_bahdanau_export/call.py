"""The call of a Keras model as its graph has it: inputs and outputs in a row, each with a name."""

import re
from collections import Counter

import keras
from keras import tree

from keras_bahdanau_runtime.signature import Signature, Tensor

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)  # one that TensorFlow leaves as it is


def functional(model):
    """The model as a functional one, which knows its inputs and outputs and how they are nested.

    Args:
        model: A functional or built `Sequential` model.

    Raises:
        ValueError: If it is any other.
    """
    if not getattr(model, "inputs", None):
        name = type(model).__name__
        raise ValueError(
            "Argument `model` must be a Seq2Seq, an Ensemble, or a functional or Sequential model "
            f"that is built, which say what their inputs are. Received: {name}. Make a functional "
            'model of it: x = keras.Input(shape, name="x"); export(keras.Model(x, model(x)), path)'
        )
    if isinstance(model, keras.Sequential):
        return keras.Model(model.inputs, model.outputs, name=model.name)
    return model


def call_signature(model, input_names=None, output_names=None):
    """The `Signature` of a functional model's call.

    Args:
        model: A functional model.
        input_names: A name for each input; those of the `keras.Input`s if `None`.
        output_names: A name for each output; if `None` the keys where outputs come in a dict, else
            the names of their layers, numbered where a layer gives several.

    Raises:
        ValueError: If there is not one name for each, or a name occurs twice or is none that
            TensorFlow takes.
    """
    given = {"input_names": input_names, "output_names": output_names}
    usual = {"input_names": [part.name for part in model.inputs], "output_names": _outputs(model)}
    for argument, names in given.items():
        if names is not None:
            _check_names(argument, names, usual[argument])
    inputs, outputs = (usual[name] if names is None else names for name, names in given.items())
    twice = sorted(name for name, count in Counter([*inputs, *outputs]).items() if count > 1)
    if twice:
        raise ValueError(
            "Arguments `input_names` and `output_names` must give every input and output a name "
            f"of its own. Received: {twice}"
        )
    return Signature(
        inputs=tuple(map(tensor_of, inputs, model.inputs)),
        outputs=tuple(map(tensor_of, outputs, model.outputs)),
    )


def tensor_of(name, part, free=None):
    """A `Tensor` for a spec; an axis of any length is the batch, or `free` where that is given."""
    axes = [
        (("batch" if i == 0 else free or f"{name}_axis_{i}") if size is None else size)
        for i, size in enumerate(part.shape)
    ]
    return Tensor(name, keras.backend.standardize_dtype(part.dtype), tuple(axes))


def _outputs(model):
    paths = [path for path, _ in tree.flatten_with_path(model.output)]
    names = [
        path[-1] if path and isinstance(path[-1], str) else layer
        for path, layer in zip(paths, model.output_names, strict=True)
    ]
    found, seen = Counter(names), Counter()
    for i, name in enumerate(names):
        if found[name] > 1:
            names[i] = f"{name}_{seen[name]}"
            seen[name] += 1
    return names


def _check_names(argument, names, usual):
    listed = isinstance(names, (list, tuple))
    if not listed or len(names) != len(usual):
        raise ValueError(
            f"Argument `{argument}` must be a list of {len(usual)} names, in the place of {usual}. "
            f"Received: {names!r}"
        )
    wrong = [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]
    if wrong:
        raise ValueError(
            f"Argument `{argument}` must hold names of ASCII letters, digits and _ that begin with "
            f"a letter. Received: {wrong[0]!r}"
        )
