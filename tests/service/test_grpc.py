"""gRPC endpoint, called by Triton's client over a real port. Its model returns its inputs."""

import asyncio
import contextlib
import importlib.metadata
import logging
import re

import grpc
import numpy as np
import pytest
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from keras_bahdanau_runtime.service import grpc as rpc
from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.errors import KINDS, ServiceError
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.protocol import DATATYPES, InferResponse, Tensor, TensorSpec

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
MESSAGE_BYTES = 2**20


class Identity:
    """A model that returns its inputs, or does what the parameter "do" says."""

    name, version, platform, versions = "identity", "3", "none", ["2", "3"]

    def __init__(self):
        self.inputs = self.outputs = [TensorSpec(kind, kind, (-1, 2)) for kind in DATATYPES]
        self.waiting, self.cancelled = asyncio.Event(), asyncio.Event()
        self.requests = []

    async def infer(self, request):
        self.requests.append(request)
        do = request.parameters.get("do", "")
        if do == "wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        elif do == "fail":
            raise RuntimeError("an internal secret")
        elif do:
            raise ServiceError(do, request.parameters["say"], retry_after=2)
        for tensor in request.inputs:
            if tensor.datatype not in (tensor.name, "FP16") or tensor.data.ndim > 3:
                raise ServiceError("invalid", f"No {tensor.datatype} of {tensor.data.shape}.")
        names = {output.name for output in request.outputs}
        outputs = [
            Tensor(tensor.name, tensor.datatype, tensor.data, tensor.parameters)
            for tensor in request.inputs
            if tensor.name in names or not names
        ]
        return InferResponse("identity", "3", outputs, request.id, request.parameters)

    def statistics(self):
        kinds = ("fail", "queue", "compute_input", "compute_infer", "compute_output")
        times = {kind: {"count": 0, "ns": 0} for kind in (*kinds, "cache_hit", "cache_miss")}
        return {
            "name": "identity",
            "version": "3",
            "last_inference": 17,
            "inference_count": 4,
            "execution_count": 2,
            "inference_stats": {"success": {"count": 2, "ns": 5000}, **times},
            "batch_stats": [],
        }


class OneModel:
    """A repository with one ready model and one broken model."""

    def __init__(self):
        self.model = Identity()
        self.ready, self.draining = True, False
        self.calls = []

    def names(self):
        return [("identity", ["3"])]

    def has(self, name):
        return name == "identity"

    def get(self, name, version=""):
        if name == "broken":
            raise ServiceError("unavailable", "The model 'broken' is not there.", "model", 1)
        if name != "identity" or version not in ("", "3"):
            raise ServiceError("not_found", f"There is no model {name!r}.", "model")
        return self.model

    def statistics(self, name, version):
        return [self.get(name or "identity", version).statistics()]

    def index(self, ready):
        broken = {"name": "broken", "version": "", "state": "UNAVAILABLE", "reason": "damaged"}
        identity = {"name": "identity", "version": "3", "state": "READY", "reason": ""}
        return [identity] if ready else [identity, broken]

    def check_alone(self):
        pass

    async def load(self, name):
        self.calls.append(("load", name))

    async def unload(self, name):
        if name != "identity":
            raise ServiceError("not_found", f"There is no model {name!r}.", "model")
        self.calls.append(("unload", name))


@contextlib.asynccontextmanager
async def connect(address):
    """Yield a stub of the inference service and its channel."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel), channel


@contextlib.asynccontextmanager
async def start_server(repository, **options):
    """Start a server on a free port; yield its address."""
    server = await rpc.start(repository, "127.0.0.1:0", Metrics(), **options)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(None)


class Server:
    """A running server, its event loop, and a client."""

    def __init__(self, runner):
        self.run = runner.run
        self.repository, self.metrics = OneModel(), Metrics()
        self.server = self.run(
            rpc.start(self.repository, "127.0.0.1:0", self.metrics, max_message_bytes=MESSAGE_BYTES)
        )
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = sync_client.InferenceServerClient(self.address)

    def call(self, method, *args, **options):
        """Call a method of the client in another thread."""
        return self.run(asyncio.to_thread(getattr(self.client, method), *args, **options))

    def send(self, method, message):
        """Call a method with any message, even bytes."""

        async def call():
            async with connect(self.address) as (_, channel):
                function = channel.unary_unary(
                    f"/{messages.SERVICE}/{method}",
                    getattr(type(message), "SerializeToString", None),
                    getattr(service_pb2, f"{method}Response").FromString,
                )
                return await function(message)

        return self.run(call())

    def send_refused(self, method, message):
        """Call a method that must fail; return the error code and message."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            self.send(method, message)
        return caught.value.code().name, caught.value.details()


