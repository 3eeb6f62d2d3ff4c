"""Share the weights of `model.onnx` with the other graphs of an artifact.

    share_weights("artifact")                 # rewrites score.onnx, step.onnx and the others

The graphs of an artifact have the same weights. An initializer whose bytes `model.onnx` contains
becomes a tensor with external data: the location "model.onnx", with the offset and length of these
bytes. `model.onnx` itself does not change, so it still needs no other file. The other graphs need
it in their folder.

The offsets have no alignment, because protobuf has none. onnxruntime needs none: it maps whole
pages on Linux and macOS and reads the bytes on Windows. With offsets of any alignment its results
were equal bit by bit, and as fast.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import MAX_WEIGHT_BYTES
from keras_bahdanau_runtime.signature import MODEL_FILE, weights_file

# Smaller tensors stay in their graph. They are constants that onnxruntime needs while it infers
# shapes, and a reference takes about 100 bytes.
_MIN_BYTES = 1024


class _Place(NamedTuple):
    """Bytes in a file of the artifact."""

    file: str
    offset: int
    length: int


def share_weights(folder):
    """Replace the weights that `model.onnx` also contains by references to it, in all other graphs.

    Args:
        folder: Folder with `model.onnx` and other ONNX files, which are rewritten.
    """
    folder = Path(folder)
    graphs = [path for path in sorted(folder.glob("*.onnx")) if path.name != MODEL_FILE]
    places = _places_of_weights(folder) if graphs else {}
    for path in graphs:
        model = ir.load(path)
        values = list(model.graph.initializers.values())
        own = [value for value in values if not _refer_to_place(value, places, folder)]
        if len(own) == len(values) or sum(v.const_value.nbytes for v in own) > MAX_WEIGHT_BYTES:
            continue
        for value in own:  # the file with the weights of a large graph is no longer needed
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)
        temporary = path.with_suffix(".shared")
        ir.save(model, temporary)
        temporary.replace(path)
        path.with_name(weights_file(path.name)).unlink(missing_ok=True)


def _places_of_weights(folder):
    """Return where the weights of `model.onnx` are, a `_Place` by the hash of its bytes."""
    path = folder / MODEL_FILE
    contents, end, places = path.read_bytes(), 0, {}
    for value in ir.load(path).graph.initializers.values():  # in the order of the file
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):  # of a model with more than 2 GB
            place = _Place(Path(tensor.location).name, tensor.offset or 0, tensor.nbytes)
        else:
            start = contents.find(tensor.tobytes(), end)
            if start < 0:  # not stored as raw data
                continue
            end = start + tensor.nbytes
            place = _Place(MODEL_FILE, start, tensor.nbytes)
        if tensor.nbytes >= _MIN_BYTES:
            places.setdefault(_digest(tensor), place)
    return places


def _refer_to_place(value, places, folder):
    """Make an initializer refer to the place of its bytes; return whether there is one."""
    tensor = value.const_value
    place = places.get(_digest(tensor)) if tensor.nbytes >= _MIN_BYTES else None
    if place is None:
        return False
    value.const_value = ir.ExternalTensor(
        *place, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=folder
    )
    return True


def _digest(tensor):
    return hashlib.sha256(tensor.tobytes()).digest()
