"""Pass that splits a `TopK` over a long axis into faster steps."""

import numpy as np

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    constant_array,
    insert_node,
    nodes_of,
    replace_value,
)
from keras_bahdanau_export.graph.passes.size_inference import SizeInference

# For longer axes CUDA uses another algorithm, which returns equal numbers in random order.
_MAX_WIDTH = 256


def split_top_k(graph):
    """Replace a `TopK`: find the `k` chunks with the largest maxima, then search only those.

    Each of the `k` largest numbers is in one of these chunks, because each chunk with a larger
    maximum contains a larger number, or an equal one at an earlier index. onnxruntime vectorizes
    maxima, but not `TopK`. The largest of many maxima are found in the same way.
    """
    count, sizes = 0, SizeInference(graph)
    for top_k in nodes_of(graph, "TopK"):
        values, k = top_k.inputs[0], constant_array(top_k.inputs[1])
        dims = sizes.dims.get(values, ())
        largest = "largest" not in top_k.attributes or top_k.attributes["largest"].value == 1
        axis = top_k.attributes["axis"].value if "axis" in top_k.attributes else -1
        if k is None or len(dims) != 2 or dims[1].as_int is None or axis not in (-1, 1):
            continue
        if largest and _chunk_size(dims[1].as_int, int(k.item())) is not None:
            width = dims[1].as_int
            maxima, indices = _insert_top_k(graph, top_k, values, width, values.dtype)
            replace_value(top_k.outputs[0], maxima)
            replace_value(top_k.outputs[1], indices)
            graph.remove(top_k, safe=True)
            count += 1
    return count


def _chunk_size(width, k):
    """Return the largest divisor of `width` for which `k` chunks have at most `_MAX_WIDTH` numbers.

    If there is none above half of that limit, the limit itself; then the last chunk is padded.
    `None` if chunks are not needed, or would be too small.
    """
    limit = _MAX_WIDTH // max(k, 1)
    if width <= _MAX_WIDTH or limit < 4 or k < 1:
        return None
    return next((size for size in range(limit, limit // 2, -1) if width % size == 0), limit)


def _minimum(dtype):
    """Return the smallest number of a NumPy dtype."""
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -np.inf


def _insert_top_k(graph, top_k, values, width, dtype, level=0):
    """Insert nodes for the largest numbers of `values` `(n, width)`, as many as `top_k` returns.

    Returns:
        The numbers and their indices, both `(n, k)`.
    """

    def add(op_type, *inputs, **options):
        return insert_node(graph, top_k, op_type, *inputs, **options)

    def initializer(name, array):
        return add_initializer(graph, f"{top_k.outputs[0].name}_{name}_{level}", array)

    def int64(name, numbers):
        return initializer(name, np.asarray(numbers, np.int64))

    k_input = top_k.inputs[1]
    k = int(constant_array(k_input).item())
    chunk = _chunk_size(width, k)
    if chunk is None:
        return add("TopK", values, k_input, outputs=2)
    if padding := -width % chunk:
        minimum = initializer("least", np.array(_minimum(dtype.numpy()), dtype.numpy()))
        values = add("Pad", values, int64("pads", [0, 0, 0, padding]), minimum)
    count, last = (width + padding) // chunk, int64("last", [-1])
    chunks = add("Reshape", values, int64("chunks", [-1, count, chunk]))
    maxima = add("ReduceMax", chunks, last, keepdims=0)
    _, best = _insert_top_k(graph, top_k, maxima, count, dtype, level + 1)
    # Sort the chunks by index, so that of equal numbers the first one still comes first.
    best, _ = add("TopK", best, k_input, outputs=2, largest=0)
    candidates = add("Unsqueeze", best, last)
    candidates = add("GatherND", chunks, candidates, batch_dims=1)
    candidates = add("Reshape", candidates, int64("few", [-1, k * chunk]))
    numbers, indices = add("TopK", candidates, k_input, outputs=2)
    size = int64("size", chunk)
    chunk_indices = add("Div", indices, size)
    offsets = add("Mod", indices, size)
    starts = add("Mul", add("GatherElements", best, chunk_indices, axis=-1), size)
    return numbers, add("Add", starts, offsets)
