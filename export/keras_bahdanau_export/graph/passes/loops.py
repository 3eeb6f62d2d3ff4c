"""Passes that reduce the work in each step of a loop."""

import numpy as np
import onnx_ir as ir

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    constant_array,
    has_subgraph,
    innermost_first,
    insert_node,
    nodes_of,
    producer_of,
    replace_uses,
    replace_value,
    skip_identities,
)

SMALL_CONSTANT = 16  # maximum number of elements of a constant that may be duplicated


def hoist_unchanged_state(graph):
    """Replace a loop state that the body returns unchanged by a value outside of the loop.

    TensorFlow passes every weight through the loop as state. onnxruntime copies each state at every
    step, and cannot prepack such weights.
    """
    count = 0
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        states = range(len(body.inputs) - 2)
        results = [skip_identities(value) for value in body.outputs]
        unchanged = {i for i in states if results[1 + i] is body.inputs[2 + i]}
        if not unchanged:
            continue
        values = [(body.inputs[2 + i], loop.outputs[i], loop.inputs[2 + i]) for i in unchanged]
        _rebuild_loop(graph, loop, unchanged)
        for inner, final, initial in values:
            for i, value in enumerate(body.outputs):
                if value is inner:  # also another state or a scan output: needs a node in the body
                    body.outputs[i] = _identity_in_body(body, inner)
            replace_uses(inner, initial)
            replace_uses(final, initial)
        graph.remove(loop, safe=True)
        count += len(unchanged)
    return count


def collect_scan_outputs(graph):
    """Replace a state of which step `t` writes only row `t` by a scan output of the loop.

    TensorFlow writes rows into a buffer, which onnxruntime copies at every step. If the loop ends
    early, the remaining rows are those of the initial buffer.
    """
    count = 0
    for loop in nodes_of(graph, "Loop"):
        body = loop.attributes["body"].value
        for i in reversed(range(len(body.inputs) - 2)):
            written = _written_row(loop, i)
            if written is None:
                continue
            initial, final = loop.inputs[2 + i], loop.outputs[i]
            row = _identity_in_body(body, written, f"{final.name}_row")
            if row.shape is None:  # the shape of the scan output of a loop without steps
                row.shape = ir.Shape(initial.shape[1:])
            new_loop = _rebuild_loop(graph, loop, {i}, [row])
            replace_value(final, _with_remaining_rows(graph, loop, new_loop.outputs[-1], initial))
            graph.remove(loop, safe=True)
            loop = new_loop
            count += 1
    return count


def hoist_invariants(graph):
    """Move nodes out of a loop's body if they only read values from outside of it.

    The same applies to nodes in conditions in the body. They then run even if the condition never
    holds.
    """
    return sum(
        _hoist_from(loop.attributes["body"].value, set(loop.attributes["body"].value.inputs), loop)
        for loop in nodes_of(graph, "Loop")
    )


def _hoist_from(part, inside, loop):
    """Move invariant nodes of a loop's body, or a condition in it, before the loop; count them.

    Args:
        part: The body, or a branch of a condition.
        inside: Set of the values that change from step to step; those of this part are added.
        loop: The node of the loop.
    """
    count = 0
    for node in list(part):
        is_invariant = not any(value in inside for value in node.inputs)
        is_output = any(value.is_graph_output() for value in node.outputs)
        is_random = node.op_type.startswith("Random")
        if is_invariant and not (is_output or has_subgraph(node) or is_random):
            part.remove(node)
            loop.graph.insert_before(loop, node)
            count += 1
            continue
        inside.update(node.outputs)
        if node.op_type == "If":
            for attribute in node.attributes.values():
                count += _hoist_from(attribute.value, inside, loop)
    return count


def copy_constants_into_loops(model):
    """Copy the small constants that a loop's body, or a condition in it, reads into that graph.

    CUDA keeps a constant on the host if a node outside of the loop reads it there, as it does for
    shapes. Such a constant would be copied to the device at every step.
    """
    for graph in list(innermost_first(model.graph)):
        for loop in nodes_of(graph, "Loop"):
            body = loop.attributes["body"].value
            for part in (body, *body.subgraphs()):
                _copy_constants_into(part, part.name if part is not body else loop.name)


