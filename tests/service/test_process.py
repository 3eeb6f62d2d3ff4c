"""The life of the process: signals, ports, workers that die, artifacts that are replaced."""

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc
from copy_artifact import COPY_STEPS, DOCUMENT, make, marked, spinning_graph
from running_service import held, site
from service_process import ENVIRONMENT, SERVE, children, free_port, serving

from keras_bahdanau_export import serve_command
from keras_bahdanau_runtime.service import repository, server
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.server import Service, Settings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals.")

REPLACEMENTS = int(os.environ.get("REPLACEMENTS", "10"))  # 50 by make test-soak


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("process") / "copy", steps=COPY_STEPS)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return make(tmp_path_factory.mktemp("slow") / "slow", spinning_graph(200_000))


async def ask_and_stop(process, web):
    """Asks, stops the process while it works on it, and returns the task."""
    asked = asyncio.ensure_future(web.post("/translate", json={"text": "a man"}))
    while "queue_length 1.0" not in (await web.get("/metrics")).text:
        assert not asked.done()
    process.send_signal(signal.SIGTERM)
    while (await web.get("/v2/health/ready")).status_code != 503:
        pass
    return asked


def test_a_stop_finishes_what_was_accepted(slow):
    async def go(process, url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            asked = await ask_and_stop(process, web)
            refused = await web.post("/translate", json={"text": "a"})
            assert refused.status_code == 503 and refused.json()["code"] == "unavailable"
            assert refused.headers["retry-after"] == "1"
            assert (await asked).json()["translations"][0]["text"] == "a man"

    with serving(slow, "--port", 0) as (process, url):
        asyncio.run(go(process, url))
        assert process.wait() == 0


def test_a_stop_waits_for_answers_that_are_read_slowly(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_LEFT", 0.0)
    path = make(tmp_path / "copy", max_source_length=None)
    body = json.dumps({"text": 4 * [1000 * "a "], "alignments": True}).encode()  # 16 MB of zeros
    length = f"Content-Length: {len(body)}"
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
    with site({"copy": path}) as found, socket.socket() as client, socket.socket() as other:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = found.service.url.removeprefix("http://").split(":")
        for each, sent in ((client, head + body), (other, head + body[:-1])):
            each.connect((host, int(port)))
            each.sendall(sent)
        received = client.recv(1)
        stopping = found.begin(found.service.stop())
        assert other.recv(1) == b""  # what has not come whole is not accepted
        for _ in range(1000):
            found.call(asyncio.sleep(0))
        assert not stopping.done()
        while part := client.recv(2**20):
            received += part
        assert stopping.result()
    head, _, answer = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and len(json.loads(answer)["translations"]) == 4


def test_a_stop_has_an_end(slow):
    async def go(process, url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            asked = asyncio.ensure_future(web.post("/translate", json={"text": "a man"}))
            while "queue_length 1.0" not in (await web.get("/metrics")).text:
                assert not asked.done()
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(asked, return_exceptions=True)

    with serving(slow, "--port", 0, "--grace", 0.01) as (process, url):
        asyncio.run(go(process, url))
        assert process.wait() == 1


def test_a_process_ends_well_though_a_run_goes_on_that_nobody_waits_for(slow):
    with serving(slow, "--port", 0, "--alone-threads", 1) as (process, url):
        late = httpx.post(f"{url}/translate", json={"text": "a man", "timeout": 0.1}, timeout=60)
        assert late.status_code == 504
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_stop_does_not_wait_until_all_models_are_open(slow):
    service, begun = Service(Settings({"slow": slow}, port=0, grpc_port=None)), []

    async def go():
        running = asyncio.ensure_future(service.run(begun=lambda: begun.append(True)))
        while not service.repository.opening:
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    assert asyncio.run(go()) and service.url == "" and not begun


def failing(*arguments):
    finished = subprocess.run(
        [*SERVE, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT
    )
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert finished.returncode == 1 and len(errors) == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    return errors[0]


def test_a_port_that_is_taken_is_said(artifact):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = failing(artifact, "--port", port, "--grpc-port", 0)
        assert f"127.0.0.1:{port}" in said and "in use" in said
        # Several processes may share a port, as those of another service would.
        said = failing(artifact, "--port", free_port(), "--grpc-port", port, "--workers", 2)
        assert f"127.0.0.1:{port}" in said and "in use" in said


def test_an_artifact_without_a_graph_is_named(tmp_path):
    path = make(tmp_path / "a", graph=None)
    with pytest.raises(ServiceError, match=r"holds no model\.onnx"), site({"a": path}):
        pass


def test_what_cannot_be_served_is_named(artifact, tmp_path):
    with pytest.raises(ValueError, match="api_key_file"):
        Settings({"a": artifact}, host="0.0.0.0")
    with pytest.raises(ValueError, match="given together"):
        Settings({"a": artifact}, tls_key=tmp_path / "key")
    with pytest.raises(ValueError, match="`grace`"):
        Settings({"a": artifact}, grace=-1)
    (tmp_path / "keys").write_text("\n")
    for name in ("none", "keys"):
        with pytest.raises(ValueError, match=f"must be PEM files .* Received: .*/{name} and"):
            Settings({"a": artifact}, tls_certificate=tmp_path / name, tls_key=tmp_path / name)
    (tmp_path / "odd").write_text("key\nschlüssel\n", "utf-8")
    (tmp_path / "latin").write_text("schlüssel\n", "latin-1")
    for sources, options, message in (
        ({"a": tmp_path / "none"}, {}, "`path`"),
        ({"a": tmp_path}, {}, "must hold artifacts"),
        ({"a b": artifact}, {}, "names of letters"),
        ({"a": artifact, "a-graph": artifact}, {}, "leave the names"),
        ({"a": artifact}, {"api_key_file": tmp_path / "keys"}, "must hold a key"),
        ({"a": artifact}, {"api_key_file": tmp_path / "odd"}, "printable ASCII .* in line 2"),
        ({"a": artifact}, {"api_key_file": tmp_path / "latin"}, "must be UTF-8"),
    ):
        with pytest.raises((ValueError, ServiceError), match=message), site(sources, **options):
            pass


def test_a_server_that_cannot_begin_says_why(artifact):
    settings = Settings({"a": artifact}, grpc_port=None)
    with socket.socket(type=socket.SOCK_DGRAM) as wrong:
        wrong.bind(("127.0.0.1", 0))
        with pytest.raises(ValueError, match="Stream"):
            asyncio.run(Service(settings).run(wrong))


def mapped(numbers):
    """The files of counts that processes have in memory."""
    maps = "".join(Path(f"/proc/{number}/maps").read_text() for number in numbers)
    return [line.split()[-1] for line in maps.splitlines() if line.endswith(".db")]


def test_workers_share_a_port_and_are_replaced(artifact):
    with serving(artifact, "--port", free_port(), "--workers", 2) as (process, url):
        before = children(process)
        assert len(before) == 2
        if sys.platform == "linux":  # on a full disk, writing to a mapped file kills the process
            assert {path.rpartition("/tmp")[0] for path in mapped(before)} == {"/dev/shm"}
        os.kill(before[0], signal.SIGKILL)
        answered = 0
        while len(set(children(process)) - {before[0]}) < 2 or answered < 20:
            with contextlib.suppress(httpx.TransportError):  # was at the one that died
                answer = httpx.post(f"{url}/translate", json={"text": "a man"}, timeout=30)
                assert answer.json()["translations"][0]["text"] == "a man"
                answered += 1
        for call in ("load", "unload"):  # which would reach one of both
            answer = httpx.post(f"{url}/v2/repository/models/copy/{call}", timeout=30)
            assert answer.status_code == 409 and "--watch" in answer.json()["error"]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_an_artifact_is_replaced_under_load_without_a_failed_request(tmp_path):
    path = marked(tmp_path / "a", 1)
    with site({"a": path}) as found:
        stop, answers = threading.Event(), []

        def load():
            with httpx.Client(base_url=found.service.url, timeout=60) as web:
                while not stop.is_set():
                    answers.append(web.post("/translate", json={"text": ["a man", "a dog a"]}))

        clients = [threading.Thread(target=load) for _ in range(3)]
        for client in clients:
            client.start()
        for mark in range(2, 2 + REPLACEMENTS):
            marked(path, mark, overwrite=True)
            assert found.web.post("/v2/repository/models/a/load").status_code == 200
            now = found.web.post("/translate", json={"text": "a man"}).json()["translations"]
            assert now[0]["score"] == 3 * mark
        stop.set()
        for client in clients:
            client.join()
        assert len(answers) > 20
        for answer in answers:
            assert answer.status_code == 200
            first, second = answer.json()["translations"]
            assert second["score"] / 4 == first["score"] / 3  # both by one of them
        assert [one["text"] for one in answers[-1].json()["translations"]] == ["a man", "a dog a"]


def test_a_model_that_was_replaced_goes_with_its_last_answer(tmp_path):
    path = marked(tmp_path / "a", 1)
    with site({"a": path}, alone_threads=1) as found:
        assert found.web.post("/translate", json={"text": "a man"}).status_code == 200
        old = [weakref.ref(found.service.repository.get(name)) for name in ("a", "a-graph")]
        gc.disable()  # which would find it some time
        try:
            marked(path, 2, overwrite=True)
            assert found.web.post("/v2/repository/models/a/load").status_code == 200
            assert [model() for model in old] == [None, None]
        finally:
            gc.enable()


def test_a_damaged_artifact_leaves_the_old_one_and_says_so(tmp_path):
    path = marked(tmp_path / "a", 1)
    with site({"a": path}) as found:
        (path / "model.onnx").write_bytes(b"damaged")
        answer = found.web.post("/v2/repository/models/a/load")
        assert answer.status_code == 422 and "model.onnx" in answer.json()["error"]
        [state, _] = found.web.post("/v2/repository/index").json()
        assert state["state"] == "READY" and "model.onnx" in state["reason"]
        answer = found.web.post("/translate", json={"text": "a man"})
        assert answer.json()["translations"][0]["text"] == "a man"
        marked(path, 2, overwrite=True)
        assert found.web.post("/v2/repository/models/a/load").status_code == 200
        assert found.web.post("/v2/repository/index").json()[0]["reason"] == ""


def test_watching_goes_on_after_a_load_that_failed_as_none_foresaw(tmp_path, monkeypatch, caplog):
    path, whole = marked(tmp_path / "a", 1), repository.Translator

    def scarce(*arguments):
        raise MemoryError

    def state(web):
        return web.post("/v2/repository/index").json()[0]

    with site({"a": path}, watch=0.01, alone_threads=1) as found:
        monkeypatch.setattr(repository, "Translator", scarce)
        marked(path, 2, overwrite=True)
        while not state(found.web)["reason"]:
            pass
        assert state(found.web)["state"] == "READY"
        assert state(found.web)["reason"] == "MemoryError"
        monkeypatch.setattr(repository, "Translator", whole)
        marked(path, 3, overwrite=True)
        while state(found.web)["reason"]:
            pass
    assert any("the old one goes on: MemoryError" in said for said in caplog.messages)


def test_watching_sees_what_is_restored_after_an_unload_and_a_failed_load(tmp_path):
    path = make(tmp_path / "a")
    with site({"a": path}, watch=0.01, alone_threads=1) as found:
        load, unload = (f"/v2/repository/models/a/{what}" for what in ("load", "unload"))
        found.web.post(unload)
        path.rename(tmp_path / "gone")
        assert found.web.post(load).status_code == 422
        (tmp_path / "gone").rename(path)
        while found.web.get("/v2/models/a/ready").status_code != 200:
            pass


def test_a_load_goes_on_without_who_asked_for_it(tmp_path, monkeypatch):
    path = make(tmp_path / "copy")
    with site({"copy": path}, alone_threads=1) as found:
        repository, gate = found.service.repository, threading.Event()
        plain = repository._open

        def slow(source):
            gate.wait()
            return plain(source)

        monkeypatch.setattr(repository, "_open", slow)
        found.call(repository.unload("copy"))
        asked = found.begin(asyncio.wait_for(repository.load("copy"), 0.01))
        with pytest.raises(TimeoutError):
            asked.result()
        assert repository.opening and not repository.ready
        gate.set()
        while not repository.ready:
            pass
        assert not repository.opening and found.web.get("/v2/models/copy").status_code == 200


def test_a_process_ends_well_though_an_artifact_is_being_opened(tmp_path):
    code = """
import pathlib, sys, threading
from keras_bahdanau_runtime.service import repository
from keras_bahdanau_runtime.service.server import Settings, serve
plain, opened = repository.Repository._open, []
def once(self, source):
    if opened:
        print("opening", flush=True)
        threading.Event().wait()
    opened.append(source)
    return plain(self, source)
repository.Repository._open = once
begun = lambda: print("begun", flush=True)
artifact = {"copy": pathlib.Path(sys.argv[1])}
serve(Settings(artifact, port=0, grpc_port=None, alone_threads=1), begun=begun)
"""
    command = [sys.executable, "-c", code, str(make(tmp_path / "copy"))]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "opening\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_all_connections_that_the_system_allows(monkeypatch):
    """Where it says any number, as macOS does, it takes none but that of its own."""
    resource, told = pytest.importorskip("resource"), []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    endless = resource.RLIM_INFINITY
    for limits in ((256, 4096), (256, endless), (20_000, endless), (endless, endless)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        server._allow_connections()
    assert told == [(4096, 4096), (10_240, endless), (20_000, endless), (endless, endless)]


def test_a_service_that_could_not_start_can_be_stopped(artifact):
    async def go():
        service = Service(Settings({"copy": artifact}, port=0, grpc_port=port))
        with pytest.raises(OSError, match=str(port)):
            await service.start()
        assert await service.stop()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        asyncio.run(go())


def test_a_model_is_called_by_the_name_that_was_given_and_not_by_what_it_leads_to(tmp_path):
    """Where releases are exchanged by a link, names must not change with them."""
    (tmp_path / "en-de").symlink_to(make(tmp_path / "3f2a1c9"))
    assert serve_command._named([str(tmp_path / "en-de")]) == {"en-de": tmp_path / "en-de"}


def test_replacements_are_seen_by_watching_and_by_a_signal(tmp_path):
    path = marked(tmp_path / "a", 1)

    def score(url):
        asked = httpx.post(f"{url}/translate", json={"text": "a man"}, timeout=30)
        return asked.json()["translations"][0]["score"]

    with site({"a": path}, watch=0.01) as found:
        marked(path, 2, overwrite=True)
        while score(found.service.url) != 6:
            pass
    with serving(path, "--port", 0) as (process, url):
        marked(path, 3, overwrite=True)
        assert score(url) == 6
        process.send_signal(signal.SIGHUP)
        while score(url) != 9:
            pass


def test_versions_are_folders_by_number(tmp_path):
    (tmp_path / "a").mkdir()
    for version in (2, 10):
        marked(tmp_path / "a" / str(version), version)
    with site({"a": tmp_path / "a"}) as found:
        assert found.web.get("/models").json()["models"][0]["versions"] == ["2", "10"]
        texts = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a man"]}
        for path, mark in (("", 10), ("/versions/2", 2), ("/versions/10", 10)):
            answer = found.web.post(f"/v2/models/a{path}/infer", json={"inputs": [texts]}).json()
            assert answer["outputs"][1]["data"] == [3 * mark]
            assert answer["model_version"] == str(mark)
        assert found.web.get("/v2/models/a").json()["versions"] == ["2", "10"]


def test_versions_may_be_of_texts_or_of_tensors_alone(tmp_path):
    for version, document in (("1", DOCUMENT), ("2", None), ("10", None)):
        (tmp_path / "a").mkdir(exist_ok=True)
        make(tmp_path / "a" / version, document=document)
    with site({"a": tmp_path / "a"}) as found:
        index = found.web.post("/v2/repository/index").json()
        assert [(one["name"], one["version"]) for one in index] == [
            ("a", "1"), ("a-graph", "1"), ("a-graph", "2"), ("a-graph", "10")
        ]  # fmt: skip
        [model] = found.web.get("/models").json()["models"]
        assert (model["name"], model["versions"]) == ("a", ["1"])
        answer = found.web.post("/translate", json={"text": "a man"})
        assert answer.json()["translations"][0]["text"] == "a man"
        assert found.web.get("/v2/models/a").json()["versions"] == ["1"]
        assert found.web.get("/v2/models/a-graph").json()["versions"] == ["1", "2", "10"]
        answer = found.web.get("/v2/models/a/versions/10")
        assert answer.status_code == 404 and "There are: a 1, a-graph 1" in answer.json()["error"]


def test_both_doors_may_be_encrypted(artifact, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed.")
    pair = {"tls_certificate": tmp_path / "certificate", "tls_key": tmp_path / "key"}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1",
         "-out", pair["tls_certificate"], "-keyout", pair["tls_key"]],
        check=True, capture_output=True,
    )  # fmt: skip
    locked = tmp_path / "locked"
    subprocess.run(
        ["openssl", "pkey", "-in", pair["tls_key"], "-out", locked, "-aes128",
         "-passout", "pass:secret"],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="not encrypted"):
        Settings({"a": artifact}, **{**pair, "tls_key": locked})
    with site({"a": artifact}, grpc_port=0, **pair) as found:
        trusted = ssl.create_default_context(cafile=pair["tls_certificate"])
        answer = httpx.post(f"{found.service.url}/translate", json={"text": "a"}, verify=trusted)
        assert found.service.url.startswith("https://") and answer.status_code == 200
        client = tritonclient.grpc.InferenceServerClient(
            found.service.grpc_address, ssl=True, root_certificates=str(pair["tls_certificate"])
        )
        assert client.is_model_ready("a")
        client.close()


def test_a_log_of_json_lines_names_requests(artifact):
    with serving(artifact, "--port", 0, "--log-format", "json") as (process, url):
        httpx.get(f"{url}/models", headers={"X-Request-ID": "abc"})
        httpx.get(f"{url}/a%0A%1B[2Jb", headers={"X-Request-ID": "odd"})
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"no request\r\n\r\n")
            connection.recv(65536)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    lines = [json.loads(line) for line in process.said]
    [line] = [line for line in lines if line.get("request_id") == "abc"]
    assert line["message"] == "GET /models 200" and line["milliseconds"] >= 0
    [line] = [line for line in lines if line.get("request_id") == "odd"]
    assert line["message"] == "GET /a%0A%1B[2Jb 404"
    assert [line["level"] for line in lines if "Invalid HTTP" in line["message"]] == ["info"]


def test_a_client_who_leaves_after_a_large_body_takes_the_work_along(artifact):
    body = json.dumps({"text": ["a"] * 3}).encode() + 120_000 * b" "
    length = f"Content-Length: {len(body)}"
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()

    def queued(web, count):
        while f"queue_length {count}.0" not in web.get("/metrics").text:
            pass

    with site({"copy": artifact}, threads=1) as found:
        host, port = found.service.url.removeprefix("http://").split(":")
        with held(found):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(head)
                queued(found.web, 1)
                client.sendall(body)
                queued(found.web, 4)
            queued(found.web, 1)


def test_calls_of_a_graph_are_shared_among_threads(artifact):
    """They run one after another, so that together they would be answered late."""
    source = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 3]}

    async def ask(url, busy):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            asked = [
                asyncio.ensure_future(web.post("/v2/models/copy-graph/infer", json=given))
                for given in 3 * [{"inputs": [source], "outputs": [{"name": "lengths"}]}]
            ]
            while "queue_length 4.0" not in (await web.get("/metrics")).text:
                pass
            busy.gate.set()
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    with site({"copy": artifact}, threads=1) as found:
        with held(found) as busy:
            assert asyncio.run(ask(found.service.url, busy)) == [200] * 3
        counted = found.service.engine.metrics.render().decode()
    assert 'batch_size_count{model="copy-graph"} 3.0' in counted


def test_a_client_who_leaves_takes_the_work_along(artifact):
    async def queued(web, count):
        while f"queue_length {count}.0" not in (await web.get("/metrics")).text:
            pass

    async def go(url, busy):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            asked = [
                asyncio.ensure_future(web.post("/translate", json={"text": "a"})) for _ in range(3)
            ]
            await queued(web, 4)
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            await queued(web, 1)
            busy.gate.set()
            await queued(web, 0)

    with site({"copy": artifact}, threads=1) as found:
        with held(found) as busy:
            asyncio.run(go(found.service.url, busy))
        counted = found.service.engine.metrics.render().decode()
    assert 'batch_size_sum{model="echo"} 1.0' in counted
    assert 'batch_size_sum{model="copy"} 0.0' in counted
