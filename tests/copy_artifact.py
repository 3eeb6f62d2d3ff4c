"""A real artifact by hand: a graph that copies its source, and a real tokenizer."""

import json

import onnx.parser
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from keras_bahdanau_runtime.artifact import publish, write_manifest


def copy_graph(name="source", second_score="Log (nothing)", cut=0):
    """The ONNX text of a beam of two: the source at score -length, and an empty hypothesis.

    The second scores -inf, as a search reports a hypothesis that does not exist. Every token is
    aligned with its own place.
    """
    return f"""
<ir_version: 8, opset_import: ["" : 17]>
copy (int32[batch, source_length] {name}) => (
    int32[batch, beam, length] tokens, float[batch, beam] scores, int32[batch, beam] lengths,
    float[batch, beam, length, source_length] alignments)
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
}}
"""


COPY = copy_graph()


def train_tokenizer():
    """Byte pairs over few words, so that other characters fall into single bytes."""
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
    # As the package writes it: a text that spells a special piece consists of plain characters.
    document = {**json.loads(tokenizer.to_str()), "added_tokens": []}
    return tokenizers.Tokenizer.from_str(json.dumps(document))


TOKENIZER = train_tokenizer()
SIDE = json.loads(TOKENIZER.to_str())
DOCUMENT = {"format": "keras_bahdanau tokenizer", "version": 1, "source": SIDE, "target": None}
VOCABULARY = {"source": 290, "target": 290}


def make(path, graph=COPY, document=DOCUMENT, **contents):
    with publish(path) as folder:
        if graph is not None:
            (folder / "model.onnx").write_bytes(onnx.parser.parse_model(graph).SerializeToString())
        if document is not None:
            (folder / "tokenizer.json").write_text(json.dumps(document), "utf-8")
        write_manifest(folder, {"vocabulary": VOCABULARY, "max_source_length": 40, **contents})
    return path
