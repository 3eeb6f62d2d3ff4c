"""Operators of a graph that CUDA leaves to the CPU, and values it copies in every step of a loop.

This uses a table of onnxruntime's CUDA kernels and rules observed with onnxruntime-gpu 1.31.1, so
it needs no GPU.
"""

from collections import Counter
from typing import NamedTuple

import onnx
from onnx_ir.passes import common

from keras_bahdanau_export.graph.passes.editing import constant_array, innermost_first, nodes_of
from keras_bahdanau_export.graph.passes.host_values import host_values_read_in_loop
from keras_bahdanau_export.graph.passes.loops import SMALL_CONSTANT

# Activations of cuDNN's recurrent operators.
_ACTIVATIONS = {
    "GRU": ["sigmoid", "tanh"],
    "LSTM": ["sigmoid", "tanh", "tanh"],
    "RNN": ["tanh"],
}

# Operators by the types of their CUDA kernels in onnxruntime-gpu 1.31.1, for ONNX's operator set
# 18. The types have ONNX's names; a type variable that is not listed may be any type. Operators
# that are not listed have no kernel. From onnxruntime's OperatorKernels.md (section
# CUDAExecutionProvider), which agrees with the provider on 591 pairs of operator and type.
_OPERATORS_BY_TYPES = {
    "": """
        Abs Add And AveragePool Cast Compress Concat ConstantOfShape Conv ConvTranspose Cos Div
        Dropout Elu Erf Exp Expand Flatten GRU Gather GatherElements GlobalAveragePool GlobalMaxPool
        HardSigmoid HardSwish Identity If InstanceNormalization IsInf IsNaN LSTM Loop MaxPool Mul
        Neg Not Or RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reshape
        ReverseSequence Round Scan ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Size
        Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum Tanh ThresholdedRelu Transpose
        Trilu Unsqueeze Xor
    """,
    "T: float16 float double": """
        ArgMax ArgMin Ceil Einsum Floor LeakyRelu Log LogSoftmax PRelu Reciprocal ReduceLogSum
        ReduceLogSumExp ReduceSumSquare
    """,
    "T: float16 float double int32 int64 uint32 uint64": """
        CumSum Greater GreaterOrEqual Less LessOrEqual
    """,
    "T: float16 float double int32": """
        ReduceL1 ReduceL2 ReduceMean ReduceProd
    """,
    "T: float16 float double bfloat16": """
        Gemm MatMul Relu
    """,
    "T: float16 float double bfloat16 int32 int64 uint32 uint64": """
        Max Min Mod
    """,
    "T: float16 float double int8 int32 int64 uint8": """
        ReduceMax ReduceMin
    """,
    "T: float16 float double bfloat16 int32 int64": """
        ReduceSum Tile
    """,
    "T: float16 float double; T1: float16 float double; T2: float16 float double": """
        BatchNormalization
    """,
    "T: float16 float double int8 int64 uint8 uint64": """
        Clip
    """,
    "T: int8 uint8": """
        DequantizeLinear
    """,
    "T: bool float16 float double int32 int64 uint32 uint64": """
        Equal
    """,
    "T1: float double int32 int64 uint64; T2: float double int32 int64 uint64": """
        EyeLike
    """,
    "T: bool float16 float double bfloat16 int64": """
        GatherND
    """,
    "U: float": """
        LayerNormalization
    """,
    "T: float16 float": """
        LpNormalization
    """,
    "T1: int8; T2: int8": """
        MatMulInteger
    """,
    "T: bool float16 float int32 int64 uint8": """
        NonZero
    """,
    "T1: int32 int64; T2: int32 int64; T3: float16 float int64": """
        OneHot
    """,
    "T: bool float16 float double": """
        Pad
    """,
    "T1: float16 float double bfloat16 int32 int64": """
        Pow
    """,
    "T1: float": """
        QuantizeLinear
    """,
    "T: float16 float double int8 int16 int32 int64 uint8": """
        TopK
    """,
    "T: float16 float double bfloat16 int32 int64 uint8": """
        Where
    """,
}


def _parse_types(text):
    """Return `{"T": {"float", "double"}}` for "T: float double"."""
    variables = (variable.partition(": ") for variable in text.split("; ") if variable)
    return {name: frozenset(types.split()) for name, _, types in variables}


# The types of the kernels of each operator, by type variable.
_CUDA_KERNELS = {
    operator: _parse_types(types)
    for types, operators in _OPERATORS_BY_TYPES.items()
    for operator in operators.split()
}


