"""The passes over an ONNX graph from tf2onnx, and their order.

    model = onnx_ir.serde.deserialize_model(model_proto)
    optimize(model)                                    # every one of `PASSES`

A pass is a function of one graph (the main graph or the body of a loop) that returns the number of
its rewrites. It rewrites only what it can prove to keep all values, with two exceptions: integers
compared as floats are compared as integers, and nodes moved out of a loop also run if the loop
makes no step. The first axes of all inputs are assumed to have one size, as in Keras's batches.
onnx-ir then removes unused and duplicate nodes. A new pass goes into the file of the operators that
it rewrites, and into `PASSES`.
"""

import logging

import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.conditions import (
    compare_as_integers,
    compare_steps_as_int32,
    replace_bool_casts,
)
from keras_bahdanau_export.graph.passes.editing import (
    has_subgraph,
    infer_shapes,
    innermost_first,
    make_names_unique,
    nodes_of,
    outermost_first,
    remove_unused,
    replace_uses,
)
from keras_bahdanau_export.graph.passes.host_values import move_sizes_to_device
from keras_bahdanau_export.graph.passes.loops import (
    collect_scan_outputs,
    copy_constants_into_loops,
    hoist_invariants,
    hoist_unchanged_state,
)
from keras_bahdanau_export.graph.passes.matmuls import (
    drop_matmul_reshapes,
    hoist_matmuls,
    make_slices_contiguous,
)
from keras_bahdanau_export.graph.passes.recurrence import (
    drop_zero_states,
    fuse_directions,
)
from keras_bahdanau_export.graph.passes.shapes import (
    drop_index_wrapping,
    drop_noop_reshapes,
    fuse_reshapes,
    simplify_sizes,
    widen_ranges,
    widen_shapes,
)
from keras_bahdanau_export.graph.passes.top_k import split_top_k

logger = logging.getLogger("keras_bahdanau_export")

PASSES = (
    hoist_unchanged_state,
    collect_scan_outputs,
    hoist_invariants,
    compare_as_integers,
    compare_steps_as_int32,
    drop_index_wrapping,
    widen_shapes,
    widen_ranges,
    drop_matmul_reshapes,
    make_slices_contiguous,
    hoist_matmuls,
    fuse_reshapes,
    split_top_k,
    fuse_directions,
    drop_zero_states,
    simplify_sizes,
    drop_noop_reshapes,
    replace_bool_casts,  # the casts that the other passes did not remove
)
# Passes that read the shapes of values that earlier passes insert.
_NEED_NEW_SHAPES = (hoist_matmuls,)


def optimize(model, passes=PASSES):
    """Run the passes over a model in place, inner graphs first, until no pass finds a rewrite.

    Args:
        model: An `onnx_ir.Model`.
        passes: Functions of a graph.

    Returns:
        A dict from the name of each pass to the number of its rewrites.
    """
    counts = {rewrite.__name__: 0 for rewrite in passes}
    names = [value.name for value in model.graph.outputs]
    # One rewrite can make another one possible, so a pass runs again after any other rewrite.
    pending, is_changed = set(passes), True
    while pending:
        before = sum(counts.values())
        first = next(rewrite for rewrite in passes if rewrite in pending)
        for rewrite in passes:
            if rewrite not in pending:
                continue
            # This takes longer than all passes. Most of them do without it until the next round.
            if is_changed and (rewrite is first or rewrite in _NEED_NEW_SHAPES):
                _tidy(model)
                infer_shapes(model)
                is_changed = False
            count = sum(rewrite(graph) for graph in innermost_first(model.graph))
            counts[rewrite.__name__] += count
            pending.discard(rewrite)
            if count:
                remove_unused(model)
                pending, is_changed = set(passes), True
        nodes = _count_nodes(model)
        _tidy(model)  # a second time, as merged nodes can make other nodes equal
        if sum(counts.values()) != before and _count_nodes(model) != nodes:
            pending, is_changed = set(passes), True
    move_sizes_to_device(model)
    copy_constants_into_loops(model)
    remove_unused(model)  # including the originals that only loops read
    common.OutputFixPass()(model)  # makes each output a separate value again
    for name, value in zip(names, model.graph.outputs, strict=True):
        value.name = name
    logger.debug("Rewrites of the graph: %s", counts)
    return counts


def _count_nodes(model):
    return sum(map(len, outermost_first(model.graph)))


def _tidy(model):
    for clean in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        _remove_identities,
        common.DeduplicateInitializersPass(),
        remove_unused,
        common.NameFixPass(),
    ):
        clean(model)
    graphs = list(innermost_first(model.graph))
    for graph in graphs:
        _merge_equal_nodes(graph)
    # onnx's shape inference confuses values of the same name, also in a body and outside of it.
    used = {
        value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())
    }
    make_names_unique([v for graph in graphs for node in graph for v in node.outputs], used)


def _remove_identities(model):
    """Remove `Identity` nodes, except where a graph's output needs a node.

    After onnx-ir's own pass a body may return values from outside of it, which no runtime accepts.
    """
    for graph in innermost_first(model.graph):
        for node in nodes_of(graph, "Identity"):
            old, new = node.outputs[0], node.inputs[0]
            if old.is_graph_output():
                if new.producer() is None or new.producer().graph is not graph:
                    continue
                new.name = old.name
            new.shape = old.shape if new.shape is None else new.shape
            new.type = old.type if new.type is None else new.type
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            graph.remove(node, safe=True)


def _attribute_key(attribute):
    """Return the value of an attribute in a form that can be compared and hashed."""
    if attribute.type == ir.AttributeType.TENSOR:
        array = attribute.value.numpy()
        return str(array.dtype), array.shape, array.tobytes()
    return str(attribute.value)


def _merge_equal_nodes(graph):
    """Merge nodes that compute the same; onnx-ir's own pass does not look into loops."""
    first_nodes = {}
    for node in list(graph):
        if has_subgraph(node) or node.op_type.startswith("Random"):
            continue
        attributes = frozenset((name, _attribute_key(a)) for name, a in node.attributes.items())
        inputs = tuple(map(id, node.inputs))
        first = first_nodes.setdefault((node.domain, node.op_type, inputs, attributes), node)
        outputs = list(zip(node.outputs, first.outputs, strict=False))
        if first is node or len(node.outputs) != len(first.outputs):
            continue
        if not any(old.is_graph_output() for old, _ in outputs):
            for old, new in outputs:
                replace_uses(old, new)
            graph.remove(node, safe=True)
