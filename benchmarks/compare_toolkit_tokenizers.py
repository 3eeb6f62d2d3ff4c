"""Ids of `Tokenizer.from_toolkit` against sentencepiece and subword-nmt, with other vocabularies.

    pip install sentencepiece==0.2.0 subword-nmt==0.3.8
    python benchmarks/compare_toolkit_tokenizers.py train.en.gz

Each tool learns from the first 3,000 lines. The vocabulary has the pieces that occur several times
in them, in random order. Later versions of sentencepiece have no `SetVocabulary`.
"""

import argparse
import io
import random
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import sentencepiece
from subword_nmt import apply_bpe, learn_bpe

from keras_bahdanau_runtime.ids import UNK
from keras_bahdanau_runtime.text.compression import open_bytes
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

LEARNED, COMPARED, SIZE = 3000, 2000, 1500
ODD_TEXTS = [
    "x@@ y \u6f22\u5b57  \u65e5\u672c",
    "don't, I'll",
    "@@ </w> a@@",
    "\xdcn\xefc\xf6d\xe9",
]


def subword_nmt(lines, folder):
    """Yield the name, the file, the function of pieces and the smallest count of pieces."""
    path = folder / "bpe.codes"
    with path.open("w", encoding="utf-8") as file:
        learn_bpe.learn_bpe(io.StringIO("\n".join(lines)), file, SIZE, 2)

    def splitter(vocabulary=None):
        vocabulary = None if vocabulary is None else {*vocabulary}
        bpe = apply_bpe.BPE(path.open(encoding="utf-8"), vocab=vocabulary)
        return lambda text: [piece for piece in bpe.segment(text).split(" ") if piece]

    yield "subword-nmt", path, splitter, 4


def sentencepiece_models(lines, folder):
    """Yield the same for four kinds of models."""
    for kind in ("unigram", "bpe"):
        for byte_fallback in (False, True):
            name = f"{kind}, byte fallback" if byte_fallback else kind
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_prefix=str(folder / name),
                model_type=kind,
                vocab_size=SIZE,
                byte_fallback=byte_fallback,
                minloglevel=2,
            )
            path = folder / f"{name}.model"

            def splitter(vocabulary=None, path=path):
                processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
                if vocabulary is not None:
                    processor.SetVocabulary(vocabulary)
                return lambda text: processor.encode(text, out_type=str)

            yield f"SentencePiece {name}", path, splitter, 9


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="text, plain or compressed")
    arguments = parser.parse_args()
    with open_bytes(arguments.file) as file:
        lines = [line.decode("utf-8").rstrip("\n") for line in islice(file, LEARNED + COMPARED)]
    learned, texts = lines[:LEARNED], [*lines[LEARNED:], *ODD_TEXTS]
    print("| tool | missing pieces | pieces | unknown | lines with the same ids |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = [*subword_nmt(learned, folder), *sentencepiece_models(learned, folder)]
        for tool, path, splitter, smallest in tools:
            counts = Counter(piece for line in learned for piece in splitter()(line))
            pieces = [piece for piece, count in counts.items() if count >= smallest]
            random.Random(1).shuffle(pieces)
            ids = {piece: index for index, piece in enumerate(pieces, start=4)}
            for splits in (False, True):
                split = splitter(pieces if splits else None)
                expected = [[ids.get(piece, UNK) for piece in split(text)] for text in texts]
                encoded = Tokenizer.from_toolkit(path, pieces, splits).encode_sources(texts)
                same = sum(
                    ours[:-1] == theirs for ours, theirs in zip(encoded, expected, strict=True)
                )
                unknown = sum(row.count(UNK) for row in expected)
                print(
                    f"| {tool} | {'split' if splits else 'unknown'} | {len(pieces):,} | "
                    f"{unknown:,} of {sum(map(len, expected)):,} | {same:,} of {len(texts):,} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
