"""Passes over comparisons, boolean values and casts."""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    are_integers,
    cast_source,
    constant_array,
    insert_node,
    nodes_of,
    replace_node,
)

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
# Types that onnxruntime's `Where` supports on the CPU.
_WHERE_TYPES = (
    *(ir.DataType.FLOAT, ir.DataType.DOUBLE),
    *(ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8),
)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


def compare_as_integers(graph):
    """Replace `cast(i) < cast(j)` of integers as floats by `i < j`.

    tf2onnx compares all integers as floats, which is wrong from 2^24 on. A model that rounds
    integers to floats before it compares them looks the same; its integers are compared exactly.
    """
    count = 0
    for comparison in nodes_of(graph, *_COMPARISONS):
        sides = [cast_source(side, to=ir.DataType.FLOAT) for side in comparison.inputs]
        dtypes = {side.dtype for side in sides if side is not None}
        if len(dtypes) != 1 or not dtypes <= set(_INTEGERS):
            continue
        (dtype,) = dtypes
        for i, side in enumerate(sides):
            number = constant_array(comparison.inputs[i])
            if side is None and number is not None and are_integers(number, dtype.numpy()):
                name = f"{comparison.outputs[0].name}_{i}"
                sides[i] = add_initializer(graph, name, number.astype(dtype.numpy()))
        if None not in sides:
            replace_node(graph, comparison, comparison.op_type, sides)
            count += 1
    return count


def compare_steps_as_int32(graph):
    """Replace `cast(t) < cast(n)` of a loop's step number and an int32 by an int32 comparison.

    The step number is int64, but no loop makes 2^31 steps. Floats are only exact up to 2^24.
    """
    count = 0
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        step = body.inputs[0]
        for comparison in nodes_of(body, *_COMPARISONS):
            sides = [cast_source(side, to=ir.DataType.FLOAT) for side in comparison.inputs]
            others = [side for side in sides if side is not step]
            if len(others) != 1 or others[0] is None or others[0].dtype != ir.DataType.INT32:
                continue
            step_int32 = insert_node(body, comparison, "Cast", step, to=ir.DataType.INT32)
            sides = [step_int32 if side is step else side for side in sides]
            replace_node(body, comparison, comparison.op_type, sides)
            count += 1
    return count


def replace_bool_casts(graph):
    """Replace the cast of a bool by `Where(c, 1, 0)` if a loop's body reads both.

    onnxruntime tries to remove each cast, and prints a warning if the same body reads its input.
    """
    count = 0
    for cast in nodes_of(graph, "Cast"):
        condition, number = cast.inputs[0], cast.outputs[0]
        shared_bodies = _readers(condition) & _readers(number) - {graph}
        target = ir.DataType(cast.attributes["to"].value)
        if condition.dtype != ir.DataType.BOOL or not shared_bodies or target not in _WHERE_TYPES:
            continue
        dtype = target.numpy()
        one, zero = (add_initializer(graph, f"{dtype}_{n}", np.array(n, dtype)) for n in (1, 0))
        replace_node(graph, cast, "Where", [condition, one, zero])
        count += 1
    return count


def _readers(value):
    """Return the graphs whose nodes read a value."""
    return {use.node.graph for use in value.uses()}
