"""A server that runs for a while, with all its processes, and leaves none behind."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = "KERAS_BAHDANAU_BENCHMARK"  # in the environment of all processes of a server
READY, STOP = 90, 20  # seconds at most
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "export")}  # of a service


def serve_command(artifact, port):
    """What serves an artifact as the model "model", with gRPC at the next port."""
    command = [sys.executable, "-m", "keras_bahdanau_export.cli", "serve", f"model={artifact}"]
    return [*command, "--port", str(port), "--grpc-port", str(port + 1)]


def megabytes(process):
    """Memory that a process holds."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Running:
    """A server, from its start to the end of the last of its processes.

    It works in an empty folder, which goes with it.

    Args:
        command: list of str.
        port: Of HTTP; nothing may listen there before.
        ready: Called again and again until it raises no longer, which is when the server is ready.
        environment: dict of variables besides those of this process.

    Raises:
        RuntimeError: The port is taken, or the server does not become ready; with the last that
            it said.
    """

    def __init__(self, command, port, ready, environment):
        self._command, self._port, self._ready = command, port, ready
        self._mark = secrets.token_hex(8)
        self._environment = {**os.environ, **environment, MARK: self._mark}

    def __enter__(self):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                raise RuntimeError(f"port {self._port} is taken")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                cwd=self._folder.name,
                env=self._environment,
            )
        try:
            self._wait(time.perf_counter() + READY)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self, until):
        while True:
            try:
                self._ready()
                return
            except (OSError, EOFError, AssertionError):
                if self._process.poll() is not None or time.perf_counter() > until:
                    said = self._log.read_text("utf-8", "replace").strip()[-1500:]
                    raise RuntimeError(f"does not become ready:\n{said}") from None
                time.sleep(0.1)

    def cpu(self):
        """Seconds of processor time that its living processes have taken."""
        ticks = 0
        for number in self._living():
            try:
                stat = Path(f"/proc/{number}/stat").read_text()
            except OSError:  # gone
                continue
            fields = stat.rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
        return ticks / TICKS

    def _living(self):
        """Numbers of its processes; daemons of their own, as Ray's, have the mark, too."""
        found, wanted = [], f"{MARK}={self._mark}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # gone, or another user's
                continue
        return found

    def __exit__(self, *error):
        self._process.terminate()
        try:
            self._process.wait(STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
        while left := self._living():
            for number in left:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.poll()
            time.sleep(0.1)
        self._process.wait()
        self._folder.cleanup()
