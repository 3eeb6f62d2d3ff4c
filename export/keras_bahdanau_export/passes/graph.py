"""Reads and changes graphs of onnx-ir: what the passes and the precisions have in common."""

from pathlib import Path

import onnx_ir as ir

from keras_bahdanau_runtime.signature import weights_file

WHOLE = 10**9  # as the end of a slice, what tf2onnx writes for all of an axis
LARGEST_FILE = 2**31 - 2**24  # bytes of weights; protobuf reads nothing of 2 GiB


def save(model, path):
    """Writes an `onnx_ir.Model`, its weights into a second file where one would be too large.

    Returns:
        Whether there is a second file.
    """
    weights = [g.initializers.values() for g in (model.graph, *model.graph.subgraphs())]
    size = sum(value.const_value.nbytes for values in weights for value in values)
    external = weights_file(Path(path).name) if size > LARGEST_FILE else None
    ir.save(model, path, external_data=external)
    return external is not None


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
    """The numbers of a constant, or `None`."""
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def register(graph, name, array):
    """An initializer of this name: the one there is, or a new one of these numbers."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


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


def elements(value):
    """What an integer vector holds: ints, and `(tensor, axis)` for the size of a tensor's axis.

    `None` where that cannot be told.
    """
    number = constant(value)
    if number is not None:
        return [int(item) for item in number.reshape(-1)]
    node = value.producer()
    if node is None:
        return None
    if node.op_type in ("Cast", "Squeeze", "Unsqueeze", "Identity"):
        return elements(node.inputs[0])
    if node.op_type == "Shape":
        (tensor,) = node.inputs
        rank = rank_of(tensor)
        if node.attributes or rank is None:
            return None
        sizes = tensor.shape if tensor.shape is not None else [None] * rank
        return [size if isinstance(size, int) else (tensor, i) for i, size in enumerate(sizes)]
    if node.op_type == "Concat":
        parts = [elements(part) for part in node.inputs]
        return None if None in parts else [item for part in parts for item in part]
    if node.op_type == "Slice" and len(node.inputs) in (3, 4):
        items = elements(node.inputs[0])
        bounds = [constant(bound) for bound in node.inputs[1:3]]
        if items is None or any(bound is None or bound.size != 1 for bound in bounds):
            return None
        return items[int(bounds[0].item()) : int(bounds[1].item())]
    if node.op_type == "Gather":
        items, places = elements(node.inputs[0]), constant(node.inputs[1])
        if items is None or places is None:
            return None
        return [items[int(place)] for place in places.reshape(-1)]
    return None


def rank_of(value):
    """Number of a tensor's axes, or `None`; onnx does not tell it behind every reshape."""
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Reshape":
        items = elements(node.inputs[1])
        return None if items is None else len(items)
    if node.op_type == "Unsqueeze":
        rank, axes = rank_of(node.inputs[0]), constant(node.inputs[1])
        return None if rank is None or axes is None else rank + axes.size
    if node.op_type in ("Tanh", "Sigmoid", "Relu", "Cast", "Identity"):
        return rank_of(node.inputs[0])
    if node.op_type in ("Add", "Sub", "Mul", "Div"):
        ranks = [rank_of(side) for side in node.inputs]
        return None if None in ranks else max(ranks)
    if node.op_type == "MatMul" and rank_of(node.inputs[1]) == 2:
        return rank_of(node.inputs[0])
    return None
