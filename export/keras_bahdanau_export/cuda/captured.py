"""The graph of a search, split at its loop into a start, one step and an end.

CUDA can record the kernels of a graph as a CUDA graph and launch them together, but not the kernels
of a loop. With one step as a separate graph the runtime drives the loop; see
`keras_bahdanau_runtime.cuda`.
"""

from typing import NamedTuple

import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.editing import (
    constant_array,
    detach_inputs,
    has_subgraph,
    nodes_of,
    remove_unused,
    replace_uses,
    values_read_by,
)
from keras_bahdanau_export.graph.passes.size_inference import SizeInference
from keras_bahdanau_runtime.signature import Signature, Tensor


class SplitSearch(NamedTuple):
    """The graph of a search as three `onnx_ir.Model`s.

    Attributes:
        start: From the inputs of the search to `state_0`, ... and `memory_0`, ...
        step: From these, as far as a step reads them, to `next_state_0`, ... and the bool `go_on`.
        end: From the states after the last step, and the memory, to the outputs of the search.
    """

    start: ir.Model
    step: ir.Model
    end: ir.Model


def split_at_loop(model):
    """Split the graph of a search before and after its loop.

    Args:
        model: An `onnx_ir.Model` whose last loop is that of the search and has no scan outputs. It
            is not changed, except that its shapes are inferred.

    Returns:
        A `SplitSearch`.
    """
    common.ShapeInferencePass()(model)
    loop = nodes_of(model.graph, "Loop")[-1]
    body, sizes = loop.attributes["body"].value, SizeInference(model.graph)
    inside = {*body.inputs, *(value for node in body for value in node.outputs)}
    outer_values = [
        value
        for node in (*body, *(node for graph in body.subgraphs() for node in graph))
        for value in node.inputs
        if value is not None and value not in inside and value.graph not in body.subgraphs()
    ]
    memory = {}  # an ordered set of names
    for value in outer_values:
        _add_for_step(value, sizes, memory)
    _add_for_end(model.graph, loop, sizes, memory)
    values = {f"memory_{i}": _values_by_name(model.graph)[name] for i, name in enumerate(memory)}
    values |= {f"state_{i}": value for i, value in enumerate(body.inputs[2:])}
    shapes = {name: _shape(name, sizes.dims[value]) for name, value in values.items()}
    parts = (make(model.clone(), list(memory), shapes) for make in (_start, _step, _end))
    return SplitSearch(*parts)


def part_signature(model):
    """Return the `Signature` of a part, all of whose shapes are known."""

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


def _add_for_step(value, sizes, memory):
    """Add the names of the values that a step needs to read `value`; usually that value itself.

    The step graph recomputes sizes and whatever depends only on constants.
    """
    is_recomputed = value in sizes.contents or _measured_values(value, {}) == []
    for tensor in _measured_values(value, sizes.contents) if is_recomputed else [value]:
        memory[tensor.name] = None


def _add_for_end(graph, loop, sizes, memory):
    """Add the names of the values from before the loop that the nodes after it need.

    The end graph recomputes what depends only on sizes.
    """
    reads = {
        node: [value for value in values_read_by(node) if value.graph is graph] for node in graph
    }
    after_loop = set(loop.outputs)
    for node in graph:
        if not after_loop.isdisjoint(reads[node]):
            after_loop.update(node.outputs)
    for node in graph:
        if after_loop & set(node.outputs) and node is not loop:
            for value in reads[node]:
                if value not in after_loop:
                    tensors = _measured_values(value, sizes.contents)
                    for tensor in [value] if tensors is None else tensors:
                        memory[tensor.name] = None


def _measured_values(value, contents):
    """Return the values whose sizes, listed in `contents`, `value` is computed from, in order.

    `None` if it depends on anything but sizes and constants.
    """
    visited, measured, stack = set(), {}, [value]
    while stack:
        current = stack.pop()
        if current is None or current in visited or constant_array(current) is not None:
            continue
        visited.add(current)
        if current in contents:
            measured |= {tensor: None for size in contents[current] for tensor, _ in size.axes}
            continue
        node = current.producer()
        if node is None or has_subgraph(node) or node.op_type.startswith("Random"):
            return None
        stack += node.inputs
    return list(measured)


