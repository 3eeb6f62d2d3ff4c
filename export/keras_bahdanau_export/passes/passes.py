"""Rewrites of an ONNX graph that tf2onnx wrote: each says the same with less.

    model = onnx_ir.serde.deserialize_model(model_proto)
    optimize(model)                                    # every one of `PASSES`, in their order

A pass is a function of one graph (the main one or the body of a loop) that returns how many places
it rewrote. It changes a place only where it can prove that the values stay the same. What a rewrite
leaves unused is removed afterwards by onnx-ir, as are duplicates. Those of loops as a whole are in
`loop_passes`, those of products in `product_passes`, the others here.
"""

import itertools
import logging

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.passes.graph import (
    before_cast,
    constant,
    elements,
    holds_graph,
    innermost_first,
    made_by,
    nodes_of,
    put,
    register,
    replace,
    rewrite,
    take_place,
)
from keras_bahdanau_export.passes.loops import (
    hoist_invariants,
    lift_loop_state,
    scanned_histories,
)
from keras_bahdanau_export.passes.products import (
    contiguous_slices,
    early_products,
    whole_products,
)

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
            inputs.append(put(graph, place, "Concat", one, two, axis=0))
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
            parts = put(graph, place, "Split", output, outputs=2, axis=axis, num_outputs=2)
            for old, new in zip(wanted[i], parts, strict=True):
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
