"""Randomly damaged tokenizer files are opened or refused, in time and with limited memory.

`make test-soak` tries many more of them (variable MUTATIONS).
"""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from copy_artifact import make
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.errors import CorruptArtifactError
from keras_bahdanau_runtime.text.charsmap import CharacterMap
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

COUNT = int(os.environ.get("MUTATIONS", "400")) // 4
SCRIPT = Path(__file__).parents[1] / "support" / "corrupted_tokenizers.py"
FILES = Path(__file__).parents[1] / "files" / "sentencepiece"
TEXTS = ["a man on a bike", "a dog on a boat"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of each kind: learned ones, converted ones, and those of the other libraries."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for kind in ("bpe", "words", "characters", "symbols"):
        Tokenizer.train(TEXTS, TEXTS, 300, kind=kind).save(folder / f"{kind}.json")
    copying = Tokenizer.train(TEXTS[:1], TEXTS, 300, kind="words", copied_words=8)
    copying.save(folder / "copied-words.json")
    codes = tmp_path_factory.mktemp("codes") / "codes"
    codes.write_text("#version: 0.2\na n</w>\nm an</w>\nb o\nbo a\n")
    imported = Tokenizer.from_toolkit(codes, ["man", "b@@", "o", "a"], splits_missing=True)
    imported.save(folder / "codes.json")
    for name in ("bpe", "unigram"):
        contents = (FILES / f"{name}.model").read_bytes()
        (folder / f"{name}.model").write_bytes(contents)
        Tokenizer.load(folder / f"{name}.model").save(folder / f"converted-{name}.json")
    library = LibraryTokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=30, unk_token="<unk>", special_tokens=["<unk>"])
    trainer.show_progress = False
    library.train_from_iterator(TEXTS, trainer)
    library.save(str(folder / "library.json"))
    return folder


def test_corrupted_tokenizers_are_refused_or_open(folder, tmp_path):
    files = sorted(map(str, folder.iterdir()))
    command = [sys.executable, SCRIPT, tmp_path, "0", str(COUNT), *files]
    finished = subprocess.run(command, capture_output=True, text=True)
    last = finished.stdout.splitlines()[-1]
    assert finished.returncode == 0, f"{last}\n{finished.stderr[-2000:]}"
    ends = re.findall(r"^-> (\w+) (\S+) (\d+)$", finished.stdout, re.M)
    assert len(ends) == COUNT
    assert {"fine", "ValueError"} <= {kind for kind, _, _ in ends}
    assert max(float(seconds) for _, seconds, _ in ends) < 5  # of processor time
    assert int(ends[-1][2]) < 1000  # MB


def nested(depth):
    return {"a": nested(depth - 1)} if depth else 1


def replacements(count, content):
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"type": "Sequence", "normalizers": [step] * count}


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        # Each of these ended the process, took gigabytes or was another exception.
        ("model", "vocab", [["a" * 250_000, -1.0]], "of 250000 bytes"),
        (
            "source",
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": "/////w=="},
            "trie",
        ),
        ("source", "normalizer", replacements(10, "aa"), "2048 times longer"),
        ("source", "normalizer", {"type": "Prepend", "prepend": ""}, "Prepend with 'prepend': ''"),
        ("source", "decoder", nested(490), "the decoder {'a'"),
        ("source", "extra", nested(490), "the field 'extra'"),
        ("model", "vocab", {"a": 2**32 - 1}, "the id 4294967295 of the piece 'a'"),
        ("model", "vocab", {"a": True}, "the id True of the piece 'a'"),
        # And each of these is no step or setting that this package writes.
        ("source", "normalizer", replacements(33, "b"), "more than 32 steps"),
        ("source", "added_tokens", [{"content": "a"}], "the added_tokens"),
        ("source", "post_processor", None, "the post_processor None"),
        ("source", "pre_tokenizer", {"type": "FixedLength", "length": 0}, "'FixedLength'"),
        ("model", "dropout", 0.5, "'dropout': 0.5"),
        ("model", "merges", [["a", "b", "c"]], "the merge"),
    ],
)
def test_harmful_tokenizers_of_artifacts_are_refused(folder, tmp_path, part, key, value, message):
    name = "converted-unigram" if isinstance(value, list) and key == "vocab" else "bpe"
    document = json.loads((folder / f"{name}.json").read_text("utf-8"))
    changed = document["source"] if part == "source" else document["source"][part]
    changed[key] = value
    artifact = make(tmp_path / "artifact", document=document)
    with pytest.raises(CorruptArtifactError, match=re.escape(message)) as error:
        Translator(artifact)
    assert "\n" not in str(error.value)


def charsmap(units, values=b"b\0"):
    """A charsmap with units of its trie, by place, and its values."""
    trie = b"".join(units.get(place, 2**31).to_bytes(4, "little") for place in range(256))
    return len(trie).to_bytes(4, "little") + trie + values


# The root has its children at place 1 ^ label, so "a" (0x61) is at 0x60, and its value at 0x62.
ROOT, KEY, VALUE = 1 << 10, 0x61 | 1 << 8 | 2 << 10, 2**31


def test_a_charsmap_has_only_rules_within_its_bytes():
    units = {0: ROOT, 0x60: KEY, 0x62: VALUE}
    assert CharacterMap(charsmap(units))("xaa\u0301") == "xbb\u0301"
    for damaged, message in [
        (charsmap({**units, 0x62: VALUE + 2}), "values are outside"),
        (charsmap(units, b"\xff\0"), "not UTF-8"),
        (charsmap(units, b"b"), "values are outside"),
        (charsmap({**units, 0x60: KEY + (999 << 10)}), "children outside"),
        (charsmap({**units, 0x60: 0x61 | 0x61 << 10}), "keys of more than 256 bytes"),  # a cycle
        (charsmap(units)[:900], "900 bytes with a trie of 1024"),
        (b"", "0 bytes with a trie of 0"),
        (bytes(2**22 + 1), "4194305 bytes, more than"),
    ]:
        with pytest.raises(ValueError, match=message):
            CharacterMap(damaged)


def test_rules_and_steps_together_have_a_limit_of_growth(folder, tmp_path):
    """The steps of the file replace each space by three bytes."""
    document = json.loads((folder / "converted-bpe.json").read_text("utf-8"))
    for size, is_refused in ((2048 // 3, False), (2048 // 3 + 1, True)):
        rules = charsmap({0: ROOT, 0x60: KEY, 0x62: VALUE}, b"b" * size + b"\0")
        for spelling in document["spellings"]:
            spelling["charsmap"] = base64.b64encode(rules).decode()
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
        if is_refused:
            with pytest.raises(ValueError, match="more than 2048 times longer"):
                Tokenizer.load(tmp_path / "tokenizer.json")
        else:
            assert Tokenizer.load(tmp_path / "tokenizer.json").source_vocabulary_size > 300
