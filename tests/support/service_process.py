"""A service in a child process, the ids of its workers, and free ports."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading

SERVE = [sys.executable, "-m", "keras_bahdanau_cli", "serve"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.contextmanager
def serving(*arguments, **options):
    """Start a service; yield its process and its address once it serves.

    After the process has ended, its attribute `log_lines` has the later lines of standard error.
    `options` are those of `subprocess.Popen`.
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
            process.log_lines = rest
            yield process, url.group(1)
        finally:
            process.kill()
            process.wait()
            reader.join()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def children(process):
    """The process ids of the workers of a service."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return [
            number
            for number in map(int, file.read().split())
            if "spawn_main" in _command_line(number)
        ]


def _command_line(number):
    """The command line of a process, or "" after its end."""
    with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline") as file:
        return file.read()
    return ""
