"""A service that runs as a process, and what the tests ask the system about it."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading

SERVE = [sys.executable, "-m", "keras_bahdanau_export.cli", "serve"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.contextmanager
def serving(*arguments, **options):
    """A process that serves; yields it and its address once it answers.

    What it says later is in its attribute `said` when it has ended; `options` are those of
    `subprocess.Popen`.
    """
    command = [*SERVE, *map(str, arguments), "--grpc-port", "0"]
    options = {"stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT, **options}
    with subprocess.Popen(command, **options) as process:
        try:
            url = None
            while url is None:
                line = process.stderr.readline()
                assert line, "the service ended"
                url = re.search(r"Serving .* at (https?://[\d.]+:\d+)", line)
            rest = []
            reader = threading.Thread(target=lambda: rest.extend(process.stderr))
            reader.start()
            process.said = rest
            yield process, url.group(1)
        finally:
            process.kill()
            process.wait()
            reader.join()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def children(process):
    """The ids of the workers of a process."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return [number for number in map(int, file.read().split()) if "spawn_main" in _of(number)]


def _of(number):
    """The command line of a process."""
    with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline") as file:
        return file.read()
    return ""
