"""Malformed and malicious HTTP requests: each is answered or cut off, and the service continues.

`make test-soak` sends many more of them. It sets REQUESTS and CLIENTS.
"""

import asyncio
import gzip
import json
import os
import random
import re
import socket

import numpy as np
import pytest
import tritonclient.grpc
from copy_artifact import COPY_STEPS, make
from running_service import one_busy_thread, site
from tritonclient.utils import InferenceServerException
from uvicorn.protocols.http import httptools_impl

from keras_bahdanau_runtime.service import connection as connection_module
from keras_bahdanau_runtime.service.settings import Limits

REQUESTS = int(os.environ.get("REQUESTS", "300"))
CLIENTS = int(os.environ.get("CLIENTS", "200"))
LIMITS = Limits(characters=500, tokens=200, texts=50, body=100_000, bodies=100_000, timeout=20)
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a man"]}
SOURCE = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 3]}
BODIES = {
    "/translate": {"text": ["a man", "a dog"], "n_best": 1, "alignments": True, "timeout": 5},
    "/translate/stream": {"text": "a man on a bike", "model": "copy"},
    "/v2/models/copy/infer": {"inputs": [TEXT], "parameters": {"n_best": 1}, "id": "1"},
    "/v2/models/copy-graph/infer": {"inputs": [SOURCE], "outputs": [{"name": "tokens"}]},
}
ODD_VALUES = [
    *(None, True, "", "x", "\ud800", "\x00", "INT64", "FP16", "BYTES", -1, 0, 10**30, 1e308),
    *([], {}, [[[]]], [10**6, 10**6], [-1], [2**62, 4], {"binary_data_size": 2**62}),
]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = make(tmp_path_factory.mktemp("attacks") / "copy", steps=COPY_STEPS)
    with site({"copy": path}, limits=LIMITS, grpc_port=0, parallel_batches=2) as service:
        yield service


def address(running):
    return running.web.base_url.host, running.web.base_url.port


def connect(running):
    return socket.create_connection(address(running), timeout=60)


def read_all(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


def exchange(running, sent):
    """Return everything that the service answers to these bytes, or b"" after a reset."""
    with connect(running) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)
        except ConnectionError:
            return b""


def request(path, body, *headers):
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode("latin-1") + body


def still_answers(running):
    response = running.web.post("/translate", json={"text": "a man"})
    return response.status_code == 200 and response.json()["translations"][0]["text"] == "a man"


