"""Imports of Keras and TensorFlow without the log lines that TensorFlow's C++ libraries print."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

from keras_bahdanau_runtime.errors import KERAS_BACKENDS, missing_keras

# A program that copies standard input to standard error, except log lines of absl and TensorFlow
# below "fatal", in both of their formats, and the line about CPU instructions that follows one.
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
def filter_tensorflow_logs() -> Iterator[None]:
    """Hide the lines that TensorFlow's C++ libraries log to standard error while it is imported.

    `TF_CPP_MIN_LOG_LEVEL` is read too late for these lines. A separate process filters them, so
    that a library which ends this process can still print its last lines.
    """
    sys.stderr.flush()
    original = os.dup(2)
    arguments = [sys.executable, "-I", "-S", "-c", FILTER]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=original) as process:
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)


def check_keras() -> None:
    """Raise an `ImportError` if Keras, or the backend in KERAS_BACKEND, is not installed.

    It imports neither, so that minutes of other work can precede the import.
    """
    backend = os.environ.get("KERAS_BACKEND")
    for package in ("keras", *({backend} & set(KERAS_BACKENDS))):
        if importlib.util.find_spec(package) is None:
            raise missing_keras(package)


def import_keras(tensorflow: bool = True) -> None:
    """Import Keras, and TensorFlow if it is installed, without their log lines.

    Args:
        tensorflow: Whether TensorFlow is needed on every backend, as for export.
    """
    with filter_tensorflow_logs():
        import keras_bahdanau  # noqa: F401

        if tensorflow and importlib.util.find_spec("tensorflow") is not None:
            importlib.import_module("tensorflow")


def import_keras_for_training() -> None:
    """Import Keras, and TensorFlow only if it is the backend.

    On JAX and torch, Keras's `set_random_seed` and its serialization import TensorFlow if it is
    installed, which takes 2 to 3 seconds of a processor. Keras checks only once whether it is
    installed. This check is made here while the import is blocked. Other code can still import
    TensorFlow afterwards.
    """
    with filter_tensorflow_logs():
        import keras

        if "tensorflow" in sys.modules:
            return
        sys.modules["tensorflow"] = None  # type: ignore[assignment]  # makes its import fail
        try:
            keras.utils.set_random_seed(0)
        finally:
            del sys.modules["tensorflow"]
