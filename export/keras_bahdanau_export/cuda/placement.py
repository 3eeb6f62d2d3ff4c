"""What of a graph onnxruntime would not run on a GPU, and what it would copy at every step.

Answered from a table of kernels and rules seen with onnxruntime-gpu 1.31.1; no GPU is needed.
"""

from collections import Counter
from typing import NamedTuple

import onnx
from onnx_ir.passes import common

from keras_bahdanau_export.cuda.kernels import CUDA_KERNELS
from keras_bahdanau_export.graph.passes.graph import constant, innermost_first, nodes_of
from keras_bahdanau_export.graph.passes.loops import SMALL

# cuDNN's recurrences: what its cells activate with.
_ACTIVATIONS = {
    "GRU": ["sigmoid", "tanh"],
    "LSTM": ["sigmoid", "tanh", "tanh"],
    "RNN": ["tanh"],
}


class OnHost(NamedTuple):
    """What stays on the host, or comes from it.

    Attributes:
        operator: Name of the operator.
        name: Of the node or value.
        in_loop: Whether it does so at every step of a loop.
        why: The reason, as a sentence without its end.
    """

    operator: str
    name: str
    in_loop: bool
    why: str


def on_host(model):
    """What of a graph would not run on CUDA, or would be copied there at every step of a loop.

    Sizes that are computed outside of loops belong on the host and are not listed.

    Args:
        model: An `onnx_ir.Model`, whose types are inferred here.

    Returns:
        A list of `OnHost`, empty for a graph as it should be.
    """
    common.ShapeInferencePass()(model)
    opset, found = model.opset_imports.get("", model.opset_imports.get("ai.onnx")), []
    for graph in innermost_first(model.graph):
        inside = graph is not model.graph
        for node in graph:
            why = _why_not(node, opset)
            if why is None and inside and node.op_type in ("Shape", "Size"):
                why = "it computes a size, which onnxruntime does on the CPU"
            if why is not None:
                found.append(OnHost(node.op_type, node.name or "", inside, why))
        for loop in nodes_of(graph, "Loop"):
            found += _copied(loop)
    return found


def summary(found):
    """`OnHost`s of one kind in a line each, such as "2 GRU: cuDNN ..."."""
    counts = Counter((part.operator, part.in_loop, part.why) for part in found)
    return [
        f"{count} {operator}{' at every step of a loop' if in_loop else ''}: {why}"
        for (operator, in_loop, why), count in counts.most_common()
    ]


def _why_not(node, opset):
    """Why a node has no CUDA kernel, or `None`."""
    if node.op_type == "Constant":
        return None
    if node.domain not in ("", "ai.onnx"):
        return f"operators of {node.domain} are not in the table of kernels"
    if node.op_type not in CUDA_KERNELS:
        return "CUDA has no kernel for it, or the table of kernels does not know it"
    schema = onnx.defs.get_schema(node.op_type, opset)
    for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for i, value in enumerate(values):
            variable = formals[min(i, len(formals) - 1)].type_str
            kernels = CUDA_KERNELS[node.op_type].get(variable)
            if kernels is None or value is None or value.dtype is None:
                continue
            name = value.dtype.name.lower()
            if name not in kernels:
                return f"its kernels are for {', '.join(sorted(kernels))}, not for {name}"
    return _why_no_cudnn(node) if node.op_type in _ACTIVATIONS else None


def _why_no_cudnn(node):
    """Why cuDNN does not take a recurrent operator, or `None`."""
    has = {name: attribute.value for name, attribute in node.attributes.items()}
    for name in ("clip", "activation_alpha", "activation_beta"):
        if name in has:
            return f"cuDNN knows no {name}"
    plain = _ACTIVATIONS[node.op_type]
    given = [str(name).lower() for name in has.get("activations", ())]
    if any(name != plain[i % len(plain)] for i, name in enumerate(given)):
        return f"cuDNN activates it with {' and '.join(plain)}, not {' and '.join(given)}"
    if node.op_type == "GRU" and not has.get("linear_before_reset", 0):
        return "cuDNN resets after the recurrent product (reset_after=True), not before it"
    if node.op_type == "LSTM" and has.get("input_forget", 0):
        return "cuDNN couples no input and forget gates"
    if node.op_type == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None:
        return "cuDNN knows no peepholes"
    return None


def _copied(loop):
    """What a loop copies between host and device at every step, besides its condition."""
    body = loop.attributes["body"].value
    for state in body.inputs[2:]:
        if not state.uses():
            yield OnHost("Loop", state.name, True, "no step reads this state, so the host keeps it")
    values = {value for node in body for value in node.inputs if value is not None}
    for value in sorted(values, key=lambda value: value.name):
        numbers = constant(value)
        if (
            numbers is None
            or value.graph is body
            or numbers.size > SMALL
            or numbers.dtype.kind != "i"
        ):
            continue
        if any(use.node.graph is not body for use in value.uses()):
            why = "the graph around it reads this constant, too, perhaps on the host"
            yield OnHost("Loop", value.name, True, why)
