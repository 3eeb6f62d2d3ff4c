"""A hand-written artifact: a graph that copies its source, and a real tokenizer."""

import json
import math
from dataclasses import replace

import onnx.parser
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from keras_bahdanau_runtime.artifact import publish, write_manifest
from keras_bahdanau_runtime.signature import OPTIONS, SCORE_WITH_COPIES, TRANSLATE


def copy_graph(name="source", second_score="Log (nothing)", cut=0):
    """The ONNX text of a beam of two: the source with score -length, and an empty hypothesis.

    The second score is -inf, as for a hypothesis that does not exist. Every token is aligned with
    its own position, and has the log-probability -1.
    """
    return f"""
<ir_version: 8, opset_import: ["" : 17]>
copy (int32[batch, source_length] {name}) => (
    int32[batch, beam, length] tokens, float[batch, beam] scores, int32[batch, beam] lengths,
    float[batch, beam, length, source_length] alignments, float[batch, beam, length] log_probs)
<int32 pad = {{0}}, int32 cut = {{{cut}}}, int64[1] one = {{1}}, int64[1] two = {{2}},
 int64[1] first = {{0}}, int64[1] second = {{1}}>
{{
    is_pad = Equal ({name}, pad)
    is_token = Not (is_pad)
    token_count = Cast <to = 6> (is_token)
    count = ReduceSum (token_count, one)
    no_count = Mul (count, pad)
    counts = Concat <axis = 1> (count, no_count)
    shorter = Sub (counts, cut)
    lengths = Max (shorter, pad)

    row = Unsqueeze ({name}, one)
    empty_row = Mul (row, pad)
    tokens = Concat <axis = 1> (row, empty_row)

    float_count = Cast <to = 1> (count)
    nothing = Cast <to = 1> (no_count)
    score = Neg (float_count)
    second_score = {second_score}
    scores = Concat <axis = 1> (score, second_score)

    shape = Shape ({name})
    rows = Gather (shape, first)
    columns = Gather (shape, second)
    square = Concat <axis = 0> (columns, columns)
    zeros = ConstantOfShape (square)
    diagonal = EyeLike <dtype = 1> (zeros)
    full = Concat <axis = 0> (rows, two, square)
    alignments = Expand (diagonal, full)

    float_row = Cast <to = 1> (row)
    signs = Sign (float_row)
    empty_signs = Cast <to = 1> (empty_row)
    first_log_probs = Neg (signs)
    log_probs = Concat <axis = 1> (first_log_probs, empty_signs)
}}
"""


def spinning_graph(turns):
    """A graph that copies its source after this number of loop iterations."""
    loop = """scalar = ReduceSum <keepdims = 0> (one)
    yes = Cast <to = 9> (scalar)
    spun = Loop <body = again (int64 i, bool go, int64[1] n) => (bool still, int64[1] next) {
        still = Identity (go)
        next = Add (n, n)
    }> (turns, yes, one)
    is_pad = Equal"""
    graph = copy_graph().replace("is_pad = Equal", loop)
    return graph.replace("int64[1] two = {2}", f"int64[1] two = {{2}}, int64 turns = {{{turns}}}")


def endless_graph():
    """A graph that copies its source after a loop of (number of ids) ** 10 iterations."""
    graph = spinning_graph(10).replace("int64 turns =", "int64 ten =")
    turns = "ids = Size (source)\n    turns = Pow (ids, ten)\n    scalar = "
    return graph.replace("scalar = ", turns)


