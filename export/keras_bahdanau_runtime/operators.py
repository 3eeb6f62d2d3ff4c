"""What an ONNX file asks of onnxruntime, known before onnxruntime opens it.

A graph may name operators of other domains, which load native libraries, and tensors in other
files. An artifact needs neither: its operators are those of a list of the ONNX standard's, and its
files are listed, with their hashes, in the manifest.
"""

from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    UnsupportedArtifactError,
    require,
)

_PACKAGE = "keras_bahdanau_contents"
_STANDARD = ("", "ai.onnx")
# Arithmetic on tensors and control flow: all that a layer may need, and nothing that reads a file,
# an image or a text. Another operator of ONNX is added here when a model wants it.
_OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat
    Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DequantizeLinear Div
    Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU
    Gather GatherElements GatherND Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater
    GreaterOrEqual HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN
    LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization
    LpPool MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg
    NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RNN
    RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape ReverseSequence Round Scan ScatterElements ScatterND Selu Shape
    Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign Split Sqrt Squeeze Sub Sum
    Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
    """.split()
)
# The few fields of ONNX's messages that are read here: (number, name, type, repeated).
_MESSAGES = {
    "Entry": [(1, "key", "string", False), (2, "value", "string", False)],
    "Tensor": [(8, "name", "string", False), (13, "external_data", "Entry", True)],
    "Attribute": [
        (5, "t", "Tensor", False),
        (6, "g", "Graph", False),
        (11, "graphs", "Graph", True),
    ],
    "Node": [
        (4, "op_type", "string", False),
        (5, "attribute", "Attribute", True),
        (7, "domain", "string", False),
    ],
    "Graph": [(1, "node", "Node", True), (5, "initializer", "Tensor", True)],
    "Function": [(1, "name", "string", False)],
    "Model": [(7, "graph", "Graph", False), (25, "functions", "Function", True)],
}


def check_contents(path: Path, listed: Collection[str]) -> None:
    """Refuses a graph with operators that are not on the list, or with tensors in unlisted files.

    Args:
        path: `Path` of an ONNX file.
        listed: Names of the files that the manifest lists, relative to the file's folder.

    Raises:
        CorruptArtifactError: It is no ONNX file, or names data outside the artifact.
        UnsupportedArtifactError: It has functions, or operators that are not on the list.
        MissingDependencyError: protobuf is not installed.
    """
    model = _model_class()()
    from google.protobuf.message import DecodeError

    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise CorruptArtifactError(f"{path}: expected an ONNX file. Received: {error}") from error
    if model.functions:
        raise UnsupportedArtifactError(
            f"{path}: expected tensor operators of the ONNX standard only. "
            f"Received: the function {model.functions[0].name!r}"
        )
    for graph in _graphs(model.graph):
        for node in graph.node:
            if node.domain not in _STANDARD or node.op_type not in _OPERATORS:
                raise UnsupportedArtifactError(
                    f"{path}: expected tensor operators of the ONNX standard only. "
                    f"Received: {node.op_type!r} of {node.domain or 'ai.onnx'!r}"
                )
        constants = [attribute.t for node in graph.node for attribute in node.attribute]
        for tensor in (*graph.initializer, *constants):
            for entry in tensor.external_data:
                if entry.key == "location" and not _inside(entry.value, listed):
                    raise CorruptArtifactError(
                        f"{path}: expected data in files of the artifact. "
                        f"Received: {tensor.name!r} in {entry.value!r}"
                    )


def _inside(location: str, listed: Collection[str]) -> bool:
    return str(PurePosixPath(location)) == location and location in listed


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _graphs(inner)


def _model_class() -> Any:
    """A message class of protobuf, which onnxruntime brings along; the onnx package it does not."""
    require("google.protobuf", extra="runtime")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind == "string":
                added.type = kinds.TYPE_STRING
            else:
                added.type = kinds.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{kind}"
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
