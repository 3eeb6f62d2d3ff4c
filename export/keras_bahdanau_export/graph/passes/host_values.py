"""Sizes that onnxruntime computes on the CPU while the rest of a graph runs on a GPU.

The rules are those of onnxruntime's CUDA provider: it keeps `Shape`, and what is computed from its
results alone, on the CPU, unless a CUDA kernel reads these results on the CPU anyway.
"""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    constant_array,
    insert_node,
    nodes_of,
)

_SMALL = 100  # maximum number of elements of a constant that onnxruntime also uses on the CPU
_ALL = range(9)
# Inputs that CUDA kernels read on the CPU, by operator.
_HOST_INPUTS = {
    **dict.fromkeys(("ConstantOfShape", "If"), (0,)),
    "Loop": (0, 1),
    "Range": (0, 1, 2),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (4,)),
    **dict.fromkeys(("Pad", "Slice"), _ALL[1:]),
    **dict.fromkeys(
        "CumSum Expand OneHot ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape Split "
        "Squeeze Tile TopK Trilu Unsqueeze".split(),
        (1,),
    ),
}
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def reads_on_host(node, i):
    """Whether the CUDA kernel of a node reads its input `i` on the CPU."""
    return i in _HOST_INPUTS.get(node.op_type, ())


def host_values(graph):
    """Return the values that onnxruntime computes on the CPU, a set.

    Args:
        graph: An `onnx_ir.Graph`. Its loops and conditions are not examined.
    """
    values = set()
    for node in graph:
        is_size = node.op_type in ("Shape", "Size")
        if is_size or (not values.isdisjoint(node.inputs) and _runs_on_host(node, values)):
            values.update(node.outputs)
    return values


def _runs_on_host(node, values):
    """Whether a node that reads one of these values on the CPU is computed there."""
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        if value.dtype in _HALVES:
            return False
        array = constant_array(value)
        if value.is_graph_input() or (array is not None and array.size <= _SMALL):
            continue
        if value not in values or reads_on_host(node, i):
            return False
    return True


def host_values_read_in_loop(loop):
    """Return the values from the CPU that a loop copies to a GPU in every step, in order.

    These are values of `host_values` before the loop that a node of its body, or of a condition in
    it, does not read on the CPU.
    """
    values, body = host_values(loop.graph), loop.attributes["body"].value
    return list(
        dict.fromkeys(
            value
            for part in (body, *body.subgraphs())
            for node in part
            for i, value in enumerate(node.inputs)
            if value in values and not reads_on_host(node, i)
        )
    )


def move_sizes_to_device(model):
    """Copy the sizes that a loop reads on a GPU to it once, before the loop.

    `Range(n, n + 1)` has the only element `n`. Its CUDA kernel reads `n` on the CPU and writes the
    result on the GPU, so onnxruntime does not run it on the CPU.
    """
    for loop in nodes_of(model.graph, "Loop"):
        body = loop.attributes["body"].value
        parts = (body, *body.subgraphs())
        for value in host_values_read_in_loop(loop):
            if value.dtype not in (ir.DataType.INT32, ir.DataType.INT64) or value.shape != ():
                continue
            copy = _copy_to_device(loop, value)
            for use in value.uses():
                if use.node.graph in parts and not reads_on_host(use.node, use.idx):
                    use.node.replace_input_with(use.idx, copy)


def _copy_to_device(loop, size):
    """Insert a copy of a scalar on the GPU before a loop; return it."""

    def add(op_type, *inputs, **attributes):
        return insert_node(loop.graph, loop, op_type, *inputs, **attributes)

    one, first = (add_initializer(loop.graph, *item) for item in _CONSTANTS.items())
    # In int64, as `widen_ranges` explains.
    start = add("Cast", size, to=ir.DataType.INT64)
    copy = add("Squeeze", add("Range", start, add("Add", start, one), one), first)
    copy = add("Cast", copy, to=size.dtype)
    copy.type, copy.shape = size.type, size.shape
    return copy


_CONSTANTS = {"one": np.array(1), "first_axis": np.array([0])}
