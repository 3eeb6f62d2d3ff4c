"""Server lifecycle: signals, ports, processes that die, and artifacts that are replaced."""

import asyncio
import contextlib
import gc
import hashlib
import http.client
import json
import logging
import os
import re
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
import numpy as np
import pytest
import tritonclient.grpc
from copy_artifact import (
    COPY_STEPS,
    DOCUMENT,
    endless_graph,
    make,
    make_with_options,
    marked,
    spinning_graph,
)
from running_service import one_busy_thread, site
from service_process import ENVIRONMENT, SERVE, children, free_port, serving
from tritonclient.utils import InferenceServerException

from keras_bahdanau_cli.hub_artifacts import artifact_folders
from keras_bahdanau_runtime.service import repository, server
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.logs import TextFormatter
from keras_bahdanau_runtime.service.server import Service
from keras_bahdanau_runtime.service.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals.")

REPLACEMENTS = int(os.environ.get("REPLACEMENTS", "10"))  # 50 by make test-soak


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("process") / "copy", steps=COPY_STEPS)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return make(tmp_path_factory.mktemp("slow") / "slow", spinning_graph(200_000))


def texts(response):
    return [translation["text"] for translation in response.json()["translations"]]


async def start_request(web):
    """Send a request; return its task once the service works on it."""
    task = asyncio.ensure_future(web.post("/translate", json={"text": "a man"}))
    while "queue_length 1.0" not in (await web.get("/metrics")).text:
        assert not task.done()
    return task


def test_a_stop_finishes_accepted_requests(slow):
    async def stop_during_request(process, url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            task = await start_request(web)
            process.send_signal(signal.SIGTERM)
            while (await web.get("/v2/health/ready")).status_code != 503:
                pass
            refusal = await web.post("/translate", json={"text": "a"})
            assert refusal.status_code == 503 and refusal.json()["code"] == "unavailable"
            assert refusal.headers["retry-after"] == "1"
            assert texts(await task) == ["a man"]

    with serving(slow, "--port", 0) as (process, url):
        asyncio.run(stop_during_request(process, url))
        assert process.wait() == 0


def test_a_stop_waits_for_responses_that_are_read_slowly(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_FLUSH_SECONDS", 0.0)
    path = make(tmp_path / "copy", max_source_length=None)
    body = json.dumps({"text": 2 * [1000 * "a "], "alignments": True}).encode()  # 8 MB of zeros
    length = f"Content-Length: {len(body)}"
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
    with site({"copy": path}) as service, socket.socket() as slow, socket.socket() as unfinished:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for client, sent in ((slow, head + body), (unfinished, head + body[:-1])):
            client.connect((service.web.base_url.host, service.web.base_url.port))
            client.sendall(sent)
        received = slow.recv(1)
        stopping = service.submit(service.service.stop())
        assert unfinished.recv(65536).startswith(b"HTTP/1.1 503 ")  # it is not accepted
        for _ in range(1000):
            service.call(asyncio.sleep(0))
        assert not stopping.done()
        while part := slow.recv(2**20):
            received += part
        assert stopping.result()
    head, _, content = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and len(json.loads(content)["translations"]) == 2


WHOLE = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n" + (
    b'{"text": "a man"}'
)


def read_response(connection):
    """Return the status and the header `Connection` of a response; `None` at the end."""
    with http.client.HTTPResponse(connection) as response:
        try:
            response.begin()
        except http.client.RemoteDisconnected:
            return None
        response.read()
        return response.status, response.getheader("connection")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("delay", "statuses"), [(0, {200, 503}), (0.1, {200})])
def test_every_request_that_was_sent_before_the_end_is_answered(
    artifact, processes, delay, statuses
):
    """Clients send until they are refused, half of them over a new connection each time."""
    options = ("--processes", processes, "--drain-delay", delay)
    failures, answers, stopped = [], [], threading.Event()

    def send_requests(address, reuse):
        connection = None
        while True:
            try:
                connection = connection or socket.create_connection(address, timeout=60)
            except ConnectionRefusedError:
                return
            try:
                connection.sendall(WHOLE)
                answer = read_response(connection)
            except OSError as error:
                answer, reason = None, error
            else:
                reason = "closed"
            if answer is None:
                failures.append(reason)
            else:
                answers.append(answer)
            if answer is None or not reuse or answer[1] == "close":
                connection.close()
                connection = None
            if len(answers) > 200:
                stopped.set()

    with serving(artifact, "--port", free_port(), *options) as (process, url):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        clients = [
            threading.Thread(target=send_requests, args=(address, number % 2 == 0))
            for number in range(24)
        ]
        for client in clients:
            client.start()
        stopped.wait()
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join()
        assert process.wait() == 0
    assert {status for status, _ in answers} == statuses and not failures


