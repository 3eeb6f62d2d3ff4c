"""Passes that leave less to do in every step of a loop; see `optimizer`."""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.graph import (
    constant,
    holds_graph,
    innermost_first,
    made_by,
    nodes_of,
    past_identities,
    put,
    register,
    replace,
    take_place,
)

SMALL = 16  # numbers, of a constant that costs nothing to have twice


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
        gone = {i for i in states if new[1 + i] is body.inputs[2 + i]}
        if not gone:
            continue
        fixed = [(body.inputs[2 + i], loop.outputs[i], loop.inputs[2 + i]) for i in gone]
        _without_states(graph, loop, gone)
        for inner, final, initial in fixed:
            for i, value in enumerate(body.outputs):
                if value is inner:  # as another state, too, or as rows: by a node of the body
                    body.outputs[i] = _passed_on(body, inner)
            replace(inner, initial)
            replace(final, initial)
        graph.remove(loop, safe=True)
        count += len(gone)
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
            row = _passed_on(body, written, f"{final.name}_row")
            if row.shape is None:  # a loop without steps makes its rows of it
                row.shape = ir.Shape(initial.shape[1:])
            shorter = _without_states(graph, loop, {i}, [row])
            take_place(final, _filled(graph, loop, shorter.outputs[-1], initial))
            graph.remove(loop, safe=True)
            loop = shorter
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


def own_constants(model):
    """Gives each loop's body copies of the small constants that it reads.

    A constant that something around the loop reads on the host, as sizes are, stays there on CUDA:
    it would be copied to the device at every step.
    """
    for graph in list(innermost_first(model.graph)):
        for loop in nodes_of(graph, "Loop"):
            body = loop.attributes["body"].value
            copies = {}
            for node in body:
                for i, value in enumerate(node.inputs):
                    numbers = constant(value)
                    if numbers is None or value.graph is body or numbers.size > SMALL:
                        continue
                    if value not in copies:
                        copies[value] = register(body, f"{value.name}_in_{loop.name}", numbers)
                    node.replace_input_with(i, copies[value])


def _passed_on(body, value, name=None):
    """The value as one that a node of a body makes."""
    node = ir.node("Identity", [value])
    node.outputs[0].name, node.outputs[0].type = name, value.type
    node.outputs[0].shape = value.shape
    body.append(node)
    return node.outputs[0]


def _without_states(graph, loop, gone, rows=()):
    """A loop before `loop`, in its place but for the states numbered `gone`, that collects `rows`.

    `rows` are values of the body, which moves to the new loop.
    """
    body = loop.attributes["body"].value

    def kept(values, first):
        return [value for i, value in enumerate(values) if i - first not in gone]

    old = kept(loop.outputs, 0)
    body.inputs[:] = kept(body.inputs, 2)
    body.outputs[:] = [*kept(body.outputs, 1), *rows]
    count = len(old) + len(rows)
    new = ir.node("Loop", kept(loop.inputs, 2), {"body": body}, num_outputs=count, name=loop.name)
    graph.insert_before(loop, new)
    for before, after in zip(old, new.outputs, strict=False):
        take_place(before, after)
    return new


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
    if state.is_graph_output():  # as it was before the step
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
    whole, shape = loop.inputs[2 + i].shape, row.inputs[0].shape
    if whole is None or (shape is not None and len(shape) != len(whole) - 1):
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
    end = register(graph, "last_row", np.array([2**31]))
    rest = add("Slice", initial, add("Shape", rows, end=1), end, zero, one)
    # If the loop never ran, the rows have no sizes; Concat passes over what is empty.
    return add("Concat", rows, rest, axis=0)
