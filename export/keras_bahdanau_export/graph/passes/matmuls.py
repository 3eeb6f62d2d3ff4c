"""Passes that remove matrix products with weights, or make them smaller."""

import numpy as np

from keras_bahdanau_export.graph.passes.editing import (
    SLICE_END,
    add_initializer,
    constant_array,
    insert_node,
    nodes_including_loops,
    producer_of,
    replace_node,
)
from keras_bahdanau_export.graph.passes.size_inference import SizeInference, fixed_size

_MAX_TABLE = 2**24  # numbers (64 MiB in float32) of a precomputed product with an embedding


def drop_matmul_reshapes(graph):
    """Remove the reshapes to two dimensions and back around a product of more dimensions.

    `tensordot(x, w)` of `x (..., k)` and `w (k, n)` is `MatMul(x, w)` in ONNX. A tanh between the
    first reshape and the product, as in an attention, is then applied to `x`.
    """
    count, sizes = 0, SizeInference(graph)
    for restore in nodes_including_loops(graph, "Reshape"):
        matmul = producer_of(restore.inputs[0], "MatMul")
        if matmul is None:
            continue
        tanh = producer_of(matmul.inputs[0], "Tanh")
        flatten = producer_of((tanh or matmul).inputs[0], "Reshape")
        if flatten is None or (tanh is not None and len(tanh.outputs[0].uses()) != 1):
            continue
        source, weights = flatten.inputs[0], matmul.inputs[1]
        values = (source, flatten.outputs[0], weights, restore.outputs[0])
        before, rows, kernel, after = (sizes.dims.get(value) for value in values)
        if None in (before, rows, kernel, after) or not len(rows) == len(kernel) == 2:
            continue
        if not before:
            continue
        # All but the last size are equal, so the last size of `x` can only be `k`.
        if after == [*before[:-1], kernel[1]] and rows[1] == kernel[0]:
            own_graph = restore.graph
            if tanh is not None:
                source = insert_node(own_graph, restore, "Tanh", source)
            replace_node(own_graph, restore, "MatMul", [source, weights])
            count += 1
    return count


def make_slices_contiguous(graph):
    """Replace slices of every n-th column of a product (`x[:, 0::2]`) by contiguous slices.

    The columns of the weights are reordered instead. A maxout reads its pairs with such slices.
    """
    count, sizes = 0, SizeInference(graph)
    for node in nodes_including_loops(graph, "Add", "MatMul"):
        weights = _weights_with_columns(node)
        if weights is None:
            continue
        slices = [user for user, _ in node.outputs[0].uses()]
        steps = [_start_and_step(sizes, user, node.outputs[0]) for user in slices]
        if not steps or None in steps or node.outputs[0].is_graph_output():
            continue
        n, width = steps[0][1], weights[0][2].shape[-1]
        if len({step for _, step in steps}) != 1 or width % n:
            continue
        order = np.arange(width).reshape(-1, n).T.reshape(-1)
        for user, i, array in weights:
            name = f"{user.inputs[i].name}_by_{n}"
            user.replace_input_with(i, add_initializer(graph, name, array[..., order].copy()))
        size = width // n
        for user, (start, _) in zip(slices, steps, strict=True):
            bounds = [start * size, (start + 1) * size]
            bounds = [
                add_initializer(graph, f"column_{bound}", np.array([bound])) for bound in bounds
            ]
            axis = add_initializer(graph, "last_axis", np.array([-1]))
            replace_node(user.graph, user, "Slice", [node.outputs[0], *bounds, axis])
        count += 1
    return count


def hoist_matmuls(graph):
    """Multiply with weights before a gather of rows or a weighted sum, not after it.

    `concat(E[i], p @ H, s) @ [U; V; W] + b` becomes `(E @ U + b)[i] + p @ (H @ V) + s @ W`. A
    decoder's products with its last word and its context are then not computed at every step.
    onnxruntime computes `E @ U + b` when it opens the graph, so `E` must not be too large. `H @ V`
    is computed once before the loop if `H` comes from outside. This is less work while `H` has
    fewer rows than `depth * width / (width - depth)`, 850 for (512, 1280).
    """
    count, sizes = 0, SizeInference(graph)
    for matmul in nodes_including_loops(graph, "MatMul"):
        weights, hoisted, remaining, row = constant_array(matmul.inputs[1]), [], [], 0
        if weights is None or weights.ndim != 2:
            continue
        for part in _concatenated_parts(sizes, matmul.inputs[0]):
            depth = len(weights) if part is matmul.inputs[0] else _last_size(sizes, part)
            if depth is None:
                break
            rows = (row, row + depth)
            can_hoist = _can_hoist(sizes, matmul, part, weights.shape[1])
            (hoisted if can_hoist else remaining).append((part, rows))
            row += depth
        if not hoisted or row != len(weights):
            continue
        last, bias = matmul, None
        if _gathered_table(hoisted[0][0]) is not None:
            last, bias = _with_bias(matmul)
        summands = [_hoist(matmul, *hoisted[0], weights, bias)]
        summands += [_hoist(matmul, part, rows, weights) for part, rows in hoisted[1:]]
        own_graph = matmul.graph
        if remaining:
            inputs = [part for part, _ in remaining]
            if len(inputs) > 1:
                inputs = [insert_node(own_graph, matmul, "Concat", *inputs, axis=-1)]
            array = np.concatenate([weights[slice(*rows)] for _, rows in remaining])
            array = add_initializer(own_graph, f"{matmul.inputs[1].name}_late", array)
            summands.append(insert_node(own_graph, matmul, "MatMul", *inputs, array))
        while len(summands) > 2:
            summands = [insert_node(own_graph, matmul, "Add", *summands[:2]), *summands[2:]]
        replace_node(own_graph, last, "Add" if len(summands) == 2 else "Identity", summands)
        if last is not matmul:
            own_graph.remove(matmul, safe=True)
        count += 1
    return count


