"""The door of gRPC: the Open Inference Protocol, and reflection."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from keras_bahdanau_runtime.protobuf import CHOICE
from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.health import Health
from keras_bahdanau_runtime.service.logs import Called, clean
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.protocol import (
    InferRequest,
    InferResponse,
    Tensor,
    Wanted,
    check_distinct,
    check_parameters,
    server_metadata,
)
from keras_bahdanau_runtime.service.repository import Repository
from keras_bahdanau_runtime.service.tensors import (
    checked_head,
    listed_tensor,
    raw_bytes,
    raw_tensor,
    refuse,
)

logger = logging.getLogger("keras_bahdanau_runtime")

Authorize = Callable[[Mapping[str, str]], None]

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_LONGEST = 500  # characters of a message: each may be 12 bytes of the 8,000 that clients take
_ID = "x-request-id"
_IDLE_SECONDS = 120  # of a connection without a call, then it is closed: clients open another
_MOST_STREAMS = 100  # calls of one connection at once; more wait in the client
# The field of InferTensorContents that holds a datatype; none holds FP16.
_CONTENTS = {
    "BOOL": "bool_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)},
    "INT64": "int64_contents",
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)},
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


async def start(
    repository: Repository,
    address: str,
    metrics: Metrics,
    *,
    max_message_bytes: int = 16 * 2**20,
    max_calls: int | None = None,
    max_connections: int | None = None,
    credentials: Any = None,
    authorize: Authorize | None = None,
    share_port: bool = False,
) -> Any:
    """Listens on an address and answers there.

    Args:
        repository: `Repository` of the models.
        address: str, as "127.0.0.1:8001"; port 0 for any that is free.
        metrics: `Metrics` to count in.
        max_message_bytes: int, the largest message that a client may send.
        max_calls: int, most calls at once, watches of the health among them; more are refused.
            `None` for any number.
        max_connections: int, most connections at once; more are closed. `None` for any number.
        credentials: `grpc.ServerCredentials`; no encryption if `None`.
        authorize: Called with the metadata of every call but those of the health, and raises a
            `ServiceError` for one that may not come in.
        share_port: bool. Whether other processes may listen on the port, too.

    Returns:
        `grpc.aio.Server`, started; its attribute `port` is the port.

    Raises:
        OSError: The address cannot be had.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.so_reuseport", int(share_port)),
        ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
        ("grpc.max_concurrent_streams", _MOST_STREAMS),
    ]
    if max_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    server = grpc.aio.server(
        interceptors=[_Entrance(authorize, metrics)] if authorize else [],
        options=options,
        maximum_concurrent_rpcs=max_calls,
    )
    service = _Service(repository)
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            _answering(method, getattr(service, method), repository, metrics)
        )
        for method in messages.METHODS
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(messages.SERVICE, handlers)]
    )
    health_pb2_grpc.add_HealthServicer_to_server(Health(repository), server)
    _add_reflection(server)
    try:
        if credentials is None:
            server.port = server.add_insecure_port(address)
        else:
            server.port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        await server.stop(None)
        raise OSError(f"cannot listen on {address}") from error
    await server.start()
    return server


class _Service:
    """The methods of the protocol, each from its request to its response."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def ServerLive(self, request: Any) -> Any:
        return messages.message_class("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any) -> Any:
        repository = self._repository
        ready = repository.ready and not repository.draining
        return messages.message_class("ServerReadyResponse")(ready=ready)

    async def ModelReady(self, request: Any) -> Any:
        ready = not self._repository.draining
        try:
            self._repository.get(request.name, request.version)
        except ServiceError:
            ready = False
        return messages.message_class("ModelReadyResponse")(ready=ready)

    async def ServerMetadata(self, request: Any) -> Any:
        return messages.message_class("ServerMetadataResponse")(**server_metadata())

    async def ModelMetadata(self, request: Any) -> Any:
        model = self._repository.get(request.name, request.version)
        return messages.message_class("ModelMetadataResponse")(
            name=model.name,
            versions=model.versions,
            platform=model.platform,
            inputs=[vars(spec) for spec in model.inputs],
            outputs=[vars(spec) for spec in model.outputs],
        )

    async def ModelInfer(self, request: Any) -> Any:
        model = self._repository.get(request.model_name, request.model_version)
        return _response(await model.infer(_request(request)))

    async def ModelStatistics(self, request: Any) -> Any:
        counted = self._repository.statistics(request.name, request.version)
        return messages.message_class("ModelStatisticsResponse")(model_stats=counted)

    async def RepositoryIndex(self, request: Any) -> Any:
        _check_repository(request)
        models = self._repository.index(request.ready)
        return messages.message_class("RepositoryIndexResponse")(models=models)

    async def RepositoryModelLoad(self, request: Any) -> Any:
        _check_repository(request)
        if request.parameters:
            refuse("parameters", "be empty: an artifact is loaded as it is", [*request.parameters])
        self._repository.check_alone()
        await self._repository.load(request.model_name)
        return messages.message_class("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, request: Any) -> Any:
        _check_repository(request)
        self._repository.check_alone()
        await self._repository.unload(request.model_name)
        return messages.message_class("RepositoryModelUnloadResponse")()


class _Entrance(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets in whom `authorize` lets in, before a message is read."""

    def __init__(self, authorize: Authorize, metrics: Metrics) -> None:
        self._authorize, self._metrics = authorize, metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        if details.method.startswith(f"/{_HEALTH}/"):
            return await continuation(details)
        metadata = {key: of for key, of in details.invocation_metadata if isinstance(of, str)}
        try:
            self._authorize(metadata)
        except Exception as error:
            failed = _told(error, details.method)  # `error` ends with the block
            called = Called(metadata)
            self._metrics.requests.labels("", "", failed.grpc_status).inc()
            called.log(clean(details.method), failed.grpc_status)

            async def refused(requests: Any, context: Any) -> None:
                await _abort(context, failed, called.id)

            # It reads no message, and so answers calls of every kind.
            return grpc.stream_stream_rpc_method_handler(refused)
        return await continuation(details)


