"""Fine-tuning: start a run with the weights of another, and freeze parts of the model."""

import logging

import keras

from keras_bahdanau.layers.dtype_policies import replace_policies
from keras_bahdanau.models.saved_models import load_saved_model
from keras_bahdanau.models.seq2seq import Seq2Seq
from keras_bahdanau.training.initial import InitialModel
from keras_bahdanau.training.options import PARTS
from keras_bahdanau_runtime.errors import argument_error

logger = logging.getLogger("keras_bahdanau")

_LAYERS_OF_PARTS = dict(
    zip(
        PARTS,
        (
            ("encoder",),
            ("bridge", "decoder", "output_layer", "copy"),
            ("source_embedding", "target_embedding"),
        ),
        strict=True,
    )
)


def initial_model(options, tokenizer):
    """Return the model of `options.init` in float32 with the dropout and frozen parts of a run.

    Args:
        options: `TrainingOptions` with `init`. Dropout rates that are `None` stay as they are.
        tokenizer: The `Tokenizer` of the texts.

    Returns:
        A `Seq2Seq` with the tokenizer, built and not compiled.

    Raises:
        ValueError: If `init` is not a `Seq2Seq`, options contradict its architecture, it is
            quantized, has NaN or infinity in a weight, or has fewer ids than the tokenizer.
    """
    source = InitialModel.read(options.init)
    source.check_architecture(options)
    loaded = load_saved_model(source.path, "init")
    if not isinstance(loaded, Seq2Seq):
        raise argument_error(
            "init",
            "be a Seq2Seq, such as the model of a run of `train`",
            received=f"{str(source.path)!r}, which contains a {type(loaded).__name__}",
        )
    if any(not keras.backend.is_float_dtype(weight.dtype) for weight in loaded.weights):
        raise argument_error(
            "init",
            "be a model with weights in floating point",
            received=f"{str(source.path)!r}, which is quantized",
        )
    replace_policies(loaded, "float32")
    config = loaded.get_config()
    config["dropout"] = options.dropouts_after(config["dropout"])
    if options.encoder_dropout is not None:
        config["encoder_dropout"] = options.encoder_dropout
    model = type(loaded).from_config(config)
    model.build()
    model.set_weights(loaded.get_weights())
    model.tokenizer = tokenizer
    freeze_parts(model, options.freeze)
    logger.info(
        "Starting with the weights of %s; %s.",
        source.path,
        f"frozen: {', '.join(options.freeze)}" if options.freeze else "nothing is frozen",
    )
    return model


def freeze_parts(model, parts):
    """Freeze parts of a `Seq2Seq`, and unfreeze the others.

    Args:
        model: A `Seq2Seq`.
        parts: Names of parts: "encoder"; "decoder", with its first state and an output layer of its
            own; "embeddings", both of them, with an output layer that is tied to them.

    Example:

    >>> model = RNNSearch(20, 20, units=4, embedding_dim=3, attention_units=5, maxout_units=3)
    >>> freeze_parts(model, ["encoder", "embeddings"])
    >>> model.encoder.trainable, model.decoder.trainable
    (False, True)
    """
    for part, names in _LAYERS_OF_PARTS.items():
        for layer in filter(None, (getattr(model, name) for name in names)):
            is_trained = part not in parts
            if layer.trainable != is_trained:
                layer.trainable = is_trained  # also sets the layers inside of it
