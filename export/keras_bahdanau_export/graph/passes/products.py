"""Passes that make products with weights fewer and leaner; see `optimizer`."""

import numpy as np

from keras_bahdanau_export.graph.passes.graph import (
    WHOLE,
    constant,
    made_by,
    nodes_within,
    put,
    register,
    rewrite,
)
from keras_bahdanau_export.graph.passes.size import number
from keras_bahdanau_export.graph.passes.sizes import Sizes

_TABLE = 2**24  # numbers, 64 MiB, that a product with a whole embedding may take


def whole_products(graph):
    """A product of more dimensions loses the reshapes to two dimensions and back around it.

    `tensordot(x, w)` of `x (..., k)` and `w (k, n)` is `MatMul(x, w)` in ONNX. A tanh between the
    first reshape and the product, as in an attention, is one of `x` then.
    """
    count, sizes = 0, Sizes(graph)
    for restored in nodes_within(graph, "Reshape"):
        product = made_by(restored.inputs[0], "MatMul")
        bent = made_by(product.inputs[0], "Tanh") if product is not None else None
        flat = made_by((bent or product).inputs[0], "Reshape") if product is not None else None
        if flat is None or (bent is not None and len(bent.outputs[0].uses()) != 1):
            continue
        origin, weights = flat.inputs[0], product.inputs[1]
        values = (origin, flat.outputs[0], weights, restored.outputs[0])
        before, rows, kernel, after = (sizes.dims.get(value) for value in values)
        if None in (before, rows, kernel, after) or not len(rows) == len(kernel) == 2:
            continue
        if not before:
            continue
        # The sizes before the last being the same, the last one of `x` can only be the depth.
        if after == [*before[:-1], kernel[1]] and rows[1] == kernel[0]:
            graph = restored.graph
            origin = origin if bent is None else put(graph, restored, "Tanh", origin)
            rewrite(graph, restored, "MatMul", [origin, weights])
            count += 1
    return count


def contiguous_slices(graph):
    """Every n-th column of a product (`x[:, 0::2]`, `x[:, 1::2]`) becomes a block of columns.

    The columns of the weights change places instead. A maxout reads its pairs so.
    """
    count, sizes = 0, Sizes(graph)
    for node in nodes_within(graph, "Add", "MatMul"):
        parts = _columns_of_product(node)
        slices = [user for user, _ in node.outputs[0].uses()]
        steps = [_every_nth(sizes, user, node.outputs[0]) for user in slices]
        if parts is None or not steps or None in steps or node.outputs[0].is_graph_output():
            continue
        n, width = steps[0][1], parts[0][2].shape[-1]
        if len({of for _, of in steps}) != 1 or width % n:
            continue
        order = np.arange(width).reshape(-1, n).T.reshape(-1)
        for user, i, numbers in parts:
            name = f"{user.inputs[i].name}_by_{n}"
            user.replace_input_with(i, register(graph, name, numbers[..., order].copy()))
        size = width // n
        for user, (start, _) in zip(slices, steps, strict=True):
            bounds = [start * size, (start + 1) * size]
            bounds = [register(graph, f"column_{bound}", np.array([bound])) for bound in bounds]
            axis = register(graph, "last_axis", np.array([-1]))
            rewrite(user.graph, user, "Slice", [node.outputs[0], *bounds, axis])
        count += 1
    return count


def early_products(graph):
    """A product with weights comes before a choice of rows or a sum over places, not after it.

    `concat(E[i], p @ H, s) @ [U; V; W] + b` becomes `(E @ U + b)[i] + p @ (H @ V) + s @ W`: of a
    decoder's products with its last word and its context none is left to do at every step.
    `E @ U + b` is computed when onnxruntime opens the graph, if it is not too large; `H @ V` once
    before the loop, if `H` comes from outside. That is less work while `H` has fewer places than
    `depth * width / (width - depth)`, 850 for (512, 1280).
    """
    count, sizes = 0, Sizes(graph)
    for product in nodes_within(graph, "MatMul"):
        weights, early, late, row = constant(product.inputs[1]), [], [], 0
        if weights is None or weights.ndim != 2:
            continue
        for part in _parts(sizes, product.inputs[0]):
            depth = len(weights) if part is product.inputs[0] else _last_size(sizes, part)
            if depth is None:
                break
            rows = (row, row + depth)
            can_wait = _can_wait(sizes, product, part, weights.shape[1])
            (early if can_wait else late).append((part, rows))
            row += depth
        if not early or row != len(weights):
            continue
        last, bias = _biased(product) if _table_of(early[0][0]) is not None else (product, None)
        summands = [_early(product, *early[0], weights, bias)]
        summands += [_early(product, part, rows, weights) for part, rows in early[1:]]
        graph = product.graph
        if late:
            inputs = [part for part, _ in late]
            inputs = [put(graph, product, "Concat", *inputs, axis=-1)] if late[1:] else inputs
            numbers = np.concatenate([weights[slice(*rows)] for _, rows in late])
            numbers = register(graph, f"{product.inputs[1].name}_late", numbers)
            summands.append(put(graph, product, "MatMul", *inputs, numbers))
        while len(summands) > 2:
            summands = [put(graph, product, "Add", *summands[:2]), *summands[2:]]
        rewrite(graph, last, "Add" if len(summands) == 2 else "Identity", summands)
        if last is not product:
            graph.remove(product, safe=True)
        count += 1
    return count


