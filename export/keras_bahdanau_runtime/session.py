"""Open ONNX graphs with onnxruntime on the requested providers, and run them within limits.

session = open_graph(manifest, "model.onnx", "auto", threads=None)
outputs = run(session, {"source": ids}, ["tokens"], timeout=5.0)    # OrtValues by name
"""

import contextlib
import ctypes
import functools
import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    LimitError,
    RunError,
    argument_error,
    require,
)
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.operators import (
    check_onnx_file,
    inline_weights,
    subgraph_node_names,
)
from keras_bahdanau_runtime.signature import MODEL_FILE, weights_file

logger = logging.getLogger("keras_bahdanau_runtime")

Providers = str | Sequence[str | tuple[str, dict[str, Any]]]

AUTO = "auto"
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
# "auto" does not include TensorRT, which compiles a graph for minutes for each new shape.
GPU = ("TensorrtExecutionProvider", CUDA)

# Operators that compute shapes. Outside of loops, onnxruntime runs them on the CPU on purpose.
_SHAPE_OPERATORS = frozenset(
    "Add Cast Concat Div Equal Gather Max Min Mod Mul Range ReduceProd Shape Size Slice Squeeze "
    "Sub Unsqueeze Where".split()
)
# How long an idle thread waits actively for work before it sleeps. Waiting threads take time from
# batches that run at the same time: with two of two threads on two cores, 20 to 100 us cost 10 % of
# the throughput of one thread each, 200 us and more 25 %. One batch alone needs at least 50 us.
_SPIN_MICROSECONDS = "50"
# Quota and period of the control group of this process, in microseconds; in a container those of
# the container.
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_arena_lock = threading.Lock()
_MAX_ARENA_BYTES = 2**62
# onnxruntime can replace the arena of a process since 1.23, and limits the results of constant
# folding since 1.27.
_BOUNDED_SINCE = (1, 27)
# Largest result of constant folding: bytes, and a multiple of the size of the graph.
_FOLDED_BYTES, _FOLDED_RATIO = 2**24, 32


def available_cores() -> int:
    """Return the number of processor cores that this process may use.

    On Linux these are the cores of its affinity, at most its CPU quota, such as the CPU limit of a
    container, rounded up.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1  # macOS and Windows
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(FileNotFoundError):
        quota, period = _CPU_QUOTA.read_text("ascii").split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores


# Execution providers.


def resolve_providers(
    providers: Providers, available: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the providers and options to request from onnxruntime.

    Args:
        providers: As for `Translator`.
        available: Names of the providers that onnxruntime has.

    Raises:
        ValueError: `providers` is neither "auto" nor a selection from `available`.
    """
    chosen = _provider_options(providers)
    if is_auto(providers):
        [(_, options)] = chosen
        chosen = [(CUDA, options)] if CUDA in available else []
        chosen.append((CPU, {}))
    if not chosen or not {name for name, _ in chosen} <= set(available):
        raise argument_error("providers", f"be 'auto' or a selection from {available}", providers)
    return [
        (name, {"use_tf32": "0"} | options if name == CUDA else options) for name, options in chosen
    ]


def _provider_options(providers: Any) -> list[tuple[str, dict[str, Any]]]:
    pairs = []
    for provider in providers if isinstance(providers, (list, tuple)) else [providers]:
        pair = (provider, {}) if isinstance(provider, str) else provider
        if type(pair) is not tuple or list(map(type, pair)) != [str, dict]:
            raise argument_error(
                "providers", "be a name, or a list of names and of (name, options) pairs", providers
            )
        pairs.append(pair)
    return pairs


def is_auto(providers: Providers) -> bool:
    """Return whether a provider that does not start may be skipped."""
    return [name for name, _ in _provider_options(providers)] == [AUTO]


def with_tf32(providers: Providers, enabled: bool) -> Providers:
    """Return the providers; if `enabled`, CUDA multiplies with 10 bits of precision (TF32).

    Raises:
        ValueError: `enabled` is not a bool.
    """
    if type(enabled) is not bool:
        raise argument_error("tf32", "be a bool", enabled)
    return with_cuda_options(providers, use_tf32="1") if enabled else providers


def with_cuda_options(providers: Providers, **options: str) -> Providers:
    """Return the providers with these options of CUDA."""
    return [
        (name, own | options if name in (AUTO, CUDA) else own)
        for name, own in _provider_options(providers)
    ]


def check_providers(providers: Providers) -> None:
    """Raise a `ValueError` unless onnxruntime has these providers."""
    available = require("onnxruntime", extra="runtime").get_available_providers()
    resolve_providers(providers, available)


# Opening a graph.


