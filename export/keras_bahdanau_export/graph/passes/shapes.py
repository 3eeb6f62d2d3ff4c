"""Passes over shape arithmetic, reshapes and gathers."""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    are_integers,
    constant_array,
    insert_node,
    nodes_including_loops,
    nodes_of,
    outermost_first,
    producer_of,
    replace_node,
    replace_uses,
)
from keras_bahdanau_export.graph.passes.size_inference import SizeInference, fixed_size

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
# Operators whose result has the elements of the first input, and operators that compute with all.
_SELECTING = ("Gather", "Slice", "Squeeze", "Unsqueeze")
_COMPUTING = ("Add", "Concat", "Div", "Max", "Min", "Mul", "Sub")


def drop_index_wrapping(graph):
    """Replace `Gather(x, where(i < 0, i + n, i))` by `Gather(x, i)`, which takes negative indices.

    Keras adds the size to negative indices for backends that do not take them.
    """
    count, sizes = 0, SizeInference(graph)
    for gather in nodes_including_loops(graph, "Gather", "GatherElements"):
        reshape = producer_of(gather.inputs[1], "Reshape")
        selected = gather.inputs[1] if reshape is None else reshape.inputs[0]
        where = producer_of(selected, "Where")
        if where is None:
            continue
        condition, wrapped, index = where.inputs
        less, add = producer_of(condition, "Less"), producer_of(wrapped, "Add")
        if less is None or add is None or index not in add.inputs:
            continue
        dims = sizes.dims.get(gather.inputs[0])
        if dims is None:
            continue
        zero = constant_array(less.inputs[1])
        axis = gather.attributes["axis"].value if "axis" in gather.attributes else 0
        (size,) = [side for side in add.inputs if side is not index] or [None]
        adds_size = size is not None and sizes.contents.get(size) == [dims[axis]]
        if less.inputs[0] is not index or zero is None or zero.any() or not adds_size:
            continue
        if reshape is not None:  # a new one, as other nodes may read the old one
            reshape_index = ir.node("Reshape", [index, reshape.inputs[1]], reshape.attributes)
            gather.graph.insert_before(gather, reshape_index)
            gather.replace_input_with(1, reshape_index.outputs[0])
        elif len(sizes.dims.get(index, ())) == len(sizes.dims.get(where.outputs[0], (0,))):
            gather.replace_input_with(1, index)
        else:
            continue
        count += 1
    return count


def widen_shapes(graph):
    """Keep sizes in int64: replace `cast64(concat(cast32(shape), ...))` by `concat(shape, ...)`."""
    count = 0
    for cast in nodes_of(graph, "Cast"):
        narrow, dtype = cast.inputs[0], cast.attributes["to"].value
        wide = _as_int64(narrow) if (narrow.dtype, dtype) == _INTEGERS else None
        if wide is not None:
            replace_uses(cast.outputs[0], wide)
            count += 1
    return count


def widen_ranges(graph):
    """Compute a range over sizes in int64 and cast the result: `cast(range(size))`.

    If a size is a constant, as a fixed batch is, onnxruntime ignores a cast of it to another type,
    and refuses a range whose inputs have different types.
    """
    count = 0
    for node in nodes_of(graph, "Range"):
        dtype = node.outputs[0].dtype
        if dtype in (None, ir.DataType.INT64) or all(
            constant_array(side) is not None for side in node.inputs
        ):
            continue
        inputs = [_as_int64(side) for side in node.inputs]
        if None in inputs:
            continue
        numbers = insert_node(graph, node, "Range", *inputs)
        numbers.type, numbers.shape = ir.TensorType(ir.DataType.INT64), node.outputs[0].shape
        replace_node(graph, node, "Cast", [numbers], {"to": dtype})
        count += 1
    return count


def fuse_reshapes(graph):
    """Replace `reshape(reshape(x, a), b)` by `reshape(x, b)`."""
    count, sizes = 0, SizeInference(graph)
    for outer in nodes_including_loops(graph, "Reshape"):
        inner = producer_of(outer.inputs[0], "Reshape")
        if inner is None or "allowzero" in inner.attributes:
            continue
        shape = sizes.contents.get(outer.inputs[1])
        if shape is None or fixed_size(0) in shape:  # 0 copies an axis of `reshape(x, a)`
            continue
        outer.replace_input_with(0, inner.inputs[0])
        count += 1
    return count


def simplify_sizes(graph):
    """Compute sizes directly from the axes that they are products of, and before a loop."""
    count, sizes = 0, SizeInference(graph)
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        nodes = [node for part in outermost_first(body) for node in part]
        inside = {*body.inputs, *(value for node in nodes for value in node.outputs)}
        for node in nodes:
            contents = _integer_products(sizes, node)
            if contents is None or {value for size in contents for value, _ in size.axes} & inside:
                continue
            _replace_by_products(graph, loop, sizes, node.outputs[0])
            count += 1
    for node in list(graph):
        if _integer_products(sizes, node) is None:
            continue
        if not _is_made_of_products(sizes, node.outputs[0]):
            _replace_by_products(graph, node, sizes, node.outputs[0])
            count += 1
    return count


