"""Allow-lists for ONNX files from untrusted sources, checked before onnxruntime opens a file.

A graph may contain operators of other domains, which load native libraries, tensors in other files,
or tensors larger than the memory. Artifacts need none of these. An operator, a message field or a
key of external data that is not on the lists of this file is refused.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, MutableSequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from keras_bahdanau_runtime import protobuf
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    UnsupportedArtifactError,
    require,
)

_PACKAGE = "keras_bahdanau_contents"  # of the protobuf messages
_STANDARD_DOMAINS = ("", "ai.onnx")
# Operators for arithmetic and control flow, which layers need; none that reads a file, an image or
# a text. Add other operators of ONNX when a model needs them.
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
# Fields of ONNX messages that a graph may have, in the format of `protobuf.build_file`. Others are
# refused, such as functions, sparse tensors, sequences and training.
_MESSAGES = {
    "Model": """
        1 ir_version int64, 2 producer_name string, 3 producer_version string, 4 domain string,
        5 model_version int64, 6 doc_string string, 7 graph Graph, 8 opset_import *OperatorSet,
        14 metadata_props *Entry
    """,
    "OperatorSet": "1 domain string, 2 version int64",
    "Graph": """
        1 node *Node, 2 name string, 5 initializer *Tensor, 10 doc_string string,
        11 input *Value, 12 output *Value, 13 value_info *Value, 16 metadata_props *Entry
    """,
    "Node": """
        1 input *string, 2 output *string, 3 name string, 4 op_type string, 5 attribute *Attribute,
        6 doc_string string, 7 domain string, 9 metadata_props *Entry
    """,
    "Attribute": """
        1 name string, 2 f float, 3 i int64, 4 s bytes, 5 t Tensor, 6 g Graph, 7 floats *float,
        8 ints *int64, 9 strings *bytes, 13 doc_string string, 20 type int32
    """,
    "Tensor": """
        1 dims *int64, 2 data_type int32, 4 float_data *float, 5 int32_data *int32,
        7 int64_data *int64, 8 name string, 9 raw_data bytes, 10 double_data *double,
        11 uint64_data *uint64, 12 doc_string string, 13 external_data *Entry,
        14 data_location int32, 16 metadata_props *Entry
    """,
    "Entry": "1 key string, 2 value string",
    "Value": "1 name string, 2 type Type, 3 doc_string string, 4 metadata_props *Entry",
    "Type": "1 tensor_type TensorType, 6 denotation string",
    "TensorType": "1 elem_type int32, 2 shape Shape",
    "Shape": "1 dim *Dimension",
    "Dimension": "1 dim_value int64, 2 dim_param string, 3 denotation string",
}
_SESSION_OPTIONS_KEY = "ort_config"  # metadata that onnxruntime can read as session options
_EXTERNAL = 1  # value of `data_location`
_MAX_REUSE = 2  # how often all tensors in another file may read each of its bytes, on average
_MAX_ELEMENTS = 2**28  # of a tensor whose size is a constant of the graph; 1 GB in float32
_MAX_STEPS = 2**20  # of a loop whose number of steps is a constant of the graph
_NO_STEP_LIMIT = 2**63 - 1  # of a loop that ends only by its condition
# Operators whose output shape, or a multiple of it, is the value of the input with this index.
_SHAPE_INPUT = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "OneHot": 1}
_DIGITS = re.compile("[0-9]{1,18}")
_DATA_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_INTEGERS = {6: ("<i4", "int32_data"), 7: ("<i8", "int64_data")}  # by `data_type`


def check_onnx_file(contents: bytes, path: Path, external: Mapping[str, int]) -> set[str]:
    """Check an ONNX file against the lists of this module.

    Args:
        contents: Bytes of the ONNX file.
        path: `Path` of the file, for messages.
        external: Sizes in bytes of the files that may contain its tensors, by name relative to the
            file's folder.

    Returns:
        The names of the other files that contain tensors of this one.

    Raises:
        CorruptArtifactError: The file is not ONNX, or refers to data outside the artifact.
        UnsupportedArtifactError: The file has operators or fields that are not on the lists, or a
            constant that requires more memory or steps than any model.
        MissingDependencyError: protobuf is not installed.
    """
    require("google.protobuf", extra="runtime")
    model = _model_class()()
    from google.protobuf.message import DecodeError

    try:
        model.ParseFromString(contents)
    except DecodeError as error:
        raise CorruptArtifactError(f"{path}: expected an ONNX file. Received: {error}") from error
    if not model.HasField("graph") or not model.graph.node:
        raise CorruptArtifactError(f"{path}: expected an ONNX file. Received: one without a graph")
    if any(entry.key == _SESSION_OPTIONS_KEY for entry in model.metadata_props):
        _refuse(path, f"metadata {_SESSION_OPTIONS_KEY!r}")
    used = Counter[str]()  # bytes of other files
    for message in _messages(model, path):
        kind = message.DESCRIPTOR.name
        if kind == "Node":
            _check_node(message, path)
        elif kind == "Tensor":
            used.update(_check_tensor(message, path, external))
    for file, size in used.items():
        if size > _MAX_REUSE * external[file]:
            _refuse(path, f"tensors of {size:,} bytes in {file}, which has {external[file]:,}")
    _check_sizes(model.graph, {}, path)
    return set(used)


def _messages(message: Any, path: Path) -> Iterator[Any]:
    """Yield the message and all messages inside it; refuse an unknown field."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    name = message.DESCRIPTOR.name
    unknown = UnknownFieldSet(message)
    if len(unknown):
        _refuse(path, f"field {unknown[0].field_number} of a {name}Proto of ONNX")
    yield message
    for field, value in message.ListFields():
        values = value if isinstance(value, MutableSequence) else [value]
        if field.message_type is not None:
            for inner in values:
                yield from _messages(inner, path)
        elif field.type == field.TYPE_STRING:
            invalid = [text for text in values if not isinstance(text, str)]
            if invalid:  # protobuf returns bytes if a string is not UTF-8
                raise CorruptArtifactError(
                    f"{path}: expected names in UTF-8. Received: {invalid[0]!r:.80}"
                )


