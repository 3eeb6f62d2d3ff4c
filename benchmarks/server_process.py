"""Server processes of the benchmarks: start one, measure it, and stop all of its processes."""

import argparse
import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = "KERAS_BAHDANAU_BENCHMARK"  # environment variable that marks all processes of a server
READY_TIMEOUT, STOP_TIMEOUT = 90, 20  # seconds
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent


def serve_command(artifact, port):
    """Return the command that serves an artifact as "model", with gRPC on the next port."""
    command = [sys.executable, "-m", "keras_bahdanau_cli", "serve", f"model={artifact}"]
    return [*command, "--port", str(port), "--grpc-port", str(port + 1)]


@contextlib.contextmanager
def running_service(artifact, port, *options, tree=ROOT):
    """Start `keras-bahdanau serve` without its log, yield its process when ready, and stop it.

    Args:
        artifact: Path of the artifact.
        port: HTTP port.
        *options: More arguments of the command.
        tree: Folder of the repository whose code runs.
    """
    process = subprocess.Popen(
        [*serve_command(artifact, port), *options],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(tree).absolute() / "export")},
    )
    try:
        while not is_ready(port):
            if process.poll() is not None:
                raise SystemExit(
                    f"The service for {artifact} has ended. "
                    f"Run `keras-bahdanau serve model={artifact}` to see why."
                )
            time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        process.wait()


def is_ready(port):
    """Whether the service on a port is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:  # it does not listen yet
        return False
    finally:
        connection.close()


def service_parser(description):
    """Return an argument parser with the optional arguments `artifact` and `sources`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", nargs="?", help="default: a graph that copies its source")
    parser.add_argument("sources", nargs="?", help="text file (default: generated sentences)")
    return parser


def read_texts(path):
    """Return the lines of a file, or 1,000 generated sentences if `path` is `None`."""
    if path is None:
        return [f"a man on a bike {number}" for number in range(1000)]
    return Path(path).read_text("utf-8").splitlines()


def megabytes(process):
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def processor_seconds(pid):
    """Return the processor time that a running process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS  # user and kernel mode


class ServerProcess:
    """Context manager that starts a server and stops it with all of its processes.

    The server runs in an empty temporary folder, which is deleted at the end.

    Args:
        command: list of str.
        port: HTTP port. It must be free.
        check_ready: Function that raises until the server is ready. It is called repeatedly.
        environment: dict of variables that are added to those of this process.

    Raises:
        RuntimeError: The port is taken, or the server does not become ready. The message ends
            with the server's last output.
    """

    def __init__(self, command, port, check_ready, environment):
        self._command, self._port, self._check_ready = command, port, check_ready
        self._mark = secrets.token_hex(8)
        self._environment = {**os.environ, **environment, MARK: self._mark}

    def __enter__(self):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                raise RuntimeError(f"Port {self._port} is taken. Stop the server that uses it.")
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
            self._wait(time.perf_counter() + READY_TIMEOUT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self, deadline):
        while True:
            try:
                self._check_ready()
                return
            except (OSError, EOFError, AssertionError):
                if self._process.poll() is not None or time.perf_counter() > deadline:
                    output = self._log.read_text("utf-8", "replace").strip()[-1500:]
                    raise RuntimeError(f"The server does not become ready:\n{output}") from None
                time.sleep(0.1)

    def processor_seconds(self):
        """Processor time that the running processes of the server have used, in seconds."""
        seconds = 0.0
        for pid in self._process_ids():
            with contextlib.suppress(OSError):  # the process has ended
                seconds += processor_seconds(pid)
        return seconds

    def _process_ids(self):
        """Ids of all running processes with the mark, which daemons such as Ray's inherit."""
        pids, variable = [], f"{MARK}={self._mark}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if variable in path.read_bytes().split(b"\0"):
                    pids.append(int(path.parent.name))
            except OSError:  # the process has ended, or belongs to another user
                continue
        return pids

    def __exit__(self, *error):
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
        while pids := self._process_ids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.poll()
            time.sleep(0.1)
        self._process.wait()
        self._folder.cleanup()
