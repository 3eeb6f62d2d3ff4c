"""Rewrites of an ONNX graph that tf2onnx wrote: each says the same with less.

    model = onnx_ir.serde.deserialize_model(model_proto)
    optimize(model)                                    # every one of `PASSES`, in their order

A pass is a function of one graph (the main one or the body of a loop) that returns how many places
it rewrote. It changes a place only where it can prove that the values stay the same. What a rewrite
leaves unused is removed afterwards by onnx-ir, as are duplicates.
"""

import itertools
import logging

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

logger = logging.getLogger("keras_bahdanau_export")

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_NONE = ir.AttrInt64("none", 0)


def optimize(model, passes=None):
    """Runs the passes over a model, in place, loop bodies before the graph around them.

    Args:
        model: An `onnx_ir.Model`.
        passes: Functions of a graph; `PASSES` if `None`.

    Returns:
        A dict: how many places each pass rewrote, by its name.
    """
    passes = PASSES if passes is None else passes
    counts = {rewrite.__name__: 0 for rewrite in passes}
    names = [value.name for value in model.graph.outputs]
    _tidy(model)
    while True:  # one rewrite makes room for another, and each of them makes the graph smaller
        before = sum(counts.values())
        for rewrite in passes:
            common.ShapeInferencePass()(model)
            counts[rewrite.__name__] += sum(rewrite(g) for g in _innermost_first(model.graph))
            _tidy(model)
        if sum(counts.values()) == before:
            break
    common.OutputFixPass()(model)  # each output is a value of its own again
    for name, value in zip(names, model.graph.outputs, strict=True):
        value.name = name
    logger.debug("Rewrites of the graph: %s", counts)
    return counts


def lift_loop_state(graph):
    """State that a loop's body returns unchanged becomes a value of the graph around it.

    TensorFlow hands every weight through the loop as state: onnxruntime copies each one at every
    step, and cannot pack it for its products beforehand.
    """
    count = 0
    for loop in _nodes(graph, "Loop"):
        body = loop.attributes["body"].value
        states = range(len(body.inputs) - 2)
        changing = [i for i in states if _origin(body.outputs[1 + i]) is not body.inputs[2 + i]]
        if len(changing) == len(states):
            continue
        fixed = [(body.inputs[2 + i], loop.outputs[i], loop.inputs[2 + i]) for i in states]
        scans = range(len(states), len(loop.outputs))
        kept = [loop.outputs[i] for i in (*changing, *scans)]
        inputs = [*loop.inputs[:2], *(loop.inputs[2 + i] for i in changing)]
        body_inputs = [*body.inputs[:2], *(body.inputs[2 + i] for i in changing)]
        body_outputs = [body.outputs[0], *(body.outputs[1 + i] for i in (*changing, *scans))]
        body.inputs[:], body.outputs[:] = body_inputs, body_outputs
        for i in set(states) - set(changing):
            inner, final, initial = fixed[i]
            _replace(inner, initial)
            _replace(final, initial)
        smaller = ir.node("Loop", inputs, {"body": body}, num_outputs=len(kept), name=loop.name)
        graph.insert_before(loop, smaller)
        for old, new in zip(kept, smaller.outputs, strict=True):
            _take_place(old, new)
        graph.remove(loop, safe=True)
        count += len(states) - len(changing)
    return count


def where_for_sums(graph):
    """`cast(c) * a + cast(not c) * b` becomes `Where(c, a, b)`, as it was in TensorFlow."""
    count = 0
    for total in _nodes(graph, "Add"):
        for first, second in (total.inputs, tuple(reversed(total.inputs))):
            chosen, other = _masked(first), _masked(second)
            if chosen is None or other is None:
                continue
            (condition, kept), (negated, instead) = chosen, other
            inverse = _made_by(negated, "Not")
            if inverse is not None and inverse.inputs[0] is condition:
                _rewrite(graph, total, "Where", [condition, kept, instead])
                count += 1
                break
    return count