def _check_node(node: Any, path: Path) -> None:
    if node.domain not in _STANDARD_DOMAINS or node.op_type not in _OPERATORS:
        _refuse(path, f"{node.op_type!r} of {node.domain or 'ai.onnx'!r}")


def _check_tensor(tensor: Any, path: Path, external: Mapping[str, int]) -> Counter[str]:
    """Check a tensor; return the size in bytes of its data in another file, by name."""
    data_size = max(len(tensor.raw_data), *(len(getattr(tensor, name)) for name in _DATA_FIELDS))
    reference = {entry.key: entry.value for entry in tensor.external_data}
    if reference or tensor.data_location == _EXTERNAL:
        offset, length = (reference.get(key, "0") for key in ("offset", "length"))
        size = external.get(reference.get("location", ""))
        if (
            size is None
            or len(reference) < len(tensor.external_data)
            or not set(reference) <= {"location", "offset", "length", "checksum"}
            or not all(_DIGITS.fullmatch(number) for number in (offset, length))
            or int(offset) + int(length) > size
        ):
            raise CorruptArtifactError(
                f"{path}: expected data in files of the artifact. "
                f"Received: {tensor.name!r:.80} in {reference!r:.200}"
            )
        data_size = int(length) or size - int(offset)
    # The smallest type has two elements per byte.
    if min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) > 2 * data_size:
        raise CorruptArtifactError(
            f"{path}: expected tensors with as many elements as their shapes say. "
            f"Received: {tensor.name!r:.80} of shape {list(tensor.dims)[:8]}"
        )
    return Counter({reference["location"]: data_size} if reference else {})


