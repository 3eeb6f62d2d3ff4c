"""gRPC server: the Open Inference Protocol, health and reflection."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from keras_bahdanau_runtime.protobuf import ONEOF
from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.bodies import LARGE_BODY, BodyMemory
from keras_bahdanau_runtime.service.connection import BODY_SECONDS, LAST_SECONDS
from keras_bahdanau_runtime.service.errors import ServiceError, refuse
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.middleware import ApiKeys
from keras_bahdanau_runtime.service.protocol import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    check_header,
    check_size,
    checked_request,
    count_numbers,
    raw_bytes,
    server_metadata,
    tensor_from_bytes,
    tensor_from_list,
)
from keras_bahdanau_runtime.service.repository import Repository
from keras_bahdanau_runtime.service.request_log import RequestLog, Tracer

logger = logging.getLogger("keras_bahdanau_runtime")

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# Characters of an error message. Clients accept 8,000 bytes, and one character may take 12.
_MAX_MESSAGE = 500
_REQUEST_ID = "x-request-id"
_IDLE_SECONDS = 120  # after which a connection without a call is closed; clients reconnect
_MAX_STREAMS = 100  # simultaneous calls per connection; the client queues further calls
_HEALTH_POLL_SECONDS = 0.2
_QUIET_SECONDS = 0.05  # without a new call, after which a server stops
_PATIENCE = 1.0  # seconds for a message to arrive while others wait
_SMALL_MESSAGE = 64 * 2**10  # bytes, or numbers of a response, that are handled in the event loop
# The field of InferTensorContents for each datatype. There is none for FP16.
_CONTENTS_FIELDS = {
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
    bodies: BodyMemory | None = None,
    max_calls: int | None = None,
    max_connections: int | None = None,
    credentials: Any = None,
    keys: ApiKeys | None = None,
    share_port: bool = False,
    tracer: Tracer | None = None,
) -> Any:
    """Start a server.

    Args:
        repository: `Repository` of the models.
        address: str, as "127.0.0.1:8001"; port 0 for any free port.
        metrics: `Metrics` that count the calls.
        max_message_bytes: int, size of a request.
        bodies: `BodyMemory`, whose limit is that of all messages that are arriving.
        max_calls: int, simultaneous calls of all connections, including health watches; further
            calls are refused. `None` for any number.
        max_connections: int, simultaneous connections; further ones are closed. `None` for any
            number.
        credentials: `grpc.ServerCredentials`; no encryption if `None`.
        keys: `ApiKeys` for all calls but those of the health service; `None` if no call needs a
            key.
        share_port: bool. Whether other processes listen on the same port.
        tracer: `Tracer` of the calls, without those of the health service; `None` for no spans.

    Returns:
        `grpc.aio.Server` with the additional attributes `port` and, for `stop_accepting`, `calls`.

    Raises:
        OSError: The server cannot listen on the address.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.so_reuseport", int(share_port)),
        ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
    ]
    if max_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    interceptors: list[Any] = [] if keys is None else [_KeyInterceptor(keys, metrics)]
    bodies = bodies or BodyMemory(metrics.bodies)
    calls = _ReadInterceptor(bodies, max_message_bytes, metrics)
    server = grpc.aio.server(
        interceptors=[*interceptors, calls],
        options=options,
        maximum_concurrent_rpcs=max_calls,
    )
    server.calls = calls
    service = _Service(repository)
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(
            _handler(method, getattr(service, method), repository, metrics, tracer)
        )
        for method in messages.METHODS
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(messages.SERVICE, handlers)]
    )
    health_pb2_grpc.add_HealthServicer_to_server(_Health(repository), server)
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


