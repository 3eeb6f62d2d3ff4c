"""The door of gRPC, called by Triton's client over a real port; its model is the identity."""

import asyncio
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
from keras_bahdanau_runtime.service.protocol import (
    DATATYPES,
    InferResponse,
    Tensor,
    TensorSpec,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
MESSAGE_BYTES = 2**20


class Identity:
    """A model that gives back its inputs; a parameter "do" makes it do something else."""

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
            raise RuntimeError("a secret of the house")
        elif do:
            raise ServiceError(do, request.parameters["say"], retry_after=2)
        for tensor in request.inputs:
            if tensor.datatype not in (tensor.name, "FP16") or tensor.data.ndim > 3:
                raise ServiceError("invalid", f"No {tensor.datatype} of {tensor.data.shape}.")
        outputs = [
            Tensor(one.name, one.datatype, one.data, one.parameters) for one in request.inputs
        ]
        wanted = {one.name for one in request.outputs}
        chosen = [tensor for tensor in outputs if tensor.name in wanted or not wanted]
        return InferResponse("identity", "3", chosen, request.id, request.parameters)

    def statistics(self):
        nothing, some = {"count": 0, "ns": 0}, {"count": 2, "ns": 5000}
        kinds = ("fail", "queue", "compute_input", "compute_infer", "compute_output")
        return {
            "name": "identity",
            "version": "3",
            "last_inference": 17,
            "inference_count": 4,
            "execution_count": 2,
            "inference_stats": {
                "success": some,
                **dict.fromkeys((*kinds, "cache_hit", "cache_miss"), nothing),
            },
            "batch_stats": [],
        }


class OneModel:
    """A repository of one model that is ready, and of one that is not."""

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
        found = {"name": "identity", "version": "3", "state": "READY", "reason": ""}
        return [found] if ready else [found, broken]

    def check_alone(self):
        pass

    async def load(self, name):
        self.calls.append(("load", name))

    async def unload(self, name):
        if name != "identity":
            raise ServiceError("not_found", f"There is no model {name!r}.", "model")
        self.calls.append(("unload", name))


class Door:
    """A running server, the event loop that it runs in, and its clients."""

    def __init__(self, runner):
        self.run = runner.run
        self.repository, self.metrics = self.run(made_here()), Metrics()
        self.server = self.run(
            rpc.start(self.repository, "127.0.0.1:0", self.metrics, max_message_bytes=MESSAGE_BYTES)
        )
        self.address = f"127.0.0.1:{self.server.port}"
        self.sync = sync_client.InferenceServerClient(self.address)

    def call(self, method, *args, **options):
        """Calls a method of the sync client, in a thread of its own."""
        return self.run(asyncio.to_thread(getattr(self.sync, method), *args, **options))

    def raw(self, method, message):
        """Calls a method with any message, even bytes."""

        async def calling():
            async with grpc.aio.insecure_channel(self.address) as channel:
                call = channel.unary_unary(
                    f"/{messages.SERVICE}/{method}",
                    getattr(type(message), "SerializeToString", None),
                    getattr(service_pb2, f"{method}Response").FromString,
                )
                return await call(message)

        return self.run(calling())

    def refused(self, method, message):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            self.raw(method, message)
        return caught.value.code().name, caught.value.details()


async def made_here():
    return OneModel()


@pytest.fixture(scope="module")
def door():
    with asyncio.Runner() as runner:
        door = Door(runner)
        yield door
        door.sync.close()
        door.run(door.server.stop(None))


def infer_input(name, array, datatype=None):
    tensor = sync_client.InferInput(name, array.shape, datatype or name)
    tensor.set_data_from_numpy(array)
    return tensor


def infer_message(datatype="INT32", shape=(2,), name=None, raw=None, **contents):
    tensor = {"name": name or datatype, "datatype": datatype, "shape": shape}
    if contents:
        tensor["contents"] = contents
    return service_pb2.ModelInferRequest(
        model_name="identity",
        inputs=[tensor],
        raw_input_contents=[] if raw is None else [raw],
    )


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


def test_server_is_live_and_ready_and_says_what_it_is(door):
    assert door.call("is_server_live") is True
    assert door.call("is_server_ready") is True
    told = door.call("get_server_metadata")
    assert told.name == "keras_bahdanau"
    assert told.version == importlib.metadata.version("keras-bahdanau")
    assert [*told.extensions] == ["binary_tensor_data", "model_repository", "statistics"]


def test_model_is_ready_and_says_what_it_takes(door):
    assert door.call("is_model_ready", "identity") is True
    assert door.call("is_model_ready", "identity", "3") is True
    for name, version in (("identity", "4"), ("stranger", ""), ("broken", "")):
        assert door.call("is_model_ready", name, version) is False
    told = door.call("get_model_metadata", "identity")
    assert (told.name, told.platform, [*told.versions]) == ("identity", "none", ["2", "3"])
    assert [(one.name, one.datatype, [*one.shape]) for one in told.outputs] == [
        (kind, kind, [-1, 2]) for kind in DATATYPES
    ]


@pytest.mark.parametrize("shape", [(2,), (1, 3), (2, 1, 2), (0, 2)])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_inference_gives_back_every_datatype(door, datatype, shape):
    given = example(datatype, shape)
    found = door.call("infer", "identity", [infer_input(datatype, given)]).as_numpy(datatype)
    assert found.shape == shape and found.tolist() == given.tolist()
    if datatype != "BYTES":
        assert found.dtype == given.dtype


def test_aio_client_infers_many_at_once(door):
    given = [np.full((1, 2), value, np.int64) for value in range(20)]

    async def inferring():
        async with aio_client.InferenceServerClient(door.address) as client:
            return await asyncio.gather(
                *(client.infer("identity", [infer_input("INT64", one)]) for one in given)
            )

    for sent, found in zip(given, door.run(inferring()), strict=True):
        assert found.as_numpy("INT64").tolist() == sent.tolist()


def test_id_parameters_and_wanted_outputs_are_passed_on(door):
    inputs = [infer_input(kind, example(kind, (1, 2))) for kind in ("FP32", "BOOL")]
    outputs = [sync_client.InferRequestedOutput("BOOL")]
    given = {"a": "ä", "b": True, "c": -(2**63)}
    found = door.call(
        "infer", "identity", inputs, "3", outputs, "an id", parameters=given, priority=2**64 - 1
    ).get_response()
    assert (found.id, found.model_name, found.model_version) == ("an id", "identity", "3")
    assert [one.name for one in found.outputs] == ["BOOL"]
    assert len(found.raw_output_contents) == 1
    request = door.repository.model.requests[-1]
    assert request.parameters == {**given, "priority": 2**64 - 1}
    assert found.parameters["c"].int64_param == -(2**63)
    assert found.parameters["b"].bool_param is True
    assert found.parameters["a"].string_param == "ä"
    assert found.parameters["priority"].uint64_param == 2**64 - 1


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
def test_contents_are_read_as_well_as_raw_bytes(door, datatype, field, values):
    found = door.raw("ModelInfer", infer_message(datatype, **{field: values}))
    assert sync_client.InferResult(found).as_numpy(datatype).tolist() == values
    assert not found.outputs[0].HasField("contents")


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
    ("message", "said"),
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
def test_damaged_requests_are_refused(door, message, said):
    message.model_name = "identity"
    code, details = door.refused("ModelInfer", message)
    assert code == "INVALID_ARGUMENT" and said in details


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
def test_any_message_is_answered_or_refused(door, inputs, raws, parameters):
    message = service_pb2.ModelInferRequest(
        model_name="identity", inputs=inputs, raw_input_contents=raws, parameters=parameters
    )
    try:
        door.raw("ModelInfer", message)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()


@pytest.mark.parametrize("method", messages.METHODS)
def test_bytes_that_are_no_message_are_refused(door, method):
    code, details = door.refused(method, b"\xff\xff\xff")
    assert code == "INVALID_ARGUMENT" and f"must be one of {method}" in details


def test_text_that_is_no_utf8_is_refused(door):
    assert door.refused("ModelReady", b"\x0a\x01\xff")[0] == "INVALID_ARGUMENT"


def test_model_says_what_it_does_not_take(door):
    wrong = infer_input("INT32", np.zeros((1, 1, 1, 1), np.int32))
    with pytest.raises(InferenceServerException, match=r"No INT32 of \(1, 1, 1, 1\)") as caught:
        door.call("infer", "identity", [wrong])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="No FP32"):
        door.call("infer", "identity", [infer_input("INT32", np.zeros((1, 2), "f4"), "FP32")])


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
def test_unknown_models_are_not_found(door, method, args):
    with pytest.raises(InferenceServerException, match="There is no model") as caught:
        door.call(method, *args)
    assert caught.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_have_the_status_of_their_kind(door, kind):
    message = infer_message(raw=bytes(8))
    message.parameters["do"].string_param = kind
    message.parameters["say"].string_param = "𝄞 as it is" * 100
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        door.raw("ModelInfer", message)
    assert caught.value.code().name == KINDS[kind].grpc
    assert caught.value.details() == ("𝄞 as it is" * 100)[:500]
    assert ("grpc-retry-pushback-ms", "2000") in [*caught.value.trailing_metadata()]