def _check_sizes(graph: Any, outer: Mapping[str, Any], path: Path) -> None:
    """Refuse constants that lead to larger tensors or more steps than any model has.

    Args:
        graph: A graph.
        outer: Constants of the outer graphs, by name.
        path: For messages.
    """
    constants = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
    for value in graph.input:
        constants.pop(value.name, None)
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            constants.update((name, attributes["value"].t) for name in node.output)
        inputs = [_integers(constants.get(name)) for name in node.input]
        size = 0
        if node.op_type in _SHAPE_INPUT and len(inputs) > _SHAPE_INPUT[node.op_type]:
            size = math.prod(map(abs, inputs[_SHAPE_INPUT[node.op_type]] or [0]))
        elif node.op_type in ("RandomNormal", "RandomUniform") and "shape" in attributes:
            size = math.prod(map(abs, attributes["shape"].ints))
        elif node.op_type == "Pad" and len(inputs) > 1:
            size = sum(map(abs, inputs[1] or []))
        elif node.op_type == "Range" and len(inputs) == 3 and all(inputs):
            (start,), (end,), (step,) = (numbers[:1] for numbers in inputs if numbers)
            size = abs(end - start) // max(abs(step), 1)
        if size > _MAX_ELEMENTS:
            _refuse(path, f"{node.op_type} to {size:,} numbers")
        if node.op_type == "Loop" and inputs and inputs[0]:
            steps = inputs[0][0]
            ends_by_condition = steps == _NO_STEP_LIMIT and len(node.input) > 1 and node.input[1]
            if steps > _MAX_STEPS and not ends_by_condition:
                _refuse(path, f"a Loop of {steps:,} steps")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check_sizes(attribute.g, constants, path)


def _integers(tensor: Any) -> list[int] | None:
    """Return the values of a small int32 or int64 constant; `None` for other tensors."""
    if tensor is None or tensor.data_type not in _INTEGERS or len(tensor.raw_data) > 1024:
        return None
    dtype, field = _INTEGERS[tensor.data_type]
    if len(tensor.raw_data) % np.dtype(dtype).itemsize:
        return None
    if tensor.raw_data:
        return [int(number) for number in np.frombuffer(tensor.raw_data, dtype)]
    return [int(number) for number in getattr(tensor, field)]


def _refuse(path: Path, received: str) -> NoReturn:
    raise UnsupportedArtifactError(
        f"{path}: expected tensor operators of the ONNX standard only. Received: {received}"
    )


def inline_weights(contents: bytes, file: str, data: bytes) -> bytes:
    """Return a checked ONNX file that contains its tensors of another file.

    Args:
        contents: Bytes of the ONNX file.
        file: Name of the other file.
        data: Bytes of the other file.
    """
    model = _model_class()()
    model.ParseFromString(contents)
    for message in _messages(model, Path(file)):
        if message.DESCRIPTOR.name == "Tensor":
            reference = {entry.key: entry.value for entry in message.external_data}
            if reference.get("location") == file:
                start = int(reference.get("offset", "0"))
                length = int(reference.get("length", "0")) or len(data) - start
                message.raw_data = data[start : start + length]
                message.ClearField("external_data")
                message.ClearField("data_location")
    return bytes(model.SerializeToString())


def remove_defaults(contents: bytes, inputs: Collection[str]) -> bytes:
    """Return a checked ONNX file in which these optional inputs have no default.

    Args:
        contents: Bytes of the ONNX file.
        inputs: Names of inputs. onnxruntime-web accepts no value for an input with a default.
    """
    model = _model_class()()
    model.ParseFromString(contents)
    others = [tensor for tensor in model.graph.initializer if tensor.name not in inputs]
    del model.graph.initializer[:]
    model.graph.initializer.extend(others)
    return bytes(model.SerializeToString())


def subgraph_node_names(contents: bytes) -> set[str]:
    """Return the names of all nodes in subgraphs of a checked ONNX file."""
    model = _model_class()()
    model.ParseFromString(contents)
    subgraphs = [attribute.g for node in model.graph.node for attribute in node.attribute]
    names: set[str] = set()
    while subgraphs:
        nodes = subgraphs.pop().node
        names.update(node.name for node in nodes)
        subgraphs += [attribute.g for node in nodes for attribute in node.attribute]
    return names


@functools.cache
def _model_class() -> Any:
    """Return the protobuf class of a model; the onnx package is not a dependency of the runtime."""
    pool = protobuf.create_pool(protobuf.build_file(_PACKAGE, _MESSAGES, syntax="proto2"))
    return protobuf.message_class(pool, f"{_PACKAGE}.Model")
