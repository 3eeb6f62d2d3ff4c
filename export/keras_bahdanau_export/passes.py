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

from keras_bahdanau_export.graph import (
    before_cast,
    constant,
    elements,
    holds_graph,
    innermost_first,
    made_by,
    nodes_of,
    past_identities,
    put,
    rank_of,
    register,
    replace,
    rewrite,
    take_place,
)

logger = logging.getLogger("keras_bahdanau_export")

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_NONE = ir.AttrInt64("none", 0)
_WHOLE = 10**9  # as the end of a slice, what tf2onnx writes for all of an axis
_TABLE = 2**24  # numbers, 64 MiB, that a product with a whole embedding may take


def optimize(model, passes=None):
    """Runs the passes over a model, in place, loop bodies before the graph around them.

    Args:
        model: An `onnx_ir.Model`.
        passes: Functions of a graph; `PASSES` if `None`.

    Returns:
        A dict: how many places each pass rewrote, by its name.
    """
    passes = PASSES if passes is None else passes
    counts = {one.__name__: 0 for one in passes}
    names = [value.name for value in model.graph.outputs]
    _tidy(model)
    while True:  # one rewrite makes room for another, and each of them makes the graph smaller
        before = sum(counts.values())
        for one in passes:
            common.ShapeInferencePass()(model)
            counts[one.__name__] += sum(one(graph) for graph in innermost_first(model.graph))
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
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        states = range(len(body.inputs) - 2)
        new = [past_identities(value) for value in body.outputs]
        changing = [i for i in states if new[1 + i] is not body.inputs[2 + i]]
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
            replace(inner, initial)
            replace(final, initial)
        smaller = ir.node("Loop", inputs, {"body": body}, num_outputs=len(kept), name=loop.name)
        graph.insert_before(loop, smaller)
        for old, new in zip(kept, smaller.outputs, strict=True):
            take_place(old, new)
        graph.remove(loop, safe=True)
        count += len(states) - len(changing)
    return count


def scanned_histories(graph):
    """State into which step `t` writes only its row `t` becomes rows that the loop collects.

    TensorFlow writes into a buffer, which onnxruntime copies whole at every step. Of a loop that
    ends early, the rows that no step wrote are those of the buffer at the start.
    """
    count = 0
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        for i in reversed(range(len(body.inputs) - 2)):
            written = _written_row(loop, i)
            if written is None:
                continue
            initial, final = loop.inputs[2 + i], loop.outputs[i]
            inputs = [value for j, value in enumerate(loop.inputs) if j != 2 + i]
            body.inputs[:] = [value for j, value in enumerate(body.inputs) if j != 2 + i]
            body.outputs[:] = [value for j, value in enumerate(body.outputs) if j != 1 + i]
            row = ir.node("Identity", [written], name=f"{final.name}_row")
            row.outputs[0].name = f"{final.name}_row"
            row.outputs[0].type, row.outputs[0].shape = written.type, written.shape
            body.append(row)
            body.outputs.append(row.outputs[0])
            shorter = ir.node(
                "Loop", inputs, {"body": body}, num_outputs=len(loop.outputs), name=loop.name
            )
            graph.insert_before(loop, shorter)
            kept = [value for value in loop.outputs if value is not final]
            for old, new in zip(kept, shorter.outputs, strict=False):
                take_place(old, new)
            take_place(final, _filled(graph, loop, shorter.outputs[-1], initial))
            graph.remove(loop, safe=True)
            loop, body = shorter, shorter.attributes["body"].value
            count += 1
    return count


