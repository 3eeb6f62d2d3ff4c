"""Graphs whose order, names and bytes depend on their structure and weights alone.

TensorFlow and tf2onnx number names by counters of the process, sort nodes by these names and
iterate over sets. Without this module, two exports of one model would have different bytes.
"""

import itertools
from collections import defaultdict
from pathlib import Path

import onnx_ir as ir

from keras_bahdanau_export.graph.passes import editing
from keras_bahdanau_runtime.signature import FORMAT_VERSION, weights_file
from keras_bahdanau_runtime.version import __version__


def save_model(model, path):
    """Write an `onnx_ir.Model`, with its weights in a second file if one file would be too large.

    The model is put in its canonical form. Its metadata name the package that wrote it.

    Returns:
        Whether there is a second file.
    """
    canonicalize(model)
    model.producer_name, model.producer_version = "keras_bahdanau", __version__
    model.model_version = FORMAT_VERSION
    model.metadata_props.clear()  # onnxruntime's quantizer adds entries
    # Python clients of onnxruntime cannot read `producer_version`.
    model.metadata_props["keras_bahdanau_version"] = __version__
    weights = [g.initializers.values() for g in (model.graph, *model.graph.subgraphs())]
    size = sum(value.const_value.nbytes for values in weights for value in values)
    external = weights_file(Path(path).name) if size > editing.MAX_WEIGHT_BYTES else None
    ir.save(model, path, external_data=external)
    return external is not None


def canonicalize(model):
    """Sort and name the nodes and values of a model in place; equal graphs become identical.

    Args:
        model: An `onnx_ir.Model`. The names of its inputs and outputs, and of their axes, are kept.
            Unused nodes and initializers are removed.
    """
    editing.remove_unused(model)
    _sort(model.graph)
    _Numbering(model.graph)


def _sort(graph):
    """Sort nodes and initializers by their use, in the order of the outputs of the graph."""
    for node in graph:
        for _, subgraph in _subgraphs(node):
            _sort(subgraph)
    order = _depth_first(graph)
    graph.remove(list(graph))
    graph.extend(order)
    read = (value for node in order for value in editing.values_read_by(node))
    for value in dict.fromkeys((*read, *graph.outputs)):
        if value.is_initializer() and value.graph is graph:  # moves it to the end
            del graph.initializers[value.name]
            graph.initializers.add(value)


def _depth_first(graph):
    """Return the nodes of a graph, each directly before the first node that reads it."""
    order = {}  # an ordered set
    stack = [(value.producer(), False) for value in reversed(graph.outputs)]
    while stack:
        node, has_inputs = stack.pop()
        if node is None or node.graph is not graph or node in order:
            continue
        if has_inputs:
            order[node] = None
            continue
        stack.append((node, True))
        stack += [
            (value.producer(), False) for value in reversed(list(editing.values_read_by(node)))
        ]
    return list(order)


def _subgraphs(node):
    """Return the subgraphs of a node as pairs of an attribute's name and a graph."""
    attributes = node.attributes.values()
    return [(each.name, each.value) for each in attributes if each.type == ir.AttributeType.GRAPH]


class _Numbering:
    """Names of kinds with numbers, such as "Add_3", given to a graph and to its subgraphs."""

    def __init__(self, graph):
        interface = [*graph.inputs, *graph.outputs]
        axes = (axis for value in interface for axis in value.shape or ())
        self._axes = {axis.value: axis.value for axis in axes if isinstance(axis, ir.SymbolicDim)}
        self._interface = set(interface)
        self._used = {value.name for value in interface} | set(self._axes)
        self._counters = defaultdict(itertools.count)
        self._name_contents(graph)

    def _name_contents(self, graph):
        initializers = list(graph.initializers.values())
        graph.initializers.clear()  # two of them may have each other's new name
        for value in initializers:
            self._name_value(value, "constant")
            graph.initializers.add(value)
        for node in graph:
            node.name, node.doc_string = self._next(node.op_type), None
            node.metadata_props.clear()
            for name, subgraph in _subgraphs(node):
                subgraph.name, subgraph.doc_string = f"{node.name}_{name}", None
                for value in subgraph.inputs:
                    self._name_value(value, "state")
                self._name_contents(subgraph)
            for value in node.outputs:
                self._name_value(value, node.op_type)

    def _name_value(self, value, kind):
        if value in self._interface:
            return
        value.name = self._next(kind)
        if value.shape is not None:
            value.shape = ir.Shape([self._axis(size) for size in value.shape])

    def _axis(self, size):
        """Return the size of an axis, with a new name if it is unknown."""
        if isinstance(size, int) or size.value is None:
            return size
        if size.value not in self._axes:
            self._axes[size.value] = self._next("size")
        return self._axes[size.value]

    def _next(self, kind):
        """Return the next unused name of a kind."""
        names = (f"{kind}_{number}" for number in self._counters[kind])
        name = next(name for name in names if name not in self._used)
        self._used.add(name)
        return name
