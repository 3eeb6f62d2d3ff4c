"""Write the models and `expected.json` of this folder with the library `sentencepiece`."""

import json
import os
import re
import unicodedata
from pathlib import Path

import sentencepiece

LINES = [
    "a man on a bike", "a dog on a boat", "two men and 3 dogs!", "a \u00e9clair, a fish",
    "the men see the dogs", "a boat on the water", "the dog and the fish are on the boat",
] * 20  # fmt: skip
TEXTS = [
    "a man on a bike", "A dog, a boat!", "", " ", "  two  spaces ", "x\u2581y", "12.5 \u00e9",
    "</s> <s>", "<pad>", "<mask> on", "<0x41>", "\ufb01sh \uff21", "tab\there \U0001f600\U0001f601",
    "the the", "dogs dogs!", "\u00e9\u00e9 e\u0301", "themen", "a\u00a0b",
]  # fmt: skip
# Code points of a text and of its normal form, in hexadecimal digits.
RULES = "FB01\t66 69\nFF21\t41\n65 301\tE9\n9\t20\nA0\t20\n"
# Ten scripts, with characters that NFD or NFKD spell otherwise.
SCRIPTS = [
    "ti\u1ebfng Vi\u1ec7t c\xf3 d\u1ea5u",
    "\u1f00\u03c1\u03c7\u1fc7 \u1fa7 \u1f26\u03bd",
    "\ud55c\uad6d\uc5b4 \uac01 \uc740",
    "\u30ac\u30ae\u30d1 \u304c\u3071",
    "\u0915\u093c\u0921\u093c \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u09ac\u09be\u0982\u09b2\u09be \u0995\u09cb\u09cc",
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0b95\u0bca\u0bcb",
    "\u0622\u0623\u0624 \u0644\u0627 \u0639\u0631\u0628\u064a",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u0451\u0436 \u0439 \u0457",
    "fi \xe9\u0302 \u1e69",
]
MODELS = {
    "unigram": {"model_type": "unigram", "vocab_size": 60, "control_symbols": ["<mask>"]},
    "bpe": {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True},
    # Our ids, text as it is, no space in front, and pieces of several words.
    "plain": {
        "model_type": "unigram", "vocab_size": 90, "pad_id": 0, "unk_id": 1, "bos_id": 2,
        "eos_id": 3, "add_dummy_prefix": False, "remove_extra_whitespaces": False,
        "split_by_whitespace": False, "normalization_rule_name": "identity",
    },
    "scripts": {"model_type": "unigram", "vocab_size": 110, "character_coverage": 1.0},
}  # fmt: skip

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def normal_form_rules(lines: list[str]) -> str:
    """Return a rule for each part of a decomposed character of the lines, as in SentencePiece."""
    keys = {
        form for line in lines for form in re.findall(r"\S", unicodedata.normalize("NFKC", line))
    }
    decomposed = {unicodedata.normalize(form, key) for key in keys for form in FORMS}
    decomposed |= {key[:end] for key in decomposed for end in range(2, len(key))}
    rules = {key: unicodedata.normalize("NFKC", key) for key in decomposed}
    rules |= {"\ufb01": "fi", "\uff21": "A", "\ufefb": "\u0644\u0627", "\uff76": "\u30ab"}
    rules |= {"\uff76\uff9e": "\u30ac", "\uff9e": "\u3099", "e": "e"}
    points = [[" ".join(f"{ord(c):X}" for c in text) for text in rule] for rule in rules.items()]
    return "".join(f"{key}\t{value}\n" for key, value in sorted(points) if key != value)


os.chdir(Path(__file__).resolve().parent)  # the models contain the paths
rules = Path("rules.tsv")
expected = {}
for name, options in MODELS.items():
    lines, texts = LINES, TEXTS
    rules.write_text(RULES)
    if name == "scripts":
        lines = SCRIPTS * 20
        texts = [unicodedata.normalize(form, line) for line in SCRIPTS for form in FORMS]
        texts += [
            "e\u0302\u0323\u0301 \ufb01\u0301 \uff21\u030a",
            "\uff76\uff9e \ufefb\u064e \u3099",
            "\u200d\u0301e",
        ]
        rules.write_text(normal_form_rules(lines))
    if "normalization_rule_name" not in options:
        options = {**options, "normalization_rule_tsv": str(rules)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=name,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    Path(f"{name}.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{name}.model")
    # The rule of the conversion: four special ids, then the other pieces in order.
    new_ids, following = [], 4
    for index in range(processor.get_piece_size()):
        piece = processor.id_to_piece(index)
        if processor.is_unknown(index) or piece in ("<s>", "</s>", "<pad>"):
            new_ids.append(["<pad>", "<unk>", "<s>", "</s>"].index(piece))
        else:
            new_ids.append(following)
            following += 1
    texts = [[text, ids := processor.encode(text), processor.decode(ids)] for text in texts]
    expected[name] = {"new_ids": new_ids, "texts": texts}
rules.unlink()
text = json.dumps(expected, ensure_ascii=False, indent=None)
Path("expected.json").write_text(text.replace('"texts"', '\n"texts"') + "\n", "utf-8")