def open_graph(
    manifest: Manifest,
    name: str,
    providers: Providers,
    threads: int | None,
    megabytes: float | None = None,
) -> Any:
    """Open a graph of an artifact after verifying its bytes.

    Args:
        manifest: Manifest of the artifact.
        name: File name of the graph.
        providers: As for `Translator`.
        threads: As for `Translator`.
        megabytes: As for `Translator`.

    Returns:
        An `onnxruntime.InferenceSession`.

    Raises:
        ValueError: A provider is not installed, did not start, or does not open the graph.
        CorruptArtifactError: The file does not match the manifest, or is not an ONNX graph.
        UnsupportedArtifactError: The graph has operators or fields that are not allowed; see
            `operators`.
    """
    contents, weights = read_graph(manifest, name)
    path = manifest.folder / name
    return open_session(contents, path, providers, threads, weights, megabytes)


def read_graph(manifest: Manifest, name: str) -> tuple[bytes, dict[str, bytes]]:
    """Read a graph of an artifact and its weights.

    Weights that a graph shares with `model.onnx` are stored there only. They become part of the
    graph, because onnxruntime 1.20 cannot read them from memory otherwise.

    Args:
        manifest: Manifest of the artifact.
        name: File name of the graph.

    Returns:
        The verified bytes of the graph, and by name those of the files with weights that are too
        large for the graph.
    """
    contents = manifest.read(name)
    allowed = {weights_file(name), MODEL_FILE, weights_file(MODEL_FILE)} - {name}
    sizes = {file: manifest.files[file].bytes for file in allowed & set(manifest.files)}
    files = check_onnx_file(contents, manifest.folder / name, sizes)
    if MODEL_FILE in files:
        contents = inline_weights(contents, MODEL_FILE, manifest.read(MODEL_FILE))
    return contents, {file: manifest.read(file) for file in sorted(files - {MODEL_FILE})}


def open_session(
    contents: bytes,
    path: Path,
    providers: Providers,
    threads: int | None,
    weights: Mapping[str, bytes] | None = None,
    megabytes: float | None = None,
) -> Any:
    """Open a graph with onnxruntime.

    Args:
        contents: Bytes of an ONNX file.
        path: `Path` of the file, for messages.
        providers: As for `Translator`.
        threads: As for `Translator`.
        weights: Bytes of the files with the graph's weights, by file name.
        megabytes: As for `Translator`.

    Returns:
        An `onnxruntime.InferenceSession`.

    Raises:
        ValueError: A provider is not installed, did not start, or does not open the graph; or this
            version of onnxruntime does not support `megabytes`.
        CorruptArtifactError: onnxruntime cannot read the graph.
    """
    onnxruntime = require("onnxruntime", extra="runtime")
    available = onnxruntime.get_available_providers()
    chosen = resolve_providers(providers, available)
    names = [name for name, _ in chosen]
    options = onnxruntime.SessionOptions()
    # Errors are raised. The log is needed only for the reason why a provider does not start.
    options.log_severity_level = 4 if names == [CPU] else 3
    cores = available_cores()
    if threads is None and cores < (os.cpu_count() or 1):
        threads = cores  # onnxruntime would start a thread for each core of the machine
    if threads is not None:
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    if names != [CPU]:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    weights = weights or {}
    if weights:
        lengths = [len(data) for data in weights.values()]
        options.add_external_initializers_from_files_in_memory(
            list(weights), list(weights.values()), lengths
        )
    # Fold constants once when the graph is opened, but do not let a few constants expand to a huge
    # tensor.
    size = len(contents) + sum(map(len, weights.values()))
    options.add_session_config_entry(
        "optimization.constant_folding_max_output_size_in_bytes",
        str(max(_FOLDED_BYTES, _FOLDED_RATIO * size)),
    )
    try:
        with _limited_arena(onnxruntime, options, megabytes, size):
            session = onnxruntime.InferenceSession(
                contents,
                options,
                providers=chosen,
                # On the CPU, the fallback would only retry the same and print to standard output.
                enable_fallback=names != [CPU],
            )
    except _onnxruntime_errors() as error:
        if names != [CPU] and _opens_on_cpu(onnxruntime, contents, options):
            raise argument_error(
                "providers",
                f"name providers that open {path}",
                received=(
                    f"{[name for name in names if name != CPU]}, which fail although the CPU "
                    f"works: {_one_line(error)}"
                ),
            ) from error
        raise CorruptArtifactError(
            f"{path}: expected a graph that onnxruntime opens. Received: {_one_line(error)}"
        ) from error
    value_names = [value.name for value in (*session.get_inputs(), *session.get_outputs())]
    if len(set(value_names)) < len(value_names):
        raise CorruptArtifactError(
            f"{path}: expected different names for all inputs and outputs. Received: {value_names}"
        )
    if names == [CPU]:
        session._model_bytes = None  # a copy of the file, needed only to fall back to a provider
    release_memory()
    session.weights = weights  # onnxruntime does not copy them, so they must stay alive
    # onnxruntime skips a provider whose libraries do not load, and only prints the reason.
    used = session.get_providers()
    missing = [name for name in names if name not in used]
    if missing and not is_auto(providers):
        raise argument_error(
            "providers",
            "name providers that start",
            received=(
                f"{missing}, which did not start; onnxruntime printed the reason and would use "
                f"{used}."
            ),
        )
    if missing:
        logger.warning("%s did not start; onnxruntime printed the reason.", missing)
    logger.info(
        "Running %s on %s (providers=%r, requested as %r; available: %s).",
        path,
        ", ".join(used),
        providers,
        chosen,
        ", ".join(available),
    )
    if used[0] != CPU:
        _warn_about_cpu_operators(session, path, used[0], subgraph_node_names(contents))
    return session


