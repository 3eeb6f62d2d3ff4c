"""The door of HTTP: answers, errors in one shape, packed bodies, streams, keys and metrics."""

import asyncio
import contextlib
import gzip
import http.client
import json
import re
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from copy_artifact import COPY_STEPS, make
from running_service import held, site

from keras_bahdanau_runtime.service import questions, text_model
from keras_bahdanau_runtime.service.engine import Limits
from keras_bahdanau_runtime.service.errors import ServiceError

LIMITS = Limits(characters=200, tokens=60, texts=8, body=100_000)
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a man"]}
SOURCE = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [[5, 6, 3]]}
ASKED = {
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
    with site(sources, limits=LIMITS) as found:
        yield found


@pytest.fixture
def web(running):
    return running.web


def problem(answer, status, argument=None):
    """Asserts the shape of an error; returns its message."""
    body = answer.json()
    assert answer.status_code == status, body
    assert set(body) == {"error", "code", "argument"} and body["argument"] == argument
    return body["error"]


def test_who_asks_for_another_protocol_is_answered_in_this_one(running):
    """As Java's client and `curl --http2` do with every request."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    }
    address = running.service.url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:
        for _ in range(2):
            connection.request("POST", "/translate", json.dumps({"text": "a man"}), headers)
            answer = connection.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["translations"][0]["text"] == "a man"


def test_pages_of_other_sites_are_refused(web):
    unload = "/v2/repository/models/copy/unload"
    for site_of in ("cross-site", "same-site"):
        answer = web.post(unload, content=b"{}", headers={"Sec-Fetch-Site": site_of})
        assert "other sites" in problem(answer, 403)
    for site_of in ("same-origin", "none"):
        answer = web.post("/translate", json={"text": "a"}, headers={"Sec-Fetch-Site": site_of})
        assert answer.status_code == 200
    assert web.get("/metrics", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_pages_of_other_sites_are_refused_where_the_browser_names_their_origin_alone(web):
    unload = "/v2/repository/models/copy/unload"
    for origin in ("http://evil.example", "null", "http://[", f"https://{web.base_url.host}"):
        answer = web.post(unload, content=b"{}", headers={"Origin": origin})
        assert "other sites" in problem(answer, 403)
    own = {"Origin": str(web.base_url).rstrip("/")}
    assert web.post("/translate", json={"text": "a"}, headers=own).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", ""]
)
def test_names_of_others_are_refused_where_everybody_may_come_in(web, host):
    """A page may give its own name the address of this machine."""
    for method, path in (("GET", "/v2"), ("POST", "/translate"), ("GET", "/")):
        answer = web.request(method, path, headers={"Host": host, "Origin": f"http://{host}"})
        assert problem(answer, 403, "Host")
    for here in ("localhost", "localhost:80", "127.0.0.1:1", "[::1]:8000", "192.168.0.7"):
        assert web.get("/v2", headers={"Host": here}).status_code == 200


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
def test_a_request_names_one_host(running, hosts):
    heads = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection((running.web.base_url.host, running.web.base_url.port)) as sent:
        sent.sendall(f"GET /v2 HTTP/1.1\r\n{heads}Connection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: sent.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ") and b"`Host`. Received: %d" % len(hosts) in answer


def test_any_name_will_do_with_keys_or_behind_what_keeps_strangers_out(tmp_path):
    path, keys = make(tmp_path / "copy"), tmp_path / "keys"
    keys.write_text("secret")
    for settings in ({"api_key_file": keys}, {"no_auth": True}):
        with site({"copy": path}, **settings) as found:
            headers = {"Host": "models.example", "Authorization": "Bearer secret"}
            assert found.web.get("/v2", headers=headers).status_code == 200


def test_more_weights_than_an_answer_holds_are_refused(web, monkeypatch):
    asked = {"text": ["a man", "a dog"], "alignments": True, "model": "whole"}
    [one, other] = web.post("/translate", json=asked).json()["translations"]
    weights = sum(len(each["alignment"]) * len(each["alignment"][0]) for each in (one, other))
    monkeypatch.setattr(text_model, "_MOST_WEIGHTS", weights)
    assert web.post("/translate", json=asked).status_code == 200
    monkeypatch.setattr(text_model, "_MOST_WEIGHTS", weights - 1)
    assert str(weights) in problem(web.post("/translate", json=asked), 413, "alignments")
    assert web.post("/translate", json={**asked, "alignments": False}).status_code == 200


def test_a_large_body_is_read_while_others_are_answered(running, web):
    """It is parsed in another thread than that of the event loop."""
    threads = []
    body = json.dumps({"text": "a", "model": "x" * 70_000}).encode()
    plain = questions.parse_json

    def watched(text):
        threads.append(threading.current_thread())
        return plain(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "parse_json", watched)
        assert web.post("/translate", content=body).status_code == 404
        assert web.post("/translate", json={"text": "a"}).status_code == 200
    assert threads[0] is not running._thread and threads[1] is running._thread


def test_what_fails_unforeseen_is_counted(running):
    model = running.service.repository.get("whole")
    with pytest.raises(ArithmeticError), model.measured():
        raise ArithmeticError
    counted = running.web.get("/metrics").text
    assert 'errors_total{kind="internal",model="whole"} 1.0' in counted


def test_hypotheses_that_a_search_does_not_return_are_refused(tmp_path):
    """It keeps five, and returns one."""
    path = make(tmp_path / "one", search={"class": "BeamSearch", "size": 5, "n_best": 1})
    with site({"one": path}) as found:
        answer = found.web.post("/translate", json={"text": "a", "n_best": 2})
    assert "from 1 to 1" in problem(answer, 400, "n_best")
    # A stranger's manifest may name more hypotheses than the graph gives.
    path = make(tmp_path / "five", search={"class": "BeamSearch", "size": 5})
    with site({"five": path}) as found:
        answer = found.web.post("/translate", json={"text": "a", "n_best": 5})
        assert answer.status_code == 200 and len(answer.json()["translations"]) == 1


def test_one_text_and_several(web):
    answer = web.post("/translate", json={"text": "a man on a bike"})
    [one] = answer.json()["translations"]
    assert answer.status_code == 200 and one["text"] == "a man on a bike"
    assert one["tokens"] == ["a", " man", " on", " a", " bike", "</s>"]
    assert one["score"] == -6 and one["alignment"] is None and one["error"] is None
    texts = ["a man", "", "नमस्ते 🙂", "a dog"]
    found = web.post("/translate", json={"text": texts}).json()["translations"]
    assert [one["text"] for one in found] == texts


def test_alternatives_and_alignments(web):
    asked = {"text": "a man", "n_best": 2, "alignments": True, "model": "copy"}
    [best] = web.post("/translate", json=asked).json()["translations"]
    assert [one["text"] for one in best] == ["a man"]  # the other one does not exist
    assert best[0]["alignment"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


WRONG = [
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


@pytest.mark.parametrize(("asked", "status", "argument"), WRONG)
def test_what_is_wrong_is_named(web, asked, status, argument):
    problem(web.post("/translate", json=asked), status, argument)


HALVES = [b'{"text": "\\ud800"}', b'{"text": "a", "\\ud800": 1}']  # of a character
BODIES = [b"", b"{", b"[1", *HALVES, b"\xff", b"[" * 50_000, b"null", b"NaN", b'"a"']


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", ["/translate", "/translate/stream", "/v2/models/copy/infer"])
def test_bodies_that_are_no_request(web, path, body):
    answer = web.post(path, content=body)
    assert answer.status_code in (400, 422) and set(answer.json()) == {"error", "code", "argument"}


def test_paths_and_methods_that_are_not_there(web):
    problem(web.get("/nothing"), 404)
    for method, path, allowed in (
        ("GET", "/translate", "POST"),
        ("POST", "/models", "GET, HEAD"),
        ("DELETE", "/v2/models/copy", "GET, HEAD"),
    ):
        answer = web.request(method, path)
        problem(answer, 405)
        assert answer.headers["allow"] == allowed
    assert web.head("/models").status_code == 200
    for path in ("/translate%0A", "/v2/models/copy%0A/infer"):
        answer = web.post(path, json={"text": "a"})
        assert answer.status_code == 404
    problem(web.get("/v2/models/other"), 404, "model")
    problem(web.get("/v2/models/copy/versions/2"), 404, "version")


def test_packed_bodies(web):
    body = json.dumps({"text": "a man"}).encode()
    raw = zlib.compressobj(wbits=-15)
    for encoding, packed in (
        ("gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("deflate", raw.compress(body) + raw.flush()),
    ):
        answer = web.post("/translate", content=packed, headers={"Content-Encoding": encoding})
        assert answer.json()["translations"][0]["text"] == "a man"
    bomb = gzip.compress(b" " * 10**7)
    assert len(bomb) < LIMITS.body
    gzipped = {"Content-Encoding": "gzip"}
    problem(web.post("/translate", content=bomb, headers=gzipped), 413)
    problem(web.post("/translate", content=b" " * 100_001), 413)
    for broken in (
        gzip.compress(body)[:-9],
        gzip.compress(body) + b"x",
        gzip.compress(body[:9]) + gzip.compress(body[9:]),
    ):
        problem(web.post("/translate", content=broken, headers=gzipped), 400)
    deflated = {"Content-Encoding": "deflate"}
    problem(web.post("/translate", content=zlib.compress(body) + b"x", headers=deflated), 400)
    answer = web.post("/translate", content=body, headers={"Content-Encoding": "br"})
    problem(answer, 415, "Content-Encoding")


def events(answer):
    lines = [line for line in answer.text.split("\n\n") if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_stream_of_pieces(web):
    answer = web.post("/translate/stream", json={"text": "a man on", "model": "copy"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events(answer) == [
        {"delta": "a"},
        {"delta": " man"},
        {"delta": " on"},
        {"text": "a man on"},
    ]
    assert events(web.post("/translate/stream", json={"text": " "})) == [{"text": ""}]
    answer = web.post("/translate/stream", json={"text": "a", "model": "whole"})
    assert "stepwise" in problem(answer, 409, "model")
    problem(web.post("/translate/stream", json={"text": "a" * 300}), 413, "text")


def test_requests_have_ids_and_pass_traces_on(web):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = web.get("/v2", headers={"X-Request-ID": "abc", "traceparent": trace})
    assert answer.headers["x-request-id"] == "abc" and answer.headers["traceparent"] == trace
    first, second = (web.get("/nothing").headers["x-request-id"] for _ in range(2))
    assert first and second and first != second


def test_models_and_their_tensors(web):
    assert [model["name"] for model in web.get("/models").json()["models"]] == ["copy", "whole"]
    names = [(one["name"], one["state"]) for one in web.post("/v2/repository/index").json()]
    assert names == [
        (name, "READY") for name in ("bare-graph", "copy", "copy-graph", "whole", "whole-graph")
    ]
    found = web.get("/v2/models/copy-graph/versions/1").json()
    assert found["inputs"] == [{"name": "source", "datatype": "INT32", "shape": [-1, -1]}]
    assert [one["name"] for one in found["outputs"]] == [
        "tokens",
        "scores",
        "lengths",
        "alignments",
    ]


def test_a_graph_runs_on_its_tensors(web):
    asked = {"inputs": [SOURCE], "outputs": [{"name": "lengths"}], "id": "7"}
    answer = web.post("/v2/models/bare-graph/infer", json=asked).json()
    assert answer["id"] == "7" and answer["outputs"] == [
        {"name": "lengths", "datatype": "INT32", "shape": [1, 2], "data": [3, 0]}
    ]
    for wrong in ({"shape": [3], "data": [5, 6, 3]}, {"datatype": "INT64"}):
        asked = {"inputs": [{**SOURCE, **wrong}]}
        problem(web.post("/v2/models/bare-graph/infer", json=asked), 400, "source")
    asked = {"inputs": [{**SOURCE, "name": "other"}]}
    problem(web.post("/v2/models/bare-graph/infer", json=asked), 400, "inputs")


def test_texts_as_tensors(web):
    texts = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a man", "नमस्ते"]}
    asked = {"inputs": [texts], "parameters": {"n_best": 2, "alignments": True}}
    found = web.post("/v2/models/copy/infer", json=asked).json()["outputs"]
    by_name = {one["name"]: one for one in found}
    assert by_name["translation"]["shape"] == [2, 2]
    assert by_name["translation"]["data"] == ["a man", "", "नमस्ते", ""]
    assert json.loads(by_name["alignment"]["data"][0]) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    asked = {"inputs": [texts], "parameters": {"n_best": 3}}
    problem(web.post("/v2/models/copy/infer", json=asked), 400, "n_best")


@pytest.mark.parametrize("timeout", [0, -1, 0.5, True, "1", 2**64])
@pytest.mark.parametrize("model", ["copy", "copy-graph"])
def test_a_timeout_of_the_protocol_is_a_positive_int(web, model, timeout):
    asked = {**ASKED[model], "parameters": {"timeout": timeout}}
    problem(web.post(f"/v2/models/{model}/infer", json=asked), 400, "timeout")


@pytest.mark.parametrize("model", ["copy", "copy-graph"])
def test_a_timeout_of_the_protocol_is_in_microseconds(tmp_path, model):
    with site({"copy": make(tmp_path / "copy")}, threads=1) as found:
        asked = {**ASKED[model], "parameters": {"timeout": 2000}}
        with held(found):
            answer = found.web.post(f"/v2/models/{model}/infer", json=asked)
            assert "longer than 0.002 seconds" in problem(answer, 504)
        asked["parameters"]["timeout"] = 30_000_000
        assert found.web.post(f"/v2/models/{model}/infer", json=asked).status_code == 200


def test_texts_that_there_is_no_room_for_are_not_encoded(tmp_path):
    few = Limits(queue=1, tokens=5)
    with site({"m": make(tmp_path / "m")}, limits=few, threads=1) as found, held(found):
        answer = found.web.post("/translate", json={"text": "too many tokens " * 10})
        assert answer.status_code == 429, answer.text


@contextlib.contextmanager
def encoding_held(found):
    """A service whose thread for the encoding of long texts is busy."""

    async def one_thread():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        return loop.run_in_executor(None, gate.wait)

    gate = threading.Event()
    found.call(one_thread())
    try:
        yield
    finally:
        gate.set()


def test_the_time_of_a_request_begins_before_its_texts_are_encoded(tmp_path):
    with site({"m": make(tmp_path / "m", max_source_length=None)}) as found, encoding_held(found):
        asked = {"text": ["a " * 1000] * 4, "timeout": 0.01}
        assert found.web.post("/translate", json=asked).status_code == 504


def test_texts_that_are_encoded_take_room(tmp_path):
    source = make(tmp_path / "m", max_source_length=None)
    with site({"m": source}, limits=Limits(queue=5)) as found:

        async def two():
            model = found.service.repository.get("m")
            first = asyncio.ensure_future(model.translate(["a " * 1000] * 4))
            await asyncio.sleep(0)  # it begins
            with pytest.raises(ServiceError) as raised:
                await model.translate(["a", "b"])
            return first, raised.value

        with encoding_held(found):
            first, refused = found.call(two())
        assert refused.kind == "overloaded" and "4 texts" in str(refused)
        assert len(found.call(asyncio.wait_for(first, timeout=None))) == 4
        assert found.web.post("/translate", json={"text": ["a", "b"]}).status_code == 200


def test_statistics_and_metrics_count(web):
    before = web.get("/v2/models/whole/stats").json()["model_stats"][0]
    web.post("/translate", json={"text": ["a", "b"], "model": "whole"})
    after = web.get("/v2/models/whole/stats").json()["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["inference_stats"]["success"]["count"] == (
        before["inference_stats"]["success"]["count"] + 1
    )
    for name in ("queue", "compute_infer"):  # of requests, however many texts they have
        part, was = after["inference_stats"][name], before["inference_stats"][name]
        assert part["count"] == was["count"] + 1 and part["ns"] > was["ns"]
    text = web.get("/metrics").text
    for name in ("requests_total", "errors_total", "queue_length", "queue_seconds_bucket",
                 "batch_size_bucket", "tokens_total", "request_seconds_bucket"):  # fmt: skip
        assert f"keras_bahdanau_{name}" in text
    assert 'batch_size_sum{model="whole"}' in text
    assert 'requests_total{call="translate",code="200",model="whole"}' in text
    web.get("/v2/models/random/infer")
    web.post("/v2/repository/models/random/load", content=b"{")
    assert "random" not in web.get("/metrics").text


def test_streams_are_counted(web):
    def counted():
        stats = web.get("/v2/models/copy/stats").json()["model_stats"][0]["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"], latencies()

    def latencies():
        [line] = re.findall(r'request_seconds_count{model="copy"} (\d+)', web.get("/metrics").text)
        return int(line)

    well, ill, all_of_them = counted()
    web.post("/translate/stream", json={"text": "a man"})  # to the first model of texts
    assert counted() == (well + 1, ill, all_of_them + 1)
    problem(web.post("/translate/stream", json={"text": "a" * 300, "model": "copy"}), 413, "text")
    assert counted() == (well + 1, ill + 1, all_of_them + 2)
    text = web.get("/metrics").text
    assert 'requests_total{call="stream",code="200",model="copy"}' in text
    assert 'requests_total{call="stream",code="413",model="copy"} ' in text
    assert 'errors_total{kind="too_large",model="copy"}' in text


def test_the_page_and_the_description(web):
    page = web.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    described = web.get("/openapi.json").json()["paths"]
    assert {"/translate", "/translate/stream", "/v2/models/{name}/infer"} <= set(described)
    assert web.get("/docs").status_code == 200


def test_a_model_is_taken_away_and_comes_back(running):
    web = running.web
    assert web.post("/v2/repository/models/whole/unload").status_code == 200
    answer = web.post("/translate", json={"text": "a", "model": "whole"})
    assert "unloaded" in problem(answer, 503, "model")
    assert web.get("/v2/health/ready").status_code == 200  # it is as somebody wanted it
    assert web.get("/v2/health/live").status_code == 200
    assert web.post("/v2/repository/models/copy/unload").status_code == 200
    answer = web.post("/translate", json={"text": "a"})
    problem(answer, 503, "model")
    assert answer.headers["retry-after"] == "1"
    for name in ("copy", "whole"):
        assert web.post(f"/v2/repository/models/{name}/load").status_code == 200
    assert web.get("/v2/health/ready").status_code == 200
    problem(web.post("/v2/repository/models/other/load"), 404, "model")


def test_the_repository_is_asked_as_over_grpc(running):
    web, index = running.web, "/v2/repository/index"
    web.post("/v2/repository/models/bare/unload")
    try:
        states = {one["name"]: one["state"] for one in web.post(index).json()}
        assert states["bare"] == "UNAVAILABLE" and states["copy"] == "READY"
        ready = {one["name"] for one in web.post(index, json={"ready": True}).json()}
        assert ready == set(states) - {"bare"}
        problem(web.post(index, json={"ready": 1}), 400, "ready")
    finally:
        config = {"parameters": {"config": "{}"}}
        problem(web.post("/v2/repository/models/bare/load", json=config), 400, "parameters")
        assert web.post("/v2/repository/models/bare/load", json={}).status_code == 200
    counted = web.get("/v2/models/stats").json()["model_stats"]
    assert {one["name"] for one in counted} == {"bare-graph", *states} - {"bare"}


def test_keys_open_the_service(tmp_path):
    (tmp_path / "keys").write_text("first\nsecond\n", "utf-8-sig")  # with a mark at its start
    sources = {"copy": make(tmp_path / "copy")}
    with site(sources, api_key_file=tmp_path / "keys") as found:
        for headers in ({}, {"Authorization": "Bearer third"}, {"X-API-Key": "firs"}):
            answer = found.web.post("/translate", json={"text": "a"}, headers=headers)
            problem(answer, 401, "Authorization")
            assert answer.headers["www-authenticate"] == "Bearer"
        for headers in ({"Authorization": "Bearer second"}, {"X-API-Key": "first"}):
            answer = found.web.post("/translate", json={"text": "a"}, headers=headers)
            assert answer.status_code == 200
        assert found.web.get("/v2/health/ready").status_code == 200
        problem(found.web.get("/metrics"), 401, "Authorization")


def test_a_service_of_tensors_alone_says_so(tmp_path):
    with site({"bare": make(tmp_path / "bare", document=None)}) as found:
        assert found.web.get("/models").json() == {"models": []}
        problem(found.web.post("/translate", json={"text": "a"}), 409, "model")


def test_a_text_is_as_long_as_its_model_takes(web):
    problem(web.post("/translate", json={"text": "z" * 45, "model": "whole"}), 413, "text")
    assert web.post("/translate", json={"text": "z" * 45, "model": "copy"}).status_code == 200
