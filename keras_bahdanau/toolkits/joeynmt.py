"""Models of JoeyNMT 2."""

import math
from pathlib import Path

import numpy as np

from keras_bahdanau.toolkits.checkpoint import Checkpoint
from keras_bahdanau.toolkits.recurrent import (
    RecurrentModel,
    kernel_and_bias,
    layer_weights,
    state_widths,
    transposed,
)
from keras_bahdanau.toolkits.text_steps import AUTO, ImportedModel, TextSteps, choose_files
from keras_bahdanau.toolkits.vocabulary import Vocabulary, make_tokenizer, read_vocabulary
from keras_bahdanau.toolkits.weights import Fields, Weights, describe
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_files import read_options
from keras_bahdanau_runtime.text.split_text import CONTINUES

_CHECKPOINTS = "best.ckpt", "latest.ckpt"
# The names and values of the special pieces in a configuration, in the order of our ids.
_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def import_joeynmt(path, source_tokenizer=AUTO, target_tokenizer=AUTO):
    """Return a recurrent model of JoeyNMT as a `Seq2Seq`.

    With the files that split them, which JoeyNMT copies to the run, texts are raw; see
    `Tokenizer.from_toolkit`. Otherwise they must be split as by JoeyNMT; see
    `Tokenizer.from_pieces`. The dropout rates of the model are 0.

    Args:
        path: Folder of a JoeyNMT run: `config.yaml`, `best.ckpt` or else `latest.ckpt`,
            `src_vocab.txt` and `trg_vocab.txt`.
        source_tokenizer: File that splits raw sources: a SentencePiece model or codes of
            subword-nmt. "auto" for the file that its tokenizer_cfg names, if it is in the folder
            of the checkpoint or at that path. "none" for texts that are split already.
        target_tokenizer: The same for targets.

    Returns:
        A built `Seq2Seq` with a tokenizer.

    Raises:
        ValueError: If a file is missing or unreadable, or the model has options without an
            equivalent here, all of which are named.
        MissingDependencyError: If PyYAML is not installed.

    Example:

    ```python
    model = import_joeynmt("joeynmt/models/en-de")
    model.translate(["a man on a bike"])[0].text
    ```
    """
    return read_joeynmt(path, (source_tokenizer, target_tokenizer)).logged()


@np.errstate(over="ignore", invalid="ignore")  # `to_seq2seq` refuses infinity
def read_joeynmt(path, tokenizers):
    """Return the `ImportedModel` of a run.

    Args:
        path: As of `import_joeynmt`.
        tokenizers: Its arguments `source_tokenizer` and `target_tokenizer`.
    """
    path = Path(path)
    config_file = _existing(path, "config.yaml")
    config = Fields(config_file, read_options(config_file, argument="path"))
    checkpoint = Checkpoint(_existing(path, *_CHECKPOINTS))
    data = config.section("data")
    special = data.section("special_symbols")
    source, target = (
        _read_vocabulary(_existing(path, name), special)
        for name in ("src_vocab.txt", "trg_vocab.txt")
    )
    state = Fields(checkpoint.path, checkpoint.values).dict("model_state")
    weights = Weights(checkpoint, state)
    model_options = config.section("model")
    encoder, decoder = (_Side(model_options.section(name)) for name in ("encoder", "decoder"))
    _check_options(weights, encoder, decoder)

    source_embedding = _embedding(weights, source, "src_embed", encoder)
    target_embedding = _embedding(weights, target, "trg_embed", decoder)
    output = target.take(weights, "decoder.output_layer.weight", None)
    is_tied = model_options.flag("tied_softmax", False) and np.array_equal(output, target_embedding)
    encoder_layers = layer_weights(
        weights,
        "encoder.rnn",
        encoder.rnn_type,
        source_embedding.shape[1],
        directions=("", "_reverse"),
    )
    annotations, outputs = state_widths(encoder_layers)[-1], output.shape[1]
    decoder_layers = layer_weights(
        weights,
        "decoder.rnn",
        decoder.rnn_type,
        target_embedding.shape[1] + (outputs if decoder.input_feeding else 0),
    )
    units = state_widths(decoder_layers)[-1]
    model = RecurrentModel(
        source_embedding=source_embedding,
        target_embedding=target_embedding,
        encoder_cell=encoder.rnn_type,
        encoder=encoder_layers,
        decoder_cell=decoder.rnn_type,
        decoder=[layer for [layer] in decoder_layers],
        attention="bahdanau" if decoder.attention == "bahdanau" else "general",
        attention_weights=_attention_weights(weights, decoder, units, annotations),
        readout=kernel_and_bias(weights, "decoder.att_vector_layer", units + annotations, outputs),
        output=None if is_tied else [transposed(output), np.zeros(len(output), "float32")],
        input_feeding=decoder.input_feeding,
        **_bridge(weights, decoder, decoder_layers, encoder_layers),
    )
    steps = [_text_steps(data.section(side)) for side in ("src", "trg")]
    files, notes = choose_files("JoeyNMT", path, steps, tokenizers)
    tokenizer = make_tokenizer(weights, source.pieces, target.pieces, files, splits_missing=True)
    return ImportedModel(model.to_seq2seq(weights, tokenizer), notes)


