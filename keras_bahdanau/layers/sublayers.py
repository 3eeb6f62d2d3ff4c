"""Layers inside a layer: build, call and save them."""

import copy

import keras
from keras import ops

_QUANTIZED = ("quantization_config", "dtype_policy")  # of a layer of Keras that was quantized


_ADAPTED = ("lora_rank",)  # of one that has LoRA, whose scale Keras begins anew


def build_part(layer, *shapes):
    """Builds a part of a layer; one from a saved model, or the user, may be built already."""
    if not layer.built:
        layer.build(*shapes)


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
