"""Settings of every test: the backend, quiet logs, cheap compilation and fixed seeds.

The models of the tests are tiny, so most of the time is compilation. Each worker has one thread,
XLA and TensorFlow do not optimize, and JAX caches compiled programs. Results change in the last
bits only.
"""

import gc
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_multi_thread_eigen=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)

import hypothesis
import numpy as np
import pytest

# Keep the loaded Hypothesis profile (its CI profile under CI) but without a deadline: CI machines
# can be slow.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")

STARTED = time.monotonic()
RAM_DISK = Path("/dev/shm")
MEMORY_MAPS = Path("/proc/self/maps")
MAP_LIMIT = 10_000  # Linux allows a process 65,530
OUTCOMES = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")

# TensorFlow writes a file for each function that it converts. On some disks deleting it takes 3 ms.
if "TMPDIR" not in os.environ and RAM_DISK.is_dir() and shutil.disk_usage(RAM_DISK).free > 2**32:
    os.environ["TMPDIR"] = tempfile.tempdir = str(RAM_DISK)
if os.environ["KERAS_BACKEND"] == "jax":
    # Each worker and its child processes have their own folder: JAX's writes are not atomic.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jax-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_collection_finish():
    """Exclude imported modules from garbage collection, and turn off TensorFlow's optimizer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    if "tensorflow" in sys.modules:
        optimizer = sys.modules["tensorflow"].config.optimizer
        optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_unconfigure():
    if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter):
    """Append the summary line of this backend to the file that `make test` prints at its end."""
    file = os.environ.get("TEST_SUMMARY")
    if file and "PYTEST_XDIST_WORKER" not in os.environ:  # only the controller has all results
        counts = {name: len(terminalreporter.stats.get(name, [])) for name in OUTCOMES}
        parts = [f"{n} {name}" for name, n in counts.items() if n or name in ("passed", "skipped")]
        seconds = f"{time.monotonic() - STARTED:.0f} seconds"
        with open(file, "a", encoding="utf-8") as lines:
            print(f"{os.environ['KERAS_BACKEND']}: {', '.join([*parts, seconds])}", file=lines)


@pytest.fixture(autouse=True)
def _seed():
    """Give every test the same seed, without importing Keras for a test that does not use it."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)
    else:
        random.seed(0)
        np.random.seed(0)


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled():
    """Clear JAX's compiled programs before the process runs out of memory maps."""
    yield
    if "jax" in sys.modules and MEMORY_MAPS.exists():
        if MEMORY_MAPS.read_bytes().count(b"\n") > MAP_LIMIT:
            sys.modules["jax"].clear_caches()
