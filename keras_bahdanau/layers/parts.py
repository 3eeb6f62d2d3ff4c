"""The layers that a layer is made of: built once, called on rows, and saved as what they share."""

import copy
import functools
import inspect

import keras
from keras import ops

from keras_bahdanau.layers.masking import zero_masked

_QUANTIZED = ("quantization_config", "dtype_policy")  # of a layer of Keras that was quantized
_ADAPTED = ("lora_rank",)  # of one that has LoRA, whose scale Keras begins anew


def build_part(layer, *shapes):
    """Builds a part of a layer; one from a saved model, or the user, may be built already."""
    if not layer.built:
        layer.build(*shapes)


def check_widths(**shapes):
    """Raises a `ValueError` that names the first of `shapes` whose last axis is unknown."""
    for name, shape in shapes.items():
        if shape[-1] is None:
            raise ValueError(
                f"Argument `{name}` must have a known width, its last axis; write "
                f"keras.Input((None, 64)) for one of 64. Received: shape {tuple(shape)}"
            )


class CheckedCall:
    """Names an input that a layer cannot read, before Keras builds the layer; a mixin of layers."""

    def __call__(self, *args, **kwargs):
        owner, names, required, takes_any = type(self).__name__, *_inputs(type(self).call)
        for name in kwargs:
            if name.endswith("mask") and name not in names and not takes_any:
                known = [each for each in names if each.endswith("mask") and each[:4] != "use_"]
                masks = " or ".join(known) or "no argument"
                raise ValueError(
                    f"{owner} has no argument `{name}`; write {masks} for a mask. "
                    f"Received: `{name}`"
                )
        given = dict(zip(names, args, strict=False)) | kwargs
        for name in required:
            if given.get(name) is None:
                raise ValueError(
                    f"Argument `{name}` of {owner} must be a tensor; call the layer with "
                    f"({', '.join(required)}). Received: None"
                )
        check_dense(owner, **given)
        return super().__call__(*args, **kwargs)


@functools.cache
def _inputs(call):
    """Names of the arguments of a layer's `call`, those without a default, and if it takes any."""
    parameters = list(inspect.signature(call).parameters.values())[1:]
    named = [
        part for part in parameters if part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD)
    ]
    required = [part.name for part in named if part.default is part.empty]
    takes_any = any(part.kind == part.VAR_KEYWORD for part in parameters)
    return [part.name for part in named], required, takes_any


def check_dense(owner, **tensors):
    """Raises a `ValueError` that names the first of `tensors` that is ragged or sparse.

    Args:
        owner: Name of the layer, for the message.
        **tensors: Tensors of any backend, or lists of them.
    """
    for name, tensor in tensors.items():
        for part in tensor if isinstance(tensor, (list, tuple)) else [tensor]:
            kind = _storage(part)
            if kind is not None:
                raise ValueError(
                    f"Argument `{name}` of {owner} must be a dense tensor; pad a ragged one at the "
                    "right, such as by TensorFlow's `to_tensor()`, and pass a mask of its real "
                    f"places. Received: a {kind} {type(part).__name__}"
                )


def _storage(tensor):
    """What a tensor is if it is not dense, "ragged" or "sparse"; else `None`."""
    # `keras.KerasTensor` has the first two of these, and each backend has its own.
    if any(getattr(tensor, name, False) is True for name in ("ragged", "is_nested")):
        return "ragged"
    if any(getattr(tensor, name, False) is True for name in ("sparse", "is_sparse")):
        return "sparse"
    if hasattr(tensor, "row_splits"):
        return "ragged"
    return "sparse" if hasattr(tensor, "dense_shape") or hasattr(tensor, "todense") else None


def last_layer(layer):
    """What makes the output: the last one of the layers of a model, or of one at its end."""
    return all_layers(layer)[-1]


def all_layers(layer):
    """The layers of a model, and of models in it, in the order that it calls them."""
    parts = ()  # of a model of a class of its own only its code knows them
    if isinstance(layer, keras.Model):
        sequential = isinstance(layer, keras.Sequential)
        parts = layer.layers if sequential else getattr(layer, "operations", ())
    return [inner for part in parts for inner in all_layers(part)] or [layer]


