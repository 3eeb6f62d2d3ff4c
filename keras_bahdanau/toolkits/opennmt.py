"""Models of OpenNMT-py 3."""

from pathlib import Path

import numpy as np

from keras_bahdanau.layers.copying import WORD_LOGIT
from keras_bahdanau.toolkits.checkpoint import Checkpoint
from keras_bahdanau.toolkits.recurrent import (
    CopyWeights,
    RecurrentModel,
    block_matrix,
    directions_of,
    kernel_and_bias,
    layer_weights,
    stacked_cell_weights,
    state_widths,
    transposed,
)
from keras_bahdanau.toolkits.text_steps import (
    AUTO,
    SPLIT,
    ImportedModel,
    TextSteps,
    choose_files,
)
from keras_bahdanau.toolkits.vocabulary import Vocabulary, make_tokenizer
from keras_bahdanau.toolkits.weights import Fields, Weights, describe
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD, UNK

_SPECIAL = "<blank>", "<unk>", "<s>", "</s>"  # in the order of our ids
_EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
# Number of different words of a source that can be copied although they are not in the target
# vocabulary. OpenNMT-py has no limit. This one allows an unknown word in eight in a source of 1,000
# words, and adds about 1 % to a vocabulary of 10,000 words.
_COPIED_WORDS = 128
_KINDS = {"general": "general", "dot": "dot", "mlp": "bahdanau"}  # of attention
# Supported values of options. The first is the default of OpenNMT-py.
_OPTIONS = {
    "model_task": ("seq2seq",),
    "encoder_type": ("rnn", "brnn"),
    "decoder_type": ("rnn",),
    "rnn_type": ("LSTM", "GRU"),
    "global_attention": tuple(_KINDS),
    "global_attention_function": ("softmax", "sparsemax"),
    "context_gate": (None,),
    "coverage_attn": (False,),
    "copy_attn": (False, True),
    "position_encoding": (False,),
}
# Transforms that split texts, and those that change only training texts.
_SPLITTING = {"sentencepiece", "bpe"}
_OF_TRAINING = {"filtertoolong", "tokendrop", "tokenmask", "switchout", "bart"}
_MAX_TRANSFORMS = 20  # OpenNMT-py has fewer


def import_opennmt(path, source_tokenizer=AUTO, target_tokenizer=AUTO):
    """Return a recurrent model of OpenNMT-py 3 as a `Seq2Seq`.

    With the files that split them, texts are raw; see `Tokenizer.from_toolkit`. Otherwise they must
    be split as for OpenNMT-py; see `Tokenizer.from_pieces`. OpenNMT-py has no end token in sources,
    so the model has `read_source_end=False`. The dropout rates of the model are 0.

    A model with copy_attn has a `PointerGenerator`. It can copy up to 128 different words of a
    source that are not in the target vocabulary. Its texts must be split.

    Checkpoints of OpenNMT-py 2 contain classes of torchtext. Convert them with the script
    convertv2_v3 of OpenNMT-py 3.

    Args:
        path: A checkpoint of OpenNMT-py, such as model_step_10000.pt.
        source_tokenizer: File that splits raw sources: a SentencePiece model or codes of
            subword-nmt. "auto" for the file that src_subword_model names, if it is in the folder
            of the checkpoint or at that path. "none" for texts that are split already.
        target_tokenizer: The same for targets.

    Returns:
        A built `Seq2Seq` with a tokenizer.

    Raises:
        ValueError: If a file is missing or unreadable, or the model has options without an
            equivalent here, all of which are named.

    Example:

    ```python
    model = import_opennmt("model_step_10000.pt", "bpe.codes", "bpe.codes")
    model.translate(["a man on a bike"])[0].text
    ```
    """
    return read_opennmt(path, (source_tokenizer, target_tokenizer)).logged()