def _start(model, memory, shapes):
    graph, loop = model.graph, nodes_of(model.graph, "Loop")[-1]
    by_name = _values_by_name(graph)
    outputs = {f"state_{i}": value for i, value in enumerate(loop.inputs[2:])}
    outputs |= {f"memory_{i}": by_name[name] for i, name in enumerate(memory)}
    graph.outputs[:] = [
        _add_output(graph, name, value, shapes[name]) for name, value in outputs.items()
    ]
    _remove_nodes(graph, list(graph)[list(graph).index(loop) : -len(outputs)])
    return _tidy(model)


def _step(model, memory, shapes):
    graph, loop = model.graph, nodes_of(model.graph, "Loop")[-1]
    body = loop.attributes["body"].value
    inputs = _replace_memory_by_inputs(graph, memory, shapes)
    for i, value in enumerate(body.inputs[2:]):
        inputs.append(_input(f"state_{i}", value, shapes))
        value.replace_all_uses_with(inputs[-1], replace_graph_outputs=True)
    outputs = {"go_on": body.outputs[0]}
    outputs |= {f"next_state_{i}": value for i, value in enumerate(body.outputs[1:])}
    graph.outputs.clear()
    body.outputs.clear()
    nodes = list(body)
    body.remove(nodes)
    _remove_nodes(graph, list(graph)[list(graph).index(loop) :])
    graph.extend(nodes)
    for value in list(body.initializers.values()):
        del body.initializers[value.name]
        graph.register_initializer(value)
    graph.inputs[:] = inputs
    graph.outputs[:] = [
        _add_output(graph, name, value, shapes.get(name.removeprefix("next_"), ir.Shape([])))
        for name, value in outputs.items()
    ]
    return _tidy(model)


def _end(model, memory, shapes):
    graph, loop = model.graph, nodes_of(model.graph, "Loop")[-1]
    inputs = _replace_memory_by_inputs(graph, memory, shapes)
    for i, value in enumerate(loop.outputs):
        inputs.append(_input(f"state_{i}", value, shapes))
        replace_uses(value, inputs[-1])
    _remove_nodes(graph, [loop])
    graph.inputs[:] = inputs
    return _tidy(model)


def _replace_memory_by_inputs(graph, memory, shapes):
    """Replace the values named in `memory` by inputs, which are returned."""
    by_name, inputs = _values_by_name(graph), []
    for i, name in enumerate(memory):
        inputs.append(_input(f"memory_{i}", by_name[name], shapes))
        replace_uses(by_name[name], inputs[-1])
    return inputs


def _values_by_name(graph):
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {value.name: value for value in values}


def _shape(name, dims):
    """Return a shape whose dynamic axes are named by the input axes that they are products of."""
    axes = []
    for i, size in enumerate(dims):
        names = [value.shape[axis].value for value, axis in size.axes if value.producer() is None]
        factor = [] if size.factor == 1 else [f"times_{size.factor}"]
        all_named = len(names) == len(size.axes) and None not in names
        axes.append("_".join([*names, *factor]) if all_named else f"{name}_{i}")
    integers = [size.as_int for size in dims]
    return ir.Shape([axis if n is None else n for axis, n in zip(axes, integers, strict=True)])


def _input(name, like, shapes):
    return ir.Value(name=name, type=like.type, shape=shapes[name])


def _add_output(graph, name, value, shape):
    """Append an `Identity` node that returns a value under another name; return its output."""
    node = ir.node("Identity", [value])
    (output,) = node.outputs
    output.name, output.type, output.shape = name, value.type, shape
    graph.append(node)
    return output


def _remove_nodes(graph, nodes):
    """Remove nodes from a graph, and their uses of values."""
    graph.remove(nodes)
    detach_inputs(nodes)


def _tidy(model):
    """Remove unused nodes, weights and inputs from a part; return it."""
    remove_unused(model)
    graph = model.graph
    used = {value for node in graph.all_nodes() for value in node.inputs}
    graph.inputs[:] = [value for value in graph.inputs if value in used]
    common.NameFixPass()(model)
    return model