def test_every_grpc_call_that_was_sent_before_the_end_is_answered(artifact):
    errors, answers = [], threading.Semaphore(0)

    def send_calls(address):
        with tritonclient.grpc.InferenceServerClient(address) as client:
            text = tritonclient.grpc.InferInput("text", [1], "BYTES")
            text.set_data_from_numpy(np.array([b"a man"], object))
            while not any("failed to connect" in error for error in errors):
                try:
                    client.infer("copy", [text])
                except InferenceServerException as error:
                    errors.append(f"{error.status()} {error.message()}")
                answers.release()

    with site({"copy": artifact}, grpc_port=0) as service:
        arguments = (service.service.grpc_address,)
        clients = [threading.Thread(target=send_calls, args=arguments) for _ in range(16)]
        for client in clients:
            client.start()
        for _ in range(50):
            answers.acquire()
        assert service.call(service.service.stop())
        for client in clients:
            client.join()
    assert errors and {error.split()[0] for error in errors} == {"StatusCode.UNAVAILABLE"}


def test_pipelined_requests_are_answered_during_a_stop(artifact):
    with site({"copy": artifact}, parallel_batches=2) as service:
        address = service.web.base_url.host, service.web.base_url.port
        with one_busy_thread(service), contextlib.ExitStack() as stack:
            unused, used, pipelined = (
                stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(3)
            )
            used.sendall(WHOLE)
            assert read_response(used) == (200, None)
            stopping = service.submit(service.service.stop())
            while not service.service.engine.is_draining:
                pass
            pipelined.sendall(3 * WHOLE)
            received = b"".join(iter(lambda: pipelined.recv(65536), b""))
            assert received.count(b"HTTP/1.1 503 ") == 3
            assert received.lower().count(b"connection: close") == 1
            for connection in (unused, used):
                connection.sendall(WHOLE)
                assert read_response(connection) == (503, "close")
        assert stopping.result()