def hoist_invariants(graph):
    """What a loop's body computes from values around the loop alone moves out of the body."""
    count = 0
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        inside = set(body.inputs)
        for node in list(body):
            fixed = not any(value in inside for value in node.inputs)
            returned = any(value.is_graph_output() for value in node.outputs)
            if not fixed or returned or holds_graph(node) or node.op_type.startswith("Random"):
                inside.update(node.outputs)
                continue
            body.remove(node)
            graph.insert_before(loop, node)
            count += 1
    return count


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
    """`cast(i) < cast(j)` of integers as floats becomes `i < j`."""
    count = 0
    for compare in nodes_of(graph, *_COMPARISONS):
        sides = [before_cast(side, to=ir.DataType.FLOAT) for side in compare.inputs]
        known = {side.dtype for side in sides if side is not None}
        if len(known) != 1 or not known <= set(_INTEGERS):
            continue
        (dtype,) = known
        for i, side in enumerate(sides):
            number = constant(compare.inputs[i])
            if side is None and number is not None and _whole(number, dtype.numpy()):
                name = f"{compare.outputs[0].name}_{i}"
                sides[i] = register(graph, name, number.astype(dtype.numpy()))
        if None not in sides:
            rewrite(graph, compare, compare.op_type, sides)
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


def whole_products(graph):
    """A product of more dimensions loses the reshapes to two dimensions and back around it.

    `tensordot(x, w)` of `x (..., k)` and `w (k, n)` is `MatMul(x, w)` in ONNX.
    """
    count = 0
    for restored in nodes_of(graph, "Reshape"):
        product = made_by(restored.inputs[0], "MatMul")
        flat = made_by(product.inputs[0], "Reshape") if product is not None else None
        if flat is None:
            continue
        origin, weights = flat.inputs[0], product.inputs[1]
        target, flattened = elements(restored.inputs[1]), elements(flat.inputs[1])
        if None in (target, flattened, weights.shape) or len(weights.shape) != 2:
            continue
        depth, width = weights.shape
        # The sizes before the last being the same, the last one of `x` can only be the depth.
        same = len(target) == rank_of(origin) and _same_dims(target[:-1], origin)
        if same and target[-1] == width and flattened[1:] == [depth]:
            rewrite(graph, restored, "MatMul", [origin, weights])
            count += 1
    return count


def contiguous_slices(graph):
    """Every n-th column of a product (`x[:, 0::2]`, `x[:, 1::2]`) becomes a block of columns.

    The columns of the weights change places instead. A maxout reads its pairs so.
    """
    count = 0
    for node in nodes_of(graph, "Add", "MatMul"):
        parts = _columns_of_product(node)
        slices = [user for user, _ in node.outputs[0].uses()]
        steps = [_every_nth(user, node.outputs[0]) for user in slices]
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
            rewrite(graph, user, "Slice", [node.outputs[0], *bounds, axis])
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
    count = 0
    for product in nodes_of(graph, "MatMul"):
        weights, early, late, row = constant(product.inputs[1]), [], [], 0
        if weights is None or weights.ndim != 2:
            continue
        for part in _parts(product.inputs[0]):
            depth = _last_size(part, len(weights) if part is product.inputs[0] else None)
            if depth is None:
                break
            rows = (row, row + depth)
            (early if _can_wait(graph, part, weights.shape[1]) else late).append((part, rows))
            row += depth
        if not early or row != len(weights):
            continue
        last, bias = _biased(product) if _table_of(early[0][0]) is not None else (product, None)
        summands = [_early(graph, product, *early[0], weights, bias)]
        summands += [_early(graph, product, part, rows, weights) for part, rows in early[1:]]
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


def chunked_top_ks(graph):
    """The `k` largest of many: first the `k` chunks with the largest maxima, then within those.

    Any of the `k` largest stands in one of these chunks, as each chunk before its own holds one
    that is larger, or equal and earlier. Maxima are vectorised in onnxruntime, ranks are not.
    """
    count = 0
    for top in nodes_of(graph, "TopK"):
        values, k = top.inputs[0], constant(top.inputs[1])
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
    layers = [n for n in nodes_of(graph, "GRU", "LSTM")]
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
            numbers = [constant(one), constant(two)]
            if all(number is not None for number in numbers):
                name = f"{one.name}_both_ways"
                inputs.append(register(graph, name, np.concatenate(numbers)))
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
                    take_place(old, new)
        graph.remove([first, second], safe=True)
        graph.sort()
        count += 1
    return count


