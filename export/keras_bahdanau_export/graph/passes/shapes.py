"""Passes that compute shapes, and places in a tensor, with fewer nodes."""

from math import prod

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.graph import (
    are_whole,
    constant,
    made_by,
    nodes_of,
    nodes_within,
    put,
    register,
    replace,
    rewrite,
)
from keras_bahdanau_export.graph.passes.size import number
from keras_bahdanau_export.graph.passes.sizes import Sizes

_LAST = {"axis": ir.AttrInt64("axis", 1)}
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
# Operators that make sizes of their first input, and of all inputs.
_MOVED = ("Gather", "Slice", "Squeeze", "Unsqueeze")
_CALCULATED = ("Add", "Concat", "Div", "Max", "Min", "Mul", "Sub")


def plain_gathers(graph):
    """`Gather(x, where(i < 0, i + n, i))` becomes `Gather(x, i)`, which counts from the end itself.

    Keras counts places from the end itself, for backends that cannot.
    """
    count, sizes = 0, Sizes(graph)
    for gather in nodes_within(graph, "Gather", "GatherElements"):
        reshape = made_by(gather.inputs[1], "Reshape")
        chosen = gather.inputs[1] if reshape is None else reshape.inputs[0]
        choice, dims = made_by(chosen, "Where"), sizes.dims.get(gather.inputs[0])
        if choice is None or dims is None:
            continue
        condition, wrapped, place = choice.inputs
        negative, shifted = made_by(condition, "Less"), made_by(wrapped, "Add")
        if negative is None or shifted is None or place not in shifted.inputs:
            continue
        zero = constant(negative.inputs[1])
        axis = gather.attributes["axis"].value if "axis" in gather.attributes else 0
        (size,) = [side for side in shifted.inputs if side is not place] or [None]
        counted = size is not None and sizes.items.get(size) == [dims[axis]]
        if negative.inputs[0] is not place or zero is None or zero.any() or not counted:
            continue
        if reshape is not None:  # others may read the old one
            own = ir.node("Reshape", [place, reshape.inputs[1]], reshape.attributes)
            gather.graph.insert_before(gather, own)
            gather.replace_input_with(1, own.outputs[0])
        elif len(sizes.dims.get(place, ())) == len(sizes.dims.get(choice.outputs[0], (0,))):
            gather.replace_input_with(1, place)
        else:
            continue
        count += 1
    return count


def wide_shapes(graph):
    """Sizes stay int64: `cast64(concat(cast32(shape), ...))` becomes `concat(shape, ...)`."""
    count = 0
    for cast in nodes_of(graph, "Cast"):
        narrow, dtype = cast.inputs[0], cast.attributes["to"].value
        wide = _wide(narrow) if (narrow.dtype, dtype) == _INTEGERS else None
        if wide is not None:
            replace(cast.outputs[0], wide)
            count += 1
    return count


def wide_ranges(graph):
    """A range over sizes counts in int64 and is cast afterwards: `cast(range(size))`.

    Once a size is known, as a fixed batch is, onnxruntime takes it for int64 whatever it was cast
    to, and refuses a range whose other inputs have another type.
    """
    count = 0
    for node in nodes_of(graph, "Range"):
        dtype = node.outputs[0].dtype
        if dtype in (None, ir.DataType.INT64) or all(
            constant(side) is not None for side in node.inputs
        ):
            continue
        wide = [_wide(side) for side in node.inputs]
        if None in wide:
            continue
        numbers = put(graph, node, "Range", *wide)
        numbers.type, numbers.shape = ir.TensorType(ir.DataType.INT64), node.outputs[0].shape
        rewrite(graph, node, "Cast", [numbers], {"to": dtype})
        count += 1
    return count


def single_reshapes(graph):
    """`reshape(reshape(x, a), b)` becomes `reshape(x, b)`."""
    count, sizes = 0, Sizes(graph)
    for outer in nodes_within(graph, "Reshape"):
        inner = made_by(outer.inputs[0], "Reshape")
        shape = sizes.items.get(outer.inputs[1])
        if inner is None or shape is None or number(0) in shape or "allowzero" in inner.attributes:
            continue
        outer.replace_input_with(0, inner.inputs[0])
        count += 1
    return count


def plain_sizes(graph):
    """Sizes are computed at once from those that they consist of, and before a loop, not in it."""
    count, sizes = 0, Sizes(graph)
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        inside = {*body.inputs, *(value for node in body for value in node.outputs)}
        for node in list(body):
            items = _items_of(sizes, node)
            if items is None or {part for size in items for part, _ in size.parts} & inside:
                continue
            _list_instead(graph, loop, sizes, node.outputs[0])
            count += 1
    for node in list(graph):
        if _items_of(sizes, node) is not None and not _is_plain(sizes, node.outputs[0]):
            _list_instead(graph, node, sizes, node.outputs[0])
            count += 1
    return count


def open_reshapes(graph):
    """A reshape to a shape with one size that only the run tells infers that size."""
    sizes, count = Sizes(graph), 0
    for reshape in nodes_of(graph, "Reshape"):
        target = reshape.inputs[1]
        items = sizes.items.get(target)
        if items is None or constant(target) is not None or "allowzero" in reshape.attributes:
            continue
        numbers = [-1 if size.number is None else size.number for size in items]
        if numbers.count(-1) < 2 and 0 not in numbers and _told(sizes, reshape, items):
            shape = register(graph, f"{target.name}_inferred", np.array(numbers))
            reshape.replace_input_with(1, shape)
            count += 1
    return count