def _text_steps(side):
    """Return the `TextSteps` of the options of one language."""
    options = side.section("tokenizer_cfg")
    others = [name for name in ("lowercase", "normalize") if side.get(name, False)]
    if options.get("pretokenizer", "none") != "none":
        others.append(f"pretokenizer {describe(options.get('pretokenizer'))}")
    file = None
    if side.get("level") == "bpe":
        kind = side.get("tokenizer_type", side.get("bpe_type", "sentencepiece"))
        file = options.get("codes" if kind == "subword-nmt" else "model_file")
    if options.get("separator", CONTINUES) != CONTINUES:
        file = None
        others.append(f"separator {describe(options.get('separator'))}")
    return TextSteps(file if isinstance(file, str) else None, tuple(others))


def _existing(folder, *names):
    """Return the path of the first file that exists."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise argument_error(
        "path",
        "be the folder of a JoeyNMT run",
        received=f"{str(folder)!r}, which has no {' or '.join(names)}",
    )


def _read_vocabulary(path, special):
    """Return the `Vocabulary` of a file, with JoeyNMT's order: special pieces, then new lines."""
    names = {name: special.text(name, piece) for name, piece in _SPECIAL.items()}
    first = [names[name] for name in ("unk_token", "pad_token", "bos_token", "eos_token")]
    if special.get("sep_token"):
        first.append(special.text("sep_token", ""))
    lines = read_vocabulary(path).splitlines()
    pieces = dict.fromkeys([*first, *special.list("lang_tags"), *lines])
    return Vocabulary(list(pieces), list(names.values()))


class _Side:
    """The options of an encoder or decoder, with JoeyNMT's defaults.

    Args:
        fields: Their `Fields`.
    """

    def __init__(self, fields):
        self.type = fields.get("type", "recurrent")
        self.rnn_type = fields.get("rnn_type", "gru")
        self.bidirectional = fields.flag("bidirectional", True)
        self.attention = fields.get("attention", "bahdanau")
        self.input_feeding = fields.flag("input_feeding", True)
        self.init_hidden = fields.get("init_hidden", "bridge")
        self.scale = fields.section("embeddings").flag("scale", False)


def _check_options(weights, encoder, decoder):
    for name, side in (("encoder", encoder), ("decoder", decoder)):
        weights.require_option(f"{name} type", side.type, "recurrent")
        if side.type == "recurrent":
            weights.require_option(f"{name} rnn_type", side.rnn_type, "gru", "lstm")
    if encoder.type == "recurrent":
        weights.require_option("encoder bidirectional", encoder.bidirectional, True)
    if decoder.type == "recurrent":
        weights.require_option("decoder attention", decoder.attention, "bahdanau", "luong")
        weights.require_option("decoder init_hidden", decoder.init_hidden, "bridge", "last", "zero")
    weights.check_options()


def _embedding(weights, vocabulary, name, side):
    """Return an embedding with its factor, if it has one."""
    rows = vocabulary.take(weights, f"{name}.lut.weight", None)
    return rows * np.float32(math.sqrt(rows.shape[1])) if side.scale else rows


def _attention_weights(weights, decoder, units, annotations):
    """Return the weights of the attention layer."""
    name = "decoder.attention.{}_layer.weight"
    if decoder.attention == "luong":
        return [transposed(weights.take(name.format("key"), units, annotations))]
    query = transposed(weights.take(name.format("query"), None, units))
    width = query.shape[1]
    key = transposed(weights.take(name.format("key"), width, annotations))
    return [query, key, transposed(weights.take(name.format("energy"), 1, width))]


def _bridge(weights, decoder, decoder_layers, encoder_layers):
    """Return the arguments of `RecurrentModel` for the bridge.

    JoeyNMT reads the final states of the last encoder layer. All decoder layers start in the same
    state, and the cell state of an LSTM is its h.
    """
    if decoder.init_hidden == "zero":
        return {"bridge": "zero"}
    width, units = state_widths(encoder_layers)[-1], state_widths(decoder_layers)[-1]
    count = len(decoder_layers) * (2 if decoder.rnn_type == "lstm" else 1)
    if decoder.init_hidden == "bridge":
        kernel, bias = kernel_and_bias(weights, "decoder.bridge_layer", width, units)
        activation = "tanh"
    else:
        # The final states, or only the forward one if both are twice as wide as the decoder.
        if width not in (units, 2 * units):
            raise weights.error(f"decoder init_hidden 'last' for widths {width} and {units}")
        kernel, bias = np.eye(width, units, dtype="float32"), np.zeros(units, "float32")
        activation = "linear"
    return {
        "bridge": "ends",
        "bridge_weights": [np.tile(kernel, count), np.tile(bias, count)],
        "bridge_activation": activation,
    }