@np.errstate(over="ignore", invalid="ignore")  # `to_seq2seq` refuses infinity
def read_opennmt(path, tokenizers):
    """Return the `ImportedModel` of a checkpoint.

    Args:
        path: As of `import_opennmt`.
        tokenizers: Its arguments `source_tokenizer` and `target_tokenizer`.
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
    is_copying = options.flag("copy_attn", False)
    kernel, bias = _output_weights(weights, target, is_copying)
    units = len(kernel)
    source_embedding = source.take(weights, f"encoder.{_EMBEDDING}", None)
    source_pieces = source.pieces
    if is_copying:
        source_pieces, source_embedding = _add_target_words(
            weights, source.pieces, target.pieces, source_embedding
        )
    target_embedding = target.take(weights, f"decoder.{_EMBEDDING}", None)
    directions = directions_of(weights, "encoder.rnn")
    encoder = layer_weights(weights, "encoder.rnn", cell, source_embedding.shape[1], directions)
    is_fed = options.flag("input_feed", 1)
    decoder = _decoder_weights(weights, cell, target_embedding.shape[1], units, is_fed)
    attention = options.text("global_attention", "general")
    bridge = _bridge(weights, cell, encoder, decoder)
    files, notes = _text_files(path, options, tokenizers, is_copying)
    tokenizer = make_tokenizer(
        weights,
        source_pieces,
        target.pieces,
        files,
        copied_words=_COPIED_WORDS if is_copying else 0,
    )
    model = RecurrentModel(
        source_embedding=source_embedding,
        target_embedding=target_embedding,
        encoder_cell=cell,
        encoder=encoder,
        decoder_cell=cell,
        decoder=decoder,
        attention=_KINDS[attention],
        attention_weights=_attention_weights(weights, "decoder.attn", attention, units),
        readout=_readout_weights(weights, units),
        readout_activation="linear" if attention == "mlp" else "tanh",
        normalizer=options.text("global_attention_function", "softmax"),
        output=[kernel, bias],
        input_feeding=is_fed,
        read_source_end=False,
        bridge="states",
        copy=_copy_weights(weights, options, attention, units) if is_copying else None,
        **bridge,
    )
    return ImportedModel(model.to_seq2seq(weights, tokenizer), notes)


def _text_files(path, options, tokenizers, is_copying):
    """Return the files that split texts, and notes about the transforms."""
    transforms = _transforms(options)
    others = [name for name in transforms if name not in _SPLITTING | _OF_TRAINING]
    steps = []
    for side in ("src", "tgt"):
        file = None
        if not _SPLITTING.isdisjoint(transforms):
            file = options.get(f"{side}_subword_model")
            if side == "tgt" and options.get("share_vocab", False):
                file = options.get("src_subword_model")
        restricting = f"{side}_subword_vocab"
        is_restricted = options.get(restricting) and options.get(f"{side}_vocab_threshold")
        steps.append(
            TextSteps(
                file if isinstance(file, str) else None,
                (*others, restricting) if is_restricted else tuple(others),
            )
        )
    if is_copying:
        files = [each for each in tokenizers if each not in (AUTO, SPLIT)]
        if files:
            raise argument_error(
                ("source_tokenizer", "target_tokenizer"),
                "be none for a model with copy_attn, which copies words of split texts",
                received=str(files[0]),
            )
        tokenizers = SPLIT, SPLIT
    files, notes = choose_files("OpenNMT-py", Path(path).parent, steps, tokenizers)
    if transforms:
        notes.insert(0, f"The transforms of OpenNMT-py are {', '.join(transforms)}.")
    return files, notes


def _transforms(options):
    """Return the names of the transforms of all corpora."""
    corpora = options.get("data")
    corpora = corpora.values() if isinstance(corpora, dict) else ()
    lists = [options.get("transforms")]
    lists += [corpus.get("transforms") for corpus in corpora if isinstance(corpus, dict)]
    names = [name for each in lists if isinstance(each, list) for name in each]
    names = dict.fromkeys(name[:80] for name in names if isinstance(name, str))
    return list(names)[:_MAX_TRANSFORMS]


def _check_options(weights, options, vocabularies):
    for name, supported in _OPTIONS.items():
        weights.require_option(name, options.get(name, supported[0]), *supported)
    if options.get("copy_attn", False):
        if not options.get("reuse_copy_attn", False):
            kind = _copy_attention(options, options.get("global_attention", "general"))
            weights.require_option("copy_attn_type", kind, *_KINDS)
    else:  # OpenNMT-py ignores it in a model that copies
        weights.require_option(
            "generator_function", options.get("generator_function", "softmax"), "softmax"
        )
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


def _output_weights(weights, target, is_copying):
    """Return kernel and bias of the output layer.

    The softmax of a model that copies has no padding.
    """
    # In early versions the first of two modules, of which the other has no weights.
    name = "generator.0" if "generator.0.weight" in weights else "generator"
    if is_copying:
        name = "generator.linear"
    kernel = transposed(target.take(weights, f"{name}.weight", None))
    bias = target.take(weights, f"{name}.bias")
    if is_copying:
        kernel[:, PAD] = 0.0
        bias[PAD] = WORD_LOGIT
    return kernel, bias


def _add_target_words(weights, source, target, embedding):
    """Return the source pieces with all target pieces, and their embedding.

    OpenNMT-py looks up the words of a source text in the target vocabulary when it copies them,
    also those that are unknown to the encoder. So these are source pieces here that are embedded as
    unknown.
    """
    known = set(source)
    added = [piece for piece in target if piece not in known]
    rows, width = embedding.shape
    weights.check_growth((rows + len(added)) * width, "its source embedding with all target words")
    unknown = np.broadcast_to(embedding[UNK], (len(added), width))
    return [*source, *added], np.concatenate([embedding, unknown])


def _copy_attention(options, attention):
    """Return the option copy_attn_type, which is global_attention by default."""
    kind = options.get("copy_attn_type")
    return attention if kind is None else kind


def _copy_weights(weights, options, attention, units):
    """Return the `CopyWeights`. The gate of OpenNMT-py is the probability of copying."""
    gate = [-weight for weight in kernel_and_bias(weights, "generator.linear_copy", units, 1)]
    if options.flag("reuse_copy_attn", False):
        return CopyWeights(gate)
    kind, name = _copy_attention(options, attention), "decoder.copy_attn"
    attention_weights = _attention_weights(weights, name, kind, units)
    # The layer also has a readout, whose result OpenNMT-py does not use.
    kernel_and_bias(weights, f"{name}.linear_out", 2 * units, units)
    return CopyWeights(gate, _KINDS[kind], attention_weights)


def _decoder_weights(weights, cell, width, units, is_fed):
    """Return `cell_weights` of each decoder layer: cells with input feeding, else one layer."""
    if is_fed:
        return stacked_cell_weights(weights, "decoder.rnn.layers", cell, width + units, units)
    return [layer for [layer] in layer_weights(weights, "decoder.rnn", cell, width, units=units)]


def _attention_weights(weights, name, attention, units):
    """Return the weights of an attention layer.

    OpenNMT-py multiplies the query by the matrix of "general", and we the keys.
    """
    if attention == "dot":
        return []
    if attention == "general":
        return [weights.take(f"{name}.linear_in.weight", units, units)]
    query, bias = kernel_and_bias(weights, f"{name}.linear_query", units)
    key = transposed(weights.take(f"{name}.linear_context.weight", len(bias), units))
    return [query, key, transposed(weights.take(f"{name}.v.weight", 1, len(bias))), bias]


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
