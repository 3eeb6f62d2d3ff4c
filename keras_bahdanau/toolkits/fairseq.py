"""LSTM models of fairseq."""

from pathlib import Path

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
from keras_bahdanau.toolkits.text_steps import AUTO, ImportedModel, TextSteps, choose_files
from keras_bahdanau.toolkits.vocabulary import Vocabulary, make_tokenizer, read_vocabulary
from keras_bahdanau.toolkits.weights import Fields, Weights, describe
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import BOS, EOS

# The first ids of a fairseq dictionary, which its file does not contain.
_FIRST_PIECES = ["<s>", "<pad>", "</s>", "<unk>"]
_SPECIAL = "<pad>", "<unk>", "<s>", "</s>"  # in the order of our ids


def import_fairseq(path, dictionaries, source_tokenizer=AUTO, target_tokenizer=AUTO):
    """Return an LSTM model of fairseq as a `Seq2Seq`.

    With the files that split them, texts are raw; see `Tokenizer.from_toolkit`. Otherwise they must
    be split as for fairseq; see `Tokenizer.from_pieces`. fairseq starts outputs with the end token,
    whose embedding is here also that of the start token. The dropout rates of the model are 0.

    Args:
        path: A checkpoint of fairseq, such as checkpoint_best.pt.
        dictionaries: Two dictionary files, `dict.SOURCE.txt` and `dict.TARGET.txt`, or one of a
            joint dictionary.
        source_tokenizer: File that splits raw sources: a SentencePiece model or codes of
            subword-nmt. "auto" for the file that the option bpe names, if it is in the folder
            of the checkpoint or at that path. "none" for texts that are split already.
        target_tokenizer: The same for targets.

    Returns:
        A built `Seq2Seq` with a tokenizer.

    Raises:
        ValueError: If a file is missing or unreadable, or the model has options without an
            equivalent here, all of which are named.

    Example:

    ```python
    files = ["dict.en.txt", "dict.de.txt"], "bpe.codes", "bpe.codes"
    model = import_fairseq("checkpoint_best.pt", *files)
    model.translate(["a man on a bike"])[0].text
    ```
    """
    return read_fairseq(path, dictionaries, (source_tokenizer, target_tokenizer)).logged()


@np.errstate(over="ignore", invalid="ignore")  # `to_seq2seq` refuses infinity
def read_fairseq(path, dictionaries, tokenizers):
    """Return the `ImportedModel` of a checkpoint.

    Args:
        path: As of `import_fairseq`.
        dictionaries: As of `import_fairseq`.
        tokenizers: Its arguments `source_tokenizer` and `target_tokenizer`.
    """
    if not 1 <= len(dictionaries) <= 2:
        raise argument_error(
            "dictionaries", "be one or two files", received=f"{len(dictionaries)} files"
        )
    checkpoint = Checkpoint(path)
    fields = Fields(path, checkpoint.values)
    pieces = [_read_dictionary(dictionary) for dictionary in dictionaries]
    source, target = Vocabulary(pieces[0], _SPECIAL), Vocabulary(pieces[-1], _SPECIAL)
    state = {
        name: weight
        for name, weight in fields.dict("model").items()
        if not str(name).endswith(".version")
    }
    weights = Weights(checkpoint, state)
    _check_options(weights, fields)

    source_embedding = source.take(weights, "encoder.embed_tokens.weight", None)
    target_embedding = target.take(weights, "decoder.embed_tokens.weight", None)
    encoder = layer_weights(
        weights,
        "encoder.lstm",
        "lstm",
        source_embedding.shape[1],
        directions_of(weights, "encoder.lstm"),
    )
    annotations = state_widths(encoder)[-1]
    kernel, bias = kernel_and_bias(weights, "decoder.attention.output_proj")
    units = len(bias)
    if len(kernel) != annotations + units:
        raise weights.error(
            f"a weight decoder.attention.output_proj.weight of shape {kernel.T.shape} instead of "
            f"({units}, {annotations + units})"
        )
    decoder = stacked_cell_weights(
        weights, "decoder.layers", "lstm", target_embedding.shape[1] + units, units
    )
    output = _output_weights(weights, target, target_embedding, units)
    target_embedding[BOS] = target_embedding[EOS]
    model = RecurrentModel(
        source_embedding=source_embedding,
        target_embedding=target_embedding,
        encoder_cell="lstm",
        encoder=encoder,
        decoder_cell="lstm",
        decoder=decoder,
        attention="general",
        attention_weights=[weights.take("decoder.attention.input_proj.weight", annotations, units)],
        # fairseq concatenates context and state.
        readout=[np.concatenate([kernel[-units:], kernel[:-units]]), bias],
        output=output,
        bridge="states",
        bridge_weights=_bridge_weights(weights, encoder, decoder),
    )
    steps = _text_steps(fields)
    files, notes = choose_files("fairseq", Path(path).parent, [steps, steps], tokenizers)
    tokenizer = make_tokenizer(weights, source.pieces, target.pieces, files)
    return ImportedModel(model.to_seq2seq(weights, tokenizer), notes)