COPY = copy_graph()
COPY_ENCODER = """
<ir_version: 8, opset_import: ["" : 17]>
encode (int32[batch, source_length] source) => (
    int32[batch, source_length] memory_0, int32[batch] state_0)
<int32 pad = {0}, int64[1] one = {1}>
{
    memory_0 = Identity (source)
    nothing = Mul (source, pad)
    state_0 = ReduceMax <axes = [1], keepdims = 0> (nothing)
}
"""
COPY_STEP = """
<ir_version: 8, opset_import: ["" : 17]>
step (int32[batch] tokens, int32[batch, source_length] memory_0, int32[batch] state_0) => (
    float[batch, vocabulary] log_probs, int32[batch] best,
    float[batch, source_length] alignment, int32[batch] next_state_0)
<int32 next = {1}, int64[1] one = {1}, int64[1] second = {1}, int64[1] size = {290},
 float[2] odds = {-9.0, 0.0}>
{
    next_state_0 = Add (state_0, next)
    place = Unsqueeze (state_0, one)
    token = GatherElements <axis = 1> (memory_0, place)
    flat = Squeeze (token, one)
    row = Cast <to = 7> (flat)
    log_probs = OneHot (row, size, odds)
    best = Identity (flat)
    shape = Shape (memory_0)
    columns = Gather (shape, second)
    column = Cast <to = 7> (state_0)
    aligned = OneHot (column, columns, odds)
    alignment = Exp (aligned)
}
"""
COPY_OPTIONS = ("beam_size", "length_penalty", "max_length", "prefix", "completions", "suppressed")


def options_graph():
    """A graph that copies its source and whose options can be read from its outputs.

    The score is -length * length_penalty. A prefix replaces the first tokens. The score of the
    second hypothesis is 1000 * beam_size + the sum of all suppressed ids of a row.
    """
    graph = copy_graph(second_score="Add (sizes, suppressed_ids)")
    for old, new in (
        (
            "source) =>",
            """source, int32 beam_size, float length_penalty, int32 max_length,
    int32[rows, prefix_length] prefix, int32[rows, completions, 2] completions,
    int32[rows, suppressed] suppressed) =>""",
        ),
        (
            "<int32 pad",
            """<int32 beam_size = {2}, float length_penalty = {1.0}, int32 max_length = {40},
 int32[1, 1] prefix = {0}, int32[1, 1, 2] completions = {0, 0}, int32[1, 1] suppressed = {0},
 float thousand = {1000.0}, int32 pad""",
        ),
        (
            "score = Neg (float_count)",
            """size = Cast <to = 1> (beam_size)
    thousands = Mul (size, thousand)
    sizes = Add (thousands, nothing)
    suppressed_sum = ReduceSum (suppressed, one)
    suppressed_ids = Cast <to = 1> (suppressed_sum)
    product = Mul (float_count, length_penalty)
    score = Neg (product)""",
        ),
        (
            "row = Unsqueeze (source, one)",
            """source_shape = Shape (source)
    prefix_shape = Shape (prefix)
    source_width = Gather (source_shape, first_index)
    prefix_width = Gather (prefix_shape, first_index)
    missing = Sub (source_width, prefix_width)
    pads = Concat <axis = 0> (first, first, first, missing)
    padded = Pad (prefix, pads)
    is_free = Equal (padded, pad)
    chosen = Where (is_free, source, padded)
    row = Unsqueeze (chosen, one)""",
        ),
        ("int64[1] second = {1}>", "int64[1] second = {1}, int64[1] first_index = {1}>"),
    ):
        assert graph.count(old) == 1, old
        graph = graph.replace(old, new)
    return graph


def make_with_options(path, **contents):
    """Write an artifact with `options_graph`."""
    options = tuple(OPTIONS[name] for name in COPY_OPTIONS)
    signature = replace(TRANSLATE, options=options).to_json()
    search = {"class": "BeamSearch", "size": 2, "max_length": 40}
    contents = {"search": search, "signatures": {"model.onnx": signature}, **contents}
    return make(path, options_graph(), **contents)


# The log-probability of an id is -id / 8, and each target token is aligned with its own position.
COPY_SCORE = """
<ir_version: 8, opset_import: ["" : 17]>
score (int32[batch, source_length] source, int32[batch, target_length] target) => (
    float[batch] totals, float[batch, target_length] log_probs, int32[batch] lengths,
    float[batch, target_length, source_length] alignments)
<int32 pad = {0}, float eighth = {-0.125}, int64[1] one = {1}, int64[1] first = {0}>
{
    ids = Cast <to = 1> (target)
    log_probs = Mul (ids, eighth)
    totals = ReduceSum <keepdims = 0> (log_probs, one)
    is_pad = Equal (target, pad)
    is_token = Not (is_pad)
    token_count = Cast <to = 6> (is_token)
    lengths = ReduceSum <keepdims = 0> (token_count, one)
    target_shape = Shape (target)
    source_shape = Shape (source)
    rows = Gather (source_shape, one)
    columns = Gather (target_shape, one)
    square = Concat <axis = 0> (columns, rows)
    zeros = ConstantOfShape (square)
    diagonal = EyeLike <dtype = 1> (zeros)
    batch_size = Gather (source_shape, first)
    full = Concat <axis = 0> (batch_size, square)
    alignments = Expand (diagonal, full)
}
"""