async def stop_accepting(server: Any, seconds: float) -> "asyncio.Future[None]":
    """Close the connections of a server to new calls, and answer every call that has arrived.

    gRPC cancels calls that it has received but not yet passed to Python. Therefore answers to
    further calls wait until no call arrives and the server has closed its connections to new calls.
    Clients send later calls over a new connection.

    Args:
        server: Returned by `start`.
        seconds: float, time until calls that are not answered are cancelled.

    Returns:
        Future that is done once all calls are answered or cancelled.
    """
    await server.calls.hold()
    stopping: asyncio.Future[None] = asyncio.ensure_future(server.stop(seconds))
    await asyncio.sleep(_QUIET_SECONDS)
    server.calls.release()
    return stopping


class _Service:
    """Methods of the Open Inference Protocol.

    Each takes a request message and returns a response message.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def ServerLive(self, request: Any) -> Any:
        return messages.message_class("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any) -> Any:
        repository = self._repository
        ready = repository.is_ready and not repository.is_terminating
        return messages.message_class("ServerReadyResponse")(ready=ready)

    async def ModelReady(self, request: Any) -> Any:
        ready = not self._repository.is_terminating
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
        response = await model.infer(await _in_thread(request.ByteSize(), _request, request))
        check_size(response.outputs, [True] * len(response.outputs))
        return await _in_thread(count_numbers(response), _response, response)

    async def ModelStatistics(self, request: Any) -> Any:
        counts = self._repository.statistics(request.name, request.version)
        return messages.message_class("ModelStatisticsResponse")(model_stats=counts)

    async def RepositoryIndex(self, request: Any) -> Any:
        _check_repository(request)
        models = self._repository.index(request.ready)
        return messages.message_class("RepositoryIndexResponse")(models=models)

    async def RepositoryModelLoad(self, request: Any) -> Any:
        _check_repository(request)
        if request.parameters:
            refuse("parameters", "be empty: an artifact has no options", [*request.parameters])
        self._repository.check_single_process()
        await self._repository.load(request.model_name)
        return messages.message_class("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, request: Any) -> Any:
        _check_repository(request)
        self._repository.check_single_process()
        await self._repository.unload(request.model_name)
        return messages.message_class("RepositoryModelUnloadResponse")()


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Health of the service, "", and of each model by its name (`grpc.health.v1`).

    The servicer of grpc_health needs a notification of each change. Its watches also never end, so
    a stopping server would wait for them. This servicer reads the state of the repository.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no model of this name.")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        last_status = None
        while True:
            is_last = self._repository.is_terminating
            status = self._status(request.service)
            if status != last_status:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last_status = status
            if is_last:
                return
            await asyncio.sleep(_HEALTH_POLL_SECONDS)

    def _status(self, name: str) -> Any:
        statuses, repository = health_pb2.HealthCheckResponse, self._repository
        serving = not repository.is_terminating
        if not name:
            serving = serving and repository.is_ready
        else:
            try:
                repository.get(name)
            except ServiceError as error:
                if error.kind == "not_found":
                    return statuses.SERVICE_UNKNOWN
                serving = False
        return statuses.SERVING if serving else statuses.NOT_SERVING


class _KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Interceptor that checks the key of a call before its message is read."""

    def __init__(self, keys: ApiKeys, metrics: Metrics) -> None:
        self._keys, self._metrics = keys, metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        if details.method.startswith(f"/{_HEALTH}/"):
            return await continuation(details)
        metadata = {
            key: value for key, value in details.invocation_metadata if isinstance(value, str)
        }
        try:
            self._keys.check(metadata)
        except Exception as error:
            failure = _service_error(error, details.method)
            log = RequestLog.begin(metadata)
            log.error = failure.kind
            self._metrics.requests.labels("", "", failure.grpc_status).inc()
            log.write(details.method, "", failure.grpc_status)

            async def refuse_call(requests: Any, context: Any) -> None:
                await _abort(context, failure, log.id)

            # A stream-stream handler that reads no message can refuse calls of every kind.
            return grpc.stream_stream_rpc_method_handler(refuse_call)
        return await continuation(details)