PASSES = (
    lift_loop_state,
    scanned_histories,
    hoist_invariants,
    where_for_sums,
    integer_comparisons,
    double_negations,
    plain_gathers,
    wide_shapes,
    whole_products,
    contiguous_slices,
    early_products,
    single_reshapes,
    chunked_top_ks,
    bidirectional_operators,
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
    graphs = list(innermost_first(model.graph))
    for graph in graphs:
        _share(graph)
    # Inferring shapes, onnx mixes up values of one name, be it in a body and around it.
    taken = {
        value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())
    }
    for value in (value for graph in graphs for node in graph for value in node.outputs):
        name, number = value.name, 1
        while value.name in taken:
            value.name, number = f"{name}_{number}", number + 1
        taken.add(value.name)


def _share(graph):
    """Merges nodes that compute the same; onnx-ir's own pass leaves out the bodies of loops."""
    known = {}
    for node in list(graph):
        if holds_graph(node) or node.op_type.startswith("Random"):
            continue
        attributes = tuple(sorted((name, str(a.value)) for name, a in node.attributes.items()))
        inputs = tuple(map(id, node.inputs))
        same = known.setdefault((node.domain, node.op_type, inputs, attributes), node)
        outputs = list(zip(node.outputs, same.outputs, strict=False))
        if same is node or len(node.outputs) != len(same.outputs):
            continue
        if not any(old.is_graph_output() for old, _ in outputs):
            for old, new in outputs:
                replace(old, new)
            graph.remove(node, safe=True)


def _written_row(loop, i):
    """What a loop's body writes at row `t` of its `i`-th state in step `t`, if it does no more."""
    body = loop.attributes["body"].value
    state, value = body.inputs[2 + i], body.outputs[1 + i]
    if value.uses() or list(body.outputs).count(value) > 1:
        return None
    while (identity := made_by(value, "Identity")) is not None:
        value = identity.inputs[0]
        if len(value.uses()) > 1 or value.is_graph_output():
            return None
    write = made_by(value, "ScatterND")
    if write is None or write.inputs[0] is not state or len(state.uses()) > 1:
        return None
    if "reduction" in write.attributes and write.attributes["reduction"].value != "none":
        return None
    row, place = made_by(write.inputs[2], "Unsqueeze"), write.inputs[1]
    while place.producer() is not None and place.producer().graph is body:
        if place.producer().op_type not in ("Reshape", "Unsqueeze", "Cast"):
            return None
        place = place.producer().inputs[0]
    first = row is not None and constant(row.inputs[1])
    if row is None or first is None or first.tolist() != [0] or not _counts_steps(loop, place):
        return None
    return row.inputs[0]


def _counts_steps(loop, value):
    """Whether a value in a loop's body is 0 in the first step, 1 in the second, and so on."""
    body = loop.attributes["body"].value
    if value not in body.inputs:
        return False
    i = list(body.inputs).index(value)
    if i == 0:
        return True
    following = made_by(past_identities(body.outputs[i - 1]), "Add") if i > 1 else None
    start = constant(loop.inputs[i])
    if following is None or start is None or start.size != 1 or start.any():
        return False
    if value not in following.inputs:
        return False
    (by,) = [side for side in following.inputs if side is not value] or [None]
    step = constant(by) if by is not None else None
    return step is not None and bool((step == 1).all())


def _filled(graph, loop, rows, initial):
    """The first rows of `initial` replaced by `rows`, of which there may be none."""

    def add(op_type, *inputs, **options):
        return put(graph, loop, op_type, *inputs, **options)

    one = register(graph, "one_row", np.array([1]))
    zero = register(graph, "no_row", np.array([0]))
    end = register(graph, "last_row", np.array([_WHOLE]))
    rest = add("Slice", initial, add("Shape", rows, end=1), end, zero, one)
    # If the loop never ran, the rows have no sizes; Concat passes over what is empty.
    return add("Concat", rows, rest, axis=0)


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