def drop_noop_reshapes(graph):
    """Remove a reshape or expansion of a value to the shape that it already has."""
    sizes, count = SizeInference(graph), 0
    for node in nodes_including_loops(graph, "Reshape", "Expand"):
        before, after = sizes.dims.get(node.inputs[0]), sizes.dims.get(node.outputs[0])
        if before is not None and before == after:
            replace_uses(node.outputs[0], node.inputs[0])
            count += 1
    return count


def _integer_products(sizes, node):
    """Return the contents of a node's output if they have integer factors, else `None`."""
    value = node.outputs[0]
    if value.dtype not in _INTEGERS or value.is_graph_output():
        return None
    contents = sizes.contents.get(value)
    is_integer = contents is not None and all(size.factor.denominator == 1 for size in contents)
    return contents if is_integer else None


def _is_made_of_products(sizes, value):
    """Whether sizes are already computed as `_replace_by_products` does."""
    node = value.producer()
    if node is None or constant_array(value) is not None:
        return True
    if value not in sizes.contents:  # inserted by this pass after the inference
        return True
    if node.op_type == "Shape":
        axis = node.attributes["start"].value if "start" in node.attributes else 0
        itself = ((node.inputs[0], axis),)
        return len(sizes.contents[value]) == 1 and sizes.contents[value][0].axes == itself
    is_product = node.op_type in ("Mul", "Concat", "Squeeze", "Cast")
    return is_product and all(_is_made_of_products(sizes, side) for side in node.inputs)


def _replace_by_products(graph, before, sizes, value):
    """Replace a vector of sizes by one computed from the axes that they are products of."""

    def add(op_type, *inputs, **attributes):
        return insert_node(graph, before, op_type, *inputs, **attributes)

    def int64(*numbers):
        name = f"sizes_{'_'.join(map(str, numbers))}"
        return add_initializer(graph, name, np.array(numbers, np.int64))

    contents, elements = sizes.contents[value], []
    for size in contents:
        product = int64(int(size.factor)) if size.factor != 1 or not size.axes else None
        for tensor, axis in size.axes:
            length = add("Shape", tensor, start=axis, end=axis + 1)
            product = length if product is None else add("Mul", length, product)
        elements.append(product)
    if not any(size.axes for size in contents):
        elements = [int64(*(int(size.factor) for size in contents))]
    result = elements[0] if len(elements) == 1 else add("Concat", *elements, axis=0)
    if not sizes.dims[value]:
        result = add("Squeeze", result, int64(0))
    if value.dtype != ir.DataType.INT64:
        result = add("Cast", result, to=value.dtype)
    replace_uses(value, result)


def _fits_int32(value):
    """Whether a value is computed only from sizes of tensors and constants that fit int32."""
    array, node = constant_array(value), value.producer()
    if array is not None or node is None:
        return array is not None and bool((np.abs(array) < 2**31).all())
    if node.op_type in ("Shape", "Size"):
        return True
    if node.op_type in (*_SELECTING, "Reshape", "ReduceProd"):
        return _fits_int32(node.inputs[0])
    return node.op_type in (*_COMPUTING, "Cast", "Range") and all(map(_fits_int32, node.inputs))


def _as_int64(value):
    """Return sizes of another type, or numbers computed from them, as int64; `None` for others."""
    array, node = constant_array(value), value.producer()
    if array is not None and are_integers(array, np.int64):
        return add_initializer(value.graph, f"{value.name}_int64", array.astype(np.int64))
    if array is not None or node is None:
        return None
    if node.op_type == "Cast":
        source = node.inputs[0]
        if source.dtype != ir.DataType.INT64:
            return _as_int64(source)
        return source if _fits_int32(source) else None
    # The quotient of floats may be a fraction.
    is_integer = node.op_type != "Div" or value.dtype in _INTEGERS
    if node.op_type not in (*_SELECTING, *_COMPUTING) or not is_integer:
        return None
    data_inputs = 1 if node.op_type in _SELECTING else len(node.inputs)
    wide = [_as_int64(side) for side in node.inputs[:data_inputs]]
    if None in wide:
        return None
    new = ir.node(node.op_type, [*wide, *node.inputs[data_inputs:]], node.attributes)
    new.outputs[0].type, new.outputs[0].shape = ir.TensorType(ir.DataType.INT64), value.shape
    node.graph.insert_after(node, new)
    return new.outputs[0]