def make_copying(path, **options):
    """Write an artifact whose graph of scores says that half of each token was copied."""
    output = "float[batch, target_length, source_length]"
    score = COPY_SCORE.replace(f"{output} alignments)", f"{output} alignments, {output} copied)")
    score = score.replace(
        "    alignments = Expand",
        "    half = Constant <value_float = 0.5> ()\n    alignments = Expand",
    ).replace("}\n", "    copied = Mul (alignments, half)\n}\n")
    signatures = {"model.onnx": TRANSLATE.to_json(), "score.onnx": SCORE_WITH_COPIES.to_json()}
    return make(path, score=score, signatures=signatures, **options)


def external_score(location, offset=0, length=4):
    """`COPY_SCORE` with its factor in another file."""
    model = onnx.parser.parse_model(COPY_SCORE)
    [factor] = [tensor for tensor in model.graph.initializer if tensor.name == "eighth"]
    for field in ("raw_data", "float_data"):
        factor.ClearField(field)
    factor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        entry = factor.external_data.add()
        entry.key, entry.value = key, str(value)
    return model


COPY_STEPS = (COPY_ENCODER, COPY_STEP)


def calibration(search=None, **changes):
    """A calibration: the confidence is the probability of the output, so e^-length.

    The confidence of a token is its own probability, and a fifth of the symbols is expected to be
    wrong.
    """
    return {
        "confidence": {"bias": 0.0, "weights": {"total": 1.0}},
        "expected_errors": {"bias": math.log(0.25), "weights": {}},
        "tokens": {"bias": 0.0, "weights": {"token": 1.0}},
        "search": {"class": "BeamSearch", "size": 2, "max_length": 40}
        if search is None
        else search,
        "pairs": 200,
        "measured": {"wrong": 1.0},
        **changes,
    }


def train_tokenizer():
    """Byte-pair encoding of few words, so that other characters become single bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 3)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<pad>", "<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a man on a bike", "a dog on a boat"] * 9, trainer)
    # As in the package, the name of a special token in a text is encoded as plain characters.
    document = {**json.loads(tokenizer.to_str()), "added_tokens": []}
    return tokenizers.Tokenizer.from_str(json.dumps(document))


TOKENIZER = train_tokenizer()
SIDE = json.loads(TOKENIZER.to_str())
DOCUMENT = {"format": "keras_bahdanau tokenizer", "version": 1, "source": SIDE, "target": None}
VOCABULARY = {"source": 290, "target": 290}


def make(path, graph=COPY, document=DOCUMENT, steps=None, overwrite=False, score=None, **contents):
    """Write an artifact with these graphs, ONNX text or models; return its path.

    `steps` are the graphs of the encoder and of a step, such as `COPY_STEPS`. `score` is the graph
    that scores targets, such as `COPY_SCORE`.
    """
    graphs = {"model.onnx": graph, "score.onnx": score}
    if steps is not None:
        graphs.update(zip(("encoder.onnx", "step.onnx"), steps, strict=True))
    with publish(path, overwrite) as folder:
        for name, model in graphs.items():
            if model is not None:
                model = onnx.parser.parse_model(model) if isinstance(model, str) else model
                (folder / name).write_bytes(model.SerializeToString())
        if document is not None:
            (folder / "tokenizer.json").write_text(json.dumps(document), "utf-8")
        write_manifest(folder, {"vocabulary": VOCABULARY, "max_source_length": 40, **contents})
    return path


def marked(path, mark, **options):
    """Write an artifact whose scores are the number of tokens times `mark`."""
    score = f"""shift = Constant <value_float = {mark}.0> ()
    score = Mul (float_count, shift)"""
    graph = copy_graph().replace("score = Neg (float_count)", score)
    return make(path, graph, **options)