def _opens_on_cpu(onnxruntime: Any, contents: bytes, options: Any) -> bool:
    try:
        onnxruntime.InferenceSession(contents, options, providers=[CPU], enable_fallback=False)
    except _onnxruntime_errors():
        return False
    return True


def _warn_about_cpu_operators(
    session: Any, path: Path, provider: str, subgraph_nodes: set[str]
) -> None:
    """Log operators that run on the CPU, except shape computations outside of loops.

    Args:
        session: Session of the graph.
        path: `Path` of the graph.
        provider: The requested provider.
        subgraph_nodes: Names of the nodes inside loops.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        logger.info(
            "onnxruntime reports only since 1.24 which operators of %s run on the CPU.", path.name
        )
        return
    on_cpu, total = Counter[str](), 0
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            total += 1
            in_loop = node.name in subgraph_nodes
            if subgraph.ep_name == CPU and (in_loop or node.op_type not in _SHAPE_OPERATORS):
                on_cpu[f"{node.op_type} in a loop" if in_loop else node.op_type] += 1
    if on_cpu:
        logger.warning(
            "%d of %d operators of %s run on the CPU and not on %s: %s.",
            on_cpu.total(),
            total,
            path.name,
            provider,
            ", ".join(f"{name} ({count})" for name, count in on_cpu.most_common()),
        )


def release_memory() -> None:
    """Return free memory to the system: after reading a graph, glibc would keep about 60 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def _limited_arena(
    onnxruntime: Any, options: Any, megabytes: float | None, weights: int
) -> Iterator[None]:
    """Limit the CPU memory arena of a session that is created in the block.

    onnxruntime limits only the arena shared by the process. A session keeps the arena it was
    created with, so replacing the shared arena gives each session its own. The arena also contains
    the packed copies of weights, up to `weights` bytes. They are added to the limit, because
    onnxruntime does not enforce a limit below their size.
    """
    if megabytes is None:
        yield
        return
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < _BOUNDED_SINCE:
        raise argument_error(
            "megabytes",
            "be None with onnxruntime before 1.27, which does not limit all tensors",
            received=f"{megabytes} with onnxruntime {onnxruntime.__version__}",
        )
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    limit = math.ceil(min(megabytes * 2**20, _MAX_ARENA_BYTES)) + weights
    limited = onnxruntime.OrtArenaCfg({"max_mem": limit})
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _arena_lock:
        onnxruntime.create_and_register_allocator(place, limited)
        try:
            yield
        finally:  # other sessions of the process must neither be limited nor use this arena
            unlimited = onnxruntime.OrtArenaCfg({"max_mem": 0})
            onnxruntime.create_and_register_allocator(place, unlimited)


