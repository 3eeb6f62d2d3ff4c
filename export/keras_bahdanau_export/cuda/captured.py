"""The graph of a search, cut at its loop: its start, one step, and its end.

CUDA can record the kernels of a graph once and launch them all at once from then on, but not those
of a loop. With one step as a graph of its own the runtime drives the loop; see
`keras_bahdanau_runtime.cuda.captured`.
"""

from typing import NamedTuple

import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.graph import (
    constant,
    detach,
    holds_graph,
    nodes_of,
    read_by,
    remove_unused,
    replace,
)
from keras_bahdanau_export.graph.passes.sizes import Sizes
from keras_bahdanau_runtime.signature import Signature, Tensor


class Cut(NamedTuple):
    """The graph of a search in three.

    Attributes:
        start: `onnx_ir.Model`: what the search reads in; `state_0`, ... and `memory_0`, ... out.
        step: One step: of these what it reads in; `next_state_0`, ... and `go_on`, a bool, out.
        end: What the last step left in; what the search gives out.
    """

    start: ir.Model
    step: ir.Model
    end: ir.Model


def cut_at_loop(model):
    """Cuts the graph of a search before and after its loop.

    Args:
        model: An `onnx_ir.Model` whose last loop is that of the search and collects no rows; it is
            left as it is.

    Returns:
        A `Cut`.
    """
    common.ShapeInferencePass()(model)
    loop = nodes_of(model.graph, "Loop")[-1]
    body, sizes = loop.attributes["body"].value, Sizes(model.graph)
    inside = {*body.inputs, *(value for node in body for value in node.outputs)}
    read = [
        value
        for node in (*body, *(node for graph in body.subgraphs() for node in graph))
        for value in node.inputs
        if value is not None and value not in inside and value.graph not in body.subgraphs()
    ]
    memory = {}  # an ordered set of names
    for value in read:
        _need(value, sizes, memory)
    _need_after(model.graph, loop, sizes, memory)
    values = {f"memory_{i}": _by_name(model.graph)[name] for i, name in enumerate(memory)}
    values |= {f"state_{i}": value for i, value in enumerate(body.inputs[2:])}
    shapes = {name: _shape(name, sizes.dims[value]) for name, value in values.items()}
    parts = (cut(model.clone(), list(memory), shapes) for cut in (_start, _step, _end))
    return Cut(*parts)


def signature_of(model):
    """The `Signature` of a part, from its values; all of whose shapes are known."""

    def tensors(values):
        return tuple(
            Tensor(
                value.name,
                value.dtype.numpy().name,
                tuple(size if isinstance(size, int) else size.value for size in value.shape),
            )
            for value in values
        )

    return Signature(inputs=tensors(model.graph.inputs), outputs=tensors(model.graph.outputs))


def _need(value, sizes, memory):
    """Notes what a step must be given to have a value: often the value itself.

    Constants, what is made of them alone, and sizes are had anew.
    """
    again = value in sizes.items or _of_sizes(value, {}) == set()
    for part in _of_sizes(value, sizes.items) if again else [value]:
        memory[part.name] = None


def _need_after(graph, loop, sizes, memory):
    """Notes what the nodes after a loop need from before it; what is made of sizes is had anew."""
    read = {node: [value for value in read_by(node) if value.graph is graph] for node in graph}
    late = set(loop.outputs)
    for node in graph:
        if not late.isdisjoint(read[node]):
            late.update(node.outputs)
    for node in graph:
        if late & set(node.outputs) and node is not loop:
            for value in read[node]:
                if value not in late:
                    parts = _of_sizes(value, sizes.items)
                    for part in [value] if parts is None else parts:
                        memory[part.name] = None


def _of_sizes(value, items):
    """The values whose sizes, in `items`, a value is made of; `None` if of anything else."""
    seen, found, left = set(), set(), [value]
    while left:
        part = left.pop()
        if part is None or part in seen or constant(part) is not None:
            continue
        seen.add(part)
        if part in items:
            found |= {each for size in items[part] for each, _ in size.parts}
            continue
        node = part.producer()
        if node is None or holds_graph(node) or node.op_type.startswith("Random"):
            return None
        left += node.inputs
    return found