def entries(value):
    """Yield every entry of nested lists and dicts as `(container, key)`."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from entries(value[key])


def malformed_request(rng):
    """Return a request with one random mistake."""
    path = rng.choice(list(BODIES))
    document = json.loads(json.dumps(BODIES[path]))
    kind = rng.choice(["value", "value", "more", "bytes", "head", "binary", "length", "packed"])
    if kind in ("value", "more"):
        container, key = rng.choice(list(entries(document)))
        if kind == "more":
            key = rng.choice(["shape", "parameters", "data", "x", "id"])
        if kind == "value" or isinstance(container, dict):
            container[key] = rng.choice(ODD_VALUES)
    body = json.dumps(document).encode()
    if kind == "bytes":
        start = rng.randrange(len(body))
        body = body[:start] + rng.randbytes(rng.randrange(4)) + body[start + rng.randrange(4) :]
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
        name = b"Content-Length: "
        sent = sent.replace(name, name + rng.choice([b"-", b"9", b"x"]))
    return bytes(sent)


def test_malformed_requests_are_answered_and_the_service_continues(running):
    for seed in range(REQUESTS):
        sent = malformed_request(random.Random(seed))
        received = exchange(running, sent)
        if received:
            status = int(received.split(b" ", 2)[1])
            assert status < 500 or status in (503, 504), (seed, sent, received[:500])
    assert still_answers(running)


@pytest.mark.parametrize("shape", [[0, 3], [1, 0], [0, 0]])
def test_an_empty_axis_does_not_reach_a_graph(running, shape):
    path = "/v2/models/copy-graph/infer"
    source = {"name": "source", "datatype": "INT32", "shape": shape}
    raw = json.dumps({"inputs": [{**source, "parameters": {"binary_data_size": 0}}]}).encode()
    size = {"Inference-Header-Content-Length": str(len(raw))}
    for response in (
        running.web.post(path, json={"inputs": [{**source, "data": []}]}),
        running.web.post(path, content=raw, headers=size),
    ):
        assert response.status_code == 400 and response.json()["argument"] == "source"
    with tritonclient.grpc.InferenceServerClient(running.service.grpc_address) as client:
        tensor = tritonclient.grpc.InferInput("source", shape, "INT32")
        tensor.set_data_from_numpy(np.zeros(shape, np.int32))
        with pytest.raises(InferenceServerException, match="at least 1") as caught:
            client.infer("copy-graph", [tensor])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


POST = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a line": b"hello\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "HTTP 9": b"GET / HTTP/9.9\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": POST + b"Content-Length: 4\r\n" + CHUNKED + b"1\r\na\r\n0\r\n\r\n",
    "a huge chunk": POST + CHUNKED + b"ffffffffffffffff\r\na",
    "a chunk without a size": POST + CHUNKED + b"zz\r\na\r\n0\r\n\r\n",
    "half a body": POST + b"Content-Length: 100\r\n\r\n{",
    "an expectation": POST + b"Expect: x\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_connections_are_answered_or_closed(running, name):
    received = exchange(running, MALFORMED[name])
    head, _, body = received.partition(b"\r\n\r\n")
    assert b" 5" not in head.split(b"\r\n")[0]
    if b" 400 " in head:
        assert b"\r\ncontent-type: application/json\r\n" in head.lower()
        assert f"content-length: {len(body)}\r\n".encode() in head.lower()
        assert set(json.loads(body)) == {"error", "code", "argument"}
    assert b" 400 " in head or name != "a line"
    assert still_answers(running)


def test_an_endless_head_is_cut_off(running):
    headers = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(1000))
    assert exchange(running, b"GET / HTTP/1.1\r\n" + headers).startswith(b"HTTP/1.1 431 ")
    assert still_answers(running)


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
def test_a_head_in_one_piece_is_limited(running, end):
    head = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-A: "
    rest = b"\r\n\r\n" if end else b""
    smaller = head + b"a" * (connection_module.HEAD_BYTES - len(head))
    assert in_pieces(running, [smaller + b"\r\n\r\n"]).startswith(b"HTTP/1.1 200 ")
    assert in_pieces(running, [smaller + b"a" + rest]).startswith(b"HTTP/1.1 431 ")
    first = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    pipelined = [first + smaller + b"a" * 100 + rest, b"\r\n\r\n"]
    assert b"HTTP/1.1 431 " in in_pieces(running, pipelined)


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        (b"1.0", b"Transfer-Encoding: chunked\r\n"),
        (b"1.0", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        (b"1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        (b"1.1", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        (b"1.1", b"Transfer-Encoding: gzip, chunked\r\n"),
        (b"1.1", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        (b"1.1", b"Transfer-Encoding: identity\r\n"),
        (b"1.1", b"Transfer-Encoding: chunked, identity\r\n"),
    ],
)
def test_a_body_whose_end_is_ambiguous_is_refused(running, version, headers):
    sent = b"POST /translate HTTP/%s\r\nHost: localhost\r\n%s\r\n" % (version, headers)
    body = b'd\r\n{"text": "a"}\r\n0\r\n\r\n'
    received = in_pieces(running, [sent + body])
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in received.lower()


def test_unfinished_bodies_are_limited_together(running):
    def body_bytes():
        text = running.web.get("/metrics").text
        return float(re.search(r"^keras_bahdanau_body_bytes (.*)$", text, re.MULTILINE)[1])

    free, limit = 2**16, LIMITS.bodies
    large, connections = b" " * LIMITS.body, []
    size = LIMITS.body - 1
    for _ in range(limit // (size - free)):
        connections.append(connect(running))
        connections[-1].sendall(request("/translate", large)[:-1])
    while body_bytes() < len(connections) * (size - free):
        pass
    packed = gzip.compress(b'{"text": "a man"}' + b" " * (size - 100))
    for sent in (
        request("/translate", large),
        request("/translate", packed, "Content-Encoding: gzip"),
    ):
        received = exchange(running, sent)
        assert received.startswith(b"HTTP/1.1 429 ") and b"retry-after: 1" in received.lower()
    assert still_answers(running)
    for connection in connections:
        connection.close()
    while body_bytes():
        pass
    headers = {"Content-Encoding": "gzip"}
    assert running.web.post("/translate", content=packed, headers=headers).status_code == 200


def in_pieces(running, pieces):
    """Return the response to bytes that arrive in exactly these pieces."""
    config = running.service._http.config

    async def receive():
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        _, protocol = await loop.connect_accepted_socket(
            lambda: config.http(
                config=config, server_state=running.service._http.server_state, app_state={}
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


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xa6\x01\x00\x00\xa2\x03\x03" + b"\x01" * 160,  # TLS
        b"GET /v2 HTTP/1.1\nHost: localhost\n\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\n\r",
    ],
)
def test_bytes_that_are_no_head_are_refused_before_it_times_out(running, sent):
    assert in_pieces(running, [sent]).startswith(b"HTTP/1.1 400 ")


def test_a_pipelined_request_for_an_upgrade_is_refused(running):
    first = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    body = b'{"text": "a man"}'
    second = POST + upgrade + b"Content-Length: %d\r\n\r\n" % len(body) + body
    received = in_pieces(running, [first + b"\r\n" + second])
    assert received.startswith(b"HTTP/1.1 400 ") and b'"argument": "Upgrade"' in received
    alone = first + b"Upgrade: h2c\r\nConnection: close\r\n\r\n"
    assert in_pieces(running, [alone]).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_looks_like_a_head_is_not_parsed_as_one(running):
    text = b"x\r\nupgrade: 1\r\n\r\nGET / HTTP/1.1"
    size = {"binary_data_size": len(text) + 4}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": size}
    header = json.dumps({"inputs": [tensor]}).encode()
    body = header + len(text).to_bytes(4, "little") + text
    lines = [
        b"POST /v2/models/copy/infer HTTP/1.1", b"Host: localhost", b"Upgrade: h2c",
        b"Inference-Header-Content-Length: %d" % len(header), b"Connection: close, Upgrade",
        b"Content-Length: %d" % len(body), b"", b"",
    ]  # fmt: skip
    head = b"\r\n".join(lines)
    sent = head + body
    responses = set()
    for cut in (*range(40, 70), *range(len(head) - 5, len(head) + 20), len(sent)):
        received = in_pieces(running, [sent[:cut], sent[cut:]])
        assert received.startswith(b"HTTP/1.1 200") and received.count(b"HTTP/1.1 ") == 1
        responses.add(received.partition(b"\r\n\r\n")[2])
    assert len(responses) == 1 and b"x-upgrade" not in responses.pop().lower()


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
        # The response precedes the body.
        (b"POST /v2/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", b"x" * 10),
    ],
)
def test_bytes_after_a_response_do_not_keep_a_connection_open(running, monkeypatch, head, rest):
    with connect(running) as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        monkeypatch.setattr(connection_module, "HEAD_SECONDS", 0.05)
        connection.sendall(rest)
        read_all(connection)


@pytest.mark.parametrize(
    ("limit", "part"),
    [
        ("HEAD_SECONDS", b"GET / HTTP/1.1\r\nX-A"),
        ("BODY_SECONDS", request("/translate", b'{"text": "a man"}')[:-1]),
    ],
)
def test_a_request_that_takes_too_long_to_arrive_is_cut_off(running, monkeypatch, limit, part):
    monkeypatch.setattr(connection_module, limit, 0.5)
    slow = [connect(running) for _ in range(50)]
    for connection in slow:
        connection.sendall(part)
    assert still_answers(running)
    for connection in slow:
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")
        connection.close()
    assert still_answers(running)


def test_the_time_of_a_pipelined_request_starts_after_the_response_before_it(running, monkeypatch):
    monkeypatch.setattr(connection_module, "HEAD_SECONDS", 0.1)
    whole = request("/translate", b'{"text": "a man"}').replace(b"close", b"keep-alive")
    with one_busy_thread(running) as busy, one_busy_thread(running), connect(running) as connection:
        connection.sendall(whole + b"GET /v2 HTTP/1.1\r\nX-A")
        while "queue_length 3.0" not in running.web.get("/metrics").text:
            pass
        with connect(running) as later:
            assert later.recv(1) == b""  # closed, although it was opened later
        busy.gate.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_response_before_the_end_of_a_body_arrives(running):
    body = b" " * 4_000_000  # the limit is 100,000
    assert exchange(running, request("/translate", body)).startswith(b"HTTP/1.1 413 ")
    http_1_0 = request("/v2/none", body).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert exchange(running, http_1_0).startswith(b"HTTP/1.1 404 ")


def test_the_work_of_a_client_that_disconnects_after_a_large_body_is_dropped(running, monkeypatch):
    # uvicorn stops reading when 64 KiB of a body arrive at once. Here every piece is that large.
    monkeypatch.setattr(httptools_impl, "HIGH_WATER_LIMIT", 1)
    body = b'{"text": ["a", "b", "c"]}'
    with one_busy_thread(running), one_busy_thread(running):
        with connect(running) as connection:
            connection.sendall(request("/translate", body).removesuffix(body))
            assert "queue_length 2.0" in running.web.get("/metrics").text
            connection.sendall(body)  # the service already waits for it
            while "queue_length 5.0" not in running.web.get("/metrics").text:
                pass
        metrics = (running.web.get("/metrics").text for _ in range(100))
        assert any("queue_length 2.0" in text for text in metrics)


@pytest.mark.parametrize("header", [b"", b"Expect: 100-continue\r\n"])
def test_http_1_0_responses_have_a_length_and_no_chunks(running, header):
    body = b'{"text": "a man"}'
    sent = b"POST /translate/stream HTTP/1.0\r\n%sContent-Length: %d\r\n\r\n" % (header, len(body))
    head, _, stream = in_pieces(running, [sent + body]).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding" not in head.lower()
    assert f"content-length: {len(stream)}".encode() in head.lower()
    assert stream.endswith(b'data: {"text":"a man"}\n\n')


def test_simultaneous_clients_are_all_answered(running):
    sent = request("/translate", b'{"text": "a man"}')
    clients = [connect(running) for _ in range(CLIENTS)]
    for client in clients:
        client.sendall(sent)
    for client in clients:
        with client:
            received = read_all(client)
            assert received.startswith(b"HTTP/1.1 200") and b'"a man"' in received


def test_work_of_disconnected_clients_is_dropped(running):
    for path, body in BODIES.items():
        for _ in range(20):
            connection = connect(running)
            connection.sendall(request(path, json.dumps(body).encode()))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()  # with a reset
    assert still_answers(running)
    while "queue_length 0.0" not in running.web.get("/metrics").text:
        pass
