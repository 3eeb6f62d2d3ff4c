"""HTTP endpoints: responses, the shape of errors, compressed bodies, streams, keys and metrics."""

import asyncio
import contextlib
import gzip
import http.client
import json
import platform
import re
import socket
import sys
import threading
import zlib

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import tritonclient.grpc
from copy_artifact import COPY_SCORE, COPY_STEPS, copy_graph, make
from running_service import one_busy_thread, site
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from keras_bahdanau_runtime.request import TranslationRequest
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.service import engine, graph_model, models, protocol, schemas
from keras_bahdanau_runtime.service import http as http_module
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.graph_model import GraphModel
from keras_bahdanau_runtime.service.settings import Limits

LIMITS = Limits(characters=200, tokens=60, texts=8, body=100_000)
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a man"]}
SOURCE = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [[5, 6, 3]]}
REQUESTS = {
    "copy": {"inputs": [TEXT]},
    "copy-graph": {"inputs": [SOURCE], "outputs": [{"name": "lengths"}]},
}
SEARCH = {"class": "BeamSearch", "size": 2}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("http")
    sources = {
        "copy": make(folder / "copy", steps=COPY_STEPS, search=SEARCH, max_source_length=None),
        "whole": make(folder / "whole"),
        "bare": make(folder / "bare", document=None),
    }
    with site(sources, limits=LIMITS) as service:
        yield service


@pytest.fixture
def web(running):
    return running.web


def translate(web, text, **options):
    return web.post("/translate", json={"text": text, **options})


def infer(web, model, request):
    return web.post(f"/v2/models/{model}/infer", json=request)


def problem(response, status, argument=None):
    """Assert the status and shape of an error; return its message."""
    body = response.json()
    assert response.status_code == status, body
    assert set(body) == {"error", "code", "argument"} and body["argument"] == argument
    return body["error"]


