"""Passes that compute shapes, and places in a tensor, with fewer nodes."""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.passes.graph import (
    before_cast,
    constant,
    elements,
    made_by,
    nodes_of,
    register,
    replace,
)


def plain_gathers(graph):
    """`Gather(x, where(i < 0, i + n, i))` becomes `Gather(x, i)`, which counts from the end itself.

    Keras counts places from the end itself, for backends that cannot.
    """
    count = 0
    for gather in nodes_of(graph, "Gather"):
        choice = made_by(gather.inputs[1], "Where")
        if choice is None:
            continue
        condition, wrapped, place = choice.inputs
        negative, shifted = made_by(condition, "Less"), made_by(wrapped, "Add")
        if negative is None or shifted is None or place not in shifted.inputs:
            continue
        zero = constant(negative.inputs[1])
        axis = gather.attributes["axis"].value if "axis" in gather.attributes else 0
        (size,) = [side for side in shifted.inputs if side is not place] or [None]
        data = gather.inputs[0]
        counted = size is not None and data.shape is not None
        counted = counted and elements(size) in ([(data, axis)], [data.shape[axis]])
        if negative.inputs[0] is place and zero is not None and not zero.any() and counted:
            gather.replace_input_with(1, place)
            count += 1
    return count


def wide_shapes(graph):
    """Sizes stay int64: `cast64(concat(cast32(shape), ...))` becomes `concat(shape, ...)`."""
    count = 0
    for cast in nodes_of(graph, "Cast"):
        if cast.attributes["to"].value != ir.DataType.INT64:
            continue
        wide = _wide(graph, cast.inputs[0])
        if wide is not None:
            replace(cast.outputs[0], wide)
            count += 1
    return count


def single_reshapes(graph):
    """`reshape(reshape(x, a), b)` becomes `reshape(x, b)`."""
    count = 0
    for outer in nodes_of(graph, "Reshape"):
        inner = made_by(outer.inputs[0], "Reshape")
        shape = elements(outer.inputs[1])
        if inner is None or (shape is None) or 0 in shape or "allowzero" in inner.attributes:
            continue
        outer.replace_input_with(0, inner.inputs[0])
        count += 1
    return count


def _wide(graph, value):
    """`value`, which is int32, as int64 without a cast of anything that depends on the input."""
    narrowed = before_cast(value, to=ir.DataType.INT32)
    if narrowed is not None and narrowed.dtype == ir.DataType.INT64:
        return narrowed
    number = constant(value)
    if number is not None and number.dtype == np.int32:
        return register(graph, f"{value.name}_int64", number.astype(np.int64))
    node = value.producer()
    if node is None or node.op_type not in ("Concat", "Slice", "Squeeze", "Unsqueeze", "Gather"):
        return None
    data = len(node.inputs) if node.op_type == "Concat" else 1
    wide = [_wide(graph, side) for side in node.inputs[:data]]
    if None in wide:
        return None
    new = ir.node(node.op_type, [*wide, *node.inputs[data:]], node.attributes)
    new.outputs[0].type, new.outputs[0].shape = ir.TensorType(ir.DataType.INT64), value.shape
    node.graph.insert_after(node, new)
    return new.outputs[0]
