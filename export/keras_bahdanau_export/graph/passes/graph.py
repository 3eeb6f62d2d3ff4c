"""Reads and changes graphs of onnx-ir: what the passes and the precisions have in common."""

import importlib.metadata
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_runtime.signature import FORMAT_VERSION, weights_file

WHOLE = 10**9  # as the end of a slice, what tf2onnx writes for all of an axis
LARGEST_FILE = 2**31 - 2**24  # bytes of weights; protobuf reads nothing of 2 GiB


def save(model, path):
    """Writes an `onnx_ir.Model`, its weights into a second file where one would be too large.

    No two nodes in the file have one name, and its metadata say which package wrote it.

    Returns:
        Whether there is a second file.
    """
    rename_repeated(model.graph.all_nodes(), set())
    version = importlib.metadata.version("keras-bahdanau")
    model.producer_name, model.producer_version = "keras_bahdanau", version
    model.model_version = FORMAT_VERSION
    model.metadata_props.clear()  # of what else has written it, as onnxruntime's quantizer has
    model.metadata_props["keras_bahdanau_version"] = version  # Python clients see no other version
    weights = [g.initializers.values() for g in (model.graph, *model.graph.subgraphs())]
    size = sum(value.const_value.nbytes for values in weights for value in values)
    external = weights_file(Path(path).name) if size > LARGEST_FILE else None
    ir.save(model, path, external_data=external)
    return external is not None


def rename_repeated(named, taken):
    """Numbers the names that nodes or values share: `name_1`, `name_2` and so on.

    Args:
        named: Iterable of nodes or values.
        taken: Set of names that none of them may have; theirs are added.
    """
    for each in named:
        name, number = each.name, 1
        while each.name in taken:
            each.name, number = f"{name}_{number}", number + 1
        taken.add(each.name)


def innermost_first(graph):
    """A graph and those inside its nodes, the inner ones first."""
    for node in list(graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from innermost_first(attribute.value)
    yield graph


def nodes_of(graph, *op_types):
    """A list, so that the graph may change, of the nodes that have one of these operators."""
    return [node for node in graph if node.op_type in op_types and node.domain == ""]


def nodes_within(graph, *op_types):
    """As `nodes_of`, of a graph and of the bodies of its loops."""
    bodies = [loop.attributes["body"].value for loop in nodes_of(graph, "Loop")]
    return [node for part in (graph, *bodies) for node in nodes_of(part, *op_types)]


def holds_graph(node):
    """Whether a node has a body, as `Loop` and `If` do."""
    return any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())


def made_by(value, op_type):
    """The node that makes a value if it has this operator, else `None`."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def past_identities(value):
    """The value that others only pass on."""
    while (identity := made_by(value, "Identity")) is not None:
        value = identity.inputs[0]
    return value


def constant(value):
    """The numbers of a constant, or `None`; of an input that is left out, `None` too."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def are_whole(numbers, dtype):
    """Whether numbers are whole ones that an integer dtype holds."""
    limits = np.iinfo(dtype)
    inside = (numbers > float(limits.min)) & (numbers < float(limits.max))  # and no NaN
    return bool((inside & (numbers == np.round(numbers))).all())


def depends(node, on):
    """Whether a node reads what another of its graph makes, or what is made of that."""
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is on:
            return True
        if node not in seen:
            seen.add(node)
            left += filter(None, (value.producer() for value in read_by(node)))
    return False


def read_by(node):
    """The values that a node reads, those that its bodies take from around it among them."""
    yield from filter(None, node.inputs)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.value.outputs
            for inner in attribute.value:
                yield from read_by(inner)


def detach(nodes):
    """Nodes that left their graph, and those in their bodies, use no value any more."""
    bodies = [
        part
        for node in nodes
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
        for part in (attribute.value, *attribute.value.subgraphs())
    ]
    for node in (*nodes, *(node for body in bodies for node in body)):
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)


def remove_unused(model):
    """Removes the nodes and constants of a model that nothing uses.

    onnx-ir's pass alone leaves those that only the body of a removed node used.
    """
    removed = True
    while removed:
        with_body = [node for node in model.graph.all_nodes() if holds_graph(node)]
        common.RemoveUnusedNodesPass()(model)
        removed = [node for node in with_body if node.graph is None]
        detach(removed)


def register(graph, name, array):
    """An initializer of these numbers: the one of this name, or a new one.

    Where other numbers have the name, it is the next free one: `name_1`, `name_2` and so on.
    """
    wanted, number = name, 0
    while wanted in graph.initializers:
        if _same(graph.initializers[wanted].const_value, array):
            return graph.initializers[wanted]
        number += 1
        wanted = f"{name}_{number}"
    name = wanted
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def _same(tensor, array):
    """Whether a tensor of onnx-ir is an array, bit by bit."""
    if tensor is None:
        return False
    numbers, array = tensor.numpy(), np.asarray(array)
    if numbers.dtype != array.dtype or numbers.shape != array.shape:
        return False
    ours, theirs = (np.ascontiguousarray(of).reshape(-1).view(np.uint8) for of in (numbers, array))
    return np.array_equal(ours, theirs)


def put(graph, before, op_type, *inputs, outputs=1, **attributes):
    """Inserts a node before another; returns its output, or outputs where it has more."""
    node = ir.node(op_type, list(inputs), attributes, num_outputs=outputs)
    graph.insert_before(before, node)
    return node.outputs if outputs > 1 else node.outputs[0]


def replace(old, new):
    """Everything that used one value uses another."""
    if old.is_graph_output():  # which must be a node's, and keep its name
        node = old.producer()
        copy = ir.node("Identity", [new])
        node.graph.insert_after(node, copy)
        take_place(old, copy.outputs[0])
    else:
        ir.convenience.replace_all_uses_with(old, new)


def rewrite(graph, node, op_type, inputs, attributes=None):
    """Puts one node where another stood; its output keeps name, type and shape."""
    new = ir.node(op_type, inputs, attributes, name=node.name)
    graph.insert_before(node, new)
    take_place(node.outputs[0], new.outputs[0])
    graph.remove(node, safe=True)


def take_place(old, new):
    """A new value takes over the name, type, shape and uses of an old one."""
    new.name, new.type, new.shape = old.name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def before_cast(value, to):
    """What was cast to this type to make a value, or `None`."""
    cast = made_by(value, "Cast")
    if cast is None or cast.attributes["to"].value != to:
        return None
    return cast.inputs[0]
