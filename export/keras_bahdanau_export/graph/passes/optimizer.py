"""The rewrites of an ONNX graph that tf2onnx wrote, in their order: each says the same with less.

    model = onnx_ir.serde.deserialize_model(model_proto)
    optimize(model)                                    # every one of `PASSES`

A pass is a function of one graph (the main one or the body of a loop) that returns how many places
it rewrote. It changes a place only where it can prove that the values stay the same, with two
exceptions: integers compared as floats are compared as integers, and what moves out of a loop is
computed even where the loop makes no step. The first axes of all inputs are one size, as in a batch
of Keras's. What a rewrite leaves unused is removed afterwards by onnx-ir, as are duplicates. A new
pass stands in the file of what it rewrites, and in `PASSES`.
"""

import logging

import onnx_ir as ir
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.conditions import (
    choices_for_casts,
    double_negations,
    integer_comparisons,
    step_comparisons,
    where_for_sums,
)
from keras_bahdanau_export.graph.passes.graph import (
    holds_graph,
    innermost_first,
    nodes_of,
    remove_unused,
    rename_repeated,
    replace,
)
from keras_bahdanau_export.graph.passes.loops import (
    hoist_invariants,
    lift_loop_state,
    own_constants,
    scanned_histories,
)
from keras_bahdanau_export.graph.passes.products import (
    contiguous_slices,
    early_products,
    whole_products,
)
from keras_bahdanau_export.graph.passes.recurrence import (
    bidirectional_operators,
    joined_directions,
    zero_states,
)
from keras_bahdanau_export.graph.passes.shapes import (
    element_gathers,
    idle_shapes,
    open_reshapes,
    plain_gathers,
    plain_sizes,
    single_reshapes,
    wide_ranges,
    wide_shapes,
)
from keras_bahdanau_export.graph.passes.top_k import chunked_top_ks

logger = logging.getLogger("keras_bahdanau_export")

PASSES = (
    lift_loop_state,
    scanned_histories,
    hoist_invariants,
    where_for_sums,
    integer_comparisons,
    step_comparisons,
    double_negations,
    plain_gathers,
    wide_shapes,
    wide_ranges,
    whole_products,
    contiguous_slices,
    early_products,
    single_reshapes,
    chunked_top_ks,
    bidirectional_operators,
    joined_directions,
    zero_states,
    open_reshapes,
    plain_sizes,
    idle_shapes,
    element_gathers,
    choices_for_casts,  # of the casts that the others left
)


def optimize(model, passes=PASSES):
    """Runs the passes over a model, in place, loop bodies before the graph around them.

    Args:
        model: An `onnx_ir.Model`.
        passes: Functions of a graph.

    Returns:
        A dict: how many places each pass rewrote, by its name.
    """
    counts = {one.__name__: 0 for one in passes}
    names = [value.name for value in model.graph.outputs]
    _tidy(model)
    while True:  # one rewrite makes room for another, and each of them makes the graph smaller
        before, changed = sum(counts.values()), True
        for one in passes:
            if changed:  # inferring shapes takes longer than all passes
                common.ShapeInferencePass()(model)
            found = sum(one(graph) for graph in innermost_first(model.graph))
            counts[one.__name__] += found
            changed = found > 0
            if changed:
                _tidy(model)
        _tidy(model)  # what it merges lets it merge more
        if sum(counts.values()) == before:
            break
    own_constants(model)
    remove_unused(model)  # and what the loops no longer read around them
    common.OutputFixPass()(model)  # each output is a value of its own again
    for name, value in zip(names, model.graph.outputs, strict=True):
        value.name = name
    logger.debug("Rewrites of the graph: %s", counts)
    return counts


def _tidy(model):
    for clean in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        _without_identities,
        common.DeduplicateInitializersPass(),
        remove_unused,
        common.NameFixPass(),
    ):
        clean(model)
    graphs = list(innermost_first(model.graph))
    for graph in graphs:
        _share(graph)
    # Inferring shapes, onnx mixes up values of one name, be it in a body and around it.
    taken = {
        value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())
    }
    rename_repeated([v for graph in graphs for node in graph for v in node.outputs], taken)


def _without_identities(model):
    """What `Identity` passes on takes its place, except what a graph must hand out by a node.

    onnx-ir's own pass lets a body hand out values of the graph around it, which no runtime takes.
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


def _said(attribute):
    """All that an attribute says, to be compared."""
    if attribute.type == ir.AttributeType.TENSOR:
        numbers = attribute.value.numpy()
        return str(numbers.dtype), numbers.shape, numbers.tobytes()
    return str(attribute.value)


def _share(graph):
    """Merges nodes that compute the same; onnx-ir's own pass leaves out the bodies of loops."""
    known = {}
    for node in list(graph):
        if holds_graph(node) or node.op_type.startswith("Random"):
            continue
        attributes = frozenset((name, _said(a)) for name, a in node.attributes.items())
        inputs = tuple(map(id, node.inputs))
        same = known.setdefault((node.domain, node.op_type, inputs, attributes), node)
        outputs = list(zip(node.outputs, same.outputs, strict=False))
        if same is node or len(node.outputs) != len(same.outputs):
            continue
        if not any(old.is_graph_output() for old, _ in outputs):
            for old, new in outputs:
                replace(old, new)
            graph.remove(node, safe=True)
