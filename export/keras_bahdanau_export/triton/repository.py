"""A model repository for Triton Inference Server, with the models of an artifact.

    PATH/NAME/config.pbtxt              texts to translations, in Triton's Python backend
    PATH/NAME/1/model.py                a copy of `model.py` in this folder
    PATH/NAME/1/artifact/               the artifact that it opens
    PATH/NAME-graph/config.pbtxt        the tensors of `model.onnx`, in Triton's onnxruntime backend
    PATH/NAME-graph/1/model.onnx        and `model.onnx.data` if there is one

`keras-bahdanau serve` uses the same names. For an artifact without a tokenizer or without a search
there is only `NAME-graph`.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.calibration import load_calibration
from keras_bahdanau_runtime.errors import UnsupportedArtifactError, argument_error
from keras_bahdanau_runtime.files import atomic_folder, folder_name
from keras_bahdanau_runtime.manifest import Manifest, read_manifest, read_unreplaced
from keras_bahdanau_runtime.request import CONFIDENCES
from keras_bahdanau_runtime.session import CPU, open_graph
from keras_bahdanau_runtime.signature import (
    MANIFEST_FILE,
    MODEL_FILE,
    weights_file,
)
from keras_bahdanau_runtime.translator import Translator

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MARKER = "# Written by keras-bahdanau.\n"  # only models with this line may be overwritten
_CONFIG, _VERSION = "config.pbtxt", "1"
_MODEL = Path(__file__).with_name("model.py")
_MAX_ROWS = 64  # of one request, and of a batch that Triton makes
_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    **{f"tensor(int{bits})": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(uint{bits})": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
}
# As in our service: a batch waits for at most 5 ms. A request waits for at most 60 s, or for its
# own timeout if that is shorter.
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
    """Write a model repository for Triton Inference Server with the models of an artifact.

    `tritonserver --model-repository PATH` serves it. To serve several artifacts, move the model
    folders into one repository.

    The model `name` takes texts. Triton batches requests only along an extra first axis, and
    supports no tensor without another axis: `text` is `[n, 1]`, where `keras-bahdanau serve` takes
    `[n]`. The model runs on the CPU; with `KIND_GPU` in its `config.pbtxt` it runs on GPUs. It
    needs Triton 24.12 or later, or numpy 1.26 in the Python backend of an earlier Triton.

    The model `name-graph` takes the tensors of `model.onnx`. If the first axis of all tensors is
    the batch, Triton batches requests of equal shapes; clients that pad their sources to few
    lengths are batched more often. Otherwise Triton runs one request at a time.

    Args:
        artifact: Folder of the artifact, which must contain `model.onnx`. Every file is checked.
        path: The repository to create. It is published only when it is complete.
        name: Name of the models, of letters, digits, "_", "-" and "."; the name of the artifact's
            folder if `None`.
        overwrite: bool. Whether a repository at `path` may be replaced, including its changed
            settings. It must have been written by this function, without added models or versions.

    Raises:
        ValueError: If `name` is invalid, or `path` exists and may not be replaced.
        CorruptArtifactError: If the artifact is incomplete, damaged or modified.
        UnsupportedArtifactError: If it contains no `model.onnx`, or one with inputs or outputs that
            Triton does not support: scalars, axes of length 0, strings.

    Example:

    >>> write_triton_repository("artifact", "models", name="en-de")
    """
    artifact = Path(artifact)

    def copy(manifest: Manifest) -> None:
        shutil.rmtree(target, ignore_errors=True)
        for file in manifest.files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_bytes(manifest.read(file))
        shutil.copyfile(artifact / MANIFEST_FILE, target / MANIFEST_FILE)
        read_manifest(target)  # fails if the artifact was replaced while it was copied

    name = folder_name(artifact) if name is None else name
    with triton_repository(path, name, overwrite) as target:
        read_unreplaced(artifact, copy)


@contextlib.contextmanager
def triton_repository(
    path: str | os.PathLike[str], name: str, overwrite: bool = False
) -> Iterator[Path]:
    """Yield the folder for an artifact; publish the repository at `path` if the block succeeds.

    Args:
        path: As for `write_triton_repository`.
        name: As for `write_triton_repository`.
        overwrite: As for `write_triton_repository`.

    Raises:
        As `write_triton_repository`; errors of the arguments are raised before the block runs.
    """
    if not _NAME.fullmatch(name):
        raise argument_error(
            "name",
            "be at most 100 letters, digits, '_', '-' and '.', and must not begin with '.' or '-'",
            name,
        )
    kind = "a Triton model repository of this package"
    with atomic_folder(path, kind, _is_repository, overwrite) as folder:
        text, graph = folder / name, folder / f"{name}-graph"
        artifact = text / _VERSION / "artifact"
        yield artifact
        manifest = read_manifest(artifact)
        session, takes_texts = _open(manifest)
        (graph / _VERSION).mkdir(parents=True)
        for file in {MODEL_FILE, weights_file(MODEL_FILE)} & set(manifest.files):
            shutil.copyfile(artifact / file, graph / _VERSION / file)
        rows = manifest.search.max_batch_size(manifest.vocabulary.get("target", 1))
        config = _graph_config(graph.name, session.get_inputs(), session.get_outputs(), rows)
        (graph / _CONFIG).write_text(config, "utf-8")
        if takes_texts:
            shutil.copyfile(_MODEL, text / _VERSION / "model.py")
            is_calibrated = load_calibration(manifest) is not None
            (text / _CONFIG).write_text(_text_config(name, is_calibrated), "utf-8")
        else:
            shutil.rmtree(text)


def _open(manifest: Manifest) -> tuple[Any, bool]:
    """Return a session of the artifact's graph, and whether it has a search and a tokenizer."""
    if not manifest.has_search():
        return open_graph(manifest, MODEL_FILE, CPU, 1), False
    translator = Translator(manifest.folder, CPU, threads=1)
    return translator.session, translator.tokenizer is not None