def _answering(
    method: str,
    answer: Callable[[Any], Awaitable[Any]],
    repository: Repository,
    metrics: Metrics,
) -> Callable[[bytes, Any], Awaitable[Any]]:
    """What grpc calls for a method: bytes in and out, a status for every error, and it counts."""
    kind = messages.message_class(f"{method}Request")

    async def handle(received: bytes, context: Any) -> Any:
        called = Called(dict(context.invocation_metadata() or ()))
        context.set_trailing_metadata(((_ID, called.id),))
        name, status = "", "CANCELLED"
        try:
            asked = kind.FromString(received)
            name = getattr(asked, "model_name", "") or getattr(asked, "name", "")
            answered = (await answer(asked)).SerializeToString()
            status = "OK"
            return answered
        except Exception as error:
            failed = _told(error, method)
            status = failed.grpc_status
            await _abort(context, failed, called.id)
        finally:
            # A name that is none of ours would be counted for ever.
            known = name if repository.has(name) else ""
            metrics.requests.labels(known, method, status).inc()
            called.log(method, status)

    return handle


def _told(error: Exception, method: str) -> ServiceError:
    """What a client is told of an error; what nobody foresaw is logged."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, DecodeError):
        return ServiceError("invalid", f"The message must be one of {method}. Received: {error}")
    logger.error("The call of %s failed.", method, exc_info=error)
    return ServiceError("internal", "The service failed; its log says why.")


async def _abort(context: Any, error: ServiceError, name: str) -> None:
    """Ends a call, whose id is `name`, with the status of an error."""
    told = [(_ID, name)]
    if error.retry_after is not None:  # a client that tries again by itself waits for so long
        told.append(("grpc-retry-pushback-ms", str(1000 * error.retry_after)))
    said = error.message[:_LONGEST]
    await context.abort(grpc.StatusCode[error.grpc_status], said, tuple(told))


def _request(message: Any) -> InferRequest:
    """A request from its message."""
    raws = message.raw_input_contents
    if raws and len(raws) != len(message.inputs):
        refuse("raw_input_contents", f"be {len(message.inputs)}, one for an input", len(raws))
    inputs = []
    for place, tensor in enumerate(message.inputs):
        at = f"inputs[{place}]"
        head = checked_head(tensor.name, tensor.datatype, list(tensor.shape), at)
        parameters = _parameters(tensor.parameters, f"{at}.parameters")
        check_parameters(parameters, at)
        given = tensor.contents.ListFields() if tensor.HasField("contents") else []
        filled = [(field.name, values) for field, values in given]
        if raws:
            if filled:
                refuse(f"{at}.contents", "be empty beside `raw_input_contents`", filled[0][0])
            inputs.append(raw_tensor(head, raws[place], parameters))
            continue
        expected = _CONTENTS.get(head.datatype)
        if expected is None:
            refuse(f"{at}.datatype", "come in `raw_input_contents`", head.datatype)
        if filled and [name for name, _ in filled] != [expected]:
            names = [name for name, _ in filled]
            refuse(f"{at}.contents", f"be {expected}, for {head.datatype}", names)
        items = list(filled[0][1]) if filled else []
        inputs.append(listed_tensor(head, items, parameters))
    outputs = []
    for place, wanted in enumerate(message.outputs):
        at = f"outputs[{place}]"
        parameters = _parameters(wanted.parameters, f"{at}.parameters")
        check_parameters(parameters, at)
        outputs.append(Wanted(wanted.name, parameters))
    request = InferRequest(
        inputs, outputs, message.id, _parameters(message.parameters, "parameters")
    )
    check_distinct(request)
    return request


def _response(response: InferResponse) -> Any:
    """The message of a response."""
    message = messages.message_class("ModelInferResponse")(
        model_name=response.model_name,
        model_version=response.model_version,
        id=response.id,
        outputs=[_output(tensor) for tensor in response.outputs],
        raw_output_contents=[raw_bytes(tensor) for tensor in response.outputs],
    )
    _set_parameters(message.parameters, response.parameters)
    return message


def _output(tensor: Tensor) -> Any:
    message = messages.message_class("ModelInferResponse.InferOutputTensor")(
        name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape
    )
    _set_parameters(message.parameters, tensor.parameters)
    return message


def _parameters(parameters: Mapping[str, Any], argument: str) -> dict[str, Any]:
    found = {}
    for name, value in parameters.items():
        choice = value.WhichOneof(CHOICE)
        if choice is None:
            refuse(argument, "hold a value for each name", name)
        found[name] = getattr(value, choice)
    return found


def _set_parameters(into: Any, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        kinds = {bool: "bool_param", str: "string_param", float: "double_param"}
        whole = "uint64_param" if isinstance(value, int) and value >= 2**63 else "int64_param"
        setattr(into[name], kinds.get(type(value), whole), value)


def _check_repository(request: Any) -> None:
    if request.repository_name:
        refuse("repository_name", "be empty: there is one repository", request.repository_name)


def _add_reflection(server: Any) -> None:
    """Lets clients ask which services and messages there are."""
    pool = messages.pool()
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    names = (messages.SERVICE, _HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool)
