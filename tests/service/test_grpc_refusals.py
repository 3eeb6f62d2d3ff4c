"""gRPC requests that are refused, and the status and message of each error."""

import asyncio

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_server import (
    MESSAGE_BYTES,
    action_message,
    connect,
    infer_input,
    infer_message,
    running_server,
    start_server,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from keras_bahdanau_runtime.service import grpc as rpc
from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.bodies import BodyMemory
from keras_bahdanau_runtime.service.errors import KINDS
from keras_bahdanau_runtime.service.middleware import ApiKeys
from keras_bahdanau_runtime.service.protocol import DATATYPES


@pytest.fixture(scope="module")
def server():
    with running_server() as server:
        yield server


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
        (infer_message("INT8", raw=bytes(2), int_contents=[1, 2]), "be empty if"),
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
    assert code == "INVALID_ARGUMENT" and f"must be a {method}Request" in details


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


def http2_frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def unfinished_call(path):
    """Return the bytes of a call that announces a message and sends only a part of it."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    fields = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    data = b"\0" + (MESSAGE_BYTES - 1).to_bytes(4) + b"part"
    return b"".join(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            http2_frame(4, 0, 0),  # SETTINGS
            http2_frame(1, 4, 1, fields),  # HEADERS
            http2_frame(0, 0, 1, data),
        ]
    )


@pytest.mark.parametrize("wait", ["_PATIENCE", "BODY_SECONDS"])
def test_calls_whose_message_does_not_arrive_are_refused(server, monkeypatch, wait):
    """`_PATIENCE` while other calls wait, `BODY_SECONDS` otherwise."""
    for name in ("_PATIENCE", "BODY_SECONDS"):
        monkeypatch.setattr(rpc, name, 0.05 if name == wait else 600)
    paths = [f"/{messages.SERVICE}/ModelInfer", "/grpc.health.v1.Health/Check"]
    paths.append("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")

    async def read_refusal(reader):
        received = b""
        while b"arrives too slowly" not in received:
            part = await reader.read(65536)
            assert part
            received += part

    async def stall_and_call():
        bodies = BodyMemory(server.metrics.bodies, len(paths) * MESSAGE_BYTES)
        options = {"max_message_bytes": MESSAGE_BYTES, "bodies": bodies}
        async with start_server(server.repository, **options) as address:
            host, port = address.split(":")
            stalled = [await asyncio.open_connection(host, port) for _ in paths]
            for (_, writer), path in zip(stalled, paths, strict=True):
                writer.write(unfinished_call(path))
            refusals = [asyncio.ensure_future(read_refusal(reader)) for reader, _ in stalled]
            # The timeout is that of a failure.
            async with asyncio.timeout(60), connect(address) as (stub, _):
                if wait == "_PATIENCE":  # one refusal makes room for other calls
                    while not any(refusal.done() for refusal in refusals):
                        await stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=30)
                else:
                    await asyncio.gather(*refusals)
                for refusal in refusals:
                    refusal.cancel()
                for _, writer in stalled:
                    writer.close()
                return await stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=30)

    assert server.run(stall_and_call()).live


def test_methods_that_are_not_offered_are_unimplemented(server):
    with pytest.raises(InferenceServerException) as caught:
        server.call("get_model_config", "identity")
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_calls_are_authorized_except_for_health(server):
    calls = []

    class Keys(ApiKeys):
        def check(self, headers):
            calls.append(dict(headers))
            if headers.get("authorization") == "break":
                raise RuntimeError("an internal secret")
            super().check(headers)

    async def call_each():
        async with (
            start_server(server.repository, keys=Keys(["key"])) as address,
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