@functools.cache
def _onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of onnxruntime, which have no common base class."""
    state = require("onnxruntime.capi.onnxruntime_pybind11_state", extra="runtime")
    classes = (kind for kind in vars(state).values() if isinstance(kind, type))
    own = (kind for kind in classes if issubclass(kind, Exception))
    # A message with a name of the graph that is not UTF-8 raises a UnicodeDecodeError.
    return (*own, RuntimeError, MemoryError, UnicodeDecodeError)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


# Running a graph.


def device_of(session: Any) -> tuple[str, int]:
    """Return the device of a session: `("cuda", number)` or `("cpu", 0)`."""
    provider = session.get_providers()[0]
    if provider not in GPU:
        return "cpu", 0
    return "cuda", int(session.get_provider_options()[provider].get("device_id", 0))


def run(
    session: Any,
    inputs: Mapping[str, NDArray[Any] | Any],
    outputs: Sequence[str] | Mapping[str, Any],
    graph_id: int | None = None,
    timeout: float | None = None,
    shrink: bool = False,
) -> dict[str, Any]:
    """Run a graph and leave the outputs on its device.

    Args:
        session: Session of `open_session`.
        inputs: Arrays, or `OrtValue`s of another run, by name.
        outputs: Names; or `OrtValue`s to write to, by name.
        graph_id: int. CUDA graph to record or replay, for the provider option `enable_cuda_graph`.
        timeout: float, seconds. onnxruntime checks it before each operator, also inside loops, but
            does not interrupt an operator.
        shrink: Whether to return memory to the system after the run; otherwise onnxruntime keeps it
            for the next run. Only on the CPU.

    Returns:
        dict of outputs, `OrtValue`s by name; `.numpy()` copies one to the host.

    Raises:
        LimitError: The run exceeded `timeout` or the available memory.
        RunError: The run failed for another reason.
    """
    ort_value = require("onnxruntime", extra="runtime").OrtValue.ortvalue_from_numpy
    binding, device, options = session.io_binding(), device_of(session), _run_options()
    if graph_id is not None and device[0] == "cuda":
        options.add_run_config_entry("gpu_graph_id", str(graph_id))
    if shrink and device[0] == "cpu":
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with _translate_errors(options, timeout):
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                # `np.ascontiguousarray` would give a scalar an axis. `bind_cpu_input` does not find
                # optional inputs, which are initializers.
                value = ort_value(np.asarray(value, order="C"))
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            if isinstance(outputs, Mapping):
                binding.bind_ortvalue_output(name, outputs[name])
            else:
                binding.bind_output(name, *device)
        with deadline(timeout, options):
            session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()
    return dict(zip(outputs, binding.get_outputs(), strict=True))


def run_arrays(
    session: Any,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    timeout: float | None = None,
) -> dict[str, NDArray[Any]]:
    """Run a graph on arrays and return arrays.

    For a graph of a few operators on the CPU this takes 26 us; `run`, with `OrtValue`s, takes 110.

    Args:
        session: Session of `open_session`.
        inputs: Arrays by name.
        outputs: Names.
        timeout: As for `run`.

    Raises:
        LimitError: As `run`.
        RunError: As `run`.
    """
    options = _run_options()
    with _translate_errors(options, timeout), deadline(timeout, options):
        arrays = session.run(outputs, inputs, options)
    return dict(zip(outputs, arrays, strict=True))


def _run_options() -> Any:
    options = require("onnxruntime", extra="runtime").RunOptions()
    options.log_severity_level = 4  # errors are raised, not printed
    return options


@contextlib.contextmanager
def _translate_errors(options: Any, timeout: float | None) -> Iterator[None]:
    """Raise errors of onnxruntime as `LimitError` or `RunError`."""
    try:
        yield
    except _onnxruntime_errors() as error:
        if options.terminate:
            raise LimitError(f"A run of the graph took longer than {timeout} s.") from error
        message = _one_line(error)
        out_of_memory = isinstance(error, MemoryError) or "alloc" in message.lower()
        kind = LimitError if out_of_memory else RunError
        raise kind(f"onnxruntime could not run the graph: {message}") from error


@dataclass(eq=False)
class _TimedRun:
    """Run options of a running graph, and when to stop it, on the clock `time.monotonic`."""

    options: Any
    end: float


class _DeadlineThread:
    """Thread that stops runs at their deadlines.

    One thread serves all runs, because starting a thread takes 0.2 ms.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: set[_TimedRun] = set()
        self._next_wakeup = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, run: _TimedRun) -> None:
        with self._changed:
            self._runs.add(run)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, daemon=True, name="keras_bahdanau deadlines"
                )
                self._thread.start()
            elif run.end < self._next_wakeup:
                self._changed.notify()

    def remove(self, run: _TimedRun) -> None:
        with self._changed:
            self._runs.discard(run)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for run in [run for run in self._runs if run.end <= now]:
                    run.options.terminate = True
                    self._runs.discard(run)
                # Without runs, the thread sleeps until one is added.
                self._next_wakeup = min((run.end for run in self._runs), default=float("inf"))
                # Python waits at most TIMEOUT_MAX; the loop then waits again.
                self._changed.wait(min(self._next_wakeup - now, threading.TIMEOUT_MAX))


_deadline_thread = _DeadlineThread()


def _replace_deadline_thread() -> None:
    """Start again after a fork: another thread of the parent may have held the lock."""
    global _deadline_thread
    _deadline_thread = _DeadlineThread()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_replace_deadline_thread)


@contextlib.contextmanager
def deadline(timeout: float | None, options: Any) -> Iterator[None]:
    """Set `options.terminate` if the block takes longer than `timeout` seconds.

    Args:
        timeout: float, seconds; `None` for no deadline.
        options: `onnxruntime.RunOptions`.
    """
    if timeout is None:
        yield
        return
    run, thread = _TimedRun(options, time.monotonic() + timeout), _deadline_thread
    thread.add(run)
    try:
        yield
    finally:
        thread.remove(run)
