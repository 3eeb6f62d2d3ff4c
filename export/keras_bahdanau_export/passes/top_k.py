"""The pass that finds the largest of many faster."""

import numpy as np

from keras_bahdanau_export.passes.graph import constant, nodes_of, put, register, take_place


def chunked_top_ks(graph):
    """The `k` largest of many: first the `k` chunks with the largest maxima, then within those.

    Any of the `k` largest stands in one of these chunks, as each chunk before its own holds one
    that is larger, or equal and earlier. Maxima are vectorised in onnxruntime, ranks are not.
    """
    count = 0
    for top in nodes_of(graph, "TopK"):
        values, k = top.inputs[0], constant(top.inputs[1])
        width = values.shape[-1] if values.shape is not None else None
        largest = "largest" not in top.attributes or top.attributes["largest"].value == 1
        axis = top.attributes["axis"].value if "axis" in top.attributes else -1
        if k is None or not isinstance(width, int) or len(values.shape) != 2 or axis not in (-1, 1):
            continue
        chunk = _chunk(width, int(k.item()))
        if chunk is None or not largest:
            continue
        _chunked_top_k(graph, top, width, chunk, int(k.item()))
        count += 1
    return count


def _chunk(width, k):
    """The size of chunk, a divisor of `width`, nearest to 100; `None` where it would not pay."""
    sizes = [size for size in range(40, 201) if width % size == 0 and width // size > 4 * k]
    return min(sizes, key=lambda size: abs(size - 100), default=None) if width >= 1000 else None


def _chunked_top_k(graph, top, width, chunk, k):
    def add(op_type, *inputs, **options):
        return put(graph, top, op_type, *inputs, **options)

    def number(name, array):
        return register(graph, f"{top.outputs[0].name}_{name}", np.asarray(array, np.int64))

    values, wanted = top.inputs
    last = number("last", [-1])
    chunks = number("chunks", [-1, width // chunk, chunk])
    rows = add("Reshape", values, chunks)
    largest = add("ReduceMax", rows, last, keepdims=0)
    _, best = add("TopK", largest, wanted, outputs=2)
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
    take_place(top.outputs[0], found)
    take_place(top.outputs[1], add("Add", start, within))
    graph.remove(top, safe=True)