def test_a_request_to_upgrade_to_http2_is_answered_in_http1(running):
    """Java's client and `curl --http2` send one with every request."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    }
    address = running.service.url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:
        for _ in range(2):
            connection.request("POST", "/translate", json.dumps({"text": "a man"}), headers)
            response = connection.getresponse()
            assert response.status == 200
            assert json.loads(response.read())["translations"][0]["text"] == "a man"


def test_requests_from_pages_of_other_sites_are_refused(web):
    unload = "/v2/repository/models/copy/unload"
    other_origins = ("http://evil.example", "null", "http://[", f"https://{web.base_url.host}")
    for header, foreign, own in (
        ("Sec-Fetch-Site", ("cross-site", "same-site"), ("same-origin", "none")),
        ("Origin", other_origins, (str(web.base_url).rstrip("/"),)),
    ):
        for value in foreign:
            response = web.post(unload, content=b"{}", headers={header: value})
            assert "other sites" in problem(response, 403)
        for value in own:
            response = web.post("/translate", json={"text": "a"}, headers={header: value})
            assert response.status_code == 200
    assert web.get("/metrics", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", ""]
)
def test_foreign_host_names_are_refused_without_keys(web, host):
    """A page may give its own name the address of this machine (DNS rebinding)."""
    for method, path in (("GET", "/v2"), ("POST", "/translate"), ("GET", "/")):
        response = web.request(method, path, headers={"Host": host, "Origin": f"http://{host}"})
        assert problem(response, 403, "Host")


def test_host_names_of_this_machine_are_accepted(web):
    for host in ("localhost", "localhost:80", "127.0.0.1:1", "[::1]:8000", "192.168.0.7"):
        assert web.get("/v2", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
def test_a_request_must_have_exactly_one_host_header(web, hosts):
    heads = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection((web.base_url.host, web.base_url.port)) as connection:
        connection.sendall(f"GET /v2 HTTP/1.1\r\n{heads}Connection: close\r\n\r\n".encode())
        response = b"".join(iter(lambda: connection.recv(65536), b""))
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"`Host`. Received: %d" % len(hosts) in response


def test_no_auth_accepts_any_host_name(tmp_path):
    with site({"copy": make(tmp_path / "copy")}, no_auth=True) as service:
        assert service.web.get("/v2", headers={"Host": "models.example"}).status_code == 200


def test_a_response_with_too_many_alignment_weights_is_refused(web, monkeypatch):
    request = {"text": ["a man", "a dog"], "alignments": True, "model": "whole"}
    weights = 2 * 3 * 3  # two matrices of three tokens, the end of the sentence included
    monkeypatch.setattr(models, "MAX_NUMBERS", weights)
    assert translate(web, **request).status_code == 200
    monkeypatch.setattr(models, "MAX_NUMBERS", weights - 1)
    assert str(weights) in problem(translate(web, **request), 413, "alignments")
    assert translate(web, **{**request, "alignments": False}).status_code == 200


def test_a_large_body_is_parsed_outside_of_the_event_loop(running, web, monkeypatch):
    threads, parse = [], schemas.parse_object

    def recording_parse(text):
        threads.append(threading.current_thread())
        return parse(text)

    monkeypatch.setattr(schemas, "parse_object", recording_parse)
    assert translate(web, "a", model="x" * 70_000).status_code == 404
    assert translate(web, "a").status_code == 200
    assert threads[0] is not running._thread and threads[1] is running._thread


def test_a_run_that_fails_or_needs_too_much_memory_is_named(tmp_path):
    graph = copy_graph().replace("score = Neg (float_count)", "score = Gather (table, count)")
    graph = graph.replace("<int32 pad", "<float[4] table = {0.0, -1.0, -2.0, -3.0}, int32 pad")
    sources = {
        "short": make(tmp_path / "short", graph),
        "copy": make(tmp_path / "copy", max_source_length=None),
    }
    with site(sources, megabytes=1) as service:
        for model, length, status in ("short", 3, 200), ("short", 4, 422), ("copy", 600, 413):
            source = {**SOURCE, "shape": [1, length], "data": length * [5]}
            request = {"inputs": [source], "outputs": [{"name": "lengths"}]}
            text = " ".join((length - 1) * "b")
            for response in (
                infer(service.web, f"{model}-graph", request),
                translate(service.web, text, model=model),
            ):
                assert response.status_code == status, response.text
                if status != 200:
                    assert "The model failed" in problem(response, status)


def test_the_cost_of_a_request_is_limited_on_every_endpoint(tmp_path):
    search = {"class": "BeamSearch", "size": 2, "max_length": 10, "max_length_ratio": 2.0}
    artifact = make(tmp_path / "copy", steps=COPY_STEPS, score=COPY_SCORE, search=search)

    def inputs(name, datatype, shape, data):
        return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}

    # Four tokens with at most 8 steps and a beam of 2 cost 64, and five cost 100. Streams have a
    # beam of 1. A score has as many steps as the target has tokens, 8 or 9 here.
    requests = {
        "/translate": ({"text": "b b b"}, {"text": "b b b b"}),
        "/v2/models/copy/infer": (
            inputs("text", "BYTES", [1], ["b b b"]),
            inputs("text", "BYTES", [2], ["b b b", "b"]),
        ),
        "/v2/models/copy-graph/infer": (
            inputs("source", "INT32", [1, 4], 4 * [5]),
            inputs("source", "INT32", [2, 4], 8 * [5]),
        ),
        "/translate/stream": ({"text": "b b b b b"}, {"text": "b b b b b b"}),
        "/alternatives": ({"text": "b b b", "count": 2}, {"text": "b b b", "count": 3}),
        "/score": (
            {"text": "b b b b b b b", "target": "b b b b b b b"},
            {"text": "b b b b b b b b", "target": "b b b b b b b"},
        ),
    }
    requests["/v2/models/copy-graph/infer"][0]["outputs"] = [{"name": "tokens"}]
    requests["/align"] = requests["/score"]
    with site({"copy": artifact}, limits=Limits(cost=64)) as service:
        for path, (fits, costs_more) in requests.items():
            assert service.web.post(path, json=fits).status_code == 200, path
            response = service.web.post(path, json=costs_more)
            assert "at most 64," in problem(response, 413), path
            assert response.json()["code"] == "too_costly"
        text = service.web.get("/metrics").text
    assert "keras_bahdanau_max_request_cost 64.0" in text
    assert 'request_cost_count{model="copy"} 12.0' in text
    assert 'errors_total{kind="too_costly",model="copy"} 6.0' in text


def test_a_long_request_to_a_graph_runs_in_parts(tmp_path, monkeypatch):
    search = {"class": "BeamSearch", "size": 2, "max_length": 10}
    rows = np.arange(4, 39, dtype=np.int32).reshape(7, 5)
    source = {**SOURCE, "shape": [7, 5], "data": rows.tolist()}
    # A row costs 5 x 10 x 2.
    monkeypatch.setattr(graph_model, "BATCH_COST", 250)
    monkeypatch.setattr(engine, "BATCH_COST", 250)
    with site({"copy": make(tmp_path / "copy", search=search)}) as service:
        outputs = [{"name": name} for name in ("tokens", "lengths", "alignments")]
        response = infer(service.web, "copy-graph", {"inputs": [source], "outputs": outputs})
        tokens, lengths, alignments = response.json()["outputs"]
        assert 'batch_size_count{model="copy-graph"} 4.0' in service.web.get("/metrics").text
    assert tokens["shape"] == [7, 2, 5] and alignments["shape"] == [7, 2, 5, 5]
    copied = np.reshape(tokens["data"], (7, 2, 5))
    assert (copied[:, 0] == rows).all() and lengths["data"] == 7 * [5, 0]
    assert np.reshape(alignments["data"], (14, 5, 5)).tolist() == 14 * [np.eye(5).tolist()]


def test_a_response_of_a_graph_is_limited(web, monkeypatch):
    source = {**SOURCE, "shape": [1, 30_000], "data": 30_000 * [5]}
    # Four million attention weights are refused before they are computed.
    response = infer(web, "copy-graph", {"inputs": [source]})
    assert f"Received: {2 * 100 * 30_000} weights" in problem(response, 413, "outputs")
    request = {"inputs": [{**SOURCE}], "outputs": [{"name": "tokens"}]}
    for limit, status in (6, 200), (5, 413):
        monkeypatch.setattr(protocol, "MAX_NUMBERS", limit)
        assert infer(web, "copy-graph", request).status_code == status
    binary = {**request, "parameters": {"binary_data_output": True}}
    for limit, status in (24, 200), (23, 413):
        monkeypatch.setattr(protocol, "_MAX_RAW_BYTES", limit)
        assert infer(web, "copy-graph", binary).status_code == status


@pytest.mark.parametrize("path", ["/translate", "/v2/models/copy-graph/infer"])
def test_a_large_response_is_written_outside_of_the_event_loop(running, web, monkeypatch, path):
    threads, write = [], protocol._write

    def recording_write(array):
        threads.append(threading.current_thread())
        return write(array)

    monkeypatch.setattr(protocol, "_write", recording_write)
    monkeypatch.setattr(protocol, "_NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr(http_module, "_FEW_NUMBERS", 30)
    for length in 3, 9:
        source = {**SOURCE, "shape": [1, length], "data": length * [5]}
        text = {"text": (length - 1) * "b ", "alignments": True}
        outputs = {"inputs": [source], "outputs": [{"name": "alignments"}]}
        assert web.post(path, json=text if path == "/translate" else outputs).status_code == 200
        assert running._thread is threads[0] if length == 3 else running._thread not in threads
        threads.clear()


def test_unexpected_exceptions_are_counted(running):
    model = running.service.repository.get("whole")
    with pytest.raises(ArithmeticError), model._measure():
        raise ArithmeticError
    assert 'errors_total{kind="internal",model="whole"} 1.0' in running.web.get("/metrics").text


def test_n_best_is_limited_by_the_search_and_by_the_graph(tmp_path):
    search = {"class": "BeamSearch", "size": 5}
    sources = {
        "one": make(tmp_path / "one", search={**search, "n_best": 1}),
        "five": make(tmp_path / "five", search=search),  # more than its graph returns
    }
    with site(sources) as service:
        response = translate(service.web, "a", n_best=2, model="one")
        assert "from 1 to 1" in problem(response, 400, "n_best")
        response = translate(service.web, "a", n_best=5, model="five")
        assert response.status_code == 200 and len(response.json()["translations"]) == 1


def test_one_text_or_several_are_translated(web):
    response = translate(web, "a man on a bike")
    [translation] = response.json()["translations"]
    assert response.status_code == 200 and translation == {
        "text": "a man on a bike",
        "tokens": ["a", " man", " on", " a", " bike", "</s>"],
        "source_tokens": ["a", " man", " on", " a", " bike", "</s>"],
        "score": -6,
        "alignment": None,
        "error": None,
    }
    texts = ["a man", "", "नमस्ते 🙂", "a dog"]
    translations = translate(web, texts).json()["translations"]
    assert [translation["text"] for translation in translations] == texts
    assert [each["score"] is None for each in translations] == [not text for text in texts]


@pytest.mark.parametrize("rows", [1, 60, 200])
def test_all_inputs_of_a_search_have_as_many_rows_as_the_source(rows):
    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        sum (int32[batch, length] source, float[batch, beam] noise) => (float[batch, beam] tokens)
        <int64[1] last = {1}> {
            total = ReduceSum (source, last)
            shift = Cast <to = 1> (total)
            tokens = Add (shift, noise)
        }
    """)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    search = ManifestSearch(beam_size=5, max_length=100)
    model = GraphModel("sum-graph", "1", engine.Engine(), session, search)

    def infer(noise):
        inputs = {"source": np.full((100, 40), 2, np.int32), "noise": noise}
        tensors = [
            protocol.Tensor(name, {"source": "INT32"}.get(name, "FP32"), array)
            for name, array in inputs.items()
        ]
        return asyncio.run(model.infer(protocol.InferRequest(tensors, [])))

    noise = np.arange(500, dtype=np.float32).reshape(100, 5)
    assert (infer(noise).outputs[0].data == noise + 80).all()  # of several batches
    with pytest.raises(ServiceError, match="`noise` must have as many rows") as caught:
        infer(np.zeros((rows, 5), np.float32))
    assert caught.value.kind == "invalid"