def _copy_constants_into(part, part_name):
    copies = {}
    for node in part:
        for i, value in enumerate(node.inputs):
            array = constant_array(value)
            if array is None or value.graph is part or array.size > SMALL_CONSTANT:
                continue
            if value not in copies:
                copies[value] = add_initializer(part, f"{value.name}_in_{part_name}", array)
            node.replace_input_with(i, copies[value])


def _identity_in_body(body, value, name=None):
    """Return a copy of a value that is the output of a node in the body."""
    node = ir.node("Identity", [value])
    node.outputs[0].name, node.outputs[0].type = name, value.type
    node.outputs[0].shape = value.shape
    body.append(node)
    return node.outputs[0]


def _rebuild_loop(graph, loop, dropped, rows=()):
    """Insert a new loop before `loop`, without the states numbered `dropped`.

    The body moves to the new loop. `rows` are values of the body, which become scan outputs. The
    old loop must be removed by the caller.
    """
    body = loop.attributes["body"].value

    def remaining(values, first_state):
        return [value for i, value in enumerate(values) if i - first_state not in dropped]

    old = remaining(loop.outputs, 0)
    body.inputs[:] = remaining(body.inputs, 2)
    body.outputs[:] = [*remaining(body.outputs, 1), *rows]
    count = len(old) + len(rows)
    inputs = remaining(loop.inputs, 2)
    new = ir.node("Loop", inputs, {"body": body}, num_outputs=count, name=loop.name)
    graph.insert_before(loop, new)
    for before, after in zip(old, new.outputs, strict=False):
        replace_value(before, after)
    return new


def _written_row(loop, i):
    """Return what step `t` writes to row `t` of state `i`, or `None` if it does anything else."""
    body = loop.attributes["body"].value
    state, value = body.inputs[2 + i], body.outputs[1 + i]
    if value.uses() or list(body.outputs).count(value) > 1:
        return None
    while (identity := producer_of(value, "Identity")) is not None:
        value = identity.inputs[0]
        if len(value.uses()) > 1 or value.is_graph_output():
            return None
    scatter = producer_of(value, "ScatterND")
    if scatter is None or scatter.inputs[0] is not state or len(state.uses()) > 1:
        return None
    if state.is_graph_output():  # the buffer before the step is used, too
        return None
    if "reduction" in scatter.attributes and scatter.attributes["reduction"].value != "none":
        return None
    row, index = producer_of(scatter.inputs[2], "Unsqueeze"), scatter.inputs[1]
    while index.producer() is not None and index.producer().graph is body:
        if index.producer().op_type not in ("Reshape", "Unsqueeze", "Cast"):
            return None
        index = index.producer().inputs[0]
    axes = constant_array(row.inputs[1]) if row is not None else None
    if axes is None or axes.tolist() != [0] or not _is_step_number(loop, index):
        return None
    buffer_shape, row_shape = loop.inputs[2 + i].shape, row.inputs[0].shape
    if buffer_shape is None or (row_shape is not None and len(row_shape) != len(buffer_shape) - 1):
        return None
    return row.inputs[0]


def _is_step_number(loop, value):
    """Whether a value in a loop's body is 0 in the first step, 1 in the second, and so on."""
    body = loop.attributes["body"].value
    if value not in body.inputs:
        return False
    i = list(body.inputs).index(value)
    if i == 0:
        return True
    increment = producer_of(skip_identities(body.outputs[i - 1]), "Add") if i > 1 else None
    start = constant_array(loop.inputs[i])
    if increment is None or start is None or start.size != 1 or start.any():
        return False
    if value not in increment.inputs:
        return False
    (other,) = [side for side in increment.inputs if side is not value] or [None]
    amount = constant_array(other) if other is not None else None
    return amount is not None and bool((amount == 1).all())


def _with_remaining_rows(graph, loop, rows, initial):
    """Concatenate `rows`, of which there may be none, and the rows of `initial` after them."""

    def add(op_type, *inputs, **options):
        return insert_node(graph, loop, op_type, *inputs, **options)

    one = add_initializer(graph, "one_row", np.array([1]))
    zero = add_initializer(graph, "no_row", np.array([0]))
    end = add_initializer(graph, "last_row", np.array([2**31]))
    rest = add("Slice", initial, add("Shape", rows, end=1), end, zero, one)
    # The rows of a loop without steps are empty; Concat ignores them.
    return add("Concat", rows, rest, axis=0)