@pytest.fixture(scope="module")
def server():
    with asyncio.Runner() as runner:
        server = Server(runner)
        yield server
        server.client.close()
        server.run(server.server.stop(None))


def infer_input(name, array, datatype=None):
    tensor = sync_client.InferInput(name, array.shape, datatype or name)
    tensor.set_data_from_numpy(array)
    return tensor


def infer_message(datatype="INT32", shape=(2,), raw=None, **contents):
    tensor = {"name": datatype, "datatype": datatype, "shape": shape}
    if contents:
        tensor["contents"] = contents
    return service_pb2.ModelInferRequest(
        model_name="identity",
        inputs=[tensor],
        raw_input_contents=[] if raw is None else [raw],
    )


def action_message(do, say=""):
    """Return a request that makes the model do something."""
    message = infer_message(raw=bytes(8))
    message.parameters["do"].string_param = do
    message.parameters["say"].string_param = say
    return message


def example(datatype, shape):
    count = int(np.prod(shape))
    if datatype == "BYTES":
        values = [b"", "ä".encode(), b"\x00\xff", b"a" * 300][:count]
        array = np.empty(count, object)
        array[:] = (values * count)[:count]
        return array.reshape(shape)
    return (
        (np.arange(count) % 2 if datatype == "BOOL" else np.arange(count))
        .astype(DATATYPES[datatype])
        .reshape(shape)
    )


def test_server_is_live_and_ready_and_has_metadata(server):
    assert server.call("is_server_live") is True
    assert server.call("is_server_ready") is True
    metadata = server.call("get_server_metadata")
    assert metadata.name == "keras_bahdanau"
    assert metadata.version == importlib.metadata.version("keras-bahdanau")
    assert [*metadata.extensions] == ["binary_tensor_data", "model_repository", "statistics"]


def test_model_is_ready_and_has_metadata(server):
    assert server.call("is_model_ready", "identity") is True
    assert server.call("is_model_ready", "identity", "3") is True
    for name, version in (("identity", "4"), ("stranger", ""), ("broken", "")):
        assert server.call("is_model_ready", name, version) is False
    metadata = server.call("get_model_metadata", "identity")
    assert (metadata.name, metadata.platform) == ("identity", "none")
    assert [*metadata.versions] == ["2", "3"]
    outputs = [(output.name, output.datatype, [*output.shape]) for output in metadata.outputs]
    assert outputs == [(datatype, datatype, [-1, 2]) for datatype in DATATYPES]


@pytest.mark.parametrize("shape", [(2,), (1, 3), (2, 1, 2), (0, 2)])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_inference_transfers_every_datatype(server, datatype, shape):
    array = example(datatype, shape)
    result = server.call("infer", "identity", [infer_input(datatype, array)]).as_numpy(datatype)
    assert result.shape == shape and result.tolist() == array.tolist()
    if datatype != "BYTES":
        assert result.dtype == array.dtype


def test_concurrent_requests_get_their_own_responses(server):
    arrays = [np.full((1, 2), value, np.int64) for value in range(20)]

    async def infer_all():
        async with aio_client.InferenceServerClient(server.address) as client:
            return await asyncio.gather(
                *(client.infer("identity", [infer_input("INT64", array)]) for array in arrays)
            )

    for array, result in zip(arrays, server.run(infer_all()), strict=True):
        assert result.as_numpy("INT64").tolist() == array.tolist()


