"""Faster versions of methods of tf2onnx 1.17 that take most of the time of a conversion.

tf2onnx visits all nodes for each change, and copies all graphs around one that it inlines.
"""

import contextlib


@contextlib.contextmanager
def fast_tf2onnx():
    """Let tf2onnx visit only the nodes that a change concerns; the graph stays the same."""
    from tf2onnx.graph import Graph, Node
    from tf2onnx.onnx_opset import controlflow

    replace, reset = Graph.replace_all_inputs, Graph.reset_nodes
    implicit_inputs, inline = Node.get_implicit_inputs, controlflow.inline_subgraph

    def replace_all_inputs(graph, old_input, new_input, ops=None):
        if ops is not None:  # tf2onnx registers all of them as readers of the new input
            ops = [node for node in ops if old_input in node._input]  # the property is slow
        return replace(graph, old_input, new_input, ops)

    def extract_sub_graph_nodes(graph, names, input_checker=None, remove_unused_inputs=True):
        # tf2onnx starts again for each name.
        names = [*names, *(() if remove_unused_inputs else (v.output[0] for v in graph.inputs))]
        visited = set()
        while names:
            node = graph.get_node_by_output(names.pop(), search_in_parent_graphs=False)
            if node is None or node in visited or (input_checker and not input_checker(node)):
                continue
            visited.add(node)
            names += [*node.input, *node.get_implicit_inputs()]
        return list(visited)

    def reset_nodes(graph, ops):
        if ops is not graph.get_nodes():  # most of tf2onnx's rewriters find nothing
            reset(graph, ops)

    def get_implicit_inputs(node, recursive=True):
        return implicit_inputs(node, recursive) if node.get_body_graphs() else []

    def inline_subgraph(parent, graph, scope, binding):
        # tf2onnx copies the graph, and with it all graphs that contain it.
        owner, graph.parent_graph = graph.parent_graph, None
        try:
            return inline(parent, graph, scope, binding)
        finally:
            graph.parent_graph = owner

    methods = replace_all_inputs, extract_sub_graph_nodes, reset_nodes
    with (
        _replaced(Graph, *methods),
        _replaced(Node, get_implicit_inputs),
        _replaced(controlflow, inline_subgraph),
    ):
        yield


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