def _start(model, memory, shapes):
    graph, loop = model.graph, nodes_of(model.graph, "Loop")[-1]
    known = _by_name(graph)
    given = {f"state_{i}": value for i, value in enumerate(loop.inputs[2:])}
    given |= {f"memory_{i}": known[name] for i, name in enumerate(memory)}
    graph.outputs[:] = [_named(graph, name, value, shapes[name]) for name, value in given.items()]
    _drop(graph, list(graph)[list(graph).index(loop) : -len(given)])
    return _tidied(model)


def _step(model, memory, shapes):
    graph, loop = model.graph, nodes_of(model.graph, "Loop")[-1]
    body = loop.attributes["body"].value
    inputs = _given(graph, memory, shapes)
    for i, value in enumerate(body.inputs[2:]):
        inputs.append(_input(f"state_{i}", value, shapes))
        value.replace_all_uses_with(inputs[-1], replace_graph_outputs=True)
    outputs = {"go_on": body.outputs[0]}
    outputs |= {f"next_state_{i}": value for i, value in enumerate(body.outputs[1:])}
    graph.outputs.clear()
    body.outputs.clear()
    nodes = list(body)
    body.remove(nodes)
    _drop(graph, list(graph)[list(graph).index(loop) :])
    graph.extend(nodes)
    for value in list(body.initializers.values()):
        del body.initializers[value.name]
        graph.register_initializer(value)
    graph.inputs[:] = inputs
    graph.outputs[:] = [
        _named(graph, name, value, shapes.get(name.removeprefix("next_"), ir.Shape([])))
        for name, value in outputs.items()
    ]
    return _tidied(model)


def _end(model, memory, shapes):
    graph, loop = model.graph, nodes_of(model.graph, "Loop")[-1]
    inputs = _given(graph, memory, shapes)
    for i, value in enumerate(loop.outputs):
        inputs.append(_input(f"state_{i}", value, shapes))
        replace(value, inputs[-1])
    _drop(graph, [loop])
    graph.inputs[:] = inputs
    return _tidied(model)


def _given(graph, memory, shapes):
    """Inputs in the place of the values that stand in the memory."""
    known, inputs = _by_name(graph), []
    for i, name in enumerate(memory):
        inputs.append(_input(f"memory_{i}", known[name], shapes))
        replace(known[name], inputs[-1])
    return inputs


def _by_name(graph):
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {value.name: value for value in values}


def _shape(name, dims):
    """A shape whose sizes, where only a run tells them, have the names of what they are made of."""
    axes = []
    for i, size in enumerate(dims):
        named = [part.shape[axis].value for part, axis in size.parts if part.producer() is None]
        times = [] if size.factor == 1 else [f"times_{size.factor}"]
        plain = len(named) == len(size.parts) and None not in named
        axes.append("_".join([*named, *times]) if plain else f"{name}_{i}")
    numbers = [size.number for size in dims]
    return ir.Shape([axis if n is None else n for axis, n in zip(axes, numbers, strict=True)])


def _input(name, like, shapes):
    return ir.Value(name=name, type=like.type, shape=shapes[name])


def _named(graph, name, value, shape):
    """An output of a name and shape of its own that hands a value on."""
    node = ir.node("Identity", [value])
    (output,) = node.outputs
    output.name, output.type, output.shape = name, value.type, shape
    graph.append(node)
    return output


def _drop(graph, nodes):
    """Takes nodes out of a graph, with what they use."""
    graph.remove(nodes)
    detach(nodes)


def _tidied(model):
    """A part without what it does not need: nodes, weights, and inputs that nothing reads."""
    remove_unused(model)
    graph = model.graph
    used = {value for node in graph.all_nodes() for value in node.inputs}
    graph.inputs[:] = [value for value in graph.inputs if value in used]
    common.NameFixPass()(model)
    return model
