"""What every test stands on: the backend, quiet logs, cheap compilation, the same random numbers.

The models of the tests are tiny, so that time goes into compiling them: one thread a worker is
enough, neither XLA nor TensorFlow optimizes anything, and JAX loads again what it has compiled
once. No program computes other numbers for it, but for the last bits.
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

# Of what is loaded, hypothesis's own for CI for one, all but its clock: machines are slow at times.
hypothesis.settings.register_profile("without_a_clock", deadline=None)
hypothesis.settings.load_profile("without_a_clock")

STARTED = time.monotonic()
MEMORY = Path("/dev/shm")  # of Linux: files in it are on no disk
MEMORY_MAPS = Path("/proc/self/maps")
MANY_MAPS = 10_000  # of the 65,530 that Linux gives a process
OUTCOMES = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")

# TensorFlow leaves a file for each function that it reads, and some disks take longer to delete
# one than to write it: 3 ms where blocks are discarded at once.
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**32:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
if os.environ["KERAS_BACKEND"] == "jax":
    # A folder for each worker and its processes, as JAX does not write a file at one stroke.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jax-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_collection_finish():
    """What is imported by now stays: the garbage collector need not look at it again and again."""
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
    """Adds the line of this backend to the file that `make test` prints at its end."""
    file = os.environ.get("TEST_SUMMARY")
    if file and "PYTEST_XDIST_WORKER" not in os.environ:  # the workers have parts of it
        counts = {name: len(terminalreporter.stats.get(name, [])) for name in OUTCOMES}
        said = [f"{n} {name}" for name, n in counts.items() if n or name in ("passed", "skipped")]
        seconds = f"{time.monotonic() - STARTED:.0f} seconds"
        with open(file, "a", encoding="utf-8") as lines:
            print(f"{os.environ['KERAS_BACKEND']}: {', '.join([*said, seconds])}", file=lines)


@pytest.fixture(autouse=True)
def _seed():
    """Starts every test from the same seed; imports no Keras for a test that has none."""
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
    """Frees what JAX has compiled when its memory maps are many: a process has few of them."""
    yield
    if "jax" in sys.modules and MEMORY_MAPS.exists():
        if MEMORY_MAPS.read_bytes().count(b"\n") > MANY_MAPS:
            sys.modules["jax"].clear_caches()