def test_a_stop_ends_after_the_grace_period(slow):
    async def stop_during_request(process, url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            task = await start_request(web)
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(task, return_exceptions=True)

    with serving(slow, "--port", 0, "--grace", 0.01) as (process, url):
        asyncio.run(stop_during_request(process, url))
        assert process.wait() == 1


def test_a_stop_during_an_abandoned_run_succeeds(slow):
    with serving(slow, "--port", 0, "--model-threads", 1) as (process, url):
        request = {"text": "a man", "timeout": 0.1}
        assert httpx.post(f"{url}/translate", json=request, timeout=60).status_code == 504
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_stop_does_not_wait_until_all_models_are_open(slow):
    service, starts = Service(Settings({"slow": slow}, port=0, grpc_port=None)), []

    async def stop_while_opening():
        running = asyncio.ensure_future(service.run(on_started=lambda: starts.append(True)))
        while not service.repository.is_opening:
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    assert asyncio.run(stop_while_opening()) and service.url == "" and not starts


def serve_error(*arguments):
    """Return the error message of a service that cannot start."""
    finished = subprocess.run(
        [*SERVE, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT
    )
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert finished.returncode in (1, 2, 4) and len(errors) == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    return errors[0]


@pytest.fixture
def used_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_used_port_is_named(artifact, used_port):
    for arguments in (
        ("--port", used_port, "--grpc-port", 0),
        # Workers share a port, so the operating system would let them share a foreign one, too.
        ("--port", free_port(), "--grpc-port", used_port, "--processes", 2),
    ):
        message = serve_error(artifact, *arguments)
        assert f"127.0.0.1:{used_port}" in message and "in use" in message


def test_invalid_settings_are_named(artifact, tmp_path):
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n")
    pem_error = "must be PEM files .* Received: .*/{} and"
    for options, message in (
        ({"host": "0.0.0.0"}, "api_key_file"),
        ({"tls_key": missing}, "passed together"),
        ({"grace": -1}, "`grace`"),
        ({"drain_delay": -1}, "`drain_delay`"),
        ({"tls_certificate": missing, "tls_key": missing}, pem_error.format("missing")),
        ({"tls_certificate": empty, "tls_key": empty}, pem_error.format("empty")),
    ):
        with pytest.raises(ValueError, match=message):
            Settings({"a": artifact}, **options)


def test_sources_and_keys_that_cannot_be_used_are_named(artifact, tmp_path):
    (tmp_path / "keys").write_text("\n")
    (tmp_path / "odd").write_text("key\nschlüssel\n", "utf-8")
    (tmp_path / "latin").write_text("schlüssel\n", "latin-1")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "options.json").touch()
    for sources, options, message in (
        ({"a": tmp_path / "none"}, {}, "`path`"),
        ({"a": tmp_path}, {}, "must be artifacts, or folders"),
        ({"a": tmp_path / "run"}, {}, "is a training run. Export it first: keras-bahdanau export"),
        ({"a": make(tmp_path / "no graph", graph=None)}, {}, r"has no model\.onnx"),
        ({"a b": artifact}, {}, "names of letters"),
        ({"a": artifact, "a-graph": artifact}, {}, "must not have the names"),
        ({"a": artifact}, {"api_key_file": tmp_path / "keys"}, "must contain a key"),
        ({"a": artifact}, {"api_key_file": tmp_path / "odd"}, "printable ASCII .* in line 2"),
        ({"a": artifact}, {"api_key_file": tmp_path / "latin"}, "must be UTF-8"),
    ):
        with pytest.raises((ValueError, ServiceError), match=message), site(sources, **options):
            pass


def test_a_failed_start_raises_its_exception(artifact):
    settings = Settings({"a": artifact}, grpc_port=None)
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        with pytest.raises(ValueError, match="Stream"):
            asyncio.run(Service(settings).run(datagrams))


def mapped_counters(process_ids):
    """Return the memory-mapped files that contain the metrics of processes."""
    maps = "".join(Path(f"/proc/{number}/maps").read_text() for number in process_ids)
    return [line.split()[-1] for line in maps.splitlines() if line.endswith(".db")]


def resident_bytes(process_id):
    pages = Path(f"/proc/{process_id}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def memory_is_that_of_two(url, process_ids):
    metrics = httpx.get(f"{url}/metrics", timeout=30).text
    [total] = re.findall(r"^process_resident_memory_bytes (\S+)", metrics, re.MULTILINE)
    return float(total) > 1.5 * max(resident_bytes(number) for number in process_ids)


def test_processes_share_a_port_and_are_replaced(artifact):
    with serving(artifact, "--port", free_port(), "--processes", 2) as (process, url):
        pids = children(process)
        assert len(pids) == 2
        if sys.platform == "linux":  # on a full disk, writing to a mapped file kills the process
            folders = {path.rpartition("/tmp")[0] for path in mapped_counters(pids)}
            assert folders == {"/dev/shm"}
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[1], signal.SIGTERM)  # for a while, no process serves
        responses = 0
        while len(set(children(process)) - {*pids}) < 2 or responses < 20:
            # The request was at the killed process.
            with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
                response = httpx.post(f"{url}/translate", json={"text": "a man"}, timeout=30)
                if response.status_code != 503:  # the process that stops refuses it
                    assert texts(response) == ["a man"]
                    responses += 1
        if sys.platform == "linux":
            metrics = httpx.get(f"{url}/metrics", timeout=30).text
            assert "keras_bahdanau_requests_in_flight 1.0" in metrics
            # A process that has just started has little memory.
            assert any(memory_is_that_of_two(url, children(process)) for _ in range(2000))
        for call in ("load", "unload"):  # would reach one worker only
            response = httpx.post(f"{url}/v2/repository/models/copy/{call}", timeout=30)
            assert response.status_code == 409 and "--watch" in response.json()["error"]
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_connections_send_small_packets_at_once(artifact):
    """Otherwise the body of a response, a separate packet, waits 40 ms for the client."""
    with site({"copy": artifact}) as service:
        assert service.web.get("/v2").status_code == 200
        [connection] = service.service._http.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_max_wait_is_in_milliseconds(artifact, tmp_path):
    """If it were in seconds, the second request would wait until its timeout."""

    async def translate_beside_an_endless_run(url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            request = {"text": "z" * 30, "model": "endless"}
            endless = asyncio.ensure_future(web.post("/translate", json=request))
            while "queue_length 1.0" not in (await web.get("/metrics")).text:
                assert not endless.done()
            request = {"text": "a man", "model": "copy", "timeout": 20}
            response = await web.post("/translate", json=request)
            endless.cancel()
            return response

    endless = make(tmp_path / "endless", endless_graph())
    options = ("--port", 0, "--parallel-batches", 2, "--model-threads", 1, "--max-wait", 50)
    with serving(endless, artifact, *options) as (_, url):
        response = asyncio.run(translate_beside_an_endless_run(url))
    assert response.status_code == 200 and texts(response) == ["a man"]


def test_max_beam_size_limits_requests(tmp_path):
    path = make_with_options(tmp_path / "options")
    with serving(path, "--port", 0, "--max-beam-size", 1) as (_, url):
        body = {"text": "a man", "beam_size": 2}
        response = httpx.post(f"{url}/translate", json=body, timeout=30)
    assert response.status_code == 400 and response.json()["argument"] == "beam_size"
    assert "at most 1. Received: 2" in response.json()["error"]


def score(url):
    response = httpx.post(f"{url}/translate", json={"text": "a man"}, timeout=30)
    return response.json()["translations"][0]["score"]


def test_an_artifact_is_replaced_under_load_without_a_failed_request(tmp_path):
    path = marked(tmp_path / "a", 1)
    with site({"a": path}) as service:
        stop, responses = threading.Event(), []

        def send_requests():
            with httpx.Client(base_url=service.service.url, timeout=60) as web:
                while not stop.is_set():
                    responses.append(web.post("/translate", json={"text": ["a man", "a dog a"]}))

        clients = [threading.Thread(target=send_requests) for _ in range(3)]
        for client in clients:
            client.start()
        for mark in range(2, 2 + REPLACEMENTS):
            marked(path, mark, overwrite=True)
            assert service.web.post("/v2/repository/models/a/load").status_code == 200
            assert score(service.service.url) == 3 * mark
        stop.set()
        for client in clients:
            client.join()
    assert len(responses) > 20
    for response in responses:
        assert response.status_code == 200
        first, second = response.json()["translations"]
        assert second["score"] / 4 == first["score"] / 3  # both come from the same artifact
    assert texts(responses[-1]) == ["a man", "a dog a"]


def test_the_metrics_name_the_artifact_that_is_served(tmp_path):
    def digest():
        return hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()[:12]

    path = marked(tmp_path / "a", 1)
    first = digest()
    with site({"a": path}, model_threads=1) as service:
        marked(path, 2, overwrite=True)
        assert service.web.post("/v2/repository/models/a/load").status_code == 200
        metrics = service.web.get("/metrics").text
    pattern = r'model_info\{artifact="(.*)",model="a",version="1"\} (.*)'
    assert dict(re.findall(pattern, metrics)) == {first: "0.0", digest(): "1.0"}


def test_a_replaced_model_is_freed_without_garbage_collection(tmp_path):
    path = marked(tmp_path / "a", 1)
    with site({"a": path}, model_threads=1) as service:
        assert service.web.post("/translate", json={"text": "a man"}).status_code == 200
        models = [weakref.ref(service.service.repository.get(name)) for name in ("a", "a-graph")]
        gc.disable()
        try:
            marked(path, 2, overwrite=True)
            assert service.web.post("/v2/repository/models/a/load").status_code == 200
            assert [model() for model in models] == [None, None]
        finally:
            gc.enable()


def test_a_damaged_artifact_is_reported_and_the_old_one_keeps_serving(tmp_path):
    path = marked(tmp_path / "a", 1)
    with site({"a": path}) as service:
        (path / "model.onnx").write_bytes(b"damaged")
        response = service.web.post("/v2/repository/models/a/load")
        assert response.status_code == 422 and "model.onnx" in response.json()["error"]
        service.call(service.service.reload())  # SIGHUP calls it
        [state, _] = service.web.post("/v2/repository/index").json()
        assert state["state"] == "READY" and "model.onnx" in state["reason"]
        assert score(service.service.url) == 3
        marked(path, 2, overwrite=True)
        service.call(service.service.reload())
        assert service.web.post("/v2/repository/index").json()[0]["reason"] == ""


def test_watching_continues_after_an_unexpected_exception(tmp_path, monkeypatch, caplog):
    path = marked(tmp_path / "a", 1)

    def fail(*arguments):
        raise MemoryError

    def state():
        return service.web.post("/v2/repository/index").json()[0]

    with site({"a": path}, watch=0.01, model_threads=1) as service:
        with monkeypatch.context() as patch:
            patch.setattr(repository, "Translator", fail)
            marked(path, 2, overwrite=True)
            while not state()["reason"]:
                pass
            assert state()["state"] == "READY" and state()["reason"] == "MemoryError"
        marked(path, 3, overwrite=True)
        while state()["reason"]:
            pass
    assert any("the old one stays: MemoryError" in message for message in caplog.messages)


def test_watching_loads_an_artifact_that_is_restored_after_a_failed_load(tmp_path):
    path = make(tmp_path / "a")
    with site({"a": path}, watch=0.01, model_threads=1) as service:
        service.web.post("/v2/repository/models/a/unload")
        path.rename(tmp_path / "gone")
        assert service.web.post("/v2/repository/models/a/load").status_code == 422
        (tmp_path / "gone").rename(path)
        while service.web.get("/v2/models/a/ready").status_code != 200:
            pass


def test_a_load_continues_after_its_client_disconnected(artifact, monkeypatch):
    with site({"copy": artifact}, model_threads=1) as service:
        repository, gate = service.service.repository, threading.Event()
        open_source = repository._open

        def open_after_gate(source):
            gate.wait()
            return open_source(source)

        monkeypatch.setattr(repository, "_open", open_after_gate)
        service.call(repository.unload("copy"))
        with pytest.raises(TimeoutError):
            service.call(asyncio.wait_for(repository.load("copy"), 0.01))
        assert repository.is_opening and not repository.is_ready
        gate.set()
        while not repository.is_ready:
            pass
        assert not repository.is_opening and service.web.get("/v2/models/copy").status_code == 200


def test_a_stop_while_an_artifact_is_opened_succeeds(artifact):
    code = """
import pathlib, sys, threading
from keras_bahdanau_runtime.service import repository
from keras_bahdanau_runtime.service.server import serve
from keras_bahdanau_runtime.service.settings import Settings
open_source, opened = repository.Repository._open, []
def open_once(self, source):
    if opened:
        print("opening", flush=True)
        threading.Event().wait()
    opened.append(source)
    return open_source(self, source)
repository.Repository._open = open_once
on_started = lambda: print("started", flush=True)
artifact = {"copy": pathlib.Path(sys.argv[1])}
serve(Settings(artifact, port=0, grpc_port=None, model_threads=1), on_started=on_started)
"""
    command = [sys.executable, "-c", code, str(artifact)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "started\n"
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "opening\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_the_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch):
    """macOS reports no limit, but allows a process 10,240 open files."""
    resource, new_limits = pytest.importorskip("resource"), []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: new_limits.append(limits))
    endless = resource.RLIM_INFINITY
    for limits in ((256, 4096), (256, endless), (20_000, endless), (endless, endless)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        server._raise_file_limit()
    assert new_limits == [(4096, 4096), (10_240, endless), (20_000, endless), (endless, endless)]


def test_a_service_that_failed_to_start_can_be_stopped(artifact, used_port):
    async def start_and_stop():
        service = Service(Settings({"copy": artifact}, port=0, grpc_port=used_port))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{used_port}"):
            await service.start()
        assert await service.stop()

    asyncio.run(start_and_stop())


def test_a_model_has_the_name_of_its_link_and_not_of_the_target(tmp_path):
    """Deployments exchange releases by changing a link. Model names must not change with it."""
    (tmp_path / "en-de").symlink_to(make(tmp_path / "3f2a1c9"))
    assert artifact_folders([str(tmp_path / "en-de")]) == {"en-de": tmp_path / "en-de"}


def test_a_signal_loads_a_replaced_artifact(tmp_path):
    path = marked(tmp_path / "a", 1)
    with serving(path, "--port", 0) as (process, url):
        marked(path, 2, overwrite=True)
        assert score(url) == 3
        process.send_signal(signal.SIGHUP)
        while score(url) != 6:
            pass


def test_versions_are_folders_with_numbers(tmp_path):
    (tmp_path / "a").mkdir()
    for version in (2, 10):
        marked(tmp_path / "a" / str(version), version)
    with site({"a": tmp_path / "a"}) as service:
        assert service.web.get("/models").json()["models"][0]["versions"] == ["2", "10"]
        text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a man"]}
        for path, mark in (("", 10), ("/versions/2", 2), ("/versions/10", 10)):
            response = service.web.post(f"/v2/models/a{path}/infer", json={"inputs": [text]}).json()
            assert response["outputs"][1]["data"] == [3 * mark]
            assert response["model_version"] == str(mark)
        assert service.web.get("/v2/models/a").json()["versions"] == ["2", "10"]


def test_some_versions_of_a_model_may_lack_a_tokenizer(tmp_path):
    (tmp_path / "a").mkdir()
    for version, document in (("1", DOCUMENT), ("2", None), ("10", None)):
        make(tmp_path / "a" / version, document=document)
    with site({"a": tmp_path / "a"}) as service:
        web = service.web
        index = web.post("/v2/repository/index").json()
        assert [(model["name"], model["version"]) for model in index] == [
            ("a", "1"), ("a-graph", "1"), ("a-graph", "2"), ("a-graph", "10")
        ]  # fmt: skip
        [model] = web.get("/models").json()["models"]
        assert (model["name"], model["versions"]) == ("a", ["1"])
        assert texts(web.post("/translate", json={"text": "a man"})) == ["a man"]
        assert web.get("/v2/models/a").json()["versions"] == ["1"]
        assert web.get("/v2/models/a-graph").json()["versions"] == ["1", "2", "10"]
        response = web.get("/v2/models/a/versions/10")
        assert response.status_code == 404
        assert "There are: a 1, a-graph 1" in response.json()["error"]


def test_http_and_grpc_may_be_encrypted(artifact, tmp_path):
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
    with site({"a": artifact}, grpc_port=0, **pair) as service:
        trusted = ssl.create_default_context(cafile=pair["tls_certificate"])
        url, address = service.service.url, service.service.grpc_address
        response = httpx.post(f"{url}/translate", json={"text": "a"}, verify=trusted)
        assert url.startswith("https://") and response.status_code == 200
        with tritonclient.grpc.InferenceServerClient(
            address, ssl=True, root_certificates=str(pair["tls_certificate"])
        ) as client:
            assert client.is_model_ready("a")


def test_json_log_lines_have_the_fields_of_their_requests(artifact):
    with serving(artifact, "--port", 0, "--log-format", "json") as (process, url):
        httpx.get(f"{url}/models", headers={"X-Request-ID": "abc"})
        for name, text in (("texts", ["a man", ""]), ("long", 1025 * "a ")):
            httpx.post(f"{url}/translate", json={"text": text}, headers={"X-Request-ID": name})
        httpx.get(f"{url}/a%0A%1B[2Jb", headers={"X-Request-ID": "odd"})
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(b"no request\r\n\r\n")
            connection.recv(65536)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    lines = [json.loads(line) for line in process.log_lines]
    by_id = {line["request_id"]: line for line in lines if "request_id" in line}
    assert by_id["abc"]["message"] == "GET /models 200" and by_id["abc"]["milliseconds"] >= 0
    assert {*by_id["abc"]} == {"time", "level", "message", "request_id", "milliseconds"}
    line = by_id["texts"]
    assert (line["model"], line["texts"], line["tokens"]) == ("copy", 2, 3)  # a, man and the end
    assert line["queue_milliseconds"] >= 0 and "error" not in line
    parts = line["queue_milliseconds"] + line["run_milliseconds"]
    assert 0 < line["run_milliseconds"] <= parts <= line["milliseconds"] + 0.01  # it is rounded
    assert by_id["long"]["error"] == "too_large" and by_id["long"]["model"] == "copy"
    assert by_id["odd"]["message"] == "GET /a%0A%1B[2Jb 404"
    assert [line["level"] for line in lines if "Invalid HTTP" in line["message"]] == ["info"]


def test_a_message_with_control_characters_is_one_line_of_the_text_log():
    record = logging.makeLogRecord({"msg": "GET /a\n\x1b[2J", "levelname": "INFO"})
    line = TextFormatter().format(record)
    assert line.endswith(r" INFO GET /a\n\x1b[2J") and line.isprintable()


def test_calls_of_a_graph_are_not_batched(artifact):
    """A batch would run them one after another and answer all of them late."""
    source = {"name": "source", "datatype": "INT32", "shape": [1, 3], "data": [5, 6, 3]}
    request = {"inputs": [source], "outputs": [{"name": "lengths"}]}

    async def send_all(url, busy):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            calls = [web.post("/v2/models/copy-graph/infer", json=request) for _ in range(3)]
            responses = asyncio.gather(*calls)
            while "queue_length 4.0" not in (await web.get("/metrics")).text:
                pass
            busy.gate.set()
            return [response.status_code for response in await responses]

    with site({"copy": artifact}, parallel_batches=1) as service:
        with one_busy_thread(service) as busy:
            assert asyncio.run(send_all(service.service.url, busy)) == [200] * 3
        metrics = service.web.get("/metrics").text
    assert 'batch_size_count{model="copy-graph"} 3.0' in metrics