def test_what_nobody_foresaw_is_logged_and_not_told(door, caplog):
    message = infer_message(raw=bytes(8))
    message.parameters["do"].string_param = "fail"
    code, details = door.refused("ModelInfer", message)
    assert code == "INTERNAL" and "secret" not in details
    [record] = [one for one in caplog.records if one.name == "keras_bahdanau_runtime"]
    assert "ModelInfer" in record.getMessage() and "secret" in str(record.exc_info[1])


def test_cancelled_call_is_cancelled_in_the_model(door):
    model = door.repository.model
    model.waiting.clear()
    model.cancelled.clear()

    async def cancelling(end):
        message = infer_message(raw=bytes(8))
        message.parameters["do"].string_param = "wait"
        async with grpc.aio.insecure_channel(door.address) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                message, timeout=end
            )
            await model.waiting.wait()
            if end is None:
                call.cancel()
            await model.cancelled.wait()
            return await call.code()

    assert door.run(cancelling(None)) == grpc.StatusCode.CANCELLED
    model.cancelled.clear()
    assert door.run(cancelling(0.05)) == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_too_large_messages_are_refused(door, compression):
    message = infer_message("UINT8", (MESSAGE_BYTES,), raw=bytes(MESSAGE_BYTES))

    async def calling():
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return await stub.ModelInfer(message, compression=compression)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        door.run(calling())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_statistics(door):
    for name in ("identity", ""):
        [found] = door.call("get_inference_statistics", name).model_stats
        assert (found.name, found.version, found.last_inference) == ("identity", "3", 17)
        assert (found.inference_count, found.execution_count) == (4, 2)
        success = found.inference_stats.success
        assert (success.count, success.ns) == (2, 5000)
        assert not found.inference_stats.fail.count and not found.batch_stats


