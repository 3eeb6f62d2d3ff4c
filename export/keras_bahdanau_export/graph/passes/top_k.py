"""The pass that finds the largest of many faster."""

import numpy as np

from keras_bahdanau_export.graph.passes.graph import constant, nodes_of, put, register, take_place
from keras_bahdanau_export.graph.passes.sizes import Sizes

# Among more numbers than these CUDA ranks by another algorithm, which orders equal ones by chance.
_WIDEST = 256


def chunked_top_ks(graph):
    """The `k` largest of many: first the `k` chunks with the largest maxima, then within those.

    Any of the `k` largest stands in one of these chunks, as each chunk before its own holds one
    that is larger, or equal and earlier. Maxima are vectorised in onnxruntime, ranks are not. Of
    many maxima the largest are found in the same way.
    """
    count, sizes = 0, None
    for top in nodes_of(graph, "TopK"):
        values, k = top.inputs[0], constant(top.inputs[1])
        sizes = sizes or Sizes(graph)
        dims = sizes.dims.get(values, ())
        largest = "largest" not in top.attributes or top.attributes["largest"].value == 1
        axis = top.attributes["axis"].value if "axis" in top.attributes else -1
        if k is None or len(dims) != 2 or dims[1].number is None or axis not in (-1, 1):
            continue
        if largest and _chunk(dims[1].number, int(k.item())) is not None:
            found, places = _largest(graph, top, values, dims[1].number, values.dtype)
            take_place(top.outputs[0], found)
            take_place(top.outputs[1], places)
            graph.remove(top, safe=True)
            count += 1
    return count


def _chunk(width, k):
    """The size of chunk: the largest divisor of `width` that `k` chunks may have.

    `None` where nothing is to be gained, or the chunks would be too small.
    """
    most = _WIDEST // max(k, 1)
    if width <= _WIDEST or most < 4 or k < 1:
        return None
    return next((size for size in range(most, most // 2, -1) if width % size == 0), most)


def _least(dtype):
    """The least number of a type."""
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -np.inf


def _largest(graph, top, values, width, dtype, level=0):
    """The largest of values `(n, width)`, as many as `top` wants, and their places."""

    def add(op_type, *inputs, **options):
        return put(graph, top, op_type, *inputs, **options)

    def shared(name, array):
        return register(graph, f"{top.outputs[0].name}_{name}_{level}", array)

    def number(name, array):
        return shared(name, np.asarray(array, np.int64))

    wanted = top.inputs[1]
    k = int(constant(wanted).item())
    chunk = _chunk(width, k)
    if chunk is None:
        return add("TopK", values, wanted, outputs=2)
    if missing := -width % chunk:
        least = shared("least", np.array(_least(dtype.numpy()), dtype.numpy()))
        values = add("Pad", values, number("pads", [0, 0, 0, missing]), least)
    count, last = (width + missing) // chunk, number("last", [-1])
    rows = add("Reshape", values, number("chunks", [-1, count, chunk]))
    maxima = add("ReduceMax", rows, last, keepdims=0)
    _, best = _largest(graph, top, maxima, count, dtype, level + 1)
    # In the order in which they stand, so that of equals the first still comes first.
    best, _ = add("TopK", best, wanted, outputs=2, largest=0)
    found = add("Unsqueeze", best, last)
    found = add("GatherND", rows, found, batch_dims=1)
    found = add("Reshape", found, number("few", [-1, k * chunk]))
    found, places = add("TopK", found, wanted, outputs=2)
    size = number("size", chunk)
    which = add("Div", places, size)
    within = add("Mod", places, size)
    start = add("Mul", add("GatherElements", best, which, axis=-1), size)
    return found, add("Add", start, within)
