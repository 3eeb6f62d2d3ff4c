"""Functions that read and change onnx-ir graphs."""

import logging

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

logger = logging.getLogger("keras_bahdanau_export")

SLICE_END = 10**9  # tf2onnx writes at least this as the end of a slice up to the end of an axis
_WITH_SUBGRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_MAX_INFERENCE_BYTES = 1000  # size of a constant from which shapes may be computed
MAX_WEIGHT_BYTES = 2**31 - 2**24  # protobuf cannot read files of 2 GiB


def make_names_unique(objects, used):
    """Number the repeated names of nodes or values: `name_1`, `name_2` and so on.

    Args:
        objects: Iterable of nodes or values.
        used: Set of names that are already in use; the new names are added.
    """
    for each in objects:
        name, number = each.name, 1
        while each.name in used:
            each.name, number = f"{name}_{number}", number + 1
        used.add(each.name)


def innermost_first(graph):
    """Yield a graph and the subgraphs of its nodes, inner graphs first."""
    for node in list(graph):
        for subgraph in subgraphs_of(node):
            yield from innermost_first(subgraph)
    yield graph


def outermost_first(graph):
    """Yield a graph and the subgraphs of its nodes, outer graphs first."""
    yield graph
    for node in graph:
        for subgraph in subgraphs_of(node):
            yield from outermost_first(subgraph)