def test_id_parameters_and_requested_outputs_are_passed_on(server):
    inputs = [infer_input(kind, example(kind, (1, 2))) for kind in ("FP32", "BOOL")]
    outputs = [sync_client.InferRequestedOutput("BOOL")]
    parameters = {"a": "ä", "b": True, "c": -(2**63)}
    response = server.call(
        *("infer", "identity", inputs, "3", outputs, "an id"),
        parameters=parameters,
        priority=2**64 - 1,
    ).get_response()
    assert (response.id, response.model_name, response.model_version) == ("an id", "identity", "3")
    assert [output.name for output in response.outputs] == ["BOOL"]
    assert len(response.raw_output_contents) == 1
    request = server.repository.model.requests[-1]
    assert request.parameters == {**parameters, "priority": 2**64 - 1}
    assert response.parameters["c"].int64_param == -(2**63)
    assert response.parameters["b"].bool_param is True
    assert response.parameters["a"].string_param == "ä"
    assert response.parameters["priority"].uint64_param == 2**64 - 1


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 2**16 - 1]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, float("inf")]),
        ("FP64", "fp64_contents", [1e300, -0.1]),
        ("BYTES", "bytes_contents", [b"", b"\xff"]),
    ],
)
def test_typed_contents_are_read(server, datatype, field, values):
    response = server.send("ModelInfer", infer_message(datatype, **{field: values}))
    assert sync_client.InferResult(response).as_numpy(datatype).tolist() == values
    assert not response.outputs[0].HasField("contents")


def with_parameter(side, key, **value):
    message = infer_message(int_contents=[1, 2])
    message.outputs.add(name="INT32")
    getattr(message, side)[0].parameters[key].CopyFrom(service_pb2.InferParameter(**value))
    return message


def twice():
    message = infer_message(raw=bytes(8))
    message.MergeFrom(infer_message(raw=bytes(8)))
    return message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (infer_message(raw=bytes(7)), "8 bytes"),
        (infer_message(raw=bytes(9)), "8 bytes"),
        (infer_message(shape=(10**6, 10**6), raw=bytes(100)), "bytes of data"),
        (infer_message(shape=(10**6, 10**6), int_contents=[1]), "items of data"),
        (infer_message(shape=(2**62, 2**62), raw=b""), "inputs[0].shape"),
        (infer_message(shape=(0, 2**62), raw=b""), "inputs[0].shape"),
        (infer_message(shape=(-1,), raw=b""), "inputs[0].shape"),
        (infer_message(shape=[1] * 17, raw=bytes(4)), "inputs[0].shape"),
        (infer_message("BF16", raw=bytes(4)), "inputs[0].datatype"),
        (infer_message("", raw=bytes(4)), "inputs[0].datatype"),
        (infer_message("FP16"), "raw_input_contents"),
        (infer_message("INT8", int_contents=[1, 128]), "inputs[0].data"),
        (infer_message("UINT16", uint_contents=[1, 2**16]), "inputs[0].data"),
        (infer_message("INT8", fp32_contents=[1, 2]), "int_contents"),
        (infer_message("INT8", int_contents=[1, 2], bool_contents=[True]), "int_contents"),
        (infer_message("INT8", int_contents=[1]), "2 items"),
        (infer_message("INT8"), "2 items"),
        (infer_message("INT8", raw=bytes(2), int_contents=[1, 2]), "be empty beside"),
        (infer_message("BOOL", raw=b"\x01\x02"), "0 and 1"),
        (infer_message("BYTES", raw=b"\xff\xff\xff\xff"), "2 items"),
        (infer_message("BYTES", raw=b"\0\0\0\0\0"), "2 items"),
        (infer_message("BYTES", raw=bytes(9)), "2 items"),
        (infer_message("BYTES", shape=(2**40,), raw=bytes(8)), "items"),
        (twice(), "different names"),
        (service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[b""]), "raw"),
        (with_parameter("inputs", "shared_memory_region", string_param="r"), "shared memory"),
        (with_parameter("outputs", "shared_memory_offset", int64_param=1), "shared memory"),
        (with_parameter("outputs", "classification", int64_param=3), "classification"),
        (with_parameter("inputs", "nothing"), "a value for each name"),
    ],
)
def test_invalid_requests_are_refused(server, message, error):
    code, details = server.send_refused("ModelInfer", message)
    assert code == "INVALID_ARGUMENT" and error in details


