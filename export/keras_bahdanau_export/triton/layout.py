"""A model repository for Triton Inference Server, with the models of an artifact.

    PATH/NAME/config.pbtxt              texts in, translations out: Triton's Python backend
    PATH/NAME/1/model.py                the file `model.py` here, beside the artifact that it opens
    PATH/NAME/1/artifact/
    PATH/NAME-graph/config.pbtxt        the tensors of `model.onnx`: its onnxruntime backend
    PATH/NAME-graph/1/model.onnx        and `model.onnx.data`, where the weights are too large

The names are those that `keras-bahdanau serve` gives. An artifact without a tokenizer, or of a
model that does not generate, is `NAME-graph` alone.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import UnsupportedArtifactError
from keras_bahdanau_runtime.files import atomic_folder, folder_name
from keras_bahdanau_runtime.manifest import Manifest, read_manifest, read_unreplaced
from keras_bahdanau_runtime.session import CPU, open_graph
from keras_bahdanau_runtime.signature import (
    MANIFEST_FILE,
    MODEL_FILE,
    max_batch_size,
    weights_file,
)
from keras_bahdanau_runtime.translator import Translator

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MARK = "# Written by keras-bahdanau.\n"  # without it nothing is overwritten
_CONFIG, _VERSION = "config.pbtxt", "1"
_MODEL = Path(__file__).with_name("model.py")
_MOST_ROWS = 64  # of a request, and of what Triton joins
_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    **{f"tensor(int{bits})": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(uint{bits})": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
}
# As the service: a batch waits for 5 ms at most, a request for 60 s, or for less if it says so.
_BATCHING = """\
dynamic_batching {
  max_queue_delay_microseconds: 5000
  default_queue_policy {
    default_timeout_microseconds: 60000000
    allow_timeout_override: true
  }
}
"""


def write_triton_repository(
    artifact: str | os.PathLike[str],
    path: str | os.PathLike[str],
    name: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a model repository for Triton Inference Server with the models of an artifact.

    `tritonserver --model-repository PATH` serves it. Each model is in it whole: a repository of
    several is made by putting their folders side by side.

    The model `name` takes texts. Triton joins waiting requests into batches only along an axis of
    their own, and knows no tensor without another one: `text` is `[n, 1]`, where `[n]` is sent to
    `keras-bahdanau serve`. It runs on the CPU; `KIND_GPU` in its `config.pbtxt` puts it on GPUs. It
    needs Triton 24.12 or later. The Python backend of an earlier Triton needs numpy 1.26.

    The model `name-graph` takes the tensors of `model.onnx`. If all of these have the batch as
    their first axis, Triton joins requests, but only those of equal shapes otherwise: clients that
    pad their sources to few lengths are joined more often. A graph of which some have not is called
    for one request at a time.

    Args:
        artifact: Folder of the artifact, which must hold `model.onnx`. Every file is checked.
        path: The repository to make: whole, or not at all.
        name: Name of the models, of letters, digits, "_", "-" and "."; that of the artifact's
            folder if `None`.
        overwrite: bool. Whether a repository at `path` may be replaced, its changed settings, too:
            one that was written here, and to which no model and no version was added.

    Raises:
        ValueError: `name` cannot be one, or `path` exists and may not be replaced.
        CorruptArtifactError: The artifact is incomplete, damaged or tampered with.
        UnsupportedArtifactError: It holds no `model.onnx`, or one with values that Triton does not
            take: scalars, axes of length 0, texts.

    Example:

    >>> write_triton_repository("artifact", "models", name="en-de")
    """
    artifact = Path(artifact)

    def copy(manifest: Manifest) -> None:
        shutil.rmtree(place, ignore_errors=True)
        for file in manifest.files:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_bytes(manifest.read(file))
        shutil.copyfile(artifact / MANIFEST_FILE, place / MANIFEST_FILE)
        read_manifest(place)  # it is the manifest of these files, and not of a new artifact's

    name = folder_name(artifact) if name is None else name
    with triton_repository(path, name, overwrite) as place:
        read_unreplaced(artifact, copy)