def integer_comparisons(graph):
    """`cast(i) < cast(j)` of integers as floats becomes `i < j`."""
    count = 0
    for compare in _nodes(graph, *_COMPARISONS):
        sides = [_before_cast(side, to=ir.DataType.FLOAT) for side in compare.inputs]
        known = {side.dtype for side in sides if side is not None}
        if len(known) != 1 or not known <= set(_INTEGERS):
            continue
        (dtype,) = known
        for i, side in enumerate(sides):
            number = _constant(compare.inputs[i])
            if side is None and number is not None and _whole(number, dtype.numpy()):
                name = f"{compare.outputs[0].name}_{i}"
                sides[i] = _register(graph, name, number.astype(dtype.numpy()))
        if None not in sides:
            _rewrite(graph, compare, compare.op_type, sides)
            count += 1
    return count


def double_negations(graph):
    """`not not c` becomes `c`, and a cast to the type that a value has becomes the value."""
    count = 0
    for node in _nodes(graph, "Not", "Cast"):
        if node.op_type == "Cast":
            same = node.inputs[0].dtype == ir.DataType(node.attributes["to"].value)
            origin = node.inputs[0] if same else None
        else:
            inner = _made_by(node.inputs[0], "Not")
            origin = inner.inputs[0] if inner is not None else None
        if origin is not None:
            _replace(node.outputs[0], origin)
            count += 1
    return count


def plain_gathers(graph):
    """`Gather(x, where(i < 0, i + n, i))` becomes `Gather(x, i)`, which counts from the end itself.

    Keras counts places from the end itself, for backends that cannot.
    """
    count = 0
    for gather in _nodes(graph, "Gather"):
        choice = _made_by(gather.inputs[1], "Where")
        if choice is None:
            continue
        condition, wrapped, place = choice.inputs
        negative, shifted = _made_by(condition, "Less"), _made_by(wrapped, "Add")
        if negative is None or shifted is None or place not in shifted.inputs:
            continue
        zero = _constant(negative.inputs[1])
        axis = gather.attributes["axis"].value if "axis" in gather.attributes else 0
        (size,) = [side for side in shifted.inputs if side is not place] or [None]
        data = gather.inputs[0]
        counted = size is not None and data.shape is not None
        counted = counted and _elements(size) in ([(data, axis)], [data.shape[axis]])
        if negative.inputs[0] is place and zero is not None and not zero.any() and counted:
            gather.replace_input_with(1, place)
            count += 1
    return count


def wide_shapes(graph):
    """Sizes stay int64: `cast64(concat(cast32(shape), ...))` becomes `concat(shape, ...)`."""
    count = 0
    for cast in _nodes(graph, "Cast"):
        if cast.attributes["to"].value != ir.DataType.INT64:
            continue
        wide = _wide(graph, cast.inputs[0])
        if wide is not None:
            _replace(cast.outputs[0], wide)
            count += 1
    return count


def whole_products(graph):
    """A product of more dimensions loses the reshapes to two dimensions and back around it.

    `tensordot(x, w)` of `x (..., k)` and `w (k, n)` is `MatMul(x, w)` in ONNX.
    """
    count = 0
    for restored in _nodes(graph, "Reshape"):
        product = _made_by(restored.inputs[0], "MatMul")
        flat = _made_by(product.inputs[0], "Reshape") if product is not None else None
        if flat is None:
            continue
        origin, weights = flat.inputs[0], product.inputs[1]
        target, flattened = _elements(restored.inputs[1]), _elements(flat.inputs[1])
        if None in (target, flattened, weights.shape) or len(weights.shape) != 2:
            continue
        depth, width = weights.shape
        # The sizes before the last being the same, the last one of `x` can only be the depth.
        same = len(target) == _rank(origin) and _same_dims(target[:-1], origin)
        if same and target[-1] == width and flattened[1:] == [depth]:
            _rewrite(graph, restored, "MatMul", [origin, weights])
            count += 1
    return count


def single_reshapes(graph):
    """`reshape(reshape(x, a), b)` becomes `reshape(x, b)`."""
    count = 0
    for outer in _nodes(graph, "Reshape"):
        inner = _made_by(outer.inputs[0], "Reshape")
        shape = _elements(outer.inputs[1])
        if inner is None or (shape is None) or 0 in shape or "allowzero" in inner.attributes:
            continue
        outer.replace_input_with(0, inner.inputs[0])
        count += 1
    return count


