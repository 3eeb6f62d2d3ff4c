"""Layers inside of other layers: build, call and save them."""

import copy

import keras
from keras import ops

# Attributes that Keras's `quantize` and `enable_lora` change. Their configs do not contain them.
_QUANTIZATION_ATTRIBUTES = ("quantization_config", "dtype_policy")
_LORA_ATTRIBUTES = ("lora_rank",)


def build_sublayer(layer, *shapes):
    """Build a layer unless it is built already, for example because it was loaded."""
    if not layer.built:
        layer.build(*shapes)


def last_layer(layer):
    """Return the layer that computes the output of a model, or `layer` itself."""
    return all_layers(layer)[-1]


def all_layers(layer):
    """Return the layers of a model and of its inner models, in the order of their calls.

    Args:
        layer: A Keras model or layer. For a layer, or a subclassed model, whose order is unknown,
            the result is `[layer]`.
    """
    inner = ()
    if isinstance(layer, keras.Model):
        sequential = isinstance(layer, keras.Sequential)
        inner = layer.layers if sequential else getattr(layer, "operations", ())
    return [leaf for sublayer in inner for leaf in all_layers(sublayer)] or [layer]


def call_rows(layer, *rows, **arguments):
    """Call a layer on rows `(R, ...)`, even if it is a model with a time axis in its input."""
    if not _has_time_axis(layer, rows[0]):
        return layer(*rows, **arguments)
    steps = [ops.expand_dims(row, 1) for row in rows]
    return ops.squeeze(layer(*steps, **arguments), 1)


def call_steps(layer, *sequences, **arguments):
    """Call a layer on the rows of sequences `(B, T, width)`, and return a sequence."""
    rows = [ops.reshape(sequence, (-1, sequence.shape[-1])) for sequence in sequences]
    outputs = call_rows(layer, *rows, **arguments)
    return ops.reshape(outputs, (*ops.shape(sequences[0])[:2], outputs.shape[-1]))


def output_width(layer, *rows):
    """Return the width of the output of `call_rows`, given the rows as `KerasTensor`s."""
    if _has_time_axis(layer, rows[0]):
        return layer.output_shape[-1]
    return layer.compute_output_spec(*rows).shape[-1]


def _has_time_axis(layer, row):
    """Return whether `layer` is a model whose input has one axis more than `row`."""
    # Layers and subclassed models have no fixed input shape and accept any rank.
    shape = getattr(layer, "input_shape", None)
    return isinstance(shape, tuple) and len(shape) == len(row.shape) + 1


def serialized(layer, *names):
    """Return the serialized sublayers of a layer, for its config.

    A sublayer that also occurs elsewhere in the model is loaded as one shared layer.

    Args:
        layer: The layer.
        names: Names of its attributes, each a layer, a list of layers, or `None`.
    """
    # Keras marks an object as shared when it serializes it for the second time. The config of the
    # first time was copied before the mark, so everything is serialized twice.
    for _ in range(2):
        configs = {
            name: keras.saving.serialize_keras_object(getattr(layer, name)) for name in names
        }
    return configs


def deserialized(config, *names):
    """Return `config` with the sublayers in place of their configs under `names`."""
    sublayers = {}
    for name in names:
        # A copy, because Keras's `StackedRNNCells` removes entries from its config.
        sublayers[name] = keras.saving.deserialize_keras_object(copy.deepcopy(config[name]))
    return {**config, **sublayers}


def record_settings(layers):
    """Return the settings that layers got after their construction, for the config of a model.

    They are `trainable`, quantization and LoRA.

    Args:
        layers: List of layers, outer ones before the layers inside of them.

    Returns:
        A list with a dict per layer, or an empty list if no setting was changed.
    """
    settings = [{"trainable": layer.trainable} for layer in layers]
    for layer, of_layer in zip(layers, settings, strict=True):
        names = []
        if getattr(layer.dtype_policy, "quantization_mode", None) is not None:
            names += _QUANTIZATION_ATTRIBUTES
        if getattr(layer, "lora_enabled", False):
            names += _LORA_ATTRIBUTES
        for name in names:
            of_layer[name] = keras.saving.serialize_keras_object(getattr(layer, name, None))
    return [] if all(of_layer == {"trainable": True} for of_layer in settings) else settings


def pop_settings(config):
    """Remove the recorded settings from `config` and return them, or an empty list."""
    old = config.pop("told", [])  # the key in `.keras` files of earlier versions
    return config.pop("layer_settings", old)


def apply_settings(layers, settings):
    """Apply recorded settings to layers that are not built yet."""
    for layer, of_layer in zip(layers, settings, strict=bool(settings)):
        if layer.trainable != of_layer["trainable"]:
            layer.trainable = of_layer["trainable"]  # also sets the layers inside of it
        for name in (*_QUANTIZATION_ATTRIBUTES, *_LORA_ATTRIBUTES):
            if name in of_layer:
                setattr(layer, name, keras.saving.deserialize_keras_object(of_layer[name]))