def _weights_with_columns(node):
    """Return `(node, input index, array)` for the weights of `a @ W` or `a @ W + b`, or `None`."""
    weights = []
    if node.op_type == "Add":
        products = (producer_of(side, "MatMul") for side in node.inputs)
        matmul = next(filter(None, products), None)
        if matmul is None or len(matmul.outputs[0].uses()) != 1:
            return None
        if matmul.outputs[0].is_graph_output():
            return None
        i = int(node.inputs[0] is matmul.outputs[0])
        weights.append((node, i, constant_array(node.inputs[i])))
        node = matmul
    weights.append((node, 1, constant_array(node.inputs[1])))
    if any(array is None or array.ndim == 0 for *_, array in weights):
        return None
    widths = {array.shape[-1] for *_, array in weights}
    return weights if weights[-1][2].ndim == 2 and len(widths) == 1 else None


def _start_and_step(sizes, node, value):
    """Return `(start, n)` if a node slices every n-th column of `value` and nothing else."""
    if node.op_type != "Slice" or len(node.inputs) != 5 or node.inputs[0] is not value:
        return None
    bounds = [constant_array(side) for side in node.inputs[1:]]
    dims = None if any(bound is None for bound in bounds) else sizes.dims.get(value)
    if dims is None:
        return None
    result = None
    for start, end, axis, step in zip(*bounds, strict=True):
        if end < SLICE_END and fixed_size(end) != dims[axis]:
            return None
        if axis in (-1, len(dims) - 1) and 0 <= start < step and step > 1:
            result = (int(start), int(step))
        elif start != 0 or step != 1:
            return None
    return result


def _concatenated_parts(sizes, value):
    """Return the values that are concatenated along the last axis to produce `value`."""
    node = producer_of(value, "Concat")
    last_axes = () if node is None else (-1, len(sizes.dims.get(value, ())) - 1)
    if node is None or node.attributes["axis"].value not in last_axes:
        return [value]
    return [part for side in node.inputs for part in _concatenated_parts(sizes, side)]


def _last_size(sizes, value):
    """Return the size of the last axis as an int, or `None`."""
    dims = sizes.dims.get(value)
    return dims[-1].as_int if dims else None


def _can_hoist(sizes, matmul, part, width):
    """Whether a product of `part` with `width` columns can be computed before `part`."""
    source = part
    if (reshape := producer_of(part, "Reshape")) is not None:
        source = reshape.inputs[0]
        depth, target = _last_size(sizes, source), constant_array(reshape.inputs[1])
        if target is None or target.ndim == 0 or depth != target[-1] or 0 in target:
            return False
    if (table := _gathered_table(part)) is not None:
        return len(table) * width <= _MAX_TABLE
    weighted_sum = producer_of(source, "MatMul")
    if weighted_sum is None or weighted_sum.graph is not matmul.graph:
        return False
    if len(sizes.dims.get(weighted_sum.inputs[1], ())) < 2:
        return False
    node = weighted_sum.inputs[1].producer()
    is_outside = node is not None and node.graph is not matmul.graph
    return is_outside and node.op_type != "Constant"


def _gathered_table(part):
    """Return the constant table whose rows `part` gathers, or `None`."""
    reshape = producer_of(part, "Reshape")
    node = producer_of(part if reshape is None else reshape.inputs[0], "Gather")
    if node is None or ("axis" in node.attributes and node.attributes["axis"].value != 0):
        return None
    table = constant_array(node.inputs[0])
    return table if table is not None and table.ndim == 2 else None


def _with_bias(matmul):
    """Return the node that adds a bias to a product and the bias, or the product and `None`."""
    users = [user for user, _ in matmul.outputs[0].uses()]
    is_only_use = len(users) == 1 and not matmul.outputs[0].is_graph_output()
    if is_only_use and users[0].op_type == "Add" and users[0].graph is matmul.graph:
        (bias,) = [side for side in users[0].inputs if side is not matmul.outputs[0]] or [None]
        width = constant_array(matmul.inputs[1]).shape[-1]
        if bias is not None and bias.shape is not None and bias.shape == [width]:
            node = bias.producer()
            is_outside = node is not None and node.graph is not matmul.graph
            if is_outside or constant_array(bias) is not None:
                return users[0], bias
    return matmul, None


def _hoist(matmul, part, rows, weights, bias=None):
    """Return the product of `part` with some rows of the weights, computed before `part`."""
    graph = matmul.graph
    reshape = producer_of(part, "Reshape")
    source = reshape.inputs[0] if reshape is not None else part
    node = source.producer()
    name = matmul.inputs[1].name
    array = add_initializer(graph, f"{name}_{rows[0]}_{rows[1]}", weights[slice(*rows)])
    if node.op_type == "Gather":
        table = insert_node(graph, matmul, "MatMul", node.inputs[0], array)
        if bias is not None:
            table = insert_node(graph, matmul, "Add", table, bias)
        product = insert_node(graph, matmul, "Gather", table, node.inputs[1], axis=0)
    else:
        values = insert_node(graph, matmul, "MatMul", node.inputs[1], array)
        product = insert_node(graph, matmul, "MatMul", node.inputs[0], values)
    if reshape is None:
        return product
    target = constant_array(reshape.inputs[1]).copy()
    target[-1] = weights.shape[1]
    shape = add_initializer(graph, f"{reshape.inputs[1].name}_{target[-1]}", target)
    return insert_node(graph, matmul, "Reshape", product, shape)
