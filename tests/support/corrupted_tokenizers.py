"""Randomly damaged tokenizer files, one for each seed. Run by `test_corrupted_tokenizers.py`.

    python tests/support/corrupted_tokenizers.py SCRATCH FIRST LAST FILE...

For each seed it damages one of the files, opens it, encodes some texts, and prints the outcome. It
runs in a child process with a limit on memory, so that a crash does not end the tests.
"""

import json
import random
import resource
import sys
import time
from pathlib import Path

from corrupted_artifacts import ODD_VALUES, corrupt_bytes, entries, peak_megabytes

from keras_bahdanau_runtime.errors import ArtifactError
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

MEMORY = 6 * 2**30
TEXTS = ["", "a man on a bike", "e\u0301\ufb01\ufdfa \u1100\u1161 <0x41> </s>", "ab" * 300]
# Parts of tokenizers that are valid somewhere, or that have harmed the library.
ODD_PARTS = [
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa" * 16},
    {"type": "Replace", "pattern": {"String": ""}, "content": "a"},
    {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "a"},
    {"type": "Precompiled", "precompiled_charsmap": "////////"},
    {"type": "Precompiled", "precompiled_charsmap": "AAQAAP////8="},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": True},
    {"type": "NFKD"},
    {"type": "FixedLength", "length": 0},
    {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []},
    {"type": "Unigram", "vocab": [["a" * 10_000, -1.0]], "unk_id": 5, "byte_fallback": True},
    ["a" * 100_000, -1.0], ["", 0.0], ["a", float("nan")], "\ud800", 2**32 - 1, -(2**63),
]  # fmt: skip


def corrupt_json(rng, contents):
    document = json.loads(contents)
    for _ in range(rng.choice([1, 1, 2, 4])):
        places = list(entries(document))
        # Most entries are pieces and merges, so prefer the others.
        steps = [(part, key) for part, key in places if not _is_piece(part)]
        container, key = rng.choice(steps if rng.random() < 0.8 else places)
        kind = rng.randrange(5)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container[key], list) and len(container[key]) < 40:
            container[key] = container[key] * rng.choice([2, 20])
        else:
            odd = rng.choice([ODD_VALUES, ODD_PARTS, ODD_PARTS])
            container[key] = json.loads(json.dumps(rng.choice(odd)))
        if isinstance(container, list) and rng.random() < 0.3:
            container.append(json.loads(json.dumps(rng.choice(ODD_PARTS))))
    return json.dumps(document).encode()


def _is_piece(container):
    return len(container) > 40 or (isinstance(container, list) and len(container) == 2)


def attempt(path):
    """Open and use a tokenizer; return "fine" or the class of the expected error."""
    try:
        tokenizer = Tokenizer.load(path)
        for text in TEXTS:
            tokenizer.decode(tokenizer.encode_target(text, text), text)
        tokenizer.encode_sources(TEXTS)
    except (ArtifactError, ValueError) as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 2000, repr(error)
        return type(error).__name__
    return "fine"


def main(scratch, first, last, files):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in range(first, last):
        rng = random.Random(seed)
        file = rng.choice(files)
        contents = file.read_bytes()
        changes_bytes = file.suffix == ".model" or rng.random() < 0.2
        path = scratch / f"tokenizer{file.suffix}"
        path.write_bytes((corrupt_bytes if changes_bytes else corrupt_json)(rng, contents))
        print(seed, file.name, flush=True)
        began = time.process_time()
        outcome = attempt(path)
        seconds = time.process_time() - began
        print("->", outcome, f"{seconds:.2f}", peak_megabytes(), flush=True)


if __name__ == "__main__":
    scratch, first, last, *files = sys.argv[1:]
    main(Path(scratch), int(first), int(last), [*map(Path, files)])
