"""Omission of hypotheses that have ended from the vocabulary product of an exported search."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.editing import (
    add_initializer,
    constant_array,
    insert_node,
    make_names_unique,
    nodes_of,
    outermost_first,
    producer_of,
    remove_unused,
    replace_node,
)
from keras_bahdanau_runtime.errors import UnsupportedModelError

# Operators that compute each row from the same row of their inputs, if other inputs are constants.
_ELEMENTWISE = ("Add", "Cast", "Div", "Mod", "Mul", "Sub")


def skip_ended_rows(model):
    """Compute logits and the best tokens of a beam search only for hypotheses that are live.

    A batch runs until its last sentence ends, and the first step has one hypothesis per sentence.
    A hypothesis with a total of -inf cannot be extended: all of its candidates have a total of
    -inf, too, so their tokens are arbitrary.

    The number of rows changes from step to step. On CUDA each step would wait for this number.

    Args:
        model: An `onnx_ir.Model` of a search, after the passes of `optimizer`.

    Raises:
        UnsupportedModelError: The graph has no loop of a beam search with a product of weights as
            its logits, or every branch of its options needs all logits.
    """
    for loop in nodes_of(model.graph, "Loop"):
        body = loop.attributes["body"].value
        totals, product = _totals_of_live(body), _vocabulary_product(body)
        if totals is not None and product is not None and _skip_in(body, totals, *product):
            # onnx's shape inference confuses values of the same name in a body and outside of it.
            graphs = list(outermost_first(model.graph))
            used = {v.name for part in graphs for v in (*part.inputs, *part.initializers.values())}
            common.NameFixPass()(model)
            make_names_unique([v for part in graphs for node in part for v in node.outputs], used)
            remove_unused(model)
            return
    raise UnsupportedModelError(
        "Ended hypotheses can be skipped only in a beam search over the logits of an output layer. "
        "Export this model or search without `skip_ended`."
    )


def _totals_of_live(body):
    """Return the state whose numbers above -inf keep the loop running, or `None`."""
    pending, visited = [body.outputs[0]], set()
    while pending:
        value = pending.pop()
        node = value.producer() if value is not None else None
        if node is None or node in visited or node.graph is not body:
            continue
        visited.add(node)
        if node.op_type == "Greater" and node.inputs[0] in body.outputs:
            bound = constant_array(node.inputs[1])
            if bound is not None and bound.size == 1 and np.isneginf(bound).all():
                return body.inputs[list(body.outputs).index(node.inputs[0]) + 1]
        if node.op_type in ("And", "Greater", "ReduceSum", "ReduceMax", "Cast"):
            pending += node.inputs
    return None


def _vocabulary_product(body):
    """Return the product and the `LogSoftmax` of the logits, or `None`."""
    nodes = nodes_of(body, "LogSoftmax")
    if len(nodes) != 1:
        return None
    logits = nodes[0].inputs[0]
    add = producer_of(logits, "Add")  # of the bias
    for value in (logits,) if add is None else add.inputs:
        matmul = producer_of(value, "MatMul")
        if matmul is not None and matmul.graph is body:
            return matmul, nodes[0]
    return None


def _skip_in(body, totals, matmul, log_softmax):
    """Rewrite a loop's body; return whether any graph needs only the rows of live hypotheses."""
    logits, log_probs = log_softmax.inputs[0], log_softmax.outputs[0]
    readers = {
        value: [use for use, _ in value.uses() if use is not log_softmax]
        for value in (logits, log_probs)
    }
    parts = list(dict.fromkeys(use.graph for uses in readers.values() for use in uses))
    narrow = {part: _narrow_nodes(part, (logits, log_probs)) for part in parts}
    if not any(narrow.values()):
        return False

    def add(op_type, *inputs, **options):
        return insert_node(body, matmul, op_type, *inputs, **options)

    def constant(name, array):
        return add_initializer(body, f"ended_rows_{name}", array)

    is_live = add("Greater", totals, constant("bound", np.array(-np.inf, np.float32)))
    is_live = add("Reshape", is_live, constant("flat", np.array([-1])))
    live = add("Compress", matmul.inputs[0], is_live, axis=0)
    matmul.replace_input_with(0, live)
    numbers = add("Cast", is_live, to=ir.DataType.INT32)
    numbers = add("CumSum", numbers, constant("axis", np.array(0)))
    numbers = add("Sub", numbers, constant("one", np.array(1, np.int32)))
    # The row of each hypothesis among the live ones; any row for one that has ended.
    numbers = add("Max", numbers, constant("first", np.array(0, np.int32)))
    node = matmul
    while node is not log_softmax:  # the sizes that were inferred are those of all rows
        node.outputs[0].shape = None
        node = next(use for use, _ in node.outputs[0].uses() if use.graph is body)
    log_probs.shape = None
    for part, nodes in narrow.items():
        if nodes is None:
            for value, uses in readers.items():
                _read_all_rows(part, value, [use for use in uses if use.graph is part], numbers)
        else:
            _read_live_rows(part, nodes, numbers)
    return True