def _text_config(name: str, is_calibrated: bool) -> str:
    """Return the `config.pbtxt` of the text model, with confidences if it is calibrated."""
    tensors = [
        _tensor("input", "text", "TYPE_STRING", [1]),
        _tensor("input", "prefix", "TYPE_STRING", [1], is_optional=True),
        _tensor("input", "required", "TYPE_STRING", [1], is_optional=True),
        _tensor("output", "translation", "TYPE_STRING", [-1]),
        _tensor("output", "score", "TYPE_FP32", [-1]),
        _tensor("output", "alignment", "TYPE_STRING", [-1]),
    ]
    if is_calibrated:
        tensors += [_tensor("output", name, "TYPE_FP32", [-1]) for name in CONFIDENCES]
    requirement = (
        "# Needs Triton 24.12 or later, or numpy 1.26 with an earlier one; see model.py.\n"
    )
    instances = "instance_group {\n  count: 1\n  kind: KIND_CPU\n}\n"
    return _config(name, "python", _MAX_ROWS, tensors) + requirement + instances


def _graph_config(name: str, inputs: Sequence[Any], outputs: Sequence[Any], rows: int) -> str:
    """Return the `config.pbtxt` of a graph.

    Args:
        name: Name of the model.
        inputs: The inputs that an onnxruntime session reports.
        outputs: The outputs that it reports.
        rows: Maximum number of rows that the graph takes at once.

    Raises:
        UnsupportedArtifactError: If Triton does not support one of the tensors.
    """
    tensors = [*inputs, *outputs]
    for tensor in tensors:
        if tensor.type not in _TYPES or not tensor.shape or 0 in tensor.shape:
            raise UnsupportedArtifactError(
                f"{tensor.name!r}: expected a tensor that Triton supports, one of {sorted(_TYPES)} "
                f"with axes that are not empty. Received: {tensor.type} of shape {tensor.shape}"
            )
    first_axes = {tensor.shape[0] for tensor in tensors}
    # Fixed axes are ints. Triton would add an axis to a tensor that has only the batch axis.
    is_batched = len(first_axes) == 1 and all(isinstance(axis, str) for axis in first_axes)
    is_batched = is_batched and all(len(tensor.shape) > 1 for tensor in tensors)
    configs = []
    for side, group in (("input", inputs), ("output", outputs)):
        for tensor in group:
            dims = [size if isinstance(size, int) else -1 for size in tensor.shape]
            configs.append(_tensor(side, tensor.name, _TYPES[tensor.type], dims[is_batched:]))
    max_rows = max(1, min(rows, _MAX_ROWS)) if is_batched else 0
    return _config(name, "onnxruntime", max_rows, configs)


def _config(name: str, backend: str, max_rows: int, tensors: Sequence[str]) -> str:
    """Return a `config.pbtxt`; `max_rows` is 0 for a model without a batch axis."""
    head = f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {max_rows}\n'
    return _MARKER + head + "".join(tensors) + (_BATCHING if max_rows else "")


def _tensor(
    side: str, name: str, dtype: str, dims: Sequence[int], is_optional: bool = False
) -> str:
    # A JSON string is also a string of protobuf's text format.
    quoted = json.dumps(name, ensure_ascii=False)
    optional = "  optional: true\n" if is_optional else ""
    return (
        f"{side} {{\n  name: {quoted}\n  data_type: {dtype}\n  dims: {list(dims)}\n{optional}}}\n"
    )


def _is_repository(folder: Path) -> bool:
    """Whether a folder contains only models written by this module."""
    return all(map(_is_model, folder.iterdir()))


def _is_model(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    is_complete = {path.name for path in folder.iterdir()} == {_CONFIG, _VERSION}
    return is_complete and (folder / _CONFIG).read_bytes().startswith(_MARKER.encode())
