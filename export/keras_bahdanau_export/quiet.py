"""Imports of Keras and TensorFlow without what its C++ libraries say while they are loaded."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

from keras_bahdanau_runtime.errors import KERAS_BACKENDS, missing_keras

# Lines of absl's and TensorFlow's logs below "fatal", in the two forms that they have, and the line
# that follows that on CPU instructions. They are dropped; every other line is passed on as it is.
FILTER = r"""
import re, sys
noise = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IWE]\d{4} \d\d:\d\d:\S+ +\d+ \S+:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] \S+:\d+\] "
    rb"|To enable the following instructions: "
)
for line in sys.stdin.buffer:
    if not noise.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """While it holds, what C++ logs to standard error as TensorFlow is loaded is not shown.

    `TF_CPP_MIN_LOG_LEVEL` is read too late for these lines. They pass through a process of their
    own, so that the last words of a library that ends this process are still heard.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    arguments = [sys.executable, "-I", "-S", "-c", FILTER]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=shown) as process:
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


def check_keras() -> None:
    """Raises an `ImportError` where Keras is not installed, or not the backend it is set to.

    It imports neither, so that work which takes minutes can come before the import.
    """
    backend = os.environ.get("KERAS_BACKEND")
    for package in ("keras", *({backend} & set(KERAS_BACKENDS))):
        if importlib.util.find_spec(package) is None:
            raise missing_keras(package)


def import_keras(tensorflow: bool = True) -> None:
    """Imports Keras, and TensorFlow where it is installed, without the lines that come with it.

    Args:
        tensorflow: Whether TensorFlow is needed whatever the backend. Export traces with it, and
            Keras's `set_random_seed` imports it if it can.
    """
    with quiet_imports():
        import keras_bahdanau  # noqa: F401

        if tensorflow and importlib.util.find_spec("tensorflow") is not None:
            importlib.import_module("tensorflow")