class Fallback(NamedTuple):
    """An operator that runs on the CPU, or a value that is copied from it.

    Attributes:
        operator: Name of the operator.
        name: Name of the node or value.
        in_loop: Whether this happens in every step of a loop.
        reason: The reason, as a sentence without a period.
    """

    operator: str
    name: str
    in_loop: bool
    reason: str


def find_fallbacks(model):
    """Return what would not run on CUDA, or would be copied there in every step of a loop.

    Shape arithmetic outside of loops belongs on the CPU and is not listed.

    Args:
        model: An `onnx_ir.Model`. Its types are inferred in place.

    Returns:
        A list of `Fallback`s; empty for a graph without any.
    """
    common.ShapeInferencePass()(model)
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    fallbacks = []
    for graph in innermost_first(model.graph):
        in_loop = graph is not model.graph
        for node in graph:
            reason = _reason_without_kernel(node, opset)
            if reason is None and in_loop and node.op_type in ("Shape", "Size"):
                reason = "it computes a size, which onnxruntime does on the CPU"
            if reason is not None:
                fallbacks.append(Fallback(node.op_type, node.name or "", in_loop, reason))
        for loop in nodes_of(graph, "Loop"):
            fallbacks += _copies_in_loop(loop)
    return fallbacks


def summarize(fallbacks):
    """Return one line for equal `Fallback`s, such as "2 GRU: cuDNN has no clip"."""
    counts = Counter((item.operator, item.in_loop, item.reason) for item in fallbacks)
    return [
        f"{count} {operator}{' at every step of a loop' if in_loop else ''}: {reason}"
        for (operator, in_loop, reason), count in counts.most_common()
    ]


def _reason_without_kernel(node, opset):
    """Return why a node has no CUDA kernel, or `None`."""
    if node.op_type == "Constant":
        return None
    if node.domain not in ("", "ai.onnx"):
        return f"operators of {node.domain} are not in the table of kernels"
    if node.op_type not in _CUDA_KERNELS:
        return "CUDA has no kernel for it, or it is missing in the table of kernels"
    schema = onnx.defs.get_schema(node.op_type, opset)
    for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for i, value in enumerate(values):
            variable = formals[min(i, len(formals) - 1)].type_str
            types = _CUDA_KERNELS[node.op_type].get(variable)
            if types is None or value is None or value.dtype is None:
                continue
            name = value.dtype.name.lower()
            if name not in types:
                return f"its kernels are for {', '.join(sorted(types))}, not for {name}"
    return _reason_without_cudnn(node) if node.op_type in _ACTIVATIONS else None


def _reason_without_cudnn(node):
    """Return why cuDNN does not support a recurrent operator, or `None`."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    for name in ("clip", "activation_alpha", "activation_beta"):
        if name in attributes:
            return f"cuDNN has no {name}"
    supported = _ACTIVATIONS[node.op_type]
    activations = [str(name).lower() for name in attributes.get("activations", ())]
    if any(name != supported[i % len(supported)] for i, name in enumerate(activations)):
        return (
            f"cuDNN has the activations {' and '.join(supported)}, not {' and '.join(activations)}"
        )
    if node.op_type == "GRU" and not attributes.get("linear_before_reset", 0):
        return "cuDNN resets after the recurrent product (reset_after=True), not before it"
    if node.op_type == "LSTM" and attributes.get("input_forget", 0):
        return "cuDNN does not couple input and forget gates"
    if node.op_type == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None:
        return "cuDNN has no peepholes"
    return None


def _copies_in_loop(loop):
    """Yield what a loop copies between CPU and GPU in every step, except its condition."""
    body = loop.attributes["body"].value
    for state in body.inputs[2:]:
        if not state.uses():
            reason = "no step reads this state, so it stays on the CPU"
            yield Fallback("Loop", state.name, True, reason)
    for value in host_values_read_in_loop(loop):
        reason = "it is computed on the CPU before the loop and read on the GPU in it"
        yield Fallback("Loop", value.name, True, reason)
    parts = {body, *body.subgraphs()}
    values = {value for part in parts for node in part for value in node.inputs if value}
    for value in sorted(values, key=lambda value: value.name):
        array = constant_array(value)
        if (
            array is None
            or value.graph in parts
            or array.size > SMALL_CONSTANT
            or array.dtype.kind != "i"
        ):
            continue
        if any(use.node.graph not in parts for use in value.uses()):
            reason = "a node outside of the loop also reads this constant, perhaps on the CPU"
            yield Fallback("Loop", value.name, True, reason)
