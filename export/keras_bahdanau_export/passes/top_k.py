"""The pass that finds the largest of many faster."""

import numpy as np

from keras_bahdanau_export.passes.graph import constant, nodes_of, put, register, take_place

# Among more numbers than these CUDA ranks by another algorithm, which orders equal ones by chance.
_WIDEST = 256


def chunked_top_ks(graph):
    """The `k` largest of many: first the `k` chunks with the largest maxima, then within those.

    Any of the `k` largest stands in one of these chunks, as each chunk before its own holds one
    that is larger, or equal and earlier. Maxima are vectorised in onnxruntime, ranks are not. Of
    many maxima the largest are found in the same way.
    """
    count = 0
    for top in nodes_of(graph, "TopK"):
        values, k = top.inputs[0], constant(top.inputs[1])
        width = values.shape[-1] if values.shape is not None else None
        largest = "largest" not in top.attributes or top.attributes["largest"].value == 1
        axis = top.attributes["axis"].value if "axis" in top.attributes else -1
        if k is None or not isinstance(width, int) or len(values.shape) != 2 or axis not in (-1, 1):
            continue
        k = int(k.item())
        chunk = _chunk(width, k)
        if chunk is None or not largest:
            continue
        missing = -width % chunk
        if missing:
            pads, least = np.array([0, 0, 0, missing]), np.array(-np.inf, values.dtype.numpy())
            name = top.outputs[0].name
            pads, least = (
                register(graph, f"{name}_{part}", of)
                for part, of in (("pads", pads), ("least", least))
            )
            top.replace_input_with(0, put(graph, top, "Pad", values, pads, least))
        _chunked_top_k(graph, top, width + missing, chunk, k)
        count += 1
    return count


def _chunk(width, k):
    """The size of chunk: the largest divisor of `width` that `k` chunks may have.

    `None` where nothing is to be gained, or the chunks would be too small.
    """
    most = _WIDEST // k
    if width <= _WIDEST or most < 4:
        return None
    return next((size for size in range(most, most // 2, -1) if width % size == 0), most)


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
