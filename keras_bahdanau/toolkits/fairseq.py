"""LSTM models of fairseq."""

from pathlib import Path

import numpy as np

from keras_bahdanau.toolkits.checkpoint import Weights, load_checkpoint, option
from keras_bahdanau.toolkits.recurrent import (
    RecurrentModel,
    block_matrix,
    cell_weights,
    directions_of,
    kernel_and_bias,
    layer_weights,
    transposed,
)
from keras_bahdanau.toolkits.vocabulary import Vocabulary, make_tokenizer
from keras_bahdanau_runtime.ids import BOS, EOS
from keras_bahdanau_runtime.text.corpus import iterate_lines

# The first ids of a fairseq dictionary, which its file does not contain.
_FIRST_PIECES = ["<s>", "<pad>", "</s>", "<unk>"]
_SPECIAL = "<pad>", "<unk>", "<s>", "</s>"  # in the order of our ids


def import_fairseq(path, dictionaries):
    """Return an LSTM model of fairseq as a `Seq2Seq`.

    Texts must be split as for fairseq; see `Tokenizer.from_pieces`. fairseq starts outputs with the
    end token, whose embedding is here also that of the start token. The dropout rates of the model
    are 0.

    Args:
        path: A checkpoint of fairseq, such as checkpoint_best.pt.
        dictionaries: Two dictionary files, `dict.SOURCE.txt` and `dict.TARGET.txt`, or one of a
            joint dictionary.

    Returns:
        A built `Seq2Seq` with a tokenizer.

    Raises:
        ValueError: If a file is missing or unreadable, or the model has options without an
            equivalent here, all of which are named.
        MissingDependencyError: If torch is not installed.

    Example:

    ```python
    model = import_fairseq("checkpoint_best.pt", ["dict.en.txt", "dict.de.txt"])
    model.translate(["a man on a bi@@ ke"])[0].text
    ```
    """
    if not 1 <= len(dictionaries) <= 2:
        raise ValueError(
            f"Argument `dictionaries` must be one or two files. Received: {len(dictionaries)} files"
        )
    checkpoint = load_checkpoint(path)
    pieces = [_read_dictionary(dictionary) for dictionary in dictionaries]
    source, target = Vocabulary(pieces[0], _SPECIAL), Vocabulary(pieces[-1], _SPECIAL)
    state = checkpoint.get("model") or {}
    weights = Weights(path, {n: w for n, w in state.items() if not n.endswith(".version")})
    _check_options(weights, checkpoint)

    encoder = layer_weights(weights, "encoder.lstm", "lstm", directions_of(weights, "encoder.lstm"))
    decoder = []
    while not decoder or f"decoder.layers.{len(decoder)}.weight_ih" in weights:
        decoder.append(cell_weights(weights, f"decoder.layers.{len(decoder)}", "", "lstm"))
    units = len(decoder[0][1])
    target_embedding = target.reorder(weights, "decoder.embed_tokens.weight")
    output = _output_weights(weights, target, target_embedding)
    target_embedding[BOS] = target_embedding[EOS]
    kernel, bias = kernel_and_bias(weights, "decoder.attention.output_proj")
    model = RecurrentModel(
        source_embedding=source.reorder(weights, "encoder.embed_tokens.weight"),
        target_embedding=target_embedding,
        encoder_cell="lstm",
        encoder=encoder,
        decoder_cell="lstm",
        decoder=decoder,
        attention="general",
        attention_weights=[weights.take("decoder.attention.input_proj.weight")],
        # fairseq concatenates context and state.
        readout=[np.concatenate([kernel[-units:], kernel[:-units]]), bias],
        output=output,
        bridge="states",
        bridge_weights=_bridge_weights(weights, encoder, decoder),
    )
    return model.to_seq2seq(weights, make_tokenizer(weights, source, target))


def _read_dictionary(path):
    """Return the pieces of a dictionary file in the order of fairseq's ids."""
    pieces = list(_FIRST_PIECES)
    for number, line in enumerate(iterate_lines(Path(path)), start=1):
        piece, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not piece or not count.isdecimal():
            raise ValueError(
                f"{path}, line {number}: expected a piece and its count. Received: {line!r:.80}"
            )
        pieces.append(piece)
    return pieces


def _check_options(weights, checkpoint):
    options = option(checkpoint.get("cfg") or {}, "model") or checkpoint.get("args") or {}
    architecture = option(options, "arch") or option(options, "_name") or "lstm"
    if not str(architecture).startswith("lstm") or str(architecture).startswith("lstm_lm"):
        weights.refuse(f"arch {architecture!r}")
    elif "decoder.attention.output_proj.weight" not in weights:
        weights.refuse(f"decoder_attention {option(options, 'decoder_attention')!r}")
    if "decoder.adaptive_softmax.head.weight" in weights:
        weights.refuse("adaptive_softmax_cutoff")
    weights.check_options()


def _output_weights(weights, target, embedding):
    """Return kernel and bias of the output layer.

    With a linear layer in between, both are multiplied into one. A tied embedding is copied,
    because the embeddings of the start token differ.
    """
    kernel, bias = transposed(embedding), np.zeros(len(embedding), "float32")
    if "decoder.fc_out.weight" in weights:
        kernel = transposed(target.reorder(weights, "decoder.fc_out.weight"))
        bias = target.reorder(weights, "decoder.fc_out.bias")
    if "decoder.additional_fc.weight" in weights:
        inner_kernel, inner_bias = kernel_and_bias(weights, "decoder.additional_fc")
        kernel, bias = inner_kernel @ kernel, inner_bias @ kernel + bias
    return [kernel, bias]


def _bridge_weights(weights, encoder, decoder):
    """Return the weights of a `StateBridge`; none if the decoder starts in the encoder's states.

    fairseq projects the final h of each layer by one matrix, and the final c by another.
    """
    sizes = [sum(len(recurrent) for _, recurrent, _ in layer) for layer in encoder]
    decoder_sizes = [len(recurrent) for _, recurrent, _ in decoder]
    if len(sizes) != len(decoder_sizes):
        raise weights.error(f"{len(sizes)} encoder layers and {len(decoder_sizes)} decoder layers")
    if "decoder.encoder_hidden_proj.weight" not in weights:
        if sizes != decoder_sizes:
            raise weights.error(f"states of widths {sizes} for a decoder of {decoder_sizes}")
        return []
    projections = [
        kernel_and_bias(weights, f"decoder.encoder_{kind}_proj") for kind in ("hidden", "cell")
    ]
    blocks = {
        (2 * layer + kind, 2 * layer + kind): kernel
        for layer in range(len(sizes))
        for kind, (kernel, _) in enumerate(projections)
    }
    rows, columns = (
        [size for size in widths for _ in range(2)] for widths in (sizes, decoder_sizes)
    )
    biases = [bias for _ in sizes for _, bias in projections]
    return [block_matrix(blocks, rows, columns), np.concatenate(biases)]