def chunked_top_ks(graph):
    """The `k` largest of many: first the `k` chunks with the largest maxima, then within those.

    Any of the `k` largest stands in one of these chunks, as each chunk before its own holds one
    that is larger, or equal and earlier. Maxima are vectorised in onnxruntime, ranks are not.
    """
    count = 0
    for top in _nodes(graph, "TopK"):
        values, k = top.inputs[0], _constant(top.inputs[1])
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


def bidirectional_operators(graph):
    """A forward and a reverse GRU or LSTM over one sequence become one bidirectional operator."""
    count = 0
    layers = [n for n in _nodes(graph, "GRU", "LSTM")]
    while layers:
        first = layers.pop(0)
        second = next((other for other in layers if _other_direction(first, other)), None)
        if second is None:
            continue
        layers.remove(second)
        if _direction(first) == "reverse":
            first, second = second, first
        # Everything before the pair is before the later of the two.
        place = second if list(graph).index(first) < list(graph).index(second) else first
        inputs = []
        for i, (one, two) in enumerate(zip(first.inputs, second.inputs, strict=True)):
            if i in (0, 4):  # the sequence and its lengths
                inputs.append(one)
                continue
            if one is None:
                inputs.append(None)
                continue
            numbers = [_constant(one), _constant(two)]
            if all(number is not None for number in numbers):
                name = f"{one.name}_both_ways"
                inputs.append(_register(graph, name, np.concatenate(numbers)))
                continue
            both = ir.node("Concat", [one, two], {"axis": 0})
            graph.insert_before(place, both)
            inputs.append(both.outputs[0])
        attributes = dict(first.attributes)
        attributes["direction"] = ir.AttrString("direction", "bidirectional")
        activations = [*_strings(first, "activations"), *_strings(second, "activations")]
        if activations:
            attributes["activations"] = ir.AttrStrings("activations", activations)
        # A last state that nobody reads may be missing on either side.
        wanted = list(itertools.zip_longest(first.outputs, second.outputs))
        joint = ir.node(first.op_type, inputs, attributes, num_outputs=len(wanted))
        graph.insert_before(place, joint)
        for i, output in enumerate(joint.outputs):
            axis = 1 if i == 0 else 0
            split = ir.node("Split", [output], {"axis": axis, "num_outputs": 2}, num_outputs=2)
            graph.insert_before(place, split)
            for old, new in zip(wanted[i], split.outputs, strict=True):
                if old is not None:
                    _take_place(old, new)
        graph.remove([first, second], safe=True)
        graph.sort()
        count += 1
    return count


def hoist_invariants(graph):
    """What a loop's body computes from values around the loop alone moves out of the body."""
    count = 0
    for loop in _nodes(graph, "Loop"):
        body = loop.attributes["body"].value
        inside = set(body.inputs)
        for node in list(body):
            fixed = not any(value in inside for value in node.inputs)
            returned = any(value.is_graph_output() for value in node.outputs)
            if not fixed or returned or _holds_graph(node) or node.op_type.startswith("Random"):
                inside.update(node.outputs)
                continue
            body.remove(node)
            graph.insert_before(loop, node)
            count += 1
    return count


PASSES = (
    lift_loop_state,
    where_for_sums,
    integer_comparisons,
    double_negations,
    plain_gathers,
    wide_shapes,
    whole_products,
    single_reshapes,
    chunked_top_ks,
    bidirectional_operators,
    hoist_invariants,
)


def _tidy(model):
    for clean in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.IdentityEliminationPass(),
        common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(),
        common.NameFixPass(),
    ):
        clean(model)
    for graph in _innermost_first(model.graph):
        _share(graph)


def _share(graph):
    """Merges nodes that compute the same; onnx-ir's own pass leaves out the bodies of loops."""
    known = {}
    for node in list(graph):
        if _holds_graph(node) or node.op_type.startswith("Random"):
            continue
        attributes = tuple(sorted((name, str(a.value)) for name, a in node.attributes.items()))
        inputs = tuple(map(id, node.inputs))
        same = known.setdefault((node.domain, node.op_type, inputs, attributes), node)
        outputs = list(zip(node.outputs, same.outputs, strict=False))
        if same is node or len(node.outputs) != len(same.outputs):
            continue
        if not any(old.is_graph_output() for old, _ in outputs):
            for old, new in outputs:
                _replace(old, new)
            graph.remove(node, safe=True)


