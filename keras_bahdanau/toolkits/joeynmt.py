"""Models of JoeyNMT 2."""

import math
from pathlib import Path

import numpy as np

from keras_bahdanau.toolkits.checkpoint import Weights, load_checkpoint
from keras_bahdanau.toolkits.recurrent import (
    RecurrentModel,
    kernel_and_bias,
    layer_weights,
    transposed,
)
from keras_bahdanau.toolkits.vocabulary import Vocabulary, make_tokenizer
from keras_bahdanau_runtime.runs.options import read_options
from keras_bahdanau_runtime.text.corpus import read_lines

_CHECKPOINTS = "best.ckpt", "latest.ckpt"
# The names and values of the special pieces in a configuration, in the order of our ids.
_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def import_joeynmt(path):
    """Return a recurrent model of JoeyNMT as a `Seq2Seq`.

    Texts must be split as JoeyNMT's tokenizer splits them; see `Tokenizer.from_pieces`. The dropout
    rates of the model are 0.

    Args:
        path: Folder of a JoeyNMT run: `config.yaml`, `best.ckpt` or else `latest.ckpt`,
            `src_vocab.txt` and `trg_vocab.txt`.

    Returns:
        A built `Seq2Seq` with a tokenizer.

    Raises:
        ValueError: If a file is missing or unreadable, or the model has options without an
            equivalent here, all of which are named.
        MissingDependencyError: If torch or PyYAML is not installed.

    Example:

    ```python
    model = import_joeynmt("joeynmt/models/en-de")
    model.translate(["a man on a bi@@ ke"])[0].text
    ```
    """
    path = Path(path)
    config = read_options(_existing(path, "config.yaml"))
    checkpoint = _existing(path, *_CHECKPOINTS)
    special = (config.get("data") or {}).get("special_symbols") or {}
    special = [special.get(name, piece) for name, piece in _SPECIAL.items()]
    source, target = (
        Vocabulary(read_lines(_existing(path, name)), special)
        for name in ("src_vocab.txt", "trg_vocab.txt")
    )
    weights = Weights(checkpoint, load_checkpoint(checkpoint).get("model_state") or {})
    options = config.get("model") or {}
    encoder, decoder = (_with_defaults(options.get(name)) for name in ("encoder", "decoder"))
    _check_options(weights, encoder, decoder)

    target_embedding = _embedding(weights, target, "trg_embed", decoder)
    output = target.reorder(weights, "decoder.output_layer.weight")
    is_tied = options.get("tied_softmax", False) and np.array_equal(output, target_embedding)
    encoder_layers = layer_weights(
        weights, "encoder.rnn", encoder["rnn_type"], directions=("", "_reverse")
    )
    decoder_layers = layer_weights(weights, "decoder.rnn", decoder["rnn_type"])
    is_additive = decoder["attention"] == "bahdanau"
    names = ["query_layer", "key_layer", "energy_layer"] if is_additive else ["key_layer"]
    model = RecurrentModel(
        source_embedding=_embedding(weights, source, "src_embed", encoder),
        target_embedding=target_embedding,
        encoder_cell=encoder["rnn_type"],
        encoder=encoder_layers,
        decoder_cell=decoder["rnn_type"],
        decoder=[layer for [layer] in decoder_layers],
        attention="bahdanau" if is_additive else "general",
        attention_weights=[
            transposed(weights.take(f"decoder.attention.{name}.weight")) for name in names
        ],
        readout=kernel_and_bias(weights, "decoder.att_vector_layer"),
        output=None if is_tied else [transposed(output), np.zeros(len(output), "float32")],
        input_feeding=decoder["input_feeding"],
        **_bridge(weights, decoder, decoder_layers, encoder_layers),
    )
    return model.to_seq2seq(weights, make_tokenizer(weights, source, target))


def _existing(folder, *names):
    """Return the path of the first file that exists."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(
        "Argument `path` must be the folder of a JoeyNMT run. "
        f"Received: {str(folder)!r}, which has no {' or '.join(names)}"
    )


def _with_defaults(options):
    """Return the options of an encoder or decoder with JoeyNMT's defaults."""
    defaults = {
        "type": "recurrent",
        "rnn_type": "gru",
        "bidirectional": True,
        "attention": "bahdanau",
        "input_feeding": True,
        "init_hidden": "bridge",
        "embeddings": {},
    }
    return defaults | (options or {})


def _check_options(weights, encoder, decoder):
    for side, options in (("encoder", encoder), ("decoder", decoder)):
        weights.require_option(f"{side} type", options["type"], "recurrent")
        if options["type"] == "recurrent":
            weights.require_option(f"{side} rnn_type", options["rnn_type"], "gru", "lstm")
    if encoder["type"] == "recurrent":
        weights.require_option("encoder bidirectional", encoder["bidirectional"], True)
    if decoder["type"] == "recurrent":
        weights.require_option("decoder attention", decoder["attention"], "bahdanau", "luong")
        weights.require_option(
            "decoder init_hidden", decoder["init_hidden"], "bridge", "last", "zero"
        )
    weights.check_options()


def _embedding(weights, vocabulary, name, options):
    """Return an embedding with its factor, if it has one."""
    rows = vocabulary.reorder(weights, f"{name}.lut.weight")
    if options["embeddings"].get("scale", False):
        rows = rows * np.float32(math.sqrt(rows.shape[1]))
    return rows


def _bridge(weights, decoder, decoder_layers, encoder_layers):
    """Return the arguments of `RecurrentModel` for the bridge.

    JoeyNMT reads the final states of the last encoder layer. All decoder layers start in the same
    state, and the cell state of an LSTM is its h.
    """
    if decoder["init_hidden"] == "zero":
        return {"bridge": "zero"}
    units = len(decoder_layers[0][0][1])
    count = len(decoder_layers) * (2 if decoder["rnn_type"] == "lstm" else 1)
    if decoder["init_hidden"] == "bridge":
        kernel, bias = kernel_and_bias(weights, "decoder.bridge_layer")
        activation = "tanh"
    else:
        # The final states, or only the forward one if both are twice as wide as the decoder.
        width = sum(len(recurrent) for _, recurrent, _ in encoder_layers[-1])
        if width not in (units, 2 * units):
            raise weights.error(f"decoder init_hidden 'last' for widths {width} and {units}")
        kernel, bias = np.eye(width, units, dtype="float32"), np.zeros(units, "float32")
        activation = "linear"
    return {
        "bridge": "ends",
        "bridge_weights": [np.tile(kernel, count), np.tile(bias, count)],
        "bridge_activation": activation,
    }
