"""Write the models and `expected.json` of this folder with the library `sentencepiece`."""

import json
import os
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
MODELS = {
    "unigram": {"model_type": "unigram", "vocab_size": 60, "control_symbols": ["<mask>"]},
    "bpe": {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True},
    # Our ids, text as it is, no space in front, and pieces of several words.
    "plain": {
        "model_type": "unigram", "vocab_size": 90, "pad_id": 0, "unk_id": 1, "bos_id": 2,
        "eos_id": 3, "add_dummy_prefix": False, "remove_extra_whitespaces": False,
        "split_by_whitespace": False, "normalization_rule_name": "identity",
    },
}  # fmt: skip

os.chdir(Path(__file__).resolve().parent)  # the models contain the paths
rules = Path("rules.tsv")
rules.write_text(RULES)
expected = {}
for name, options in MODELS.items():
    if "normalization_rule_name" not in options:
        options = {**options, "normalization_rule_tsv": str(rules)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
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
    texts = [[text, ids := processor.encode(text), processor.decode(ids)] for text in TEXTS]
    expected[name] = {"new_ids": new_ids, "texts": texts}
rules.unlink()
text = json.dumps(expected, ensure_ascii=False, indent=None)
Path("expected.json").write_text(text.replace('"texts"', '\n"texts"') + "\n", "utf-8")
