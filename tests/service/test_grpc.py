"""gRPC endpoint, called by Triton's client over a real port. Its model returns its inputs."""

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
from grpc_server import connect, infer_input, infer_message, running_server
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.protocol import DATATYPES

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture(scope="module")
def server():
    with running_server() as server:
        yield server


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
    fields = {line.request_id: (line.model, line.error) for line in caplog.records}
    assert fields["of identity"] == ("identity", "") and fields["of stranger"] == ("", "not_found")
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
    with pytest.raises(InferenceServerException, match="has no options"):
        server.call("load_model", "identity", config="{}")


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
        patch.setattr(server.repository, "is_ready", False)
        assert server.run(check(names)) == [NOT_SERVING, SERVING, NOT_SERVING]
        assert server.call("is_server_ready") is False
    monkeypatch.setattr(server.repository, "is_terminating", True)
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
            monkeypatch.setattr(server.repository, "is_terminating", True)
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
