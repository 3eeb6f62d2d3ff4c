"""Compare converted tokenizers with the libraries that made them, on lines of text.

    pip install sentencepiece
    python benchmarks/compare_tokenizers.py train.en train.de

SentencePiece and `tokenizers` learn small vocabularies from the files. For the first 10,000 lines,
half of them of each file, the script counts the lines with the same pieces (the ids after the
renumbering) and the same decoded text as in the original library, and those that a service with
this tokenizer returns unchanged. The graph of the service copies its source. The last two columns
are texts with the same pieces: 10,000 of random characters and marks of other scripts, in composed
and decomposed forms, and 2,000 of repeated characters.
"""

import argparse
import json
import random
import sys
import tempfile
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "export"), str(ROOT / "tests" / "support")]

from keras_bahdanau_runtime.ids import EOS, SPECIAL, UNK  # noqa: E402
from keras_bahdanau_runtime.text.corpus import read_lines  # noqa: E402
from keras_bahdanau_runtime.text.tokenizer import Tokenizer  # noqa: E402

PIECES = 2000
SENTENCEPIECE = {
    "SentencePiece unigram": {"model_type": "unigram"},
    "SentencePiece BPE": {"model_type": "bpe"},
    "SentencePiece unigram, byte fallback": {"model_type": "unigram", "byte_fallback": True},
    "SentencePiece BPE, byte fallback, our ids": {
        "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
        "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3,
    },
}  # fmt: skip


# Code points of marks, letters with marks, and compatibility characters.
BLOCKS = [
    range(0x300, 0x370), range(0x20, 0x250), range(0x1E00, 0x2000), range(0x370, 0x530),
    range(0x590, 0x700), range(0x900, 0xE00), range(0xE01, 0xF00), range(0x1100, 0x1200),
    range(0xAC00, 0xAE00), range(0x3040, 0x3400), range(0xF900, 0xFFF0), range(0x2000, 0x2200),
]  # fmt: skip


def script_texts():
    """Return random texts of other scripts, a third of them as they are and others decomposed."""
    rng, texts = random.Random(0), []
    for _ in range(10_000):
        blocks = [BLOCKS[0], *rng.sample(BLOCKS, 2)]
        text = "".join(chr(rng.choice(rng.choice(blocks))) for _ in range(rng.randint(1, 20)))
        form = rng.choice([None, "NFD", "NFKD"])
        texts.append(text if form is None else unicodedata.normalize(form, text))
    return texts


def repeated_texts():
    """Return texts that repeat one to three characters."""
    rng = random.Random(0)
    characters = "abcdefghijklmnopqrstuvwxyz0123456789.-!?"
    return ["".join(rng.choices(characters, k=rng.choice([1, 1, 2, 3]))) * rng.randint(2, 60)
            for _ in range(2_000)]  # fmt: skip


class Original:
    """A tokenizer of the original library.

    Args:
        pieces: Function from a text to its pieces.
        decode: Function from a text to the decoded text of its ids.
        vocabulary: All pieces but the special ones, in order.
    """

    def __init__(self, pieces, decode, vocabulary):
        self.pieces, self.decode = pieces, decode
        self._new = {piece: len(SPECIAL) + rank for rank, piece in enumerate(vocabulary)}

    def new_ids(self, text):
        """Return the ids of a text after the renumbering."""
        return [*(self._new.get(piece, UNK) for piece in self.pieces(text)), EOS]


def sentencepiece_model(folder, lines, options):
    """Train a SentencePiece model; return its file and its `Original`."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "spm"), vocab_size=PIECES,
        minloglevel=2, **options,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))

    def decode(text):
        ids = processor.encode(text)
        return processor.decode(ids).replace(" \u2047 ", SPECIAL[UNK])

    def pieces(text):
        return [processor.id_to_piece(index) for index in processor.encode(text)]

    vocabulary = [
        processor.id_to_piece(index)
        for index in range(processor.get_piece_size())
        if not processor.is_control(index) and not processor.is_unknown(index)
    ]
    return folder / "spm.model", Original(pieces, decode, vocabulary)


def gpt():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet)


def t5():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    squeeze = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), squeeze])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>"]
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=PIECES, special_tokens=special, unk_token="<unk>"
    )


def llama():
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer, trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<unk>", "<s>"])


def words():
    tokenizer = tokenizers.Tokenizer(models.WordLevel({}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer, trainers.WordLevelTrainer(vocab_size=PIECES, special_tokens=["<unk>"])


HUGGING_FACE = {
    "Hugging Face, like GPT-2": gpt,
    "Hugging Face, like T5": t5,
    "Hugging Face, like Llama 2": llama,
    "Hugging Face, words": words,
}


def hugging_face(folder, lines, create):
    """Train a tokenizer of `tokenizers`; return its file and its `Original`."""
    tokenizer, trainer = create()
    trainer.show_progress = False
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    ordered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])

    def decode(text):
        return tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)

    vocabulary = [piece for piece, _ in ordered if piece not in special]
    original = Original(lambda text: tokenizer.encode(text).tokens, decode, vocabulary)
    return folder / "tokenizer.json", original


def served_texts(folder, tokenizer, lines):
    """Return what a service answers, whose graph copies the source."""
    from copy_artifact import make
    from running_service import site

    tokenizer.save(folder / "converted.json")
    document = json.loads((folder / "converted.json").read_text("utf-8"))
    size = tokenizer.source_vocabulary_size
    vocabulary = {"source": size, "target": size}
    artifact = make(
        folder / "artifact", document=document, vocabulary=vocabulary, max_source_length=None
    )
    texts = []
    with site({"copy": artifact}) as service:
        for start in range(0, len(lines), 16):
            response = service.web.post("/translate", json={"text": lines[start : start + 16]})
            response.raise_for_status()
            texts += [item["text"] for item in response.json()["translations"]]
    return texts


def compare(name, path, original, lines, folder):
    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode_sources(lines)
    expected = [original.decode(line) for line in lines]
    same_ids = sum(a == original.new_ids(line) for a, line in zip(ids, lines, strict=True))
    same_texts = sum(tokenizer.decode(a) == b for a, b in zip(ids, expected, strict=True))
    served = served_texts(folder, tokenizer, lines)
    same_served = sum(a == b for a, b in zip(served, expected, strict=True))
    counts = [same_ids, same_texts, same_served]
    for texts in (script_texts(), repeated_texts()):
        ids_of_texts = zip(tokenizer.encode_sources(texts), texts, strict=True)
        counts.append(sum(a == original.new_ids(text) for a, text in ids_of_texts))
    print(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |", flush=True)
    for line, a in zip(lines, ids, strict=True):
        if a != original.new_ids(line):
            print(f"{line!r}\n  {tokenizer.source_tokens(line)}\n  {original.pieces(line)}")
            break


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path, help="text files, plain or .gz")
    parser.add_argument("--lines", type=int, default=10_000)
    arguments = parser.parse_args()
    share = arguments.lines // len(arguments.texts)
    lines = [line for path in arguments.texts for line in read_lines(path)[:share]]
    columns = "same ids | same text | same text of the service | scripts | repeated"
    print(f"| {len(lines):,} lines | {columns} |")
    print("|---|---|---|---|---|---|")
    makers = [(sentencepiece_model, SENTENCEPIECE), (hugging_face, HUGGING_FACE)]
    for make, table in makers:
        for name, options in table.items():
            with tempfile.TemporaryDirectory() as folder:
                # Half of the lines are not seen in training.
                path, original = make(Path(folder), lines[::2], options)
                compare(name, path, original, lines, Path(folder))


if __name__ == "__main__":
    main()