def test_calls_are_counted_and_have_ids(door, caplog):
    caplog.set_level(logging.INFO, "keras_bahdanau_runtime")

    async def calling():
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            found = []
            for name in ("identity", "stranger"):
                request = service_pb2.ModelMetadataRequest(name=name)
                call = stub.ModelMetadata(request, metadata=[("x-request-id", f"of {name}")])
                found.append((await call.code(), dict(await call.trailing_metadata())))
            call = stub.ServerLive(service_pb2.ServerLiveRequest())
            await call
            found.append(dict(await call.trailing_metadata()))
            return found

    before = door.metrics.render().decode()
    known, strange, new = door.run(calling())
    assert known == (grpc.StatusCode.OK, {"x-request-id": "of identity"})
    assert strange == (grpc.StatusCode.NOT_FOUND, {"x-request-id": "of stranger"})
    assert len(new["x-request-id"]) == 16
    lines = {line.request_id: line.getMessage() for line in caplog.records}
    assert lines["of identity"] == "ModelMetadata OK"
    assert lines["of stranger"] == "ModelMetadata NOT_FOUND"
    after = door.metrics.render().decode()
    for status, model in (("OK", "identity"), ("NOT_FOUND", "")):
        line = f'requests_total{{call="ModelMetadata",code="{status}",model="{model}"}} (.*)'
        first, second = re.search(line, before), re.search(line, after)
        assert float(second[1]) == (float(first[1]) if first else 0) + 1
    assert "stranger" not in after