def _innermost_first(graph):
    for node in list(graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _innermost_first(attribute.value)
    yield graph


def _nodes(graph, *op_types):
    # A list: the graph changes while it is walked.
    return [node for node in graph if node.op_type in op_types and node.domain == ""]


def _holds_graph(node):
    return any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())


def _made_by(value, op_type):
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def _origin(value):
    while (identity := _made_by(value, "Identity")) is not None:
        value = identity.inputs[0]
    return value


def _constant(value):
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _register(graph, name, array):
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def _replace(old, new):
    if old.is_graph_output():  # which must be a node's, and keep its name
        node = old.producer()
        copy = ir.node("Identity", [new])
        node.graph.insert_after(node, copy)
        _take_place(old, copy.outputs[0])
    else:
        ir.convenience.replace_all_uses_with(old, new)


def _rewrite(graph, node, op_type, inputs, attributes=None):
    """Puts one node where another stood; its output keeps name, type and shape."""
    new = ir.node(op_type, inputs, attributes, name=node.name)
    graph.insert_before(node, new)
    _take_place(node.outputs[0], new.outputs[0])
    graph.remove(node, safe=True)


def _take_place(old, new):
    new.name, new.type, new.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _masked(value):
    """`(condition, x)` if `value` is `cast(condition) * x`."""
    product = _made_by(value, "Mul")
    if product is None:
        return None
    for factor, other in (product.inputs, tuple(reversed(product.inputs))):
        cast = _made_by(factor, "Cast")
        if cast is not None and cast.inputs[0].dtype == ir.DataType.BOOL:
            return cast.inputs[0], other
    return None


def _direction(node):
    return node.attributes["direction"].value if "direction" in node.attributes else "forward"


def _strings(node, name):
    return list(node.attributes[name].value) if name in node.attributes else []


def _other_direction(first, second):
    """Whether two recurrent operators read one sequence in opposite directions."""
    compared = ("hidden_size", "linear_before_reset", "clip", "layout", "input_forget")
    return (
        first.op_type == second.op_type
        and {_direction(first), _direction(second)} == {"forward", "reverse"}
        and len(first.inputs) == len(second.inputs)
        and first.inputs[0] is second.inputs[0]
        and [v is None for v in first.inputs] == [v is None for v in second.inputs]
        and (len(first.inputs) < 5 or first.inputs[4] is second.inputs[4])
        and all(
            first.attributes.get(key, _NONE).value == second.attributes.get(key, _NONE).value
            for key in compared
        )
        and bool(_strings(first, "activations")) == bool(_strings(second, "activations"))
    )


def _same_dims(items, value):
    """Whether `items` are the sizes of `value`'s first axes; one may be -1, which is implied."""
    sizes = value.shape if value.shape is not None else [None] * len(items)
    same = [item == (value, i) or item == sizes[i] for i, item in enumerate(items)]
    return same.count(False) == 0 or (same.count(False) == 1 and items[same.index(False)] == -1)


def _whole(numbers, dtype):
    limits = np.iinfo(dtype)
    inside = (numbers > float(limits.min)) & (numbers < float(limits.max))  # and no NaN
    return bool((inside & (numbers == np.round(numbers))).all())


def _before_cast(value, to):
    cast = _made_by(value, "Cast")
    if cast is None or cast.attributes["to"].value != to:
        return None
    return cast.inputs[0]


def _wide(graph, value):
    """`value`, which is int32, as int64 without a cast of anything that depends on the input."""
    narrowed = _before_cast(value, to=ir.DataType.INT32)
    if narrowed is not None and narrowed.dtype == ir.DataType.INT64:
        return narrowed
    number = _constant(value)
    if number is not None and number.dtype == np.int32:
        return _register(graph, f"{value.name}_int64", number.astype(np.int64))
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