def idle_shapes(graph):
    """A reshape to the shape that a value has, and its expansion to it, become the value."""
    sizes, count = Sizes(graph), 0
    for node in nodes_within(graph, "Reshape", "Expand"):
        before, after = sizes.dims.get(node.inputs[0]), sizes.dims.get(node.outputs[0])
        if before is not None and before == after:
            replace(node.outputs[0], node.inputs[0])
            count += 1
    return count


def element_gathers(graph):
    """`GatherND` of one number for each place of a row becomes `GatherElements`.

    CUDA has no `GatherND` of int32.
    """
    count, sizes = 0, Sizes(graph)
    for gather in nodes_within(graph, "GatherND"):
        data, places = gather.inputs[0], made_by(gather.inputs[1], "Unsqueeze")
        batches = gather.attributes["batch_dims"].value if "batch_dims" in gather.attributes else 0
        axes = constant(places.inputs[1]) if places is not None else None
        if batches != 1 or axes is None or axes.tolist() not in ([-1], [2]):
            continue
        if all(len(sizes.dims.get(value, ())) == 2 for value in (data, places.inputs[0])):
            rewrite(gather.graph, gather, "GatherElements", [data, places.inputs[0]], _LAST)
            count += 1
    return count


def _told(sizes, reshape, items):
    """Whether its shape still follows from what is reshaped where one size of it is inferred."""
    before = sizes.dims.get(reshape.inputs[0])
    rest = prod((size for size in items if size.number is not None), start=number(1))
    whole = prod(before, start=number(1)) if before is not None else None
    return whole is not None and whole.over(rest) in items


def _items_of(sizes, node):
    """The sizes that a node lists, if they are products with whole factors; else `None`."""
    value = node.outputs[0]
    items = sizes.items.get(value)
    if items is None or value.dtype not in _INTEGERS or value.is_graph_output():
        return None
    return items if all(size.factor.denominator == 1 for size in items) else None


def _is_plain(sizes, value):
    """Whether sizes are listed as `_list_instead` does."""
    node = value.producer()
    if node is None or constant(value) is not None or value not in sizes.items:
        return True  # the last is new, and made by this pass
    if node.op_type == "Shape":
        axis = node.attributes["start"].value if "start" in node.attributes else 0
        itself = ((node.inputs[0], axis),)
        return len(sizes.items[value]) == 1 and sizes.items[value][0].parts == itself
    plain = node.op_type in ("Mul", "Concat", "Squeeze", "Cast")
    return plain and all(_is_plain(sizes, side) for side in node.inputs)


def _list_instead(graph, before, sizes, value):
    """Puts a list of sizes, made of those that they are products of, in the place of a value."""

    def add(op_type, *inputs, **attributes):
        return put(graph, before, op_type, *inputs, **attributes)

    def numbers(*several):
        name = f"sizes_{'_'.join(map(str, several))}"
        return register(graph, name, np.array(several, np.int64))

    items, listed = sizes.items[value], []
    for size in items:
        one = numbers(int(size.factor)) if size.factor != 1 or not size.parts else None
        for part, axis in size.parts:
            length = add("Shape", part, start=axis, end=axis + 1)
            one = length if one is None else add("Mul", length, one)
        listed.append(one)
    if not any(size.parts for size in items):
        listed = [numbers(*(int(size.factor) for size in items))]
    found = listed[0] if len(listed) == 1 else add("Concat", *listed, axis=0)
    if not sizes.dims[value]:
        found = add("Squeeze", found, numbers(0))
    found = found if value.dtype == ir.DataType.INT64 else add("Cast", found, to=value.dtype)
    replace(value, found)


def _of_sizes(value):
    """Whether a value is made of the sizes of tensors, which int32 holds."""
    numbers, node = constant(value), value.producer()
    if numbers is not None or node is None:
        return numbers is not None and bool((np.abs(numbers) < 2**31).all())
    if node.op_type in ("Shape", "Size"):
        return True
    if node.op_type in ("Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "ReduceProd"):
        return _of_sizes(node.inputs[0])
    calculated = ("Concat", "Mul", "Div", "Add", "Sub", "Max", "Min", "Cast", "Range")
    return node.op_type in calculated and all(map(_of_sizes, node.inputs))


def _wide(value):
    """Sizes of another type, or numbers made of sizes, as int64; `None` for anything else."""
    numbers, node = constant(value), value.producer()
    if numbers is not None and are_whole(numbers, np.int64):
        return register(value.graph, f"{value.name}_int64", numbers.astype(np.int64))
    if numbers is not None or node is None:
        return None
    if node.op_type == "Cast":
        origin = node.inputs[0]
        if origin.dtype != ir.DataType.INT64:
            return _wide(origin)
        return origin if _of_sizes(origin) else None
    whole = node.op_type != "Div" or value.dtype in _INTEGERS  # a quotient of floats is not
    if node.op_type not in (*_MOVED, *_CALCULATED) or not whole:
        return None
    data = 1 if node.op_type in _MOVED else len(node.inputs)
    wide = [_wide(side) for side in node.inputs[:data]]
    if None in wide:
        return None
    new = ir.node(node.op_type, [*wide, *node.inputs[data:]], node.attributes)
    new.outputs[0].type, new.outputs[0].shape = ir.TensorType(ir.DataType.INT64), value.shape
    node.graph.insert_after(node, new)
    return new.outputs[0]
