"""Faults around a service: full disks, dying processes, clock jumps, and damaged artifacts."""

import contextlib
import itertools
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from copy_artifact import COPY_STEPS, make, marked
from running_service import Echo, ask, site
from service_process import ENVIRONMENT, SERVE, free_port, serving

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.logs import JsonFormatter, buffer_lines
from keras_bahdanau_runtime.service.processes import _serves, _Supervisor, _with_shared_cores
from keras_bahdanau_runtime.service.server import bind
from keras_bahdanau_runtime.service.settings import Limits, Settings
from keras_bahdanau_runtime.session import available_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="It needs /proc and /dev of Linux.")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("faults") / "copy", steps=COPY_STEPS)


@pytest.fixture
def own_artifact(artifact, tmp_path):
    """Return a copy of the artifact that the test may change."""
    return shutil.copytree(artifact, tmp_path / "a")


def translate(web):
    """Translate "a man", whose translation is the same text."""
    response = web.post("/translate", json={"text": "a man"})
    assert response.status_code == 200, response.text
    return response.json()["translations"][0]


# The log cannot be written.


@pytest.fixture(params=["a full disk", "a pipe without a reader"])
def unwritable(request):
    if request.param == "a full disk":
        with open("/dev/full", "w") as file:
            yield file
    else:
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as file:
            yield file


def test_a_service_continues_without_its_log(own_artifact, unwritable):
    port = free_port()
    command = [*SERVE, str(own_artifact), "--port", str(port), "--grpc-port", "0"]
    # Buffered output, Python's default, fails a second time at the end of the process.
    env = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stderr=unwritable, env=env) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as web:
                live = False
                while not live:
                    assert process.poll() is None
                    with contextlib.suppress(httpx.ConnectError):
                        live = web.get("/v2/health/live").status_code == 200
                (own_artifact / "model.onnx").unlink()
                for _ in range(5):
                    assert translate(web)["text"] == "a man"
                    # Errors are logged without a buffer.
                    assert web.post("/v2/repository/models/a/load").status_code == 422
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()


