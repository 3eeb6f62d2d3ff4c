"""Models of OpenNMT-py 3."""

import numpy as np

from keras_bahdanau.toolkits.checkpoint import Checkpoint
from keras_bahdanau.toolkits.recurrent import (
    RecurrentModel,
    block_matrix,
    directions_of,
    kernel_and_bias,
    layer_weights,
    stacked_cell_weights,
    state_widths,
    transposed,
)
from keras_bahdanau.toolkits.vocabulary import Vocabulary, make_tokenizer
from keras_bahdanau.toolkits.weights import Fields, Weights, describe

_SPECIAL = "<blank>", "<unk>", "<s>", "</s>"  # in the order of our ids
_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
# Supported values of options. The first is the default of OpenNMT-py.
_OPTIONS = {
    "model_task": ("seq2seq",),
    "encoder_type": ("rnn", "brnn"),
    "decoder_type": ("rnn",),
    "rnn_type": ("LSTM", "GRU"),
    "global_attention": ("general", "dot", "mlp"),
    "global_attention_function": ("softmax", "sparsemax"),
    "generator_function": ("softmax",),
    "context_gate": (None,),
    "coverage_attn": (False,),
    "copy_attn": (False,),
    "position_encoding": (False,),
}


@np.errstate(over="ignore", invalid="ignore")  # `to_seq2seq` refuses infinity
def import_opennmt(path):
    """Return a recurrent model of OpenNMT-py 3 as a `Seq2Seq`.

    Texts must be split as for OpenNMT-py; see `Tokenizer.from_pieces`. OpenNMT-py has no end token
    in sources, so the model has `read_source_end=False`. The dropout rates of the model are 0.

    Checkpoints of OpenNMT-py 2 contain classes of torchtext. Convert them with the script
    convertv2_v3 of OpenNMT-py 3.

    Args:
        path: A checkpoint of OpenNMT-py, such as model_step_10000.pt.

    Returns:
        A built `Seq2Seq` with a tokenizer.

    Raises:
        ValueError: If the file is missing or unreadable, or the model has options without an
            equivalent here, all of which are named.

    Example:

    ```python
    model = import_opennmt("model_step_10000.pt")
    model.translate(["a man on a bi@@ ke"])[0].text
    ```
    """
    checkpoint = Checkpoint(path)
    fields = Fields(path, checkpoint.values)
    generator = {f"generator.{name}": w for name, w in fields.dict("generator").items()}
    weights = Weights(checkpoint, fields.dict("model") | generator)
    options, vocabularies = fields.section("opt"), fields.section("vocab")
    _check_options(weights, options, vocabularies)
    # Like pyonmttok, which drops repeated tokens.
    source, target = (
        Vocabulary(list(dict.fromkeys(vocabularies.list(side))), _SPECIAL)
        for side in ("src", "tgt")
    )

    cell = options.text("rnn_type", "LSTM").lower()
    # A linear layer; in early versions the first of two modules, of which the other has no weights.
    generator = "generator.0" if "generator.0.weight" in weights else "generator"
    output = target.take(weights, f"{generator}.weight", None)
    units = output.shape[1]
    source_embedding = source.take(weights, f"encoder.{_EMBEDDING}", None)
    target_embedding = target.take(weights, f"decoder.{_EMBEDDING}", None)
    directions = directions_of(weights, "encoder.rnn")
    encoder = layer_weights(weights, "encoder.rnn", cell, source_embedding.shape[1], directions)
    is_fed = options.flag("input_feed", 1)
    decoder = _decoder_weights(weights, cell, target_embedding.shape[1], units, is_fed)
    attention = options.text("global_attention", "general")
    bridge = _bridge(weights, cell, encoder, decoder)
    model = RecurrentModel(
        source_embedding=source_embedding,
        target_embedding=target_embedding,
        encoder_cell=cell,
        encoder=encoder,
        decoder_cell=cell,
        decoder=decoder,
        attention="bahdanau" if attention == "mlp" else attention,
        attention_weights=_attention_weights(weights, attention, units),
        readout=_readout_weights(weights, units),
        readout_activation="linear" if attention == "mlp" else "tanh",
        normalizer=options.text("global_attention_function", "softmax"),
        output=[transposed(output), target.take(weights, f"{generator}.bias")],
        input_feeding=is_fed,
        read_source_end=False,
        bridge="states",
        **bridge,
    )
    return model.to_seq2seq(weights, make_tokenizer(weights, source, target))