class _ReadInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Interceptor that limits how many messages arrive at once, and their time.

    gRPC buffers a message of the maximum size for each call whose client stalls. It does so only
    once the message is read, so the calls are handled as streams, which read it themselves. If
    too many messages arrive, the oldest one is refused after `_PATIENCE` seconds.
    """

    def __init__(self, bodies: BodyMemory, max_bytes: int, metrics: Metrics) -> None:
        self._bodies, self._max_reads = bodies, max(1, bodies.limit // max_bytes)
        self._metrics = metrics
        self._reads: dict[asyncio.Future[Any], float] = {}  # with the time of their start
        self._arrived = 0  # calls
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    async def hold(self) -> None:
        """Hold the answers to further calls, and wait until none arrives, or `LAST_SECONDS`."""
        self._may_answer.clear()
        end, arrived = time.monotonic() + LAST_SECONDS, -1
        while arrived != self._arrived and time.monotonic() < end:
            arrived = self._arrived
            await asyncio.sleep(_QUIET_SECONDS)

    def release(self) -> None:
        """Answer the calls that were held."""
        self._may_answer.set()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        self._arrived += 1
        handler = await continuation(details)
        if handler is None:
            return None
        parse = handler.request_deserializer or bytes

        async def requests(context: Any) -> AsyncIterator[Any]:
            while (data := await self._read(context)) is not grpc.aio.EOF:
                yield parse(data)

        async def answer(_: Any, context: Any) -> Any:
            data = await self._read(context)
            if data is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "There is no message.")
            await self._may_answer.wait()
            return await (handler.unary_unary or handler.unary_stream)(parse(data), context)

        async def stream(_: Any, context: Any) -> None:
            async for response in handler.stream_stream(requests(context), context):
                await context.write(response)

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)
        make = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        return make(answer, None, handler.response_serializer)

    async def _read(self, context: Any) -> Any:
        """Return the next message of a call as bytes, or `grpc.aio.EOF`."""
        while len(self._reads) >= self._max_reads:
            oldest, began = next(iter(self._reads.items()))
            await asyncio.wait({oldest}, timeout=max(0, began + _PATIENCE - time.monotonic()))
            if not oldest.done():
                self._reads.pop(oldest, None)
                oldest.cancel()
        read = asyncio.ensure_future(context.read())
        self._reads[read] = time.monotonic()
        try:
            await asyncio.wait({read}, timeout=BODY_SECONDS)
            if read.done() and not read.cancelled():
                data = read.result()
                if data is not grpc.aio.EOF and len(data) >= LARGE_BODY:
                    self._bodies.release_soon()
                return data
        finally:
            self._reads.pop(read, None)
            if not read.done() or read.cancelled():
                read.cancel()
                self._bodies.release_soon()
        error = ServiceError("too_slow", "The message arrives too slowly. Retry later.")
        self._metrics.requests.labels("", "", error.grpc_status).inc()
        await _abort(context, error, "")


def _handler(
    method: str,
    answer: Callable[[Any], Awaitable[Any]],
    repository: Repository,
    metrics: Metrics,
    tracer: Tracer | None,
) -> Callable[[bytes, Any], Awaitable[Any]]:
    """Return the handler of a method, from bytes to bytes, which logs and counts each call."""
    request_class = messages.message_class(f"{method}Request")

    async def handle(data: bytes, context: Any) -> Any:
        log = RequestLog.begin(dict(context.invocation_metadata() or ()), tracer)
        context.set_trailing_metadata(((_REQUEST_ID, log.id),))
        name, status = "", "CANCELLED"
        metrics.in_flight.inc()
        try:
            request = await _in_thread(len(data), request_class.FromString, data)
            name = getattr(request, "model_name", "") or getattr(request, "name", "")
            response = (await answer(request)).SerializeToString()
            status = "OK"
            return response
        except Exception as error:
            failure = _service_error(error, method)
            status, log.error = failure.grpc_status, failure.kind
            await _abort(context, failure, log.id)
        finally:
            # Clients may send any name, and Prometheus keeps every value of a label.
            log.model = name if repository.has(name) else ""
            metrics.in_flight.dec()
            metrics.requests.labels(log.model, method, status).inc()
            log.write(method, method, status)

    return handle


async def _in_thread(size: int, function: Callable[[Any], Any], argument: Any) -> Any:
    """Return the result of a function, which a thread calls if its work is large."""
    if size <= _SMALL_MESSAGE:
        return function(argument)
    return await asyncio.to_thread(function, argument)


def _service_error(error: Exception, method: str) -> ServiceError:
    """Return the error that the client gets. An unexpected exception is logged."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, DecodeError):
        return ServiceError("invalid", f"The message must be a {method}Request. Received: {error}")
    logger.error("The call of %s failed.", method, exc_info=error)
    return ServiceError("internal", "The service failed. Its log has the reason.")


