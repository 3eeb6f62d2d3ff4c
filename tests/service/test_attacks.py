"""Requests of those who mean harm, or know no better: an answer or an end, and the service goes on.

`make test-soak` sends many more of them: the numbers are taken from REQUESTS and CLIENTS.
"""

import asyncio
import json
import os
import random
import socket

import numpy as np
import pytest
import tritonclient.grpc
from copy_artifact import COPY_STEPS, make
from running_service import held, site
from tritonclient.utils import InferenceServerException

from keras_bahdanau_runtime.service import connections
from keras_bahdanau_runtime.service.engine import Limits

REQUESTS = int(os.environ.get("REQUESTS", "300"))
CLIENTS = int(os.environ.get("CLIENTS", "200"))
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a man"]}
SOURCE = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 3]}
BODIES = {
    "/translate": {"text": ["a man", "a dog"], "n_best": 1, "alignments": True, "timeout": 5},
    "/translate/stream": {"text": "a man on a bike", "model": "copy"},
    "/v2/models/copy/infer": {"inputs": [TEXT], "parameters": {"n_best": 1}, "id": "1"},
    "/v2/models/copy-graph/infer": {"inputs": [SOURCE], "outputs": [{"name": "tokens"}]},
}
ODD = [None, True, "", "x", "\ud800", -1, 0, 10**30, 1e308, [], {}, [[[]]], [10**6, 10**6],
       [-1], [2**62, 4], {"binary_data_size": 2**62}, "\x00", "INT64", "FP16", "BYTES"]  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = make(tmp_path_factory.mktemp("attacks") / "copy", steps=COPY_STEPS)
    limits = Limits(characters=500, tokens=200, texts=50, body=100_000, seconds=20)
    with site({"copy": path}, limits=limits, grpc_port=0) as found:
        yield found


def address(running):
    host, port = running.service.url.removeprefix("http://").split(":")
    return host, int(port)


def exchange(running, sent, more=()):
    """What comes back for these bytes until the service has nothing more to say."""
    with socket.create_connection(address(running), timeout=60) as connection:
        try:
            connection.sendall(sent)
            for part in more:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            return b""
    return received


def request(path, body, *headers):
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode("latin-1") + body


def still_answers(running):
    answer = running.web.post("/translate", json={"text": "a man"})
    return answer.status_code == 200 and answer.json()["translations"][0]["text"] == "a man"


