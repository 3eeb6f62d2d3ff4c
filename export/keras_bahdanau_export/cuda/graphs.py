"""The graph of a search, split at its loop into a start, one step and an end.

CUDA can record the kernels of a graph as a CUDA graph and launch them together, but not the kernels
of a loop. With one step as a separate graph the runtime drives the loop; see
`keras_bahdanau_runtime.cuda`.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.editing import (
    constant_array,
    has_subgraph,
    nodes_of,
    values_read_by,
)
from keras_bahdanau_export.graph.passes.loops import collect_scan_outputs
from keras_bahdanau_export.graph.passes.optimizer import PASSES, optimize
from keras_bahdanau_export.graph.passes.size_inference import SizeInference
from keras_bahdanau_runtime.signature import Signature, Tensor


def split_search(model):
    """Optimize the graph of a search and split it at its loop.

    Args:
        model: An `onnx_ir.Model` whose last loop is that of the search. It is changed in place.

    Returns:
        Three `onnx_ir.Model`s: the start, from the inputs of the search to `state_0`, ... and
        `memory_0`, ...; the step, from those that it reads to `next_state_0`, ... and the bool
        `go_on`; and the end, from the states after the last step, and the memory, to the outputs of
        the search.
    """
    # The buffers that a loop fills row by row must stay states of its step.
    optimize(model, [rewrite for rewrite in PASSES if rewrite is not collect_scan_outputs])
    return split_at_loop(model)


def split_at_loop(model):
    """Split a graph at its last loop, which has no scan outputs; see `split_search`."""
    common.ShapeInferencePass()(model)
    graph, sizes = model.graph, SizeInference(model.graph)
    loop = nodes_of(graph, "Loop")[-1]
    body = loop.attributes["body"].value
    states = {f"state_{i}": value for i, value in enumerate(loop.outputs)}
    shapes = [_shape(f"state_{i}", sizes.dims[v]) for i, v in enumerate(body.inputs[2:])]
    step_nodes = set(body)
    go_on, *next_states = _move_body_behind(loop, body)
    memory = {f"memory_{i}": v for i, v in enumerate(_memory(loop, step_nodes, sizes))}
    shapes += [_shape(name, sizes.dims[value]) for name, value in memory.items()]
    shapes = dict(zip([*states, *memory], shapes, strict=True))
    start = dict(zip(states, loop.inputs[2:], strict=True)) | memory
    step = {"go_on": go_on} | {f"next_{n}": v for n, v in zip(states, next_states, strict=True)}
    end = {value.name: value for value in graph.outputs}
    inputs = {value.name: value for value in graph.inputs}
    return [
        _part(model, inputs, start, shapes),
        _part(model, memory | states, step, shapes),
        _part(model, memory | states, end, shapes),
    ]


def part_signature(model):
    """Return the `Signature` of a part, all of whose shapes are known."""
    inputs, outputs = (
        tuple(Tensor(value.name, value.dtype.numpy().name, _axes(value.shape)) for value in values)
        for values in (model.graph.inputs, model.graph.outputs)
    )
    return Signature(inputs=inputs, outputs=outputs)


def _axes(shape):
    return tuple(size if isinstance(size, int) else size.value for size in shape)


def _move_body_behind(loop, body):
    """Move the nodes of a loop into its graph, where they read its outputs as their states.

    Returns:
        The outputs of the body.
    """
    for inner, outer in zip(body.inputs[2:], loop.outputs, strict=True):
        outer.type = inner.type
        inner.replace_all_uses_with(outer, replace_graph_outputs=True)
    outputs, nodes = list(body.outputs), list(body)
    body.outputs.clear()
    body.remove(nodes)
    loop.graph.extend(nodes)
    for value in list(body.initializers.values()):
        del body.initializers[value.name]
        loop.graph.register_initializer(value)
    return outputs


def _memory(loop, step_nodes, sizes):
    """Return the values from before the loop that the step and the end read, in order.

    A step recomputes sizes and what depends only on constants; the end, what depends on sizes, too.
    """
    after, values = set(loop.outputs), {}
    for node in loop.graph:
        read = [value for value in values_read_by(node) if value.graph is loop.graph]
        if node is loop or after.isdisjoint(read):
            continue
        after.update(node.outputs)
        for value in read:
            measured = _measured_values(value)
            is_recomputed = value in sizes.contents or measured == []
            if node not in step_nodes:
                is_recomputed = measured is not None
            values |= dict.fromkeys(measured if is_recomputed else [value])
    return [value for value in values if value not in after]


def _measured_values(value):
    """Return the values from whose shapes `value` is computed, in order.

    `None` if it depends on anything but shapes and constants.
    """
    visited, measured, stack = set(), {}, [value]
    while stack:
        current = stack.pop()
        if current is None or current in visited or constant_array(current) is not None:
            continue
        visited.add(current)
        node = current.producer()
        if node is None or has_subgraph(node) or node.op_type.startswith("Random"):
            return None
        if node.op_type == "Shape":
            measured[node.inputs[0]] = None
        else:
            stack += node.inputs
    return list(measured)


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


def _part(model, inputs, outputs, shapes):
    """Return the model that computes `outputs` from those of `inputs` that they need, by name."""
    copies = [ir.node("Identity", [value]) for value in outputs.values()]
    for value, copy in zip(outputs.values(), copies, strict=True):
        copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
    model.graph.extend(copies)
    part = ir.convenience.extract(
        model.graph, list(inputs.values()), [copy.outputs[0] for copy in copies]
    )
    for names, values in ((inputs, part.inputs), (outputs, part.outputs)):
        for name, value in zip(names, values, strict=True):
            value.name = name
            value.shape = shapes.get(name.removeprefix("next_"), value.shape)
    used = {value for node in part.all_nodes() for value in node.inputs}
    part.inputs[:] = [value for value in part.inputs if value in used]
    result = ir.Model(part, ir_version=model.ir_version)
    common.NameFixPass()(result)
    return result