def _elements(value):
    """What an integer vector holds: ints, and `(tensor, axis)` for the size of a tensor's axis.

    `None` where that cannot be told.
    """
    number = _constant(value)
    if number is not None:
        return [int(item) for item in number.reshape(-1)]
    node = value.producer()
    if node is None:
        return None
    if node.op_type in ("Cast", "Squeeze", "Unsqueeze", "Identity"):
        return _elements(node.inputs[0])
    if node.op_type == "Shape":
        (tensor,) = node.inputs
        rank = _rank(tensor)
        if node.attributes or rank is None:
            return None
        sizes = tensor.shape if tensor.shape is not None else [None] * rank
        return [size if isinstance(size, int) else (tensor, i) for i, size in enumerate(sizes)]
    if node.op_type == "Concat":
        parts = [_elements(part) for part in node.inputs]
        return None if None in parts else [item for part in parts for item in part]
    if node.op_type == "Slice" and len(node.inputs) in (3, 4):
        items = _elements(node.inputs[0])
        bounds = [_constant(bound) for bound in node.inputs[1:3]]
        if items is None or any(bound is None or bound.size != 1 for bound in bounds):
            return None
        return items[int(bounds[0].item()) : int(bounds[1].item())]
    if node.op_type == "Gather":
        items, places = _elements(node.inputs[0]), _constant(node.inputs[1])
        if items is None or places is None:
            return None
        return [items[int(place)] for place in places.reshape(-1)]
    return None


def _rank(value):
    """Number of a tensor's axes, or `None`; onnx does not tell it behind every reshape."""
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Reshape":
        items = _elements(node.inputs[1])
        return None if items is None else len(items)
    if node.op_type == "Unsqueeze":
        rank, axes = _rank(node.inputs[0]), _constant(node.inputs[1])
        return None if rank is None or axes is None else rank + axes.size
    if node.op_type in ("Tanh", "Sigmoid", "Relu", "Cast", "Identity"):
        return _rank(node.inputs[0])
    if node.op_type in ("Add", "Sub", "Mul", "Div"):
        ranks = [_rank(side) for side in node.inputs]
        return None if None in ranks else max(ranks)
    if node.op_type == "MatMul" and _rank(node.inputs[1]) == 2:
        return _rank(node.inputs[0])
    return None


def _chunk(width, k):
    """The size of chunk, a divisor of `width`, nearest to 100; `None` where it would not pay."""
    sizes = [size for size in range(40, 201) if width % size == 0 and width // size > 4 * k]
    return min(sizes, key=lambda size: abs(size - 100), default=None) if width >= 1000 else None


def _chunked_top_k(graph, top, width, chunk, k):
    def put(op_type, *inputs, outputs=1, **attributes):
        node = ir.node(op_type, list(inputs), attributes, num_outputs=outputs)
        graph.insert_before(top, node)
        return node.outputs if outputs > 1 else node.outputs[0]

    def number(name, array):
        return _register(graph, f"{top.outputs[0].name}_{name}", np.asarray(array, np.int64))

    values, wanted = top.inputs
    chunks, last = number("chunks", width // chunk), number("last", [-1])
    rows = put("Reshape", values, number("rows", [-1, chunk]))  # (R * chunks, chunk)
    largest = put("ReduceMax", rows, last, keepdims=0)
    largest = put("Reshape", largest, number("by_row", [-1, width // chunk]))  # (R, chunks)
    _, best = put("TopK", largest, wanted, outputs=2)
    # In the order in which they stand, so that of equals the first still comes first.
    best, _ = put("TopK", best, wanted, outputs=2, largest=0)
    batch = put("Gather", put("Shape", best), number("zero", 0))
    row = put("Range", number("zero", 0), batch, number("one", 1))
    first = put("Unsqueeze", put("Mul", row, chunks), last)  # (R, 1)
    few = put("Gather", rows, put("Add", best, first))  # (R, k, chunk)
    few = put("Reshape", few, number("few", [-1, k * chunk]))
    found, places = put("TopK", few, wanted, outputs=2)
    size = number("size", chunk)
    which = put("Div", places, size)
    # onnx infers a wrong rank for what is gathered by places whose rank it cannot tell.
    which.type, which.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([None, k])
    within = put("Sub", places, put("Mul", which, size))
    start = put("Mul", put("GatherElements", best, which, axis=-1), size)
    _take_place(top.outputs[0], found)
    _take_place(top.outputs[1], put("Add", start, within))
    graph.remove(top, safe=True)
