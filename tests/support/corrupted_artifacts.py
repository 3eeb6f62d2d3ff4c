"""Randomly damaged artifacts, one for each seed. Run by `test_corrupted_artifacts.py`.

    python tests/support/corrupted_artifacts.py ARTIFACT SCRATCH FIRST LAST

For each seed it prints the damage, opens and runs the artifact, and prints the outcome. It runs in
a child process, so that a crash does not end the tests and its seed is known.
"""

import copy
import hashlib
import json
import random
import re
import shutil
import sys
import time
from pathlib import Path

import onnx

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.errors import ArtifactError

SECONDS = 2.0  # time limit of one run
TEXTS = ["a man on a bike", "a dog"]
ODD_NUMBERS = [0, -1, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 10**30, 1.5, float("inf")]
ODD_VALUES = [None, True, "", "a", "../x", "\x1b[2J", [], [1], {}, {"a": 1}, *ODD_NUMBERS]


def corrupt_bytes(rng, contents):
    """Flip, drop, repeat or insert bytes at one or more positions."""
    contents = bytearray(contents)
    for _ in range(rng.choice([1, 1, 1, 3, 10])):
        at = rng.randrange(len(contents) + 1)
        length = rng.choice([1, 1, 2, 8, 64])
        kind = rng.randrange(4)
        if kind == 0 and at < len(contents):
            contents[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del contents[at : at + length]
        elif kind == 2:
            contents[at:at] = contents[at : at + length]
        else:
            contents[at:at] = rng.randbytes(length)
    return bytes(contents)


def entries(document):
    """Every entry of nested lists and dicts, as `(container, key)`."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from entries(value)


def corrupt_json(rng, document):
    """Replace, remove or add a random value; return a description of the change."""
    container, key = rng.choice(list(entries(document)))
    kind = rng.randrange(5)
    if kind == 0:
        del container[key]
        return f"without {key!r}"
    if kind == 1 and isinstance(container, dict):
        container[rng.choice(["extra", "search", "class", "size", ""])] = rng.choice(ODD_VALUES)
        return f"one more than {key!r}"
    container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    return f"{key!r} = {container[key]!r}"


def messages(message):
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from messages(inner)


def odd_value(rng, field):
    """A value of a field's type that is rarely valid."""
    kind = field.cpp_type
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice([0.0, -1.0, 1e38, float("nan"), float("inf")])
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(list(field.enum_type.values_by_number))
    if kind == field.CPPTYPE_INT32:
        return rng.choice([0, 1, 2, 7, 16, -1, 2**31 - 1])
    if kind == field.CPPTYPE_INT64:
        return rng.choice([0, 1, 2, -1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1])
    if kind == field.CPPTYPE_UINT64:
        return rng.choice([0, 1, 2**64 - 1])
    words = ["", "source", "tokens", "Loop", "ConstantOfShape", "Expand", "../x", "\x1b[2J"]
    word = rng.choice(words)
    return word.encode() if field.type == field.TYPE_BYTES else word


def corrupt_graph(rng, contents):
    """Change, add or remove a field of a random message."""
    model = onnx.ModelProto.FromString(contents)
    message = rng.choice(list(messages(model)))
    field = rng.choice(list(message.DESCRIPTOR.fields))
    name = f"{message.DESCRIPTOR.name}.{field.name}"
    if rng.random() < 0.2:
        message.ClearField(field.name)
        return model.SerializeToString(), f"without {name}"
    if field.message_type is not None:
        value = getattr(message, field.name)
        if field.is_repeated:
            others = [part for part in messages(model) if part.DESCRIPTOR == field.message_type]
            value.add().CopyFrom(copy.deepcopy(rng.choice(others)) if others else value.add())
        else:
            value.SetInParent()
        return model.SerializeToString(), f"more {name}"
    value = odd_value(rng, field)
    if field.is_repeated:
        values = getattr(message, field.name)
        if values and rng.random() < 0.7:
            values[rng.randrange(len(values))] = value
        else:
            values.append(value)
    else:
        setattr(message, field.name, value)
    return model.SerializeToString(), f"{name} = {value!r}"


def corrupt(seed, artifact, folder):
    """Write the artifact of a seed to `folder`; return a description of its damage."""
    rng = random.Random(seed)
    shutil.copytree(artifact, folder)
    names = sorted(path.name for path in folder.iterdir())
    kind = rng.choice(["bytes", "bytes known", "manifest", "tokenizer", "graph", "graph", "graph"])
    if kind.startswith("bytes"):
        path = folder / rng.choice(names)
        path.write_bytes(corrupt_bytes(rng, path.read_bytes()))
        damage = f"bytes of {path.name}"
    elif kind == "graph":
        path = folder / rng.choice([name for name in names if name.endswith(".onnx")])
        contents, damage = corrupt_graph(rng, path.read_bytes())
        path.write_bytes(contents)
    else:
        path = folder / {"manifest": "manifest.json", "tokenizer": "tokenizer.json"}[kind]
        document = json.loads(path.read_text("utf-8"))
        damage = corrupt_json(rng, document)
        path.write_text(json.dumps(document), "utf-8")
    if path.name != "manifest.json" and kind != "bytes":  # so that the hashes match
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        contents = path.read_bytes()
        digest = hashlib.sha256(contents).hexdigest()
        manifest["files"][path.name] = {"sha256": digest, "bytes": len(contents)}
        (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return f"{kind}: {damage}"


def attempt(folder):
    """Open and run an artifact; return "fine" or the class of the expected error."""
    try:
        translator = Translator(folder, threads=1, timeout=SECONDS)
        if "tokenizer.json" in translator.manifest.files:
            translator.translate(TEXTS)
            "".join(translator.stream(TEXTS[0], max_length=20))
            translator.align(TEXTS, TEXTS)
        else:
            translator.translate_ids([[5, 6, 3]])
    except ArtifactError as error:
        assert str(error) and "\n" not in str(error), repr(error)
        return type(error).__name__
    return "fine"


def peak_megabytes():
    """Largest resident memory of this process, int. `ru_maxrss` includes that of the parent."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.M)[1]) // 1024


def main(artifact, scratch, first, last):
    for seed in range(first, last):
        folder = scratch / "artifact"
        print(seed, corrupt(seed, artifact, folder).encode("ascii", "backslashreplace").decode())
        sys.stdout.flush()
        began = time.monotonic()
        outcome = attempt(folder)
        shutil.rmtree(folder)
        print("->", outcome, f"{time.monotonic() - began:.2f}", peak_megabytes(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