def _text_steps(fields):
    """Return the `TextSteps` of both languages."""
    config, options = fields.section("cfg"), fields.dict("args")
    tool, splitter = config.get("tokenizer"), config.get("bpe")
    tool = tool.get("_name") if isinstance(tool, dict) else options.get("tokenizer")
    options = splitter if isinstance(splitter, dict) else options
    kind = options.get("_name", options.get("bpe"))
    files = {"sentencepiece": "sentencepiece_model", "subword_nmt": "bpe_codes"}
    file = options.get(files.get(kind)) if isinstance(kind, str) else None
    others = [] if tool is None else [f"tokenizer {describe(tool)}"]
    if kind is not None and not isinstance(file, str):
        others.append(f"bpe {describe(kind)}")
    return TextSteps(file if isinstance(file, str) else None, tuple(others))


def _read_dictionary(path):
    """Return the pieces of a dictionary file in the order of fairseq's ids.

    A line has a piece, its count and perhaps the flag #fairseq:overwrite, which allows a piece that
    occurred before. Its earlier id then remains, but texts are encoded with the later one.
    """
    pieces = list(_FIRST_PIECES)
    previous = set(pieces)
    lines = read_vocabulary(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        piece, separator, count = line.rstrip().rpartition(" ")
        is_overwritten = count == "#fairseq:overwrite"
        if is_overwritten:
            piece, separator, count = piece.rpartition(" ")
        try:
            if not separator:
                raise ValueError
            int(count)
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: expected a piece and its count. Received: {line!r:.80}"
            ) from None
        if piece in previous and not is_overwritten:
            raise ValueError(
                f"{path}, line {number}: expected another piece than in the lines before, or the "
                f"flag #fairseq:overwrite at the end of the line. Received: {line!r:.80}"
            )
        previous.add(piece)
        pieces.append(piece)
    return pieces


def _check_options(weights, fields):
    options = fields.section("cfg").dict("model") or fields.dict("args")
    architecture = options.get("arch") or options.get("_name") or "lstm"
    is_lstm = isinstance(architecture, str) and architecture.startswith("lstm")
    if not is_lstm or architecture.startswith("lstm_lm"):
        weights.refuse(f"arch {describe(architecture)}")
    elif "decoder.attention.output_proj.weight" not in weights:
        weights.refuse(f"decoder_attention {describe(options.get('decoder_attention'))}")
    if "decoder.adaptive_softmax.head.weight" in weights:
        weights.refuse("adaptive_softmax_cutoff")
    weights.check_options()


def _output_weights(weights, target, embedding, units):
    """Return kernel and bias of the output layer.

    With a linear layer in between, both are multiplied into one. A tied embedding is copied,
    because the embeddings of the start token differ.
    """
    inner, width = None, units
    if "decoder.additional_fc.weight" in weights:
        inner = kernel_and_bias(weights, "decoder.additional_fc", units)
        width = len(inner[1])
    if "decoder.fc_out.weight" in weights:
        kernel = transposed(target.take(weights, "decoder.fc_out.weight", width))
        bias = target.take(weights, "decoder.fc_out.bias")
    elif embedding.shape[1] == width:
        kernel, bias = transposed(embedding), np.zeros(len(embedding), "float32")
    else:
        raise weights.error(f"outputs of width {width} for embeddings of {embedding.shape[1]}")
    if inner is not None:
        inner_kernel, inner_bias = inner
        weights.check_growth(units * len(bias), "its merged output layer")
        kernel, bias = inner_kernel @ kernel, inner_bias @ kernel + bias
    return [kernel, bias]


def _bridge_weights(weights, encoder, decoder):
    """Return the weights of a `StateBridge`; none if the decoder starts in the encoder's states.

    fairseq projects the final h of each layer by one matrix, and the final c by another.
    """
    sizes = state_widths(encoder)
    decoder_sizes = [len(recurrent) for _, recurrent, _ in decoder]
    if len(sizes) != len(decoder_sizes):
        raise weights.error(f"{len(sizes)} encoder layers and {len(decoder_sizes)} decoder layers")
    if "decoder.encoder_hidden_proj.weight" not in weights:
        if sizes != decoder_sizes:
            raise weights.error(f"states of widths {sizes} for a decoder of {decoder_sizes}")
        return []
    projections = [
        kernel_and_bias(weights, f"decoder.encoder_{kind}_proj", sizes[0], decoder_sizes[0])
        for kind in ("hidden", "cell")
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
    return [block_matrix(weights, blocks, rows, columns), np.concatenate(biases)]
