"""Python processes of their own, with the backend and the import paths of the tests."""

import os
import subprocess
import sys

import keras


def start_python(*command, **environment):
    """A Python process of its own."""
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
    """Runs a Python process of its own to its end."""
    with start_python(*command, **environment) as process:
        _, said = process.communicate()
    assert process.returncode == 0, said
