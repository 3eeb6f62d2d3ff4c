"""What `Seq2Seq` asks of its parts and its inputs."""

import keras

from keras_bahdanau.layers.bridge import SOURCES
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.parts import all_layers, last_layer
from keras_bahdanau.layers.scheduled_sampling import ScheduledSampling


def check_parts(encoder, decoder, bridge, scheduled_sampling):
    """Raises a `ValueError` unless each of these is what `Seq2Seq` says of it."""
    layer = keras.layers.Layer
    if not isinstance(encoder, layer):
        raise ValueError(
            "Argument `encoder` must be a Keras layer, such as BidirectionalEncoder(64). "
            f"Received: {encoder!r}"
        )
    if not isinstance(decoder, AttentiveDecoder):
        raise ValueError(f"Argument `decoder` must be an AttentiveDecoder. Received: {decoder!r}")
    if not isinstance(bridge, layer) and bridge not in SOURCES:
        raise ValueError(
            f"Argument `bridge` must be one of {SOURCES} or a Keras layer. Received: {bridge!r}"
        )
    if not (scheduled_sampling is None or isinstance(scheduled_sampling, ScheduledSampling)):
        raise ValueError(
            "Argument `scheduled_sampling` must be a ScheduledSampling or None. "
            f"Received: {scheduled_sampling!r}"
        )


def check_inputs(inputs):
    """Raises a `ValueError` unless these hold the ids that `Seq2Seq` is called with."""
    if not isinstance(inputs, dict) or not {"source", "target"} <= set(inputs):
        raise ValueError(
            'Argument `inputs` must be a dict with the ids "source" and "target". '
            f"Received: {sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__}"
        )


def check_encoder(encoder, bridge):
    """Raises a `ValueError` where an encoder's own arguments say that it does not fit.

    Args:
        encoder: The layer that returns annotations.
        bridge: The name of a summary (see `Bridge`), or a layer, which is not looked at: that of
            a saved model is one.
    """
    if hasattr(encoder, "state_size") and not isinstance(encoder, keras.layers.RNN):
        raise ValueError(
            "Argument `encoder` must be a layer that reads sequences, not a cell; write "
            f"keras.layers.RNN(cell, return_sequences=True). Received: {encoder!r}"
        )
    last = last_layer(encoder)
    if _reads(last) and (last.return_state or not last.return_sequences):
        raise ValueError(
            "Argument `encoder` must return annotations (batch, time, width) and nothing else; "
            "write return_sequences=True and return_state=False. Received: return_sequences="
            f"{last.return_sequences} and return_state={last.return_state}"
        )
    if bridge == "backward_first":
        _check_two_ways(encoder)


def _check_two_ways(encoder):
    """Raises a `ValueError` if what reads last in an encoder reads in one direction."""
    reading = next(filter(_reads, reversed(all_layers(encoder))), None)
    two_ways = isinstance(reading, keras.layers.Bidirectional) and reading.merge_mode == "concat"
    if reading is not None and not two_ways:
        raise ValueError(
            'Argument `bridge` must not be "backward_first" with an encoder whose annotations are '
            'not [forward ; backward]; write bridge="last" for one that reads in one direction. '
            f"Received: {encoder!r}"
        )


def _reads(layer):
    return isinstance(layer, (keras.layers.Bidirectional, keras.layers.RNN))


def annotations_shape(encoder, spec):
    """The shape of annotations that an encoder returns, from its output's spec.

    Raises:
        ValueError: If it returns several tensors, or none of `(batch, time, width)`.
    """
    if isinstance(spec, (list, tuple)) or len(spec.shape) != 3:
        raise ValueError(
            "Argument `encoder` must return annotations, one tensor (batch, time, width). "
            f"Received: {encoder!r}, which returns {spec}"
        )
    return tuple(spec.shape)