def call_masked(layer, sequences, mask, right_padded=False, **arguments):
    """What a layer makes of sequences.

    One that takes no mask reads zeros at masked places, as does a model, whose first layer may take
    none. `right_padded` is passed to a layer whose `call` has an argument of this name.
    """
    parameters = inspect.signature(layer.call).parameters
    anything = any(of.kind == of.VAR_KEYWORD for of in parameters.values())
    takes_mask = anything or "mask" in parameters
    if isinstance(layer, keras.Model) or not takes_mask:
        sequences = zero_masked(sequences, mask)
    if takes_mask:
        arguments["mask"] = mask
    if "right_padded" in parameters:
        arguments["right_padded"] = right_padded
    return layer(sequences, **arguments)


def call_rows(layer, *rows, **arguments):
    """What a layer makes of rows `(R, ...)`, even if it is a model made for sequences of them."""
    if not _reads_sequences(layer, rows[0]):
        return layer(*rows, **arguments)
    steps = [ops.expand_dims(part, 1) for part in rows]
    return ops.squeeze(layer(*steps, **arguments), 1)


def call_steps(layer, *sequences, **arguments):
    """`call_rows` of each step of sequences `(B, T, width)`."""
    rows = [ops.reshape(part, (-1, part.shape[-1])) for part in sequences]
    found = call_rows(layer, *rows, **arguments)
    return ops.reshape(found, (*ops.shape(sequences[0])[:2], found.shape[-1]))


def grouped(rows, memory):
    """Rows `(B * G, ...)` as `(B, G, ...)`, the groups that share a row of a memory.

    Args:
        rows: `(B * G, ...)` tensor.
        memory: `(B, ...)` tensor.
    """
    batch, count = ops.shape(memory)[0], rows.shape[0]
    # A reshape cannot infer the number of groups of an empty batch.
    known = isinstance(batch, int) and count is not None
    groups = count // max(batch, 1) if known else -1
    return ops.reshape(rows, (batch, groups, *ops.shape(rows)[1:]))


def output_width(layer, *rows):
    """Width of what `call_rows` makes of rows, given as `KerasTensor`s."""
    if _reads_sequences(layer, rows[0]):
        return layer.output_shape[-1]
    return layer.compute_output_spec(*rows).shape[-1]


def _reads_sequences(layer, row):
    """Whether a model was made for inputs of one axis, that of time, more than `row`."""
    # Layers, and models of a class of their own, take any rank that their code does.
    shape = getattr(layer, "input_shape", None)
    return isinstance(shape, tuple) and len(shape) == len(row.shape) + 1


def serialized(layer, *names):
    """The configs of some attributes of a layer, for its own: layers, lists of them, or `None`.

    A part that stands elsewhere in the model, too, is loaded as one.
    """
    # Keras marks what it meets twice. It marks the first config only after it was copied from here.
    for _ in range(2):
        found = {name: keras.saving.serialize_keras_object(getattr(layer, name)) for name in names}
    return found


def deserialized(config, *names):
    """A config with the parts themselves in the places of their own, `serialized` configs."""
    parts = {}
    for name in names:
        # Stacked cells take their parts out of the config they are made from.
        parts[name] = keras.saving.deserialize_keras_object(copy.deepcopy(config[name]))
    return {**config, **parts}


def told(parts):
    """What the layers that a layer makes were told since, for its config: frozen, quantized, LoRA.

    Args:
        parts: List of layers, outer ones before those within them.

    Returns:
        A dict for each of them, or an empty list if there is nothing to say.
    """
    found = [{"trainable": part.trainable} for part in parts]
    for part, settings in zip(parts, found, strict=True):
        quantized = getattr(part.dtype_policy, "quantization_mode", None) is not None
        adapted = getattr(part, "lora_enabled", False)
        for name in (*(_QUANTIZED if quantized else ()), *(_ADAPTED if adapted else ())):
            settings[name] = keras.saving.serialize_keras_object(getattr(part, name, None))
    return [] if all(settings == {"trainable": True} for settings in found) else found


def tell(parts, settings):
    """Tells layers that are not built yet what `told` has found of others."""
    for part, of_part in zip(parts, settings, strict=bool(settings)):
        if part.trainable != of_part["trainable"]:
            part.trainable = of_part["trainable"]  # also of all within it
        for name in (*_QUANTIZED, *_ADAPTED):
            if name in of_part:
                setattr(part, name, keras.saving.deserialize_keras_object(of_part[name]))
