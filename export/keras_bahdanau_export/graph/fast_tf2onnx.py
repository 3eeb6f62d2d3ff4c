"""Faster versions of methods of tf2onnx 1.17 that take most of the time of a conversion.

tf2onnx visits all nodes for each change, copies all graphs around one that it inlines, and writes
messages of protobuf that it does not read.
"""

import contextlib
from collections import defaultdict


@contextlib.contextmanager
def fast_tf2onnx():
    """Let tf2onnx visit only the nodes that a change concerns; the graph stays the same."""
    from tf2onnx.graph import Graph, Node
    from tf2onnx.onnx_opset import controlflow

    replace, inline = Graph.replace_all_inputs, controlflow.inline_subgraph

    def replace_all_inputs(graph, old_input, new_input, ops=None):
        if ops is not None:  # tf2onnx registers all of them as readers of the new input
            ops = [node for node in ops if old_input in node._input]  # the property is slow
        return replace(graph, old_input, new_input, ops)

    def extract_sub_graph_nodes(graph, names, input_checker=None, remove_unused_inputs=True):
        # tf2onnx starts again for each name.
        names = [*names, *(() if remove_unused_inputs else (v.output[0] for v in graph.inputs))]
        visited = set()
        while names:
            node = graph.get_node_by_output_in_current_graph(names.pop())
            if node is None or node in visited or (input_checker and not input_checker(node)):
                continue
            visited.add(node)
            names += [*node._input, *node.get_implicit_inputs()]
        return list(visited)

    def reset_nodes(graph, ops):
        # tf2onnx registers each use of a value in all outer graphs.
        if ops is graph._nodes:  # most of tf2onnx's rewriters find nothing
            return
        by_name = {node.name: node for node in ops}
        outputs = {value: name for name, node in by_name.items() for value in node._output}
        readers = defaultdict(set)
        for name, node in by_name.items():
            for value in node._input:
                readers[value].add(name)
        graph._nodes, graph._nodes_by_name, graph._output_to_node_name = ops, by_name, outputs
        graph._output_to_consumers = dict(readers)
        graph.contained_graphs = _selected(graph.contained_graphs, by_name)
        graph._dtypes = _selected(graph._dtypes, outputs)
        graph._output_shapes = _selected(graph._output_shapes, outputs)
        inner, outer = graph, graph.parent_graph
        while outer is not None:
            for value in readers:
                outer._input_to_graph.setdefault(value, {})[id(inner)] = inner
            inner, outer = outer, outer.parent_graph

    def topological_sort(graph, ops):
        # The same order as in tf2onnx, which searches the readers from the first one at each step.
        ops.sort(key=lambda node: node.name)
        positions = {node.name: i for i, node in enumerate(ops)}
        readers = [[] for _ in ops]
        for i, node in enumerate(ops):
            for value in {*node._input, *node.get_implicit_inputs()} - {""}:
                producer = graph.get_node_by_output(value)
                if graph.parent_graph is None or producer.name in positions:
                    readers[positions[producer.name]].append(i)
        unvisited = [iter(each) for each in readers]
        open_nodes, finished = set(), {}  # an ordered set
        for first in range(len(ops)):
            stack = [] if first in finished else [first]
            while stack:
                open_nodes.add(stack[-1])
                reader = next((i for i in unvisited[stack[-1]] if i not in finished), None)
                if reader is None:
                    finished[stack.pop()] = None
                elif reader in open_nodes:
                    raise ValueError(f"The graph has a cycle with the node {ops[reader].name}.")
                else:
                    stack.append(reader)
        graph.reset_nodes([ops[i] for i in reversed(finished)])

    def get_implicit_inputs(node, recursive=True):
        graphs = list((node.get_body_graphs() or {}).values())
        read, produced = set(), set()
        while graphs:
            for inner in graphs.pop()._nodes:
                read.update(inner._input)
                produced.update(inner._output)
                if recursive:
                    graphs += (inner.get_body_graphs() or {}).values()
        return list(read - produced)

    def get_body_graphs(node):
        return node.graph.contained_graphs.get(node._op.name)

    def inline_subgraph(parent, graph, scope, binding):
        # tf2onnx copies the graph, and with it all graphs that contain it.
        owner, graph.parent_graph = graph.parent_graph, None
        try:
            return inline(parent, graph, scope, binding)
        finally:
            graph.parent_graph = owner

    methods = replace_all_inputs, extract_sub_graph_nodes, reset_nodes, topological_sort
    with (
        _replaced(Graph, *methods),
        _replaced(Node, get_implicit_inputs, get_body_graphs),
        _replaced(controlflow, inline_subgraph),
    ):
        yield


def without_messages():
    """Return a context in which tf2onnx changes its own graphs, and writes no protobuf."""
    from tf2onnx.graph import Graph

    def update_proto(graph, external_tensor_storage=None):
        # tf2onnx removes the unused nodes of inner graphs and sorts the others to write them.
        for node in graph._nodes:
            for body in (node.get_body_graphs() or {}).values():
                body.delete_unused_nodes(body.outputs)
                body.topological_sort(body._nodes)
                body.update_proto()

    return _replaced(Graph, update_proto)


def _selected(dictionary, keys):
    return {key: dictionary[key] for key in keys if key in dictionary}


@contextlib.contextmanager
def _replaced(owner, *functions):
    """Replace the attributes of a class or module that have the names of these functions."""
    originals = {function.__name__: getattr(owner, function.__name__) for function in functions}
    for function in functions:
        setattr(owner, function.__name__, function)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
