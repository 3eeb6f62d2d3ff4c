"""Passes that say what is true, and which of two values it chooses, with fewer nodes."""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.graph import (
    are_whole,
    before_cast,
    constant,
    made_by,
    nodes_of,
    put,
    register,
    replace,
    rewrite,
)

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
# What onnxruntime's `Where` chooses among on the CPU.
_CHOSEN = (
    ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8
)  # fmt: skip
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


def where_for_sums(graph):
    """`cast(c) * a + cast(not c) * b` becomes `Where(c, a, b)`, as it was in TensorFlow."""
    count = 0
    for total in nodes_of(graph, "Add"):
        for first, second in (total.inputs, tuple(reversed(total.inputs))):
            chosen, other = _masked(first), _masked(second)
            if chosen is None or other is None:
                continue
            (condition, kept), (negated, instead) = chosen, other
            inverse = made_by(negated, "Not")
            if inverse is not None and inverse.inputs[0] is condition:
                rewrite(graph, total, "Where", [condition, kept, instead])
                count += 1
                break
    return count


def integer_comparisons(graph):
    """`cast(i) < cast(j)` of integers as floats becomes `i < j`.

    tf2onnx compares all integers so, and from 2^24 on wrongly. A model that asks for this, numbers
    rounded to floats and then compared, cannot be told from that and gets them compared exactly.
    """
    count = 0
    for compare in nodes_of(graph, *_COMPARISONS):
        sides = [before_cast(side, to=ir.DataType.FLOAT) for side in compare.inputs]
        known = {side.dtype for side in sides if side is not None}
        if len(known) != 1 or not known <= set(_INTEGERS):
            continue
        (dtype,) = known
        for i, side in enumerate(sides):
            number = constant(compare.inputs[i])
            if side is None and number is not None and are_whole(number, dtype.numpy()):
                name = f"{compare.outputs[0].name}_{i}"
                sides[i] = register(graph, name, number.astype(dtype.numpy()))
        if None not in sides:
            rewrite(graph, compare, compare.op_type, sides)
            count += 1
    return count


def step_comparisons(graph):
    """`cast(t) < cast(n)` of the number of a loop's step and an int32 becomes one of int32.

    The number is int64 and no loop makes 2^31 steps; as floats they are told apart up to 2^24.
    """
    count = 0
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        number = body.inputs[0]
        for compare in nodes_of(body, *_COMPARISONS):
            sides = [before_cast(side, to=ir.DataType.FLOAT) for side in compare.inputs]
            others = [side for side in sides if side is not number]
            if len(others) != 1 or others[0] is None or others[0].dtype != ir.DataType.INT32:
                continue
            narrow = put(body, compare, "Cast", number, to=ir.DataType.INT32)
            sides = [narrow if side is number else side for side in sides]
            rewrite(body, compare, compare.op_type, sides)
            count += 1
    return count


def choices_for_casts(graph):
    """A cast of a bool that a loop's body reads beside the bool becomes `Where(c, 1, 0)`.

    onnxruntime asks of each cast whether it may go, and prints a warning about one whose input the
    same body reads.
    """
    count = 0
    for cast in nodes_of(graph, "Cast"):
        condition, number = cast.inputs[0], cast.outputs[0]
        together = _readers(condition) & _readers(number) - {graph}
        wanted = ir.DataType(cast.attributes["to"].value)
        if condition.dtype != ir.DataType.BOOL or not together or wanted not in _CHOSEN:
            continue
        dtype = wanted.numpy()
        one, zero = (register(graph, f"{dtype}_{n}", np.array(n, dtype)) for n in (1, 0))
        rewrite(graph, cast, "Where", [condition, one, zero])
        count += 1
    return count


def double_negations(graph):
    """`not not c` becomes `c`, and a cast to the type that a value has becomes the value."""
    count = 0
    for node in nodes_of(graph, "Not", "Cast"):
        if node.op_type == "Cast":
            same = node.inputs[0].dtype == ir.DataType(node.attributes["to"].value)
            origin = node.inputs[0] if same else None
        else:
            inner = made_by(node.inputs[0], "Not")
            origin = inner.inputs[0] if inner is not None else None
        if origin is not None:
            replace(node.outputs[0], origin)
            count += 1
    return count


def _readers(value):
    """The graphs whose nodes read a value."""
    return {use.node.graph for use in value.uses()}


def _masked(value):
    """`(condition, x)` if `value` is `cast(condition) * x`."""
    product = made_by(value, "Mul")
    if product is None:
        return None
    for factor, other in (product.inputs, tuple(reversed(product.inputs))):
        cast = made_by(factor, "Cast")
        if cast is not None and cast.inputs[0].dtype == ir.DataType.BOOL:
            return cast.inputs[0], other
    return None