def subgraphs_of(node):
    """Return the graphs in a node's attributes, such as the body of a loop, as a list."""
    if node.op_type not in _WITH_SUBGRAPHS:  # fast, as most nodes have none
        return []
    return [a.value for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def nodes_of(graph, *op_types):
    """Return the nodes with one of these operators, as a list, so that the graph can be changed."""
    return [node for node in graph if node.op_type in op_types and node.domain == ""]


def nodes_including_loops(graph, *op_types):
    """Return the nodes with one of these operators in a graph and in its loops and conditions."""
    return [node for part in outermost_first(graph) for node in nodes_of(part, *op_types)]


def has_subgraph(node):
    """Whether a node has a subgraph, as `Loop` and `If` do."""
    return bool(subgraphs_of(node))


def producer_of(value, op_type):
    """Return the node that produces a value if it has this operator, else `None`."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def skip_identities(value):
    """Return the value before any `Identity` nodes that produce `value`."""
    while (identity := producer_of(value, "Identity")) is not None:
        value = identity.inputs[0]
    return value


def constant_array(value):
    """Return a constant as a NumPy array; `None` for other values and omitted inputs.

    An optional input of a graph is an initializer, too, but not a constant.
    """
    if value is not None and value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def are_integers(array, dtype):
    """Whether all numbers are integers in the range of an integer dtype."""
    limits = np.iinfo(dtype)
    inside = (array > float(limits.min)) & (array < float(limits.max))  # False for NaN
    return bool((inside & (array == np.round(array))).all())


def depends_on(node, other):
    """Whether a node uses, directly or indirectly, an output of another node of its graph."""
    visited, stack = set(), [node]
    while stack:
        node = stack.pop()
        if node is other:
            return True
        if node not in visited:
            visited.add(node)
            stack += filter(None, (value.producer() for value in values_read_by(node)))
    return False


def values_read_by(node):
    """Yield the values that a node reads, including those that its subgraphs read from outside."""
    yield from filter(None, node.inputs)
    for subgraph in subgraphs_of(node):
        yield from subgraph.outputs
        for inner in subgraph:
            yield from values_read_by(inner)


def detach_inputs(nodes):
    """Remove the uses of values by nodes that left their graph, and by nodes in their subgraphs."""
    bodies = [
        part
        for node in nodes
        for subgraph in subgraphs_of(node)
        for part in outermost_first(subgraph)
    ]
    for node in (*nodes, *(node for body in bodies for node in body)):
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)


def infer_shapes(model):
    """Set the types and shapes that onnx infers for the values of a model.

    onnx-ir's own pass converts the whole inferred graph back, which takes most of its time.
    """
    inputs, initializers = list(model.graph.inputs), dict(model.graph.initializers)
    try:
        for name, value in initializers.items():  # onnx needs only the types of large weights
            value.shape, value.dtype = value.const_value.shape, value.const_value.dtype
            if value not in inputs:
                model.graph.inputs.append(value)
            if value.const_value.nbytes > _MAX_INFERENCE_BYTES:
                del model.graph.initializers[name]
        proto = ir.serde.serialize_model(model)
    finally:
        model.graph.inputs[:] = inputs
        model.graph.initializers.update(initializers)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        logger.warning("Shapes of the graph could not be inferred: %s", error)
        return
    _copy_types(proto.graph, inferred.graph, model.graph)


def _copy_types(before, after, graph):
    """Copy the types and shapes that differ between two `onnx.GraphProto`s of a graph to it."""
    values = {value.name: value for node in graph for value in node.outputs}
    values |= {value.name: value for value in graph.inputs}
    before_by_name = {
        info.name: info for info in (*before.input, *before.value_info, *before.output)
    }
    for info in (*after.input, *after.value_info, *after.output):
        value = values.get(info.name)
        if value is not None and info != before_by_name.get(info.name):
            inferred = ir.serde.deserialize_value_info_proto(info, None)
            value.shape = value.shape if inferred.shape is None else inferred.shape
            value.type = value.type if inferred.type is None else inferred.type
    for old, new, node in zip(before.node, after.node, graph, strict=True):
        if has_subgraph(node):
            for old_attribute, attribute in zip(old.attribute, new.attribute, strict=True):
                if attribute.HasField("g"):
                    subgraph = node.attributes[attribute.name].value
                    _copy_types(old_attribute.g, attribute.g, subgraph)


def remove_unused(model):
    """Remove the unused nodes and constants of a model.

    onnx-ir's pass alone keeps those that only the subgraph of a removed node used.
    """
    removed = True
    while removed:
        graphs = outermost_first(model.graph)
        with_subgraph = [node for graph in graphs for node in graph if has_subgraph(node)]
        common.RemoveUnusedNodesPass()(model)
        removed = [node for node in with_subgraph if node.graph is None]
        detach_inputs(removed)


def add_initializer(graph, name, array):
    """Return an initializer with these numbers: the existing one of this name, or a new one.

    If the name belongs to other numbers, the first free name of `name_1`, `name_2`, ... is used.
    """
    free_name, number = name, 0
    while free_name in graph.initializers:
        if _is_identical(graph.initializers[free_name].const_value, array):
            return graph.initializers[free_name]
        number += 1
        free_name = f"{name}_{number}"
    value = ir.val(free_name, const_value=ir.tensor(array, name=free_name))
    graph.register_initializer(value)
    return value


def _is_identical(tensor, array):
    """Whether a tensor of onnx-ir is equal to an array, bit by bit."""
    if tensor is None:
        return False
    ours, theirs = tensor.numpy(), np.asarray(array)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    ours, theirs = (
        np.ascontiguousarray(numbers).reshape(-1).view(np.uint8) for numbers in (ours, theirs)
    )
    return np.array_equal(ours, theirs)


def insert_node(graph, before, op_type, *inputs, outputs=1, **attributes):
    """Insert a node before another; return its output, or a sequence of several outputs."""
    node = ir.node(op_type, list(inputs), attributes, num_outputs=outputs)
    graph.insert_before(before, node)
    return node.outputs if outputs > 1 else node.outputs[0]


def replace_uses(old, new):
    """Replace all uses of one value by another value."""
    if old.is_graph_output():  # a graph output must be a node's output, and keep its name
        node = old.producer()
        copy = ir.node("Identity", [new])
        node.graph.insert_after(node, copy)
        replace_value(old, copy.outputs[0])
    else:
        ir.convenience.replace_all_uses_with(old, new)


def replace_node(graph, node, op_type, inputs, attributes=None):
    """Replace a node by a new one, whose output has the old name, type and shape."""
    new = ir.node(op_type, inputs, attributes, name=node.name)
    graph.insert_before(node, new)
    replace_value(node.outputs[0], new.outputs[0])
    graph.remove(node, safe=True)


def replace_value(old, new):
    """Replace a value by a new one, which gets its name, type, shape and uses."""
    new.name, new.type, new.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def cast_source(value, to):
    """Return the value that was cast to this type to produce `value`, or `None`."""
    cast = producer_of(value, "Cast")
    if cast is None or cast.attributes["to"].value != to:
        return None
    return cast.inputs[0]
