"""What `Seq2Seq` asks of its encoder."""

import keras

from keras_bahdanau.layers.parts import last_layer


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