def _columns_of_product(node):
    """Where the columns of `a @ W` or `a @ W + b` are: `(node, input, numbers)`, or `None`."""
    found = []
    if node.op_type == "Add":
        product = next(
            (made_by(side, "MatMul") for side in node.inputs if made_by(side, "MatMul")), None
        )
        if product is None or len(product.outputs[0].uses()) != 1:
            return None
        i = int(node.inputs[0] is product.outputs[0])
        found.append((node, i, constant(node.inputs[i])))
        node = product
    found.append((node, 1, constant(node.inputs[1])))
    if any(numbers is None or numbers.ndim == 0 for *_, numbers in found):
        return None
    widths = {numbers.shape[-1] for *_, numbers in found}
    return found if found[-1][2].ndim == 2 and len(widths) == 1 else None


def _every_nth(node, value):
    """`(start, n)` if a node takes every n-th of the last axis of `value`, all others whole."""
    if node.op_type != "Slice" or len(node.inputs) != 5 or node.inputs[0] is not value:
        return None
    bounds = [constant(side) for side in node.inputs[1:]]
    rank = rank_of(value)
    if rank is None or any(bound is None for bound in bounds):
        return None
    sizes, found = value.shape if value.shape is not None else [None] * rank, None
    for start, end, axis, step in zip(*bounds, strict=True):
        if end < _WHOLE and end != sizes[axis]:
            return None
        if axis in (-1, rank - 1) and 0 <= start < step and step > 1:
            found = (int(start), int(step))
        elif start != 0 or step != 1:
            return None
    return found


def _parts(value):
    """The parts that a value is put together of along its last axis."""
    node = made_by(value, "Concat")
    if node is None or node.attributes["axis"].value not in (-1, (rank_of(value) or 0) - 1):
        return [value]
    return [part for side in node.inputs for part in _parts(side)]


def _last_size(value, default=None):
    size = value.shape[-1] if value.shape is not None and len(value.shape) else None
    if not isinstance(size, int):
        if (reshape := made_by(value, "Reshape")) is not None:
            size = (elements(reshape.inputs[1]) or [None])[-1]
        elif (product := made_by(value, "MatMul")) is not None:
            size = _last_size(product.inputs[1])
    return size if isinstance(size, int) and size > 0 else default


def _can_wait(graph, part, width):
    """Whether a product of `part` with so many columns can be done before `part` is made."""
    source = part
    if (reshape := made_by(part, "Reshape")) is not None:
        source = reshape.inputs[0]
        depth, target = _last_size(source), constant(reshape.inputs[1])
        if target is None or target.ndim == 0 or depth != target[-1] or 0 in target:
            return False
    if (table := _table_of(part)) is not None:
        return len(table) * width <= _TABLE
    total = made_by(source, "MatMul")
    if total is None or total.graph is not graph:
        return False
    places = total.inputs[1].producer()
    return places is not None and places.graph is not graph and places.op_type != "Constant"


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
    if len(users) == 1 and users[0].op_type == "Add" and not product.outputs[0].is_graph_output():
        (bias,) = [side for side in users[0].inputs if side is not product.outputs[0]] or [None]
        width = constant(product.inputs[1]).shape[-1]
        if bias is not None and bias.shape is not None and bias.shape == [width]:
            outside = bias.producer() is not None and bias.producer().graph is not product.graph
            if outside or constant(bias) is not None:
                return users[0], bias
    return product, None


def _early(graph, product, part, rows, weights, bias=None):
    """The product of `part` with some rows of the weights, done before `part` is made."""
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


def _chunk(width, k):
    """The size of chunk, a divisor of `width`, nearest to 100; `None` where it would not pay."""
    sizes = [size for size in range(40, 201) if width % size == 0 and width // size > 4 * k]
    return min(sizes, key=lambda size: abs(size - 100), default=None) if width >= 1000 else None


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