def _columns_of_product(node):
    """Where the columns of `a @ W` or `a @ W + b` are: `(node, input, numbers)`, or `None`."""
    found = []
    if node.op_type == "Add":
        products = (made_by(side, "MatMul") for side in node.inputs)
        product = next(filter(None, products), None)
        if product is None or len(product.outputs[0].uses()) != 1:
            return None
        if product.outputs[0].is_graph_output():
            return None
        i = int(node.inputs[0] is product.outputs[0])
        found.append((node, i, constant(node.inputs[i])))
        node = product
    found.append((node, 1, constant(node.inputs[1])))
    if any(numbers is None or numbers.ndim == 0 for *_, numbers in found):
        return None
    widths = {numbers.shape[-1] for *_, numbers in found}
    return found if found[-1][2].ndim == 2 and len(widths) == 1 else None


def _every_nth(sizes, node, value):
    """`(start, n)` if a node takes every n-th of the last axis of `value`, all others whole."""
    if node.op_type != "Slice" or len(node.inputs) != 5 or node.inputs[0] is not value:
        return None
    bounds, dims = [constant(side) for side in node.inputs[1:]], sizes.dims.get(value)
    if dims is None or any(bound is None for bound in bounds):
        return None
    found = None
    for start, end, axis, step in zip(*bounds, strict=True):
        if end < WHOLE and number(end) != dims[axis]:
            return None
        if axis in (-1, len(dims) - 1) and 0 <= start < step and step > 1:
            found = (int(start), int(step))
        elif start != 0 or step != 1:
            return None
    return found


def _parts(sizes, value):
    """The parts that a value is put together of along its last axis."""
    node, dims = made_by(value, "Concat"), sizes.dims.get(value, ())
    if node is None or node.attributes["axis"].value not in (-1, len(dims) - 1):
        return [value]
    return [part for side in node.inputs for part in _parts(sizes, side)]


def _last_size(sizes, value):
    """The number of columns, or `None`."""
    dims = sizes.dims.get(value)
    return dims[-1].number if dims else None


def _can_wait(sizes, product, part, width):
    """Whether a product of `part` with so many columns can be done before `part` is made."""
    source = part
    if (reshape := made_by(part, "Reshape")) is not None:
        source = reshape.inputs[0]
        depth, target = _last_size(sizes, source), constant(reshape.inputs[1])
        if target is None or target.ndim == 0 or depth != target[-1] or 0 in target:
            return False
    if (table := _table_of(part)) is not None:
        return len(table) * width <= _TABLE
    total = made_by(source, "MatMul")
    if total is None or total.graph is not product.graph:
        return False
    if len(sizes.dims.get(total.inputs[1], ())) < 2:
        return False
    places = total.inputs[1].producer()
    outside = places is not None and places.graph is not product.graph
    return outside and places.op_type != "Constant"


def _table_of(part):
    """The constant table that the rows of `part` are gathered from, or `None`."""
    reshape = made_by(part, "Reshape")
    node = made_by(part if reshape is None else reshape.inputs[0], "Gather")
    if node is None or ("axis" in node.attributes and node.attributes["axis"].value != 0):
        return None
    table = constant(node.inputs[0])
    return table if table is not None and table.ndim == 2 else None


def _biased(product):
    """The sum of a product and a bias, and the bias; the product and `None` if it has none."""
    users = [user for user, _ in product.outputs[0].uses()]
    alone = len(users) == 1 and not product.outputs[0].is_graph_output()
    if alone and users[0].op_type == "Add" and users[0].graph is product.graph:
        (bias,) = [side for side in users[0].inputs if side is not product.outputs[0]] or [None]
        width = constant(product.inputs[1]).shape[-1]
        if bias is not None and bias.shape is not None and bias.shape == [width]:
            outside = bias.producer() is not None and bias.producer().graph is not product.graph
            if outside or constant(bias) is not None:
                return users[0], bias
    return product, None


def _early(product, part, rows, weights, bias=None):
    """The product of `part` with some rows of the weights, done before `part` is made."""
    graph = product.graph
    reshape = made_by(part, "Reshape")
    source = reshape.inputs[0] if reshape is not None else part
    node = source.producer()
    name = product.inputs[1].name
    numbers = register(graph, f"{name}_{rows[0]}_{rows[1]}", weights[slice(*rows)])
    if node.op_type == "Gather":
        table = put(graph, product, "MatMul", node.inputs[0], numbers)
        if bias is not None:
            table = put(graph, product, "Add", table, bias)
        made = put(graph, product, "Gather", table, node.inputs[1], axis=0)
    else:
        places = put(graph, product, "MatMul", node.inputs[1], numbers)
        made = put(graph, product, "MatMul", node.inputs[0], places)
    if reshape is None:
        return made
    target = constant(reshape.inputs[1]).copy()
    target[-1] = weights.shape[1]
    shape = register(graph, f"{reshape.inputs[1].name}_{target[-1]}", target)
    return put(graph, product, "Reshape", made, shape)