def test_alternatives_and_alignments_are_returned(web):
    response = translate(web, "a man", n_best=2, alignments=True, model="copy")
    [[best]] = response.json()["translations"]  # the second hypothesis does not exist
    assert best["text"] == "a man"
    assert best["alignment"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


INVALID = [
    ({}, 422, "text"),
    ({"text": 1}, 422, "text"),
    ({"text": ["a", 1]}, 422, "text"),
    ({"text": "a", "more": 1}, 422, "more"),
    ({"text": "a", "n_best": 0}, 422, "n_best"),
    ({"text": "a", "n_best": 3}, 400, "n_best"),
    ({"text": "a", "n_best": "2"}, 422, "n_best"),
    ({"text": "a", "timeout": -1}, 422, "timeout"),
    ({"text": "a", "model": "other"}, 404, "model"),
    ({"text": "a", "model": "bare-graph"}, 409, "model"),
    ({"text": "a" * 201}, 413, "text"),
    ({"text": "x y z " * 33}, 413, "text"),
    ({"text": ["a"] * 9}, 413, "text"),
]


@pytest.mark.parametrize(("request_body", "status", "argument"), INVALID)
def test_an_invalid_argument_is_named(web, request_body, status, argument):
    problem(web.post("/translate", json=request_body), status, argument)


LONE_SURROGATES = [b'{"text": "\\ud800"}', b'{"text": "a", "\\ud800": 1}']
TWICE = b'{"text": "a", "text": "b"}'
BODIES = [
    b"",
    b"{",
    b"[1",
    TWICE,
    *LONE_SURROGATES,
    b"\xff",
    b"[" * 50_000,
    b"null",
    b"NaN",
    b'"a"',
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", ["/translate", "/translate/stream", "/v2/models/copy/infer"])
def test_malformed_bodies_are_refused(web, path, body):
    response = web.post(path, content=body)
    assert response.status_code in (400, 422)
    assert set(response.json()) == {"error", "code", "argument"}


def test_unknown_paths_and_methods_are_refused(web):
    problem(web.get("/nothing"), 404)
    for method, path, allowed in (
        ("GET", "/translate", "POST"),
        ("POST", "/models", "GET, HEAD"),
        ("DELETE", "/v2/models/copy", "GET, HEAD"),
    ):
        response = web.request(method, path)
        problem(response, 405)
        assert response.headers["allow"] == allowed
    assert web.head("/models").status_code == 200
    for path in ("/translate%0A", "/v2/models/copy%0A/infer"):
        assert web.post(path, json={"text": "a"}).status_code == 404
    problem(web.get("/v2/models/other"), 404, "model")
    problem(web.get("/v2/models/copy/versions/2"), 404, "version")


def test_responses_have_the_fields_of_the_open_inference_protocol(web):
    ready = {"name": "copy", "ready": True}
    for path, expected in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/copy/ready", ready),
        ("/v2/models/copy/versions/1/ready", ready),
    ):
        response = web.get(path)
        assert (response.status_code, response.json()) == (200, expected)
    server = web.get("/v2/").json()
    assert server == web.get("/v2").json() and set(server) == {"name", "version", "extensions"}
    assert server["extensions"] == ["binary_tensor_data", "model_repository", "statistics"]
    model = web.get("/v2/models/copy").json()
    assert set(model) == {"name", "versions", "platform", "inputs", "outputs"}
    for tensor in (*model["inputs"], *model["outputs"]):
        assert set(tensor) == {"name", "datatype", "shape"}
    response = infer(web, "copy", {"inputs": [TEXT], "id": "42"}).json()
    assert set(response) == {"model_name", "model_version", "id", "outputs"}
    for tensor in response["outputs"]:
        assert set(tensor) == {"name", "datatype", "shape", "data"}


def test_an_unknown_model_is_not_ready(web):
    problem(web.get("/v2/models/other/ready"), 404, "model")


def test_compressed_bodies_are_unpacked(web):
    def send(encoding, content):
        return web.post("/translate", content=content, headers={"Content-Encoding": encoding})

    body = json.dumps({"text": "a man"}).encode()
    raw = zlib.compressobj(wbits=-15)
    for encoding, content in (
        ("gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("deflate", raw.compress(body) + raw.flush()),
    ):
        assert send(encoding, content).json()["translations"][0]["text"] == "a man"
    bomb = gzip.compress(b" " * 10**7)
    assert len(bomb) < LIMITS.body
    problem(send("gzip", bomb), 413)
    problem(web.post("/translate", content=b" " * 100_001), 413)
    for encoding, content in (
        ("gzip", gzip.compress(body)[:-9]),
        ("gzip", gzip.compress(body) + b"x"),
        ("gzip", gzip.compress(body[:9]) + gzip.compress(body[9:])),
        ("deflate", zlib.compress(body) + b"x"),
    ):
        problem(send(encoding, content), 400)
    problem(send("br", body), 415, "Content-Encoding")


def stream(web, text, **options):
    return web.post("/translate/stream", json={"text": text, **options})


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_stream_has_pieces_and_then_the_whole_text(web):
    response = stream(web, "a man on", model="copy")
    assert response.headers["content-type"].startswith("text/event-stream")
    pieces = [{"delta": "a"}, {"delta": " man"}, {"delta": " on"}]
    assert events(response) == [*pieces, {"text": "a man on"}]
    assert events(stream(web, " ")) == [{"text": ""}]
    assert "stepwise" in problem(stream(web, "a", model="whole"), 409, "model")
    problem(stream(web, "a" * 300), 413, "text")


def test_requests_have_ids_and_pass_traces_on(web):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = web.get("/v2", headers={"X-Request-ID": "abc", "traceparent": trace})
    assert response.headers["x-request-id"] == "abc" and response.headers["traceparent"] == trace
    first, second = (web.get("/nothing").headers["x-request-id"] for _ in range(2))
    assert first and second and first != second


def test_models_and_their_tensors_are_listed(web):
    assert [model["name"] for model in web.get("/models").json()["models"]] == ["copy", "whole"]
    states = [(model["name"], model["state"]) for model in web.post("/v2/repository/index").json()]
    assert states == [
        (name, "READY") for name in ("bare-graph", "copy", "copy-graph", "whole", "whole-graph")
    ]
    model = web.get("/v2/models/copy-graph/versions/1").json()
    assert model["inputs"] == [{"name": "source", "datatype": "INT32", "shape": [-1, -1]}]
    outputs = [output["name"] for output in model["outputs"]]
    assert outputs == ["tokens", "scores", "lengths", "alignments", "log_probs"]


def test_a_graph_runs_on_its_tensors(web):
    request = {"inputs": [SOURCE], "outputs": [{"name": "lengths"}], "id": "7"}
    response = infer(web, "bare-graph", request).json()
    assert response["id"] == "7" and response["outputs"] == [
        {"name": "lengths", "datatype": "INT32", "shape": [1, 2], "data": [3, 0]}
    ]
    for changes, argument in (
        ({"shape": [3], "data": [5, 6, 3]}, "source"),
        ({"datatype": "INT64"}, "source"),
        ({"name": "other"}, "inputs"),
    ):
        request = {"inputs": [{**SOURCE, **changes}]}
        problem(infer(web, "bare-graph", request), 400, argument)


@pytest.mark.parametrize(
    ("model", "body", "outputs"),
    [
        ("copy", b"a man", {"translation": [b"a man"], "score": [-3.0]}),
        ("bare-graph", np.array([5, 6, 3], "<i4").tobytes(), {"lengths": [[3, 0]]}),
    ],
)
def test_a_body_without_json_is_the_only_input(web, model, body, outputs):
    headers = {"Inference-Header-Content-Length": "0"}
    response = web.post(f"/v2/models/{model}/infer", content=body, headers=headers)
    assert response.status_code == 200, response.text
    length = int(response.headers["inference-header-content-length"])
    result = InferenceServerClient.parse_response_body(response.content, header_length=length)
    for name, expected in outputs.items():
        assert result.as_numpy(name).tolist() == expected


def test_a_tensor_of_texts_is_translated(web):
    texts = {"name": "text", "datatype": "BYTES", "shape": [3], "data": ["a man", "नमस्ते", " "]}
    request = {"inputs": [texts], "parameters": {"n_best": 2, "alignments": True}}
    outputs = {output["name"]: output for output in infer(web, "copy", request).json()["outputs"]}
    assert outputs["translation"]["shape"] == [3, 2]
    assert outputs["translation"]["data"] == ["a man", "", "नमस्ते", "", "", ""]
    assert np.float32(outputs["score"]["data"][4:]).tolist() == [np.finfo(np.float32).min] * 2
    assert json.loads(outputs["alignment"]["data"][0]) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    request = {"inputs": [texts], "parameters": {"n_best": 3}}
    problem(infer(web, "copy", request), 400, "n_best")
    request = {"inputs": [{**texts, "shape": [9], "data": ["a"] * 9}]}
    assert "at most 8 texts. Received: 9" in problem(infer(web, "copy", request), 413, "text")


@pytest.mark.parametrize("timeout", [0, -1, 0.5, True, "1", 2**64])
@pytest.mark.parametrize("model", ["copy", "copy-graph"])
def test_an_infer_timeout_is_a_positive_int(web, model, timeout):
    request = {**REQUESTS[model], "parameters": {"timeout": timeout}}
    problem(infer(web, model, request), 400, "timeout")


def test_an_infer_timeout_is_in_microseconds(tmp_path):
    with site({"copy": make(tmp_path / "copy")}, parallel_batches=1) as service:
        for model, request in REQUESTS.items():
            request = {**request, "parameters": {"timeout": 2000}}
            with one_busy_thread(service):
                response = infer(service.web, model, request)
                assert "longer than 0.002 seconds" in problem(response, 504)
            request["parameters"]["timeout"] = 30_000_000
            assert infer(service.web, model, request).status_code == 200


def test_texts_are_not_encoded_while_the_queue_is_full(tmp_path):
    limits = Limits(queue=1, tokens=5)
    with (
        site({"m": make(tmp_path / "m")}, limits=limits, parallel_batches=1) as service,
        one_busy_thread(service),
    ):
        response = translate(service.web, "too many tokens " * 10)
        assert response.status_code == 429, response.text


@contextlib.contextmanager
def encoding_blocked(tmp_path, **settings):
    """Yield a service whose only thread for encoding long texts is blocked, and the gate."""

    async def block(engine):
        waiting = asyncio.ensure_future(engine.prepare(gate.wait))
        await asyncio.sleep(0)  # let it start
        return waiting

    gate = threading.Event()
    with site({"m": make(tmp_path / "m", max_source_length=None)}, **settings) as service:
        service.call(block(service.service.repository.get("m").engine))
        try:
            yield service, gate
        finally:
            gate.set()


def test_the_timeout_includes_the_encoding_of_texts(tmp_path):
    with encoding_blocked(tmp_path) as (service, _):
        response = translate(service.web, ["a " * 1000] * 4, timeout=0.01)
        assert response.status_code == 504


def test_texts_that_are_being_encoded_take_room_in_the_queue(tmp_path):
    async def translate_twice(model):
        first = asyncio.ensure_future(model.translate(TranslationRequest(texts=["a " * 1000] * 4)))
        await asyncio.sleep(0)  # let it start
        with pytest.raises(ServiceError) as caught:
            await model.translate(TranslationRequest(texts=["a", "b"]))
        return first, caught.value

    with encoding_blocked(tmp_path, limits=Limits(queue=5)) as (service, gate):
        first, error = service.call(translate_twice(service.service.repository.get("m")))
        gate.set()
        assert error.kind == "overloaded" and "4 of 5 texts" in str(error)
        assert len(service.call(asyncio.wait_for(first, timeout=None))) == 4
        assert translate(service.web, ["a", "b"]).status_code == 200


def test_requests_are_counted_in_statistics_and_metrics(web):
    def statistics():
        return web.get("/v2/models/whole/stats").json()["model_stats"][0]

    before = statistics()
    translate(web, ["a", "b"], model="whole")
    after = statistics()
    assert after["inference_count"] == before["inference_count"] + 2
    for name in ("success", "queue", "compute_infer"):  # per request, not per text
        new, old = after["inference_stats"][name], before["inference_stats"][name]
        assert new["count"] == old["count"] + 1 and new["ns"] > old["ns"]
    text = web.get("/metrics").text
    for name in ("requests_total", "errors_total", "queue_length", "queue_seconds_bucket",
                 "batch_size_bucket", "tokens_total", "request_seconds_bucket"):  # fmt: skip
        assert f"keras_bahdanau_{name}" in text
    assert f'keras_bahdanau_build_info{{python="{platform.python_version()}",version="' in text
    assert "keras_bahdanau_requests_in_flight 1.0" in text  # the one that reads the metrics
    if sys.platform == "linux":
        assert "\nprocess_resident_memory_bytes " in text
        assert "\nprocess_cpu_seconds_total " in text
    assert 'batch_size_sum{model="whole"}' in text
    assert 'requests_total{call="translate",code="200",model="whole"}' in text
    web.get("/v2/models/random/infer")
    web.post("/v2/repository/models/random/load", content=b"{")
    assert "random" not in web.get("/metrics").text


def test_streams_are_counted(web):
    def counts():
        stats = web.get("/v2/models/copy/stats").json()["model_stats"][0]["inference_stats"]
        [total] = re.findall(r'request_seconds_count{model="copy"} (\d+)', web.get("/metrics").text)
        return stats["success"]["count"], stats["fail"]["count"], int(total)

    successes, failures, total = counts()
    stream(web, "a man")  # goes to the first text model
    assert counts() == (successes + 1, failures, total + 1)
    problem(stream(web, "a" * 300, model="copy"), 413, "text")
    assert counts() == (successes + 1, failures + 1, total + 2)
    text = web.get("/metrics").text
    assert 'requests_total{call="stream",code="200",model="copy"}' in text
    assert 'requests_total{call="stream",code="413",model="copy"} ' in text
    assert 'errors_total{kind="too_large",model="copy"}' in text


def test_the_web_page_and_the_openapi_document_are_served(web):
    page = web.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    paths = web.get("/openapi.json").json()["paths"]
    assert {"/translate", "/translate/stream", "/v2/models/{name}/infer"} <= set(paths)
    assert web.get("/docs").status_code == 200


def test_models_are_unloaded_and_loaded(web):
    assert web.post("/v2/repository/models/whole/unload").status_code == 200
    assert "unloaded" in problem(translate(web, "a", model="whole"), 503, "model")
    assert web.get("/v2/health/ready").status_code == 200  # unloading is no failure
    assert web.get("/v2/health/live").status_code == 200
    assert web.post("/v2/repository/models/copy/unload").status_code == 200
    response = translate(web, "a")
    problem(response, 503, "model")
    assert response.headers["retry-after"] == "1"
    for name in ("copy", "whole"):
        assert web.post(f"/v2/repository/models/{name}/load").status_code == 200
    assert web.get("/v2/health/ready").status_code == 200
    problem(web.post("/v2/repository/models/other/load"), 404, "model")


def test_the_repository_index_may_list_ready_models_only(web):
    index = "/v2/repository/index"
    web.post("/v2/repository/models/bare/unload")
    try:
        states = {model["name"]: model["state"] for model in web.post(index).json()}
        assert states["bare"] == "UNAVAILABLE" and states["copy"] == "READY"
        ready = {model["name"] for model in web.post(index, json={"ready": True}).json()}
        assert ready == set(states) - {"bare"}
        problem(web.post(index, json={"ready": 1}), 400, "ready")
    finally:
        config = {"parameters": {"config": "{}"}}
        problem(web.post("/v2/repository/models/bare/load", json=config), 400, "parameters")
        assert web.post("/v2/repository/models/bare/load", json={}).status_code == 200
    statistics = web.get("/v2/models/stats").json()["model_stats"]
    assert {model["name"] for model in statistics} == {"bare-graph", *states} - {"bare"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A service with the keys "first" and "second"."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text("first\nsecond\n", "utf-8-sig")  # with a byte order mark
    sources = {"copy": make(folder / "copy")}
    with site(sources, api_key_file=folder / "keys", grpc_port=0) as service:
        yield service


def test_requests_need_a_key(locked):
    for headers in ({}, {"Authorization": "Bearer third"}, {"X-API-Key": "firs"}):
        response = locked.web.post("/translate", json={"text": "a"}, headers=headers)
        problem(response, 401, "Authorization")
        assert response.headers["www-authenticate"] == "Bearer"
    for headers in ({"Authorization": "Bearer second"}, {"X-API-Key": "first"}):
        response = locked.web.post("/translate", json={"text": "a"}, headers=headers)
        assert response.status_code == 200
    assert locked.web.get("/v2/health/ready").status_code == 200
    problem(locked.web.get("/metrics"), 401, "Authorization")


def test_the_bearer_scheme_is_case_insensitive(locked):
    for scheme in ("bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} second"}
        assert locked.web.get("/v2", headers=headers).status_code == 200


def test_a_key_accepts_any_host_name(locked):
    headers = {"Host": "models.example", "X-API-Key": "first"}
    assert locked.web.get("/v2", headers=headers).status_code == 200


def test_grpc_calls_need_a_key(locked):
    with tritonclient.grpc.InferenceServerClient(locked.service.grpc_address) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.get_server_metadata()
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.get_server_metadata({"authorization": "Bearer second"}).name


def test_a_service_without_tokenizers_translates_no_text(tmp_path):
    with site({"bare": make(tmp_path / "bare", document=None)}) as service:
        assert service.web.get("/models").json() == {"models": []}
        problem(translate(service.web, "a"), 409, "model")


def test_the_length_of_a_text_is_limited_by_its_model(web):
    problem(translate(web, "z" * 45, model="whole"), 413, "text")
    assert translate(web, "z" * 45, model="copy").status_code == 200
