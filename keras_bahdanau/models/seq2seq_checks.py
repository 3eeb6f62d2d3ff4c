"""What `Seq2Seq` asks of its parts, its inputs and its training."""

import inspect

import keras

from keras_bahdanau.data.order import EpochDataset
from keras_bahdanau.layers.bridge import SOURCES
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.parts import all_layers, check_dense, last_layer
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
    check_dense("Seq2Seq", **inputs)


def check_one_width(batches):
    """Raises a `ValueError` if `predict` cannot join the outputs of these batches to one array."""
    if isinstance(batches, EpochDataset):
        widths = sorted({shape[-1] for shape in batches.shapes})
        if len(widths) > 1:
            raise ValueError(
                "Argument `x` of `predict` must have batches of one target width, because their "
                "outputs become one array; write [model.predict_on_batch(dataset[i][0]) for i in "
                "range(len(dataset))], or call `generate` for translations. "
                f"Received: {type(batches).__name__} with widths {widths}"
            )


def check_class_weight(method, args, kwargs):
    """Raises a `ValueError` if arguments of `fit` or `train_on_batch` hold a `class_weight`.

    Args:
        method: The method of `keras.Model`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    given = inspect.signature(method).bind_partial(*args, **kwargs).arguments
    if given.get("class_weight") is not None:
        raise ValueError(
            "Argument `class_weight` must be None for a Seq2Seq, because Keras makes one weight "
            "for each row of it, not for each token; write "
            "TokenCrossentropy(class_weight={3: 5.0}), or pass a `sample_weight` (B, Ty) such as "
            f"np.where(labels == 3, 5.0, 1.0). Received: {given['class_weight']!s:.80}"
        )


def check_reads_logits(argument, parts):
    """Raises a `ValueError` if a loss or metric takes the logits of a `Seq2Seq` for probabilities.

    Args:
        argument: "loss" or "metrics", for the message.
        parts: Losses or metrics in any form that `compile` takes, in a list.
    """
    for part in parts:
        if part is not None and not _reads_logits(part):
            raise ValueError(
                f"Argument `{argument}` of `compile` must read logits, which a Seq2Seq returns; "
                "write TokenCrossentropy(), which leaves out padding, or "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True). "
                f"Received: {part!r}, which reads probabilities"
            )


def _reads_logits(part):
    if isinstance(part, str):
        if part.lower() in ("crossentropy", "ce"):  # Keras chooses the function by shapes
            return False
        part = keras.losses.get(part)
    if isinstance(part, keras.metrics.Metric):
        return getattr(part, "from_logits", True)
    if isinstance(part, keras.losses.Loss):
        return part.get_config().get("from_logits", True)
    parameter = inspect.signature(part).parameters.get("from_logits")
    return parameter is None or parameter.default is not False


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