NUMBERS = st.lists(st.integers(0, 127), max_size=4)
PARAMETERS = st.dictionaries(st.text(max_size=2), st.just({"bool_param": True}) | st.just({}))
CONTENTS = st.fixed_dictionaries(
    {},
    optional={
        "bool_contents": st.lists(st.booleans(), max_size=4),
        "int_contents": NUMBERS,
        "uint64_contents": NUMBERS,
        "fp32_contents": st.lists(st.floats(width=32), max_size=4),
        "bytes_contents": st.lists(st.binary(max_size=4), max_size=4),
    },
)
INPUTS = st.fixed_dictionaries(
    {"name": st.text(max_size=2), "datatype": st.sampled_from([*DATATYPES, ""])},
    optional={
        "shape": st.lists(st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1), max_size=3),
        "parameters": PARAMETERS,
        "contents": CONTENTS,
    },
)


@settings(max_examples=100)
@given(st.lists(INPUTS, max_size=2), st.lists(st.binary(max_size=20), max_size=2), PARAMETERS)
def test_any_message_is_answered_or_refused(server, inputs, raws, parameters):
    message = service_pb2.ModelInferRequest(
        model_name="identity", inputs=inputs, raw_input_contents=raws, parameters=parameters
    )
    try:
        server.send("ModelInfer", message)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()


@pytest.mark.parametrize("method", messages.METHODS)
def test_malformed_messages_are_refused(server, method):
    code, details = server.send_refused(method, b"\xff\xff\xff")
    assert code == "INVALID_ARGUMENT" and f"must be one of {method}" in details


def test_text_that_is_not_utf8_is_refused(server):
    assert server.send_refused("ModelReady", b"\x0a\x01\xff")[0] == "INVALID_ARGUMENT"


def test_errors_of_the_model_reach_the_client(server):
    tensor = infer_input("INT32", np.zeros((1, 1, 1, 1), np.int32))
    with pytest.raises(InferenceServerException, match=r"No INT32 of \(1, 1, 1, 1\)") as caught:
        server.call("infer", "identity", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("infer", ("stranger", [])),
        ("infer", ("identity", [], "4")),
        ("get_model_metadata", ("stranger",)),
        ("get_inference_statistics", ("stranger",)),
        ("unload_model", ("stranger",)),
    ],
)
def test_unknown_models_are_not_found(server, method, args):
    with pytest.raises(InferenceServerException, match="There is no model") as caught:
        server.call(method, *args)
    assert caught.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_have_the_status_of_their_kind(server, kind):
    text = "𝄞 as it is" * 100
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        server.send("ModelInfer", action_message(kind, text))
    assert caught.value.code().name == KINDS[kind].grpc
    assert caught.value.details() == text[:500]
    assert ("grpc-retry-pushback-ms", "2000") in [*caught.value.trailing_metadata()]


def test_unexpected_exceptions_are_logged_and_not_sent(server, caplog):
    code, details = server.send_refused("ModelInfer", action_message("fail"))
    assert code == "INTERNAL" and "secret" not in details
    [record] = [line for line in caplog.records if line.name == "keras_bahdanau_runtime"]
    assert "ModelInfer" in record.getMessage() and "secret" in str(record.exc_info[1])


@pytest.mark.parametrize(("timeout", "code"), [(None, "CANCELLED"), (0.05, "DEADLINE_EXCEEDED")])
def test_cancelled_calls_are_cancelled_in_the_model(server, timeout, code):
    model = server.repository.model
    model.waiting.clear()
    model.cancelled.clear()

    async def start_and_cancel():
        async with connect(server.address) as (stub, _):
            call = stub.ModelInfer(action_message("wait"), timeout=timeout)
            await model.waiting.wait()
            if timeout is None:
                call.cancel()
            await model.cancelled.wait()
            return await call.code()

    assert server.run(start_and_cancel()).name == code


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_too_large_messages_are_refused(server, compression):
    message = infer_message("UINT8", (MESSAGE_BYTES,), raw=bytes(MESSAGE_BYTES))

    async def send():
        async with connect(server.address) as (stub, _):
            return await stub.ModelInfer(message, compression=compression).code()

    assert server.run(send()) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_statistics_are_those_of_the_model(server):
    for name in ("identity", ""):
        [model] = server.call("get_inference_statistics", name).model_stats
        assert (model.name, model.version, model.last_inference) == ("identity", "3", 17)
        assert (model.inference_count, model.execution_count) == (4, 2)
        success = model.inference_stats.success
        assert (success.count, success.ns) == (2, 5000)
        assert not model.inference_stats.fail.count and not model.batch_stats