def _narrow_nodes(part, values):
    """Return the nodes of a graph between the logits and the best tokens, or `None`.

    The rows of their values are hypotheses. The last nodes are reshapes to `(B, K, W)`.

    Args:
        part: The body of the loop, or a branch in it.
        values: The logits and their log-probabilities.

    Returns:
        A dict from each node to its kind, see `_kind`; `None` if a node needs all rows.
    """
    nodes, values = {}, {value: "row" for value in values}
    for node in part:
        if not any(value in values for value in node.inputs):
            continue
        kind = _kind(node, values)
        is_output = any(value.is_graph_output() for value in node.outputs)
        if kind is None or (is_output and kind != "last"):
            return None
        nodes[node] = kind
        if kind != "last":
            values.update(dict.fromkeys(node.outputs, kind))
    return nodes if "last" in nodes.values() else None


def _kind(node, kinds):
    """Return what the outputs of a node are, or `None` if it needs the rows of all hypotheses.

    Args:
        node: A node that reads at least one value of `kinds`.
        kinds: The kinds of earlier values.

    Returns:
        "row": one row for each hypothesis. "flat": a flattened table. "index": indices into it.
        "last": the result, in the shape of the batch.
    """
    inputs = [kinds.get(value) for value in node.inputs]
    constants = [constant_array(value) for value in node.inputs]
    axis = node.attributes["axis"].value if "axis" in node.attributes else None
    if inputs == ["flat", "index"]:
        return "row" if node.op_type == "Gather" else None
    if "flat" in inputs or "index" in inputs:
        return None
    if node.op_type == "Reshape":
        if constants[1] is None:
            return "last"
        first, *others = constants[1].tolist()
        if first == -1 and not others:
            return "flat"
        return "row" if first == -1 and min(others) > 0 else None
    if node.op_type == "Gather":
        return "row" if constants[0] is not None and axis in (None, 0) else None
    if node.op_type in ("ReduceMax", "Unsqueeze"):
        return "row" if constants[1] is not None and constants[1].tolist() == [-1] else None
    if node.op_type == "TopK":
        return "row" if axis in (None, -1) and constants[1] is not None else None
    if node.op_type in ("GatherElements", "GatherND"):
        keeps_rows = axis == -1 or "batch_dims" in node.attributes
        return "row" if keeps_rows and inputs == ["row", "row"] else None
    if node.op_type not in _ELEMENTWISE:
        return None
    others = [
        value
        for value, kind, array in zip(node.inputs, inputs, constants, strict=True)
        if kind is None and (array is None or array.size > 1)
    ]
    if not others:
        return "row"
    return "index" if node.op_type == "Add" and _is_column(others[0]) else None


def _is_column(value):
    """Whether a value has the shape `(R, 1)`, as the first flat index of each row has."""
    unsqueeze = producer_of(value, "Unsqueeze")
    axes = constant_array(unsqueeze.inputs[1]) if unsqueeze is not None else None
    return axes is not None and axes.tolist() in ([-1], [1])


def _read_all_rows(part, value, uses, numbers):
    """Let nodes of a graph read a row for every hypothesis again."""
    if not uses:
        return
    before = next(node for node in part if node in uses)
    complete = insert_node(part, before, "Gather", value, numbers, axis=0)
    for use in uses:
        for i, each in enumerate(use.inputs):
            if each is value:
                use.replace_input_with(i, complete)


def _read_live_rows(part, nodes, numbers):
    """Let the best tokens be those of live hypotheses, and give each hypothesis a row again."""
    for node, kind in nodes.items():
        first = node.inputs[0]
        if kind == "last":
            node.replace_input_with(0, insert_node(part, node, "Gather", first, numbers, axis=0))
            continue
        for value in node.outputs:
            value.shape = None
        if nodes.get(first.producer()) == "flat":  # flat indices are those of all rows
            table, index = first.producer().inputs[0], node.inputs[1].producer()
            columns = next(value for value in index.inputs if not _is_column(value))
            replace_node(part, node, "GatherElements", [table, columns], {"axis": -1})
