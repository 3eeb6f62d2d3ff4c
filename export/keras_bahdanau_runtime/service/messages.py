"""The messages that the Open Inference Protocol sends over gRPC, made when they are first needed.

Numbers, names and types are the protocol's. The descriptors stand in a pool of their own, so that a
client library which brings the same messages can live in the same process.
"""

import functools
from typing import Any

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
# Each takes the message `{method}Request` and answers with `{method}Response`.
METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)
# Fields as `number name type`: `*` before a type for many, `%` for a map from str. A message whose
# name has a dot stands inside another.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "1 live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "1 ready bool",
    "ModelReadyRequest": "1 name string, 2 version string",
    "ModelReadyResponse": "1 ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "1 name string, 2 version string, 3 extensions *string",
    "ModelMetadataRequest": "1 name string, 2 version string",
    "ModelMetadataResponse": """
        1 name string, 2 versions *string, 3 platform string,
        4 inputs *ModelMetadataResponse.TensorMetadata,
        5 outputs *ModelMetadataResponse.TensorMetadata
    """,
    "ModelMetadataResponse.TensorMetadata": "1 name string, 2 datatype string, 3 shape *int64",
    "InferParameter": """
        1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 double_param double,
        5 uint64_param uint64
    """,
    "InferTensorContents": """
        1 bool_contents *bool, 2 int_contents *int32, 3 int64_contents *int64,
        4 uint_contents *uint32, 5 uint64_contents *uint64, 6 fp32_contents *float,
        7 fp64_contents *double, 8 bytes_contents *bytes
    """,
    "ModelInferRequest": """
        1 model_name string, 2 model_version string, 3 id string, 4 parameters %InferParameter,
        5 inputs *ModelInferRequest.InferInputTensor,
        6 outputs *ModelInferRequest.InferRequestedOutputTensor, 7 raw_input_contents *bytes
    """,
    "ModelInferRequest.InferInputTensor": """
        1 name string, 2 datatype string, 3 shape *int64, 4 parameters %InferParameter,
        5 contents InferTensorContents
    """,
    "ModelInferRequest.InferRequestedOutputTensor": "1 name string, 2 parameters %InferParameter",
    "ModelInferResponse": """
        1 model_name string, 2 model_version string, 3 id string, 4 parameters %InferParameter,
        5 outputs *ModelInferResponse.InferOutputTensor, 6 raw_output_contents *bytes
    """,
    "ModelInferResponse.InferOutputTensor": """
        1 name string, 2 datatype string, 3 shape *int64, 4 parameters %InferParameter,
        5 contents InferTensorContents
    """,
    "ModelStatisticsRequest": "1 name string, 2 version string",
    "ModelStatisticsResponse": "1 model_stats *ModelStatistics",
    "ModelStatistics": """
        1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64,
        5 execution_count uint64, 6 inference_stats InferStatistics,
        7 batch_stats *InferBatchStatistics
    """,
    "InferStatistics": """
        1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration,
        4 compute_input StatisticDuration, 5 compute_infer StatisticDuration,
        6 compute_output StatisticDuration, 7 cache_hit StatisticDuration,
        8 cache_miss StatisticDuration
    """,
    "InferBatchStatistics": """
        1 batch_size uint64, 2 compute_input StatisticDuration, 3 compute_infer StatisticDuration,
        4 compute_output StatisticDuration
    """,
    "StatisticDuration": "1 count uint64, 2 ns uint64",
    "RepositoryIndexRequest": "1 repository_name string, 2 ready bool",
    "RepositoryIndexResponse": "1 models *RepositoryIndexResponse.ModelIndex",
    "RepositoryIndexResponse.ModelIndex": """
        1 name string, 2 version string, 3 state string, 4 reason string
    """,
    "ModelRepositoryParameter": """
        1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 bytes_param bytes
    """,
    "RepositoryModelLoadRequest": """
        1 repository_name string, 2 model_name string, 3 parameters %ModelRepositoryParameter
    """,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": """
        1 repository_name string, 2 model_name string, 3 parameters %ModelRepositoryParameter
    """,
    "RepositoryModelUnloadResponse": "",
}
CHOICE = "parameter_choice"  # the oneof that all fields of these messages are in
_CHOICES = ("InferParameter", "ModelRepositoryParameter")


@functools.cache
def pool() -> Any:
    """The `DescriptorPool` of protobuf with the service, its methods and its messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    made = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc_service.proto", package=PACKAGE, syntax="proto3"
    )
    messages: dict[str, Any] = {}
    for name in _MESSAGES:
        outer, dot, inner = name.rpartition(".")
        inside = messages[outer].nested_type if dot else file.message_type
        messages[name] = inside.add(name=inner)
    for name, message in messages.items():
        if name in _CHOICES:
            message.oneof_decl.add(name=CHOICE)
        for text in filter(None, _MESSAGES[name].split(",")):
            _add_field(message, name, *text.split())
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for method in METHODS:
        types = (f".{PACKAGE}.{method}{side}" for side in ("Request", "Response"))
        service.method.add(
            name=method, **dict(zip(("input_type", "output_type"), types, strict=True))
        )
    made.Add(file)
    return made


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message.

    Args:
        name: As in the protocol, without the package.

    Example:

    >>> message_class("StatisticDuration")(count=3).count
    3
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _add_field(message: Any, of: str, number: str, name: str, kind: str) -> None:
    """Adds a field to the descriptor of the message `of`."""
    added = message.field.add(name=name, number=int(number))
    added.label = added.LABEL_REPEATED if kind[0] in "*%" else added.LABEL_OPTIONAL
    if of in _CHOICES:
        added.oneof_index = 0
    mapped, kind = kind[0] == "%", kind.lstrip("*%")
    if mapped:  # which is sent as many messages of a key and a value
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "1", "key", "string")
        _add_field(entry, "", "2", "value", kind)
        kind = f"{of}.{entry.name}"
    if mapped or kind in _MESSAGES:
        added.type, added.type_name = added.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        added.type = getattr(added, f"TYPE_{kind.upper()}")
