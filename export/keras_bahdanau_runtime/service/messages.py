"""gRPC messages of the Open Inference Protocol, created at first use.

Numbers, names and types are those of Triton's `grpc_service.proto`, which extends the protocol.
"""

import functools
from typing import Any

from keras_bahdanau_runtime import protobuf

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
# Each method has the messages `{method}Request` and `{method}Response`.
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
# Fields by message, in the format of `protobuf.build_file`.
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
_ONEOFS = ("InferParameter", "ModelRepositoryParameter")


@functools.cache
def pool() -> Any:
    """Return a `DescriptorPool` with the service and its messages."""
    file = protobuf.build_file(PACKAGE, _MESSAGES, oneofs=_ONEOFS)
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for method in METHODS:
        types = (f".{PACKAGE}.{method}{side}" for side in ("Request", "Response"))
        service.method.add(
            name=method, **dict(zip(("input_type", "output_type"), types, strict=True))
        )
    return protobuf.create_pool(file)


@functools.cache
def message_class(name: str) -> Any:
    """Return the class of a message.

    Args:
        name: str, without the package.

    Example:

    >>> message_class("StatisticDuration")(count=3).count
    3
    """
    return protobuf.message_class(pool(), f"{PACKAGE}.{name}")