def _check_options(weights, options, vocabularies):
    for name, supported in _OPTIONS.items():
        weights.require_option(name, options.get(name, supported[0]), *supported)
    layers = [options.get(f"{side}_layers", 2) for side in ("enc", "dec")]
    if layers[0] != layers[1]:
        weights.refuse("enc_layers {} and dec_layers {}".format(*map(describe, layers)))
    if vocabularies.get("src_feats"):
        weights.refuse("src_feats, features of source tokens")
    start = vocabularies.get("decoder_start_token", "<s>")
    weights.require_option("decoder_start_token", start, "<s>")
    for side in ("src", "tgt"):
        if not isinstance(vocabularies.get(side), list):
            weights.refuse(f"no list of tokens in its vocabulary {side!r}")
    weights.check_options()


def _decoder_weights(weights, cell, width, units, is_fed):
    """Return `cell_weights` of each decoder layer: cells with input feeding, else one layer."""
    if is_fed:
        return stacked_cell_weights(weights, "decoder.rnn.layers", cell, width + units, units)
    return [layer for [layer] in layer_weights(weights, "decoder.rnn", cell, width, units=units)]


def _attention_weights(weights, attention, units):
    """Return the weights of the attention layer.

    OpenNMT-py multiplies the query by the matrix of "general", and we the keys.
    """
    if attention == "dot":
        return []
    if attention == "general":
        return [weights.take("decoder.attn.linear_in.weight", units, units)]
    query, bias = kernel_and_bias(weights, "decoder.attn.linear_query", units)
    key = transposed(weights.take("decoder.attn.linear_context.weight", len(bias), units))
    return [query, key, transposed(weights.take("decoder.attn.v.weight", 1, len(bias))), bias]


def _readout_weights(weights, units):
    """Return kernel and bias for state and context, which OpenNMT-py has in the other order."""
    kernel, bias = kernel_and_bias(weights, "decoder.attn.linear_out", 2 * units, units)
    return [np.concatenate([kernel[-units:], kernel[:-units]]), bias]


def _bridge(weights, cell, encoder, decoder):
    """Return the arguments of `RecurrentModel` for the bridge.

    Each decoder layer starts in the final state of the encoder layer of the same number, or, with a
    bridge, in relu(W e + b). It multiplies the states of all layers, h or c, as vectors of the size
    of one direction of all layers, of which there are two with two directions.
    """
    sizes = state_widths(encoder)
    if sizes != [len(recurrent) for _, recurrent, _ in decoder]:
        raise weights.error(f"encoder states of widths {sizes} and others of the decoder")
    if "encoder.bridge.0.weight" not in weights:
        return {}
    size = sum(len(cells[0][1]) for cells in encoder)
    copies = len(encoder[0])
    kinds = 2 if cell == "lstm" else 1
    blocks, biases = {}, {}
    for kind in range(kinds):
        kernel, bias = kernel_and_bias(weights, f"encoder.bridge.{kind}", size, size)
        diagonal = {(i, i): kernel for i in range(copies)}
        kernel = block_matrix(weights, diagonal, [size] * copies, [size] * copies)
        ends = np.cumsum(sizes)[:-1]
        rows = np.split(kernel, ends)
        for i, row in enumerate(rows):
            for j, block in enumerate(np.split(row, ends, axis=1)):
                blocks[kinds * i + kind, kinds * j + kind] = block
        for j, part in enumerate(np.split(np.tile(bias, copies), ends)):
            biases[kinds * j + kind] = part
    state_sizes = [size for size in sizes for _ in range(kinds)]
    return {
        "bridge_weights": [
            block_matrix(weights, blocks, state_sizes, state_sizes),
            np.concatenate([biases[index] for index in sorted(biases)]),
        ],
        "bridge_activation": "relu",
    }
