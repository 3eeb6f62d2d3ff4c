"""What `Seq2Seq` asks of its parts and its inputs."""

import keras

from keras_bahdanau.layers.bridge import SOURCES
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.parts import last_layer
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
    recurrent = last_layer(encoder)
    two_ways = isinstance(recurrent, keras.layers.Bidirectional)
    if not (two_ways or isinstance(recurrent, keras.layers.RNN)):
        return
    if recurrent.return_state or not recurrent.return_sequences:
        raise ValueError(
            "Argument `encoder` must return annotations (batch, time, width) and nothing else; "
            "write return_sequences=True and return_state=False. Received: return_sequences="
            f"{recurrent.return_sequences} and return_state={recurrent.return_state}"
        )
    if bridge == "backward_first" and not (two_ways and recurrent.merge_mode == "concat"):
        raise ValueError(
            'Argument `bridge` must not be "backward_first" with an encoder whose annotations are '
            'not [forward ; backward]; write bridge="last" for one that reads in one direction. '
            f"Received: {encoder!r}"
        )


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