def test_log_lines_that_cannot_be_written_are_dropped(unwritable, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as `log_to_stderr` does
    target = logging.StreamHandler(unwritable)
    target.setFormatter(JsonFormatter())
    handler = buffer_lines(target)
    for number in range(3000):
        handler.handle(logging.makeLogRecord({"msg": "a" * 100, "levelno": logging.INFO}))
        assert len(handler.buffer) < 1000, number
    handler.flush()
    assert handler.buffer == []
    with contextlib.suppress(OSError):
        unwritable.close()


# Processes.


@pytest.fixture
def supervisor(own_artifact, tmp_path, monkeypatch):
    """Yield a supervisor that has no processes yet."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    settings = Settings({"a": own_artifact}, port=0, grpc_port=None)
    with bind(settings) as listener:
        supervisor = _Supervisor(settings, listener)
        yield supervisor
        for process in supervisor._processes:
            process.kill()
            process.join()


def remove(supervisor, process):
    """Remove a process that has died or will die; return whether it has served."""
    process.join()
    return _serves(supervisor._processes.pop(process))


def test_processes_share_the_cores(artifact):
    shared = _with_shared_cores(Settings({"a": artifact}, processes=2))
    assert (shared.parallel_batches, shared.model_threads) == (max(1, available_cores() // 2), 1)
    assert _with_shared_cores(Settings({"a": artifact}, processes=1000)).parallel_batches == 1
    explicit = Settings({"a": artifact}, parallel_batches=3, model_threads=2, processes=2)
    assert _with_shared_cores(explicit) == explicit


def test_a_process_that_dies_before_a_stop_is_not_replaced(supervisor, tmp_path):
    supervisor._start()
    [first] = supervisor._processes
    first.kill()
    first.join(20)
    supervisor._forward(signal.SIGTERM, None)  # must ignore the dead process
    gauge = tmp_path / f"gauge_livesum_{first.pid}.db"  # the queue length of the dead process
    gauge.touch()
    supervisor._replace(first, True)
    assert not gauge.exists() and [*supervisor._processes] == [first]


def test_a_process_gets_no_reload_signal_before_it_serves(supervisor):
    supervisor._start()
    [(process, serves)] = supervisor._processes.items()
    supervisor._forward(signal.SIGHUP, None)  # would end it
    while not _serves(serves):
        assert process.is_alive()
    supervisor._forward(signal.SIGHUP, None)
    supervisor._forward(signal.SIGTERM, None)
    process.join(20)
    assert process.exitcode == 0


def test_a_process_that_cannot_start_does_not_end_the_others(supervisor, own_artifact):
    supervisor._start()
    [(first, serves)] = supervisor._processes.items()
    while not _serves(serves):
        assert first.is_alive()
    deleted("model.onnx")(own_artifact)
    supervisor._start()
    [_, second] = supervisor._processes
    assert not remove(supervisor, second)
    assert supervisor._replace(second, False)  # the service continues
    assert list(supervisor._processes) == [first] and first.is_alive()
    first.kill()
    assert remove(supervisor, first)
    assert supervisor._replace(first, True)
    [third] = supervisor._processes
    assert not remove(supervisor, third) and not supervisor._replace(third, False)
    assert not supervisor._processes


def test_processes_that_die_before_they_serve_are_given_up(supervisor):
    supervisor._start()
    goes_on = []
    while supervisor._processes:
        [process] = supervisor._processes
        process.kill()
        remove(supervisor, process)
        goes_on.append(supervisor._replace(process, False))
    assert goes_on == [True, True, False]


def test_an_artifact_that_no_process_can_open_is_named_without_a_traceback(own_artifact):
    cut("model.onnx")(own_artifact)
    command = [*SERVE, str(own_artifact), "--port", str(free_port()), "--processes", "2"]
    finished = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert finished.returncode == 1 and "No process can start" in finished.stderr
    assert "model.onnx" in finished.stderr and "Traceback" not in finished.stderr


def test_processes_end_when_their_parent_is_killed(artifact):
    code = f"""
import os, pathlib
from keras_bahdanau_runtime.service.server import bind
from keras_bahdanau_runtime.service.settings import Settings
from keras_bahdanau_runtime.service.processes import _Supervisor
settings = Settings({{"a": pathlib.Path({str(artifact)!r})}}, port=0, grpc_port=None)
_Supervisor(settings, bind(settings))._start()
os.kill(os.getpid(), 9)
"""
    # The standard error that they share ends with the last process.
    finished = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60
    )
    assert finished.returncode == -signal.SIGKILL


# Clocks.


@pytest.mark.parametrize("hours", [1, -1])
def test_jumps_of_the_system_clock_change_no_timeout(tmp_path, monkeypatch, hours):
    path, now = marked(tmp_path / "a", 1), time.time()
    times = itertools.count(now, 3600 * hours)
    monkeypatch.setattr(time, "time", lambda: next(times))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(times) * 1e9))
    with site({"a": path}, watch=0.01, parallel_batches=2) as service:
        assert translate(service.web)["score"] == 3
        engine, busy = service.service.engine, Echo()
        running = []
        for payload in ("a", "b"):  # the second waits for others to join it
            running.append(service.submit(engine.run(busy, [payload], [1])))
            assert busy.started.acquire(timeout=30)
        with pytest.raises(ServiceError) as caught:
            service.call(ask(engine, busy, "c", timeout=0.01))
        assert caught.value.kind == "timeout"
        with pytest.raises(ServiceError) as caught:
            service.call(engine.run(busy, ["d"], [Limits().queued_tokens]))
        assert caught.value.kind == "overloaded" and caught.value.retry_after == 1
        marked(path, 2, overwrite=True)
        busy.gate.set()
        assert [task.result() for task in running] == [["a"], ["b"]]
        assert any(translate(service.web)["score"] == 6 for _ in range(600))
        assert service.call(engine.drain(30.0))


# Descriptors.


def test_idle_connections_do_not_use_up_file_descriptors(artifact):
    def limit_descriptors():
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    with serving(artifact, "--port", 0, preexec_fn=limit_descriptors) as (process, url):
        address = (httpx.URL(url).host, httpx.URL(url).port)
        with httpx.Client(base_url=url, timeout=30) as web:
            assert translate(web)["text"] == "a man"
            idle = [socket.create_connection(address, timeout=30) for _ in range(200)]
            refused, _, _ = select.select(idle, [], [], 30)
            assert refused[0].recv(20).startswith(b"HTTP/1.1 503 ")
            assert translate(web)["text"] == "a man"
            assert web.get("/").status_code == 200  # reads a file
            assert web.get("/metrics").status_code == 200
            assert web.post("/v2/repository/models/copy/load").status_code == 200
        for connection in idle:
            connection.close()
        status = 503
        while status == 503:  # until the service has noticed the closed connections
            with contextlib.suppress(httpx.TransportError):
                status = httpx.get(f"{url}/models", timeout=30).status_code
        assert status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


# Artifacts that are damaged while they are served.


def flipped(name):
    def damage(path):
        contents = bytearray((path / name).read_bytes())
        contents[len(contents) // 2] ^= 1
        (path / name).write_bytes(contents)

    return damage


def cut(name):
    return lambda path: os.truncate(path / name, 40)


def deleted(name):
    return lambda path: (path / name).unlink()


DAMAGES = {
    "a bit of the model": flipped("model.onnx"),
    "the end of the model": cut("model.onnx"),
    "the model": deleted("model.onnx"),
    "a bit of the step": flipped("step.onnx"),
    "the end of the tokenizer": cut("tokenizer.json"),
    "the tokenizer": deleted("tokenizer.json"),
    "the end of the manifest": cut("manifest.json"),
    "the manifest": deleted("manifest.json"),
    "the folder": shutil.rmtree,
}


def load_fails(web):
    """Return whether the last load of the artifact failed."""
    models = web.post("/v2/repository/index").json()
    assert [model["state"] for model in models] == ["READY", "READY"]
    return bool(models[0]["reason"])


@contextlib.contextmanager
def under_load(url):
    """Translate and stream in another thread, and assert that every response is correct."""
    has_begun, stop, responses = threading.Event(), threading.Event(), []

    def send_requests():
        with httpx.Client(base_url=url, timeout=60) as web:
            while not stop.is_set():
                for path in ("/translate", "/translate/stream"):
                    responses.append(web.post(path, json={"text": "a man"}).text)
                has_begun.set()

    client = threading.Thread(target=send_requests)
    client.start()
    try:
        assert has_begun.wait(60)
        yield
    finally:
        stop.set()
        client.join()
    for translation, stream in zip(responses[::2], responses[1::2], strict=True):
        assert '"text":"a man"' in translation and '{"text":"a man"}' in stream


def test_a_damaged_artifact_is_refused_until_it_is_repaired(artifact, own_artifact, caplog):
    caplog.set_level(logging.INFO, "keras_bahdanau_runtime")
    with site({"a": own_artifact}, watch=0.01) as service, under_load(service.service.url):
        for name, damage in DAMAGES.items():
            caplog.clear()
            damage(own_artifact)
            assert any(load_fails(service.web) for _ in range(600)), name
            assert "could not be loaded, the old one stays" in caplog.text
            assert translate(service.web)["text"] == "a man"
            shutil.copytree(artifact, own_artifact, dirs_exist_ok=True)
            assert any(not load_fails(service.web) for _ in range(600)), name
            assert "The model a is ready" in caplog.text
