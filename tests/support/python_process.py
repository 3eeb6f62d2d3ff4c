"""Child processes that run Python with the backend and the import paths of the tests."""

import os
import subprocess
import sys

import keras


def start_python(*command, **environment):
    """Start a Python process; keyword arguments are environment variables."""
    paths = os.pathsep.join(sys.path)
    environment = {
        **os.environ, "KERAS_BACKEND": keras.config.backend(), "PYTHONPATH": paths, **environment
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(*command, **environment):
    """Run a Python process to its end, and fail with its standard error unless it exits with 0."""
    with start_python(*command, **environment) as process:
        _, stderr = process.communicate()
    assert process.returncode == 0, stderr