def test_calls_are_counted_and_have_ids(server, caplog):
    caplog.set_level(logging.INFO, "keras_bahdanau_runtime")

    async def call_with_and_without_id():
        async with connect(server.address) as (stub, _):
            results = []
            for name in ("identity", "stranger"):
                request = service_pb2.ModelMetadataRequest(name=name)
                call = stub.ModelMetadata(request, metadata=[("x-request-id", f"of {name}")])
                results.append((await call.code(), dict(await call.trailing_metadata())))
            call = stub.ServerLive(service_pb2.ServerLiveRequest())
            await call
            return [*results, dict(await call.trailing_metadata())]

    before = server.metrics.render().decode()
    success, not_found, without_id = server.run(call_with_and_without_id())
    assert success == (grpc.StatusCode.OK, {"x-request-id": "of identity"})
    assert not_found == (grpc.StatusCode.NOT_FOUND, {"x-request-id": "of stranger"})
    assert len(without_id["x-request-id"]) == 16
    lines = {line.request_id: line.getMessage() for line in caplog.records}
    assert lines["of identity"] == "ModelMetadata OK"
    assert lines["of stranger"] == "ModelMetadata NOT_FOUND"
    after = server.metrics.render().decode()
    for status, model in (("OK", "identity"), ("NOT_FOUND", "")):
        line = f'requests_total{{call="ModelMetadata",code="{status}",model="{model}"}} (.*)'
        first, second = re.search(line, before), re.search(line, after)
        assert float(second[1]) == (float(first[1]) if first else 0) + 1
    assert "stranger" not in after


def test_repository_index_lists_all_models_or_the_ready_ones(server):
    models = server.call("get_model_repository_index").models
    assert [(model.name, model.version, model.state, model.reason) for model in models] == [
        ("identity", "3", "READY", ""),
        ("broken", "", "UNAVAILABLE", "damaged"),
    ]
    request = service_pb2.RepositoryIndexRequest(ready=True)
    [ready] = server.send("RepositoryIndex", request).models
    assert ready.name == "identity"
    request = service_pb2.RepositoryIndexRequest(repository_name="elsewhere")
    assert server.send_refused("RepositoryIndex", request)[0] == "INVALID_ARGUMENT"


def test_models_are_loaded_and_unloaded(server):
    server.call("load_model", "identity")
    server.call("unload_model", "identity")
    assert server.repository.calls == [("load", "identity"), ("unload", "identity")]
    with pytest.raises(InferenceServerException, match="loaded as it is"):
        server.call("load_model", "identity", config="{}")


def test_methods_that_are_not_offered_are_unimplemented(server):
    with pytest.raises(InferenceServerException) as caught:
        server.call("get_model_config", "identity")
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_health_of_the_service_and_of_each_model(server, monkeypatch):
    async def check(names):
        async with connect(server.address) as (_, channel):
            check = health_pb2_grpc.HealthStub(channel).Check
            requests = [health_pb2.HealthCheckRequest(service=name) for name in names]
            return [(await check(request)).status for request in requests]

    names = ("", "identity", "broken")
    assert server.run(check(names)) == [SERVING, SERVING, NOT_SERVING]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        server.run(check(["stranger"]))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with monkeypatch.context() as patch:
        patch.setattr(server.repository, "ready", False)
        assert server.run(check(names)) == [NOT_SERVING, SERVING, NOT_SERVING]
        assert server.call("is_server_ready") is False
    monkeypatch.setattr(server.repository, "draining", True)
    assert server.run(check(names)) == [NOT_SERVING, NOT_SERVING, NOT_SERVING]
    assert server.call("is_server_ready") is False
    assert server.call("is_model_ready", "identity") is False
    assert server.call("is_server_live") is True