def places(value):
    """Every place in nested lists and dicts, as `(container, key)`."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def spoiled(rng):
    """A request of which some part is not what it should be."""
    path = rng.choice(list(BODIES))
    document = json.loads(json.dumps(BODIES[path]))
    kind = rng.choice(["value", "value", "more", "bytes", "head", "binary", "length", "packed"])
    if kind in ("value", "more"):
        container, key = rng.choice(list(places(document)))
        if kind == "value":
            container[key] = rng.choice(ODD)
        elif isinstance(container, dict):
            container[rng.choice(["shape", "parameters", "data", "x", "id"])] = rng.choice(ODD)
    body = json.dumps(document).encode()
    if kind == "bytes":
        at = rng.randrange(len(body))
        body = body[:at] + rng.randbytes(rng.randrange(4)) + body[at + rng.randrange(4) :]
    if kind == "binary":
        header = rng.choice([0, 1, len(body), len(body) + 1, 10**12, -1, "x"])
        body += rng.randbytes(rng.randrange(20))
        return request(path, body, f"Inference-Header-Content-Length: {header}")
    if kind == "packed":
        return request(path, body, f"Content-Encoding: {rng.choice(['gzip', 'deflate', 'br', ''])}")
    sent = bytearray(request(path, body))
    if kind == "head":
        for _ in range(rng.choice([1, 3])):
            sent[rng.randrange(100)] = rng.randrange(256)
    if kind == "length":
        sent = sent.replace(
            b"Content-Length: ", b"Content-Length: " + rng.choice([b"-", b"9", b"x"])
        )
    return bytes(sent)


def test_spoiled_requests_are_answered_and_the_service_goes_on(running):
    for seed in range(REQUESTS):
        sent = spoiled(random.Random(seed))
        received = exchange(running, sent)
        if received:
            status = int(received.split(b" ", 2)[1])
            assert status < 500 or status in (503, 504), (seed, sent, received[:500])
    assert still_answers(running)


@pytest.mark.parametrize("shape", [[0, 3], [1, 0], [0, 0]])
def test_an_empty_axis_does_not_reach_a_graph(running, shape):
    path = "/v2/models/copy-graph/infer"
    sent = {"name": "source", "datatype": "INT32", "shape": shape}
    raw = json.dumps({"inputs": [{**sent, "parameters": {"binary_data_size": 0}}]}).encode()
    for answer in (
        running.web.post(path, json={"inputs": [{**sent, "data": []}]}),
        running.web.post(
            path, content=raw, headers={"Inference-Header-Content-Length": str(len(raw))}
        ),
    ):
        assert answer.status_code == 400 and answer.json()["argument"] == "source"
    with tritonclient.grpc.InferenceServerClient(running.service.grpc_address) as client:
        tensor = tritonclient.grpc.InferInput("source", shape, "INT32")
        tensor.set_data_from_numpy(np.zeros(shape, np.int32))
        with pytest.raises(InferenceServerException, match="at least 1") as refused:
            client.infer("copy-graph", [tensor])
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


HEADS = {
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a line": b"hello\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "HTTP 9": b"GET / HTTP/9.9\r\n\r\n",
    "two lengths": b"POST /translate HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST /translate HTTP/1.1\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "a chunk of many bytes": b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\na",
    "a chunk of no number": b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\na\r\n0\r\n\r\n",
    "half a body": b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    "expectations": b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: x\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", HEADS)
def test_what_is_no_request_does_no_harm(running, name):
    received = exchange(running, HEADS[name])
    head, _, body = received.partition(b"\r\n\r\n")
    assert b" 5" not in head.split(b"\r\n")[0]
    if b" 400 " in head:
        assert b"\r\ncontent-type: application/json\r\n" in head.lower()
        assert f"content-length: {len(body)}\r\n".encode() in head.lower()
        assert set(json.loads(body)) == {"error", "code", "argument"}
    assert b" 400 " in head or name != "a line"
    assert still_answers(running)


def test_a_head_without_end_is_cut(running):
    many = [b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(1000)]
    received = exchange(running, b"GET / HTTP/1.1\r\n", many)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert still_answers(running)


def in_pieces(running, pieces):
    """What comes back for bytes that arrive in these pieces, whatever a network made of them."""
    config = running.service._web.config

    async def receive():
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        _, protocol = await loop.connect_accepted_socket(
            lambda: config.http(
                config=config, server_state=running.service._web.server_state, app_state={}
            ),
            theirs,
        )
        for piece in pieces:
            protocol.data_received(piece)
        reader, writer = await asyncio.open_connection(sock=ours)
        received = await reader.read()  # to the end: the request closes
        writer.close()
        return received

    return running.call(receive())


def test_a_body_is_read_as_long_as_it_says_however_it_comes(running):
    text = b"x\r\nupgrade: 1\r\n\r\nGET / HTTP/1.1"
    item = {"name": "text", "datatype": "BYTES", "shape": [1]}
    size = {"binary_data_size": len(text) + 4}
    asked = json.dumps({"inputs": [{**item, "parameters": size}]}).encode()
    body = asked + len(text).to_bytes(4, "little") + text
    lines = [
        b"POST /v2/models/copy/infer HTTP/1.1", b"Host: localhost", b"Upgrade: h2c",
        b"Inference-Header-Content-Length: %d" % len(asked), b"Connection: close, Upgrade",
        b"Content-Length: %d" % len(body), b"", b"",
    ]  # fmt: skip
    head = b"\r\n".join(lines)
    found = set()
    for cut in (*range(40, 70), *range(len(head) - 5, len(head) + 20), None):
        pieces = [head + body] if cut is None else [(head + body)[:cut], (head + body)[cut:]]
        received = in_pieces(running, pieces)
        assert received.startswith(b"HTTP/1.1 200") and received.count(b"HTTP/1.1 ") == 1
        found.add(received.partition(b"\r\n\r\n")[2])
    assert len(found) == 1 and b"x-upgrade" not in found.pop().lower()


@pytest.mark.parametrize(
    "more", [b"\r\n", request("/translate", b"x" * 10).partition(b"\r\n\r\n")[2]]
)
def test_what_comes_after_an_answer_does_not_keep_a_connection(running, monkeypatch, more):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with socket.create_connection(address(running), timeout=60) as connection:
        # Refused before its body has come.
        connection.sendall(
            b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            if more == b"\r\n"
            else b"POST /v2/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        connection.sendall(more)
        while connection.recv(65536):
            pass  # the rest of the answer, and then the end


@pytest.mark.parametrize(
    ("limit", "begun"),
    [
        ("HEADER_SECONDS", b"GET / HTTP/1.1\r\nX-A"),
        ("BODY_SECONDS", request("/translate", b'{"text": "a man"}')[:-1]),
    ],
)
def test_a_request_that_takes_for_ever_is_cut(running, monkeypatch, limit, begun):
    monkeypatch.setattr(connections, limit, 0.5)
    slow = [socket.create_connection(address(running), timeout=60) for _ in range(50)]
    for connection in slow:
        connection.sendall(begun)
    assert still_answers(running)
    for connection in slow:
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")  # its time is up
        assert connection.recv(1) == b""
        connection.close()
    assert still_answers(running)


def test_a_request_has_its_time_when_the_one_before_is_answered(running, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    whole = request("/translate", b'{"text": "a man"}').replace(b"close", b"keep-alive")
    with held(running) as first, held(running), socket.create_connection(address(running)) as one:
        one.sendall(whole + b"GET /v2 HTTP/1.1\r\nX-A")
        while "queue_length 3.0" not in running.web.get("/metrics").text:
            pass
        with socket.create_connection(address(running), timeout=60) as late:
            assert late.recv(1) == b""  # the time of one that comes later is up
        first.gate.set()
        assert one.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_answer_before_the_end_of_a_body_is_received(running):
    body = b" " * 4_000_000  # where at most 100,000 are taken
    assert exchange(running, request("/translate", body)).startswith(b"HTTP/1.1 413 ")
    old = request("/v2/none", body).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert exchange(running, old).startswith(b"HTTP/1.1 404 ")


def test_an_answer_that_nobody_reads_is_given_up(running, monkeypatch):
    monkeypatch.setattr(connections, "READ_SECONDS", 0.1)
    # An answer has 350 kB, so a few fill the send buffers.
    body = json.dumps({"text": 50 * [38 * "a "], "alignments": True}).encode()
    sent = request("/translate", body).replace(b"close", b"keep-alive")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address(running))
        client.settimeout(60)
        with pytest.raises(ConnectionError):
            while client.sendall(sent) is None:
                pass
    assert still_answers(running)


@pytest.mark.parametrize("more", [b"", b"Expect: 100-continue\r\n"])
def test_who_speaks_http_1_0_is_answered_in_it(running, more):
    body = b'{"text": "a man"}'
    head = b"POST /translate/stream HTTP/1.0\r\n%sContent-Length: %d\r\n\r\n" % (more, len(body))
    head, _, answer = in_pieces(running, [head + body]).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding" not in head.lower()
    assert f"content-length: {len(answer)}".encode() in head.lower()
    assert answer.endswith(b'data: {"text":"a man"}\n\n')


def test_many_clients_at_once_are_all_answered(running):
    async def ask():
        reader, writer = await asyncio.open_connection(*address(running))
        writer.write(request("/translate", b'{"text": "a man"}'))
        received = await reader.read()
        writer.close()
        return received

    async def go():
        return await asyncio.gather(*(ask() for _ in range(CLIENTS)))

    for received in asyncio.run(go()):
        assert received.startswith(b"HTTP/1.1 200") and b'"a man"' in received


def test_clients_that_vanish_leave_nothing(running):
    for path, body in BODIES.items():
        for _ in range(20):
            connection = socket.create_connection(address(running), timeout=60)
            connection.sendall(request(path, json.dumps(body).encode()))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()  # with a reset
    assert still_answers(running)
    while "queue_length 0.0" not in running.web.get("/metrics").text:
        pass