def test_repository_index(door):
    found = door.call("get_model_repository_index").models
    assert [(one.name, one.version, one.state, one.reason) for one in found] == [
        ("identity", "3", "READY", ""),
        ("broken", "", "UNAVAILABLE", "damaged"),
    ]
    asked = service_pb2.RepositoryIndexRequest(ready=True)
    assert [one.name for one in door.raw("RepositoryIndex", asked).models] == ["identity"]
    elsewhere = service_pb2.RepositoryIndexRequest(repository_name="elsewhere")
    assert door.refused("RepositoryIndex", elsewhere)[0] == "INVALID_ARGUMENT"


def test_models_are_loaded_and_unloaded(door):
    door.call("load_model", "identity")
    door.call("unload_model", "identity")
    assert door.repository.calls == [("load", "identity"), ("unload", "identity")]
    with pytest.raises(InferenceServerException, match="loaded as it is"):
        door.call("load_model", "identity", config="{}")


def test_methods_that_are_not_offered_are_unimplemented(door):
    with pytest.raises(InferenceServerException) as caught:
        door.call("get_model_config", "identity")
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_health_of_the_service_and_of_each_model(door):
    async def check(name):
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

    repository = door.repository
    names = ("", "identity", "broken")
    assert [door.run(check(name)) for name in names] == [SERVING, SERVING, NOT_SERVING]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        door.run(check("stranger"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    repository.ready = False
    assert [door.run(check(name)) for name in names] == [NOT_SERVING, SERVING, NOT_SERVING]
    assert door.call("is_server_ready") is False
    repository.ready, repository.draining = True, True
    try:
        assert {door.run(check(name)) for name in names} == {NOT_SERVING}
        assert door.call("is_server_ready") is False
        assert door.call("is_model_ready", "identity") is False
        assert door.call("is_server_live") is True
    finally:
        repository.draining = False


def test_watch_of_the_health_ends_when_the_service_drains(door):
    async def watching():
        async with grpc.aio.insecure_channel(door.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch
            first = watch(health_pb2.HealthCheckRequest(service="identity"), timeout=30)
            second = watch(health_pb2.HealthCheckRequest(service="stranger"), timeout=30)
            found = [await first.read(), await second.read()]
            door.repository.draining = True
            found.append(await first.read())
            ends = [await first.read(), await second.read()]
            return [one.status for one in found], ends

    try:
        expected = [SERVING, SERVICE_UNKNOWN, NOT_SERVING], [grpc.aio.EOF, grpc.aio.EOF]
        assert door.run(watching()) == expected
    finally:
        door.repository.draining = False


def test_reflection_tells_services_and_messages(door):
    def asking():
        with grpc.insecure_channel(door.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            names = database.get_services()
            return names, {name: database.FindFileContainingSymbol(name) for name in names}

    names, files = door.run(asyncio.to_thread(asking))
    assert sorted(names) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    told = {one.name for one in files["inference.GRPCInferenceService"].service[0].method}
    assert told == set(messages.METHODS)


def test_only_who_is_let_in_may_call(door):
    asked = []

    def authorize(metadata):
        asked.append(dict(metadata))
        if metadata.get("authorization") == "break":
            raise RuntimeError("a secret of the house")
        if metadata.get("authorization") != "Bearer key":
            raise ServiceError("unauthenticated", "A key is needed.")

    async def calling():
        server = await rpc.start(door.repository, "127.0.0.1:0", Metrics(), authorize=authorize)
        found = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ServerLiveRequest()
            for key in ("Bearer key", "Bearer other", "break"):
                call = stub.ServerLive(request, metadata=[("authorization", key), ("x-bin", b"\0")])
                found.append(await call.code())
            found.append(await stub.ModelInfer(infer_message()).code())
            reflection = channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            )
            found.append(await reflection(iter([b""])).code())
            health = health_pb2_grpc.HealthStub(channel)
            found.append(await health.Check(health_pb2.HealthCheckRequest()).code())
        await server.stop(None)
        return [code.name for code in found]

    denied = "UNAUTHENTICATED"
    assert door.run(calling()) == ["OK", denied, "INTERNAL", denied, denied, "OK"]
    assert len(asked) == 5 and "x-bin" not in asked[0]


def test_connection_may_be_encrypted(door):
    async def calling():
        server = await rpc.start(
            door.repository,
            "127.0.0.1:0",
            Metrics(),
            credentials=grpc.local_server_credentials(),
        )
        address, credentials = f"127.0.0.1:{server.port}", grpc.local_channel_credentials()
        async with grpc.aio.secure_channel(address, credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            found = await stub.ServerLive(service_pb2.ServerLiveRequest())
        await server.stop(None)
        return found.live

    assert door.run(calling()) is True


def test_more_calls_than_allowed_are_refused(door):
    model = door.repository.model
    model.waiting.clear()

    async def calling():
        server = await rpc.start(door.repository, "127.0.0.1:0", Metrics(), max_calls=1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            message = infer_message(raw=bytes(8))
            message.parameters["do"].string_param = "wait"
            waits = stub.ModelInfer(message)
            await model.waiting.wait()
            code = await stub.ServerLive(service_pb2.ServerLiveRequest()).code()
            waits.cancel()
        await server.stop(None)
        return code

    assert door.run(calling()) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_taken_port_is_an_oserror(door):
    with pytest.raises(OSError, match=f"cannot listen on {door.address}"):
        door.run(rpc.start(door.repository, door.address, Metrics()))


def described(message):
    """What a descriptor says of each field, maps and choices among them, and of what is inside."""
    fields = {
        field.name: (
            field.number,
            field.type,
            field.label,
            field.type_name,
            message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else "",
        )
        for field in message.field
    }
    return (
        fields,
        message.options.map_entry,
        {one.name: described(one) for one in message.nested_type},
    )


def assert_part(ours, theirs):
    assert ours[0].items() <= theirs[0].items() and ours[1] == theirs[1]
    for name, inner in ours[2].items():
        assert_part(inner, theirs[2][name])


def test_messages_are_those_of_the_protocol():
    ours, theirs = (descriptor_pb2.FileDescriptorProto() for _ in range(2))
    messages.pool().FindFileByName("inference.proto").CopyToProto(ours)
    service_pb2.DESCRIPTOR.CopyToProto(theirs)
    assert (ours.package, ours.syntax) == (theirs.package, theirs.syntax)
    known = {message.name: described(message) for message in theirs.message_type}
    assert len(ours.message_type) == 27
    for message in ours.message_type:
        assert_part(described(message), known[message.name])
    methods = {one.name: one for one in theirs.service[0].method}
    assert ours.service[0].name == theirs.service[0].name
    for method in ours.service[0].method:
        known_method = methods[method.name]
        assert not (known_method.client_streaming or known_method.server_streaming)
        assert (method.input_type, method.output_type) == (
            known_method.input_type,
            known_method.output_type,
        )
