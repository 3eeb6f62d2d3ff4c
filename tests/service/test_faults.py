"""What goes wrong around a service: disks, clocks, descriptors, and files that are damaged."""

import contextlib
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

from keras_bahdanau_runtime.service.engine import Limits
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.logs import JsonLines, _Bunches
from keras_bahdanau_runtime.service.server import Settings, bind
from keras_bahdanau_runtime.service.workers import _Crew, _is_up, _sharing
from keras_bahdanau_runtime.session import cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="It needs /proc and /dev of Linux.")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("faults") / "copy", steps=COPY_STEPS)


def translated(web, text="a man"):
    """The translation of a text: the copying model's is the text itself."""
    answer = web.post("/translate", json={"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()["translations"][0]


# The log cannot be written.


@pytest.fixture(params=["a full disk", "a pipe that nobody reads"])
def unwritable(request):
    if request.param == "a full disk":
        with open("/dev/full", "w") as file:
            yield file
    else:
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as file:
            yield file


def test_a_log_that_cannot_be_written_stops_nothing(artifact, tmp_path, unwritable):
    path, port = tmp_path / "a", free_port()
    shutil.copytree(artifact, path)
    command = [*SERVE, str(path), "--port", str(port), "--grpc-port", "0"]
    # Buffered, as it is where nothing else is told: what waits fails at the end once more.
    env = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stderr=unwritable, env=env) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as web:
                live = False
                while not live:
                    assert process.poll() is None
                    with contextlib.suppress(httpx.ConnectError):
                        live = web.get("/v2/health/live").status_code == 200
                (path / "model.onnx").unlink()
                for _ in range(5):
                    assert translated(web)["text"] == "a man"
                    # It is an error, and written at once.
                    assert web.post("/v2/repository/models/a/load").status_code == 422
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()


def test_lines_that_cannot_be_written_are_not_kept(unwritable, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as `log_to_stderr` does
    target = logging.StreamHandler(unwritable)
    target.setFormatter(JsonLines())
    bunches = _Bunches(target)
    for number in range(3000):
        bunches.handle(logging.makeLogRecord({"msg": "a" * 100, "levelno": logging.INFO}))
        assert len(bunches.buffer) < 1000, number
    bunches.flush()
    assert bunches.buffer == []
    with contextlib.suppress(OSError):
        unwritable.close()


# Workers.


@contextlib.contextmanager
def crew_of(path, folder, monkeypatch):
    """A crew that serves this artifact, without workers yet."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    settings = Settings({"a": path}, port=0, grpc_port=None)
    with bind(settings) as listening:
        crew = _Crew(settings, listening)
        try:
            yield crew
        finally:
            for worker in crew._workers:
                worker.kill()
                worker.join()


def test_workers_share_the_cores(artifact):
    settings = Settings({"a": artifact})
    shared = _sharing(settings, 2)
    assert (shared.threads, shared.alone_threads) == (max(1, cores() // 2), 1)
    assert _sharing(settings, 1000).threads == 1
    named = Settings({"a": artifact}, threads=3, alone_threads=2)
    assert _sharing(named, 2) == named


def test_a_worker_that_begins_during_a_stop_stops_too(artifact, tmp_path, monkeypatch):
    with crew_of(artifact, tmp_path, monkeypatch) as crew:
        crew._stopping = True  # the signal came after a worker had died, before it was replaced
        crew._start()
        [first] = crew._workers
        first.join(20)
        crew._pass_on(signal.SIGTERM, None)  # to one that is gone
        queue = tmp_path / f"gauge_livesum_{first.pid}.db"  # what the dead had in its queue
        queue.touch()
        crew._replace(first, True)
        assert not queue.exists()
        for worker in crew._workers:
            worker.join(20)
            code = worker.exitcode
            worker.kill()
            assert code in (0, -signal.SIGTERM)
        assert len(crew._workers) == 2


def test_a_worker_that_does_not_serve_yet_is_not_told_to_open_anew(artifact, tmp_path, monkeypatch):
    with crew_of(artifact, tmp_path, monkeypatch) as crew:
        crew._start()
        [(worker, serves)] = crew._workers.items()
        crew._pass_on(signal.SIGHUP, None)  # which would end it
        while not _is_up(serves):
            assert worker.is_alive()
        crew._pass_on(signal.SIGHUP, None)
        crew._pass_on(signal.SIGTERM, None)
        worker.join(20)
        assert worker.exitcode == 0


def test_a_worker_that_cannot_begin_leaves_the_others_alone(artifact, tmp_path, monkeypatch):
    path = tmp_path / "a"
    shutil.copytree(artifact, path)
    with crew_of(path, tmp_path, monkeypatch) as crew:
        crew._start()
        [(first, serves)] = crew._workers.items()
        while not _is_up(serves):
            assert first.is_alive()
        deleted("model.onnx")(path)
        crew._start()
        [_, second] = crew._workers
        second.join()
        assert not _is_up(crew._workers.pop(second))
        assert crew._replace(second, False)  # the service goes on
        assert list(crew._workers) == [first] and first.is_alive()
        first.kill()
        first.join()
        del crew._workers[first]
        assert crew._replace(first, True)
        [third] = crew._workers
        third.join()
        assert not _is_up(crew._workers.pop(third)) and not crew._replace(third, False)
        assert not crew._workers


def test_workers_that_die_before_they_serve_are_given_up(artifact, tmp_path, monkeypatch):
    with crew_of(artifact, tmp_path, monkeypatch) as crew:
        crew._start()
        goes_on = []
        while crew._workers:
            [worker] = crew._workers
            worker.kill()
            worker.join()
            del crew._workers[worker]
            goes_on.append(crew._replace(worker, False))
        assert goes_on == [True, True, False]


def test_what_no_worker_can_serve_is_said_without_a_trace(artifact, tmp_path):
    path = tmp_path / "a"
    shutil.copytree(artifact, path)
    cut("model.onnx")(path)
    command = [*SERVE, str(path), "--port", str(free_port()), "--workers", "2"]
    finished = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert finished.returncode == 1 and "giving up" in finished.stderr
    assert "model.onnx" in finished.stderr and "Traceback" not in finished.stderr


def test_workers_end_when_their_parent_is_killed(artifact):
    code = f"""
import os, pathlib
from keras_bahdanau_runtime.service.server import Settings, bind
from keras_bahdanau_runtime.service.workers import _Crew
settings = Settings({{"a": pathlib.Path({str(artifact)!r})}}, port=0, grpc_port=None)
_Crew(settings, bind(settings))._start()
os.kill(os.getpid(), 9)
"""
    # The standard error that they share comes to its end with the last of them.
    finished = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60
    )
    assert finished.returncode == -signal.SIGKILL


# Clocks.


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_changes_no_time_that_is_reckoned_with(tmp_path, monkeypatch, hours):
    path, now = marked(tmp_path / "a", 1), [time.time()]

    def jumping():
        now[0] += 3600 * hours
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
    with site({"a": path}, watch=0.01, threads=2) as found:
        assert translated(found.web)["score"] == 3
        engine, busy = found.service.engine, Echo()
        held = found.begin(engine.run(busy, ["a"], [1]))
        assert busy.begun.acquire(timeout=30)
        late = found.begin(engine.run(busy, ["b"], [1]))  # waits for others to join it
        assert busy.begun.acquire(timeout=30)
        with pytest.raises(ServiceError) as raised:
            found.call(ask(engine, busy, "c", seconds=0.01))
        assert raised.value.kind == "timeout"
        with pytest.raises(ServiceError) as raised:
            found.call(engine.run(busy, ["d"], [Limits().queued_tokens]))
        assert raised.value.kind == "overloaded" and raised.value.retry_after == 1
        marked(path, 2, overwrite=True)
        busy.gate.set()
        assert held.result() == ["a"] and late.result() == ["b"]
        assert any(translated(found.web)["score"] == 6 for _ in range(600))
        assert found.call(engine.drain(30.0))


# Descriptors.


def test_clients_that_only_connect_do_not_take_all_descriptors(artifact):
    def few():
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    with serving(artifact, "--port", 0, preexec_fn=few) as (process, url):
        host, port = url.removeprefix("http://").split(":")
        with httpx.Client(base_url=url, timeout=30) as web:
            assert translated(web)["text"] == "a man"
            idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(200)]
            refused, _, _ = select.select(idle, [], [], 30)
            assert refused[0].recv(20).startswith(b"HTTP/1.1 503 ")
            assert translated(web)["text"] == "a man"
            assert web.get("/").status_code == 200  # it is a file
            assert web.get("/metrics").status_code == 200
            assert web.post("/v2/repository/models/copy/load").status_code == 200
        for connection in idle:
            connection.close()
        status = 503
        while status == 503:  # until it has seen that they are gone
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


def reason(web):
    """Why the artifact could not be loaded, as the index has it."""
    found = web.post("/v2/repository/index").json()
    assert [one["state"] for one in found] == ["READY", "READY"]
    return found[0]["reason"]


@contextlib.contextmanager
def under_load(url):
    """Asks for translations and streams meanwhile, and asserts that all of them were good."""
    stop, bad, count = threading.Event(), [], [0]

    def ask():
        with httpx.Client(base_url=url, timeout=60) as web:
            while not stop.is_set():
                text = web.post("/translate", json={"text": "a man"}).text
                stream = web.post("/translate/stream", json={"text": "a man"}).text
                count[0] += 1
                if '"text":"a man"' not in text or '{"text":"a man"}' not in stream:
                    bad.append((text, stream))

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield
    finally:
        stop.set()
        client.join()
    assert count[0] and not bad


@pytest.mark.parametrize("how", ["by watching", "by a signal"])
def test_an_artifact_damaged_on_disk_is_refused_until_it_is_mended(artifact, tmp_path, caplog, how):
    caplog.set_level(logging.INFO, "keras_bahdanau_runtime")
    path = tmp_path / "a"
    shutil.copytree(artifact, path)
    watching = how == "by watching"
    with site({"a": path}, watch=0.01 if watching else 0.0) as found:

        def seen(wanted):
            """Whether the artifact is refused, once it was looked at."""
            if not watching:
                found.call(found.service.reload())  # what SIGHUP does
                return bool(reason(found.web)) == wanted
            return any(bool(reason(found.web)) == wanted for _ in range(600))

        with under_load(found.service.url):
            for name, damage in DAMAGES.items():
                caplog.clear()
                damage(path)
                assert seen(True), name
                assert "could not be loaded, the old one goes on" in caplog.text
                assert translated(found.web)["text"] == "a man"
                shutil.copytree(artifact, path, dirs_exist_ok=True)
                assert seen(False), name
                assert "The model a is ready" in caplog.text