@contextlib.contextmanager
def triton_repository(
    path: str | os.PathLike[str], name: str, overwrite: bool = False
) -> Iterator[Path]:
    """Yields where to put an artifact; when the block ends well, the repository stands at `path`.

    Args:
        path: As for `write_triton_repository`.
        name: As for `write_triton_repository`.
        overwrite: As for `write_triton_repository`.

    Raises:
        As `write_triton_repository`: of what is wrong with the arguments before the block runs.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            "Argument `name` must be at most 100 letters, digits, '_', '-' and '.', not '.' first. "
            f"Received: {name!r}"
        )
    kind = "a Triton model repository of this package"
    with atomic_folder(path, kind, _is_repository, overwrite) as folder:
        text, graph = folder / name, folder / f"{name}-graph"
        artifact = text / _VERSION / "artifact"
        yield artifact
        manifest = read_manifest(artifact)
        session, takes_texts = _opened(manifest)
        (graph / _VERSION).mkdir(parents=True)
        for file in {MODEL_FILE, weights_file(MODEL_FILE)} & set(manifest.files):
            shutil.copyfile(artifact / file, graph / _VERSION / file)
        rows = max_batch_size(manifest.search, manifest.vocabulary.get("target", 1))
        config = _graph_config(graph.name, session.get_inputs(), session.get_outputs(), rows)
        (graph / _CONFIG).write_text(config, "utf-8")
        if takes_texts:
            shutil.copyfile(_MODEL, text / _VERSION / "model.py")
            (text / _CONFIG).write_text(_text_config(name), "utf-8")
        else:
            shutil.rmtree(text)


def _opened(manifest: Manifest) -> tuple[Any, bool]:
    """A session of the artifact's graph, and whether there is a tokenizer for its search."""
    if not manifest.has_search():
        return open_graph(manifest, MODEL_FILE, CPU, 1), False
    translator = Translator(manifest.folder, CPU, threads=1)
    return translator.session, translator.tokenizer is not None


def _text_config(name: str) -> str:
    """The `config.pbtxt` of the model of texts."""
    tensors = [
        _tensor("input", "text", "TYPE_STRING", [1]),
        _tensor("output", "translation", "TYPE_STRING", [-1]),
        _tensor("output", "score", "TYPE_FP32", [-1]),
        _tensor("output", "alignment", "TYPE_STRING", [-1]),
    ]
    needs = "# Needs Triton 24.12 or later, or numpy 1.26 with an earlier one; see model.py.\n"
    instances = "instance_group {\n  count: 1\n  kind: KIND_CPU\n}\n"
    return _config(name, "python", _MOST_ROWS, tensors) + needs + instances


def _graph_config(name: str, inputs: Sequence[Any], outputs: Sequence[Any], rows: int) -> str:
    """The `config.pbtxt` of a graph.

    Args:
        name: The model's.
        inputs: What a session of onnxruntime says of them.
        outputs: The same.
        rows: Most rows that the graph takes at once.

    Raises:
        UnsupportedArtifactError: Triton takes no such value.
    """
    values = [*inputs, *outputs]
    for value in values:
        if value.type not in _TYPES or not value.shape or 0 in value.shape:
            raise UnsupportedArtifactError(
                f"{value.name!r}: expected a tensor that Triton takes, one of {sorted(_TYPES)} "
                f"with axes that are not empty. Received: {value.type} of shape {value.shape}"
            )
    firsts = {value.shape[0] for value in values}
    # A fixed axis is an int; and of a tensor without other axes Triton would want one more.
    batched = len(firsts) == 1 and all(isinstance(first, str) for first in firsts)
    batched = batched and all(len(value.shape) > 1 for value in values)
    tensors = []
    for side, group in (("input", inputs), ("output", outputs)):
        for value in group:
            dims = [size if isinstance(size, int) else -1 for size in value.shape]
            tensors.append(_tensor(side, value.name, _TYPES[value.type], dims[batched:]))
    return _config(name, "onnxruntime", max(1, min(rows, _MOST_ROWS)) if batched else 0, tensors)


def _config(name: str, backend: str, most: int, tensors: Sequence[str]) -> str:
    """A `config.pbtxt`; `most` rows at once, or 0 for a model without an axis for them."""
    head = f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {most}\n'
    return _MARK + head + "".join(tensors) + (_BATCHING if most else "")


def _tensor(side: str, name: str, kind: str, dims: Sequence[int]) -> str:
    # A string of JSON is one of protobuf's text format.
    quoted = json.dumps(name, ensure_ascii=False)
    return f"{side} {{\n  name: {quoted}\n  data_type: {kind}\n  dims: {list(dims)}\n}}\n"


def _is_repository(folder: Path) -> bool:
    """Whether a folder holds models that were written here, and nothing else."""
    return all(map(_is_model, folder.iterdir()))


def _is_model(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    whole = {part.name for part in folder.iterdir()} == {_CONFIG, _VERSION}
    return whole and (folder / _CONFIG).read_bytes().startswith(_MARK.encode())