async def _abort(context: Any, error: ServiceError, request_id: str) -> None:
    """End a call with the status of an error."""
    metadata = [(_REQUEST_ID, request_id)]
    if error.retry_after is not None:  # clients with a retry policy wait for this time
        metadata.append(("grpc-retry-pushback-ms", str(1000 * error.retry_after)))
    message = error.message[:_MAX_MESSAGE]
    await context.abort(grpc.StatusCode[error.grpc_status], message, tuple(metadata))


def _request(message: Any) -> InferRequest:
    """Return the request of a `ModelInferRequest` message."""
    raws = message.raw_input_contents
    if raws and len(raws) != len(message.inputs):
        refuse("raw_input_contents", f"be {len(message.inputs)}, one per input", len(raws))
    inputs = []
    for index, tensor in enumerate(message.inputs):
        path = f"inputs[{index}]"
        parameters = _parameters(tensor.parameters, f"{path}.parameters")
        shape = list(tensor.shape)
        header = check_header(tensor.name, tensor.datatype, shape, parameters, path)
        fields = tensor.contents.ListFields() if tensor.HasField("contents") else []
        filled = [(field.name, values) for field, values in fields]
        if raws:
            if filled:
                expected = "be empty if `raw_input_contents` is set"
                refuse(f"{path}.contents", expected, filled[0][0])
            inputs.append(tensor_from_bytes(header, raws[index]))
            continue
        field_name = _CONTENTS_FIELDS.get(header.datatype)
        if field_name is None:
            refuse(f"{path}.datatype", "be sent in `raw_input_contents`", header.datatype)
        if filled and [name for name, _ in filled] != [field_name]:
            names = [name for name, _ in filled]
            refuse(f"{path}.contents", f"be {field_name}, for {header.datatype}", names)
        items = list(filled[0][1]) if filled else []
        inputs.append(tensor_from_list(header, items))
    outputs = [
        RequestedOutput(output.name, _parameters(output.parameters, f"outputs[{index}].parameters"))
        for index, output in enumerate(message.outputs)
    ]
    parameters = _parameters(message.parameters, "parameters")
    return checked_request(inputs, outputs, message.id, parameters)


def _response(response: InferResponse) -> Any:
    """Return a `ModelInferResponse` message."""
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
    values = {}
    for name, message in parameters.items():
        choice = message.WhichOneof(ONEOF)
        if choice is None:
            refuse(argument, "have a value for each name", name)
        values[name] = getattr(message, choice)
    return values


def _set_parameters(messages: Any, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        fields = {bool: "bool_param", str: "string_param", float: "double_param"}
        int_field = "uint64_param" if isinstance(value, int) and value >= 2**63 else "int64_param"
        setattr(messages[name], fields.get(type(value), int_field), value)


def _check_repository(request: Any) -> None:
    if request.repository_name:
        refuse(
            "repository_name", "be empty: the service has one repository", request.repository_name
        )


def _add_reflection(server: Any) -> None:
    """Let clients list the services and their messages."""
    pool = messages.pool()
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    names = (messages.SERVICE, _HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool)