def test_watch_of_the_health_ends_when_the_service_drains(server, monkeypatch):
    async def watch_until_drained():
        async with connect(server.address) as (_, channel):
            watch = health_pb2_grpc.HealthStub(channel).Watch
            identity = watch(health_pb2.HealthCheckRequest(service="identity"), timeout=30)
            stranger = watch(health_pb2.HealthCheckRequest(service="stranger"), timeout=30)
            responses = [await identity.read(), await stranger.read()]
            monkeypatch.setattr(server.repository, "draining", True)
            responses.append(await identity.read())
            ends = [await identity.read(), await stranger.read()]
            return [response.status for response in responses], ends

    statuses, ends = server.run(watch_until_drained())
    assert statuses == [SERVING, SERVICE_UNKNOWN, NOT_SERVING]
    assert ends == [grpc.aio.EOF, grpc.aio.EOF]


def test_reflection_lists_services_and_methods(server):
    def reflect():
        with grpc.insecure_channel(server.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            names = database.get_services()
            return names, {name: database.FindFileContainingSymbol(name) for name in names}

    names, files = server.run(asyncio.to_thread(reflect))
    assert sorted(names) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    methods = files["inference.GRPCInferenceService"].service[0].method
    assert {method.name for method in methods} == set(messages.METHODS)


def test_calls_are_authorized_except_for_health(server):
    calls = []

    def authorize(metadata):
        calls.append(dict(metadata))
        if metadata.get("authorization") == "break":
            raise RuntimeError("an internal secret")
        if metadata.get("authorization") != "Bearer key":
            raise ServiceError("unauthenticated", "A key is needed.")

    async def call_each():
        async with (
            start_server(server.repository, authorize=authorize) as address,
            connect(address) as (stub, channel),
        ):
            live = service_pb2.ServerLiveRequest()
            reflect = channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            )
            check = health_pb2_grpc.HealthStub(channel).Check
            responses = [
                *(
                    stub.ServerLive(live, metadata=[("authorization", key), ("x-bin", b"\0")])
                    for key in ("Bearer key", "Bearer other", "break")
                ),
                stub.ModelInfer(infer_message()),
                reflect(iter([b""])),
                check(health_pb2.HealthCheckRequest()),
            ]
            return [(await response.code()).name for response in responses]

    denied = "UNAUTHENTICATED"
    assert server.run(call_each()) == ["OK", denied, "INTERNAL", denied, denied, "OK"]
    assert len(calls) == 5 and not any("x-bin" in metadata for metadata in calls)


def test_more_calls_than_allowed_are_refused(server):
    model = server.repository.model
    model.waiting.clear()

    async def call_twice():
        async with (
            start_server(server.repository, max_calls=1) as address,
            connect(address) as (stub, _),
        ):
            running = stub.ModelInfer(action_message("wait"))
            await model.waiting.wait()
            code = await stub.ServerLive(service_pb2.ServerLiveRequest()).code()
            running.cancel()
            return code

    assert server.run(call_twice()) == grpc.StatusCode.RESOURCE_EXHAUSTED


def describe(path, messages):
    """Yield the properties of messages, their fields and their nested messages."""
    for message in messages:
        name = f"{path}.{message.name}"
        yield name, message.options.map_entry
        for field in message.field:
            oneof = (
                message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            )
            properties = (field.number, field.type, field.label, field.type_name, oneof)
            yield f"{name}.{field.name}", properties
        yield from describe(name, message.nested_type)


def test_messages_are_those_of_the_protocol():
    ours, theirs = (descriptor_pb2.FileDescriptorProto() for _ in range(2))
    messages.pool().FindFileByName("inference.proto").CopyToProto(ours)
    service_pb2.DESCRIPTOR.CopyToProto(theirs)
    assert (ours.package, ours.syntax) == (theirs.package, theirs.syntax)
    assert len(ours.message_type) == 27
    assert {*describe("", ours.message_type)} <= {*describe("", theirs.message_type)}
    assert ours.service[0].name == theirs.service[0].name
    methods = {method.name: method for method in theirs.service[0].method}
    for method in ours.service[0].method:
        expected = methods[method.name]
        assert not (expected.client_streaming or expected.server_streaming)
        assert method.input_type == expected.input_type
        assert method.output_type == expected.output_type
