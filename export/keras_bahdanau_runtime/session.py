"""Open ONNX graphs with onnxruntime on the requested providers, and run them within limits."""

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

from keras_bahdanau_runtime.errors import CorruptArtifactError, LimitError, RunError, require
from keras_bahdanau_runtime.ids import PAD
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.operators import check_contents, names_in_loops
from keras_bahdanau_runtime.signature import weights_file

Providers = str | Sequence[str | tuple[str, dict[str, Any]]]

AUTO = "auto"
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
# TensorRT is used where it is asked for: it compiles a graph anew, for minutes, for each new shape.
GPU = ("TensorrtExecutionProvider", CUDA)


def chosen_providers(
    providers: Providers, available: Sequence[str], capture: bool
) -> list[tuple[str, dict[str, Any]]]:
    """The providers to ask onnxruntime for; the arguments are those of `open_session`.

    Raises:
        ValueError: They are not "auto", or some of those available.
    """
    chosen = _pairs(providers)
    if is_auto(providers):
        [(_, options)] = chosen
        chosen = [(CUDA, options)] if CUDA in available else []
        chosen.append((CPU, {}))
    if not chosen or not {name for name, _ in chosen} <= set(available):
        raise ValueError(
            f"Argument `providers` must be 'auto' or some of {available}. Received: {providers!r}"
        )
    ours = {"use_tf32": "0", **({"enable_cuda_graph": "1"} if capture else {})}
    return [(name, ours | options if name == CUDA else options) for name, options in chosen]


def _pairs(providers: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names with their options."""
    found = []
    for one in providers if isinstance(providers, (list, tuple)) else [providers]:
        pair = (one, {}) if isinstance(one, str) else one
        if type(pair) is not tuple or list(map(type, pair)) != [str, dict]:
            raise ValueError(
                "Argument `providers` must be a name, or a list of names and of (name, options) "
                f"pairs. Received: {providers!r}"
            )
        found.append(pair)
    return found


def is_auto(providers: Providers) -> bool:
    """Whether they are what there is, so that one which does not start is left out."""
    return [name for name, _ in _pairs(providers)] == [AUTO]


def with_tf32(providers: Providers, wanted: bool) -> Providers:
    """Providers, those of `Translator`; if wanted, CUDA multiplies with 10 bits (TF32).

    Raises:
        ValueError: `wanted` is no bool.
    """
    if type(wanted) is not bool:
        raise ValueError(f"Argument `tf32` must be a bool. Received: {wanted!r}")
    if not wanted:
        return providers
    return [
        (name, {**options, "use_tf32": "1"} if name in (AUTO, CUDA) else options)
        for name, options in _pairs(providers)
    ]


def check_providers(providers: Providers) -> None:
    """Raises a `ValueError` unless onnxruntime has these providers, those of `Translator`."""
    available = require("onnxruntime", extra="runtime").get_available_providers()
    chosen_providers(providers, available, capture=False)


def may_use_cuda(providers: Providers) -> bool:
    """Whether a session for these providers, those of `Translator`, would try CUDA first."""
    available = require("onnxruntime", extra="runtime").get_available_providers()
    return chosen_providers(providers, available, capture=False)[0][0] == CUDA


logger = logging.getLogger("keras_bahdanau_runtime")

# What sizes are computed with, outside of loops: onnxruntime does it on the CPU on purpose.
_OF_SIZES = frozenset(
    "Add Cast Concat Div Equal Gather Max Min Mod Mul Range ReduceProd Shape Size Slice Squeeze "
    "Sub Unsqueeze Where".split()
)


def warn_of_cpu(session: Any, path: Path, asked: str, in_loops: set[str]) -> None:
    """Warns of operators on the CPU that compute no sizes, or stand in a loop; others belong there.

    Args:
        session: A session.
        path: Of its graph.
        asked: The provider that was asked for.
        in_loops: Names of the graph's nodes that stand in loops.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        logger.info(
            "onnxruntime says from 1.24 on which operators of %s run on the CPU.", path.name
        )
        return
    left, total = Counter[str](), 0
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            total += 1
            looped = node.name in in_loops
            if part.ep_name == CPU and (looped or node.op_type not in _OF_SIZES):
                left[f"{node.op_type} in a loop" if looped else node.op_type] += 1
    if left:
        logger.warning(
            "%d of %d operators of %s run on the CPU and not on %s: %s.",
            left.total(),
            total,
            path.name,
            asked,
            ", ".join(f"{name} ({count})" for name, count in left.most_common()),
        )


@dataclass(eq=False)
class _Run:
    """What is to be stopped, and when, by `time.monotonic`."""

    options: Any
    end: float


class _Clock:
    """A thread that sleeps until the next end. One for each run would take 0.2 ms to start."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: set[_Run] = set()
        self._wakes = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, run: _Run) -> None:
        with self._changed:
            self._runs.add(run)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, daemon=True, name="keras_bahdanau deadlines"
                )
                self._thread.start()
            elif run.end < self._wakes:
                self._changed.notify()

    def remove(self, run: _Run) -> None:
        with self._changed:
            self._runs.discard(run)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for run in [run for run in self._runs if run.end <= now]:
                    run.options.terminate = True
                    self._runs.discard(run)
                # Without a run it sleeps until the next one comes.
                self._wakes = min((run.end for run in self._runs), default=float("inf"))
                # Python waits for so long at most; then it looks again.
                self._changed.wait(min(self._wakes - now, threading.TIMEOUT_MAX))


_clock = _Clock()


def _begin_anew() -> None:
    """In a process that was forked: another thread of its parent may have held the lock."""
    global _clock
    _clock = _Clock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_anew)


@contextlib.contextmanager
def deadline(timeout: float | None, options: Any) -> Iterator[None]:
    """Sets `options.terminate` when the block has taken longer than `timeout`.

    Args:
        timeout: float; no deadline if `None`.
        options: `onnxruntime.RunOptions`.
    """
    if timeout is None:
        yield
        return
    run, clock = _Run(options, time.monotonic() + timeout), _clock
    clock.add(run)
    try:
        yield
    finally:
        clock.remove(run)


_one_arena = threading.Lock()
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
_AS_REQUESTED = 1  # extends an arena by what is needed, where the default doubles it
_MOST_BYTES = 2**62
# The first version of onnxruntime in which a process may replace its arena (1.23), and which bounds
# what it computes from constants when it opens a graph (1.27).
_BOUNDED = (1, 27)
_FOLDED, _FOLDED_SHARE = 2**24, 32  # bytes of a tensor made of constants; times the graph's bytes


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows


def open_graph(
    manifest: Manifest,
    name: str,
    providers: Providers,
    threads: int | None,
    megabytes: float | None = None,
    capture: bool = False,
) -> Any:
    """Opens a graph of an artifact: its bytes are read once, checked, and given to onnxruntime.

    Args:
        manifest: Of the artifact.
        name: The graph's file.
        providers: As for `Translator`.
        threads: As for `Translator`.
        megabytes: As for `Translator`.
        capture: bool. Whether CUDA records each run as a CUDA graph and replays it; see `Stepper`.

    Raises:
        ValueError: A provider is not installed, could not be started, or does not open the graph.
        CorruptArtifactError: The file is not what the manifest says, or no graph.
        UnsupportedArtifactError: It asks for what an artifact may not; see `operators`.
    """
    contents, data = checked_graph(manifest, name)
    path = manifest.folder / name
    return open_session(contents, path, providers, threads, data, megabytes, capture)


def checked_graph(manifest: Manifest, name: str) -> tuple[bytes, dict[str, bytes]]:
    """The bytes of a graph of an artifact, and of the file that may hold its weights, checked."""
    contents, beside = manifest.read(name), weights_file(name)
    data = {beside: manifest.read(beside)} if beside in manifest.files else {}
    check_contents(contents, manifest.folder / name, {key: len(of) for key, of in data.items()})
    return contents, data


def open_session(
    contents: bytes,
    path: Path,
    providers: Providers,
    threads: int | None,
    data: Mapping[str, bytes] | None = None,
    megabytes: float | None = None,
    capture: bool = False,
) -> Any:
    """Opens a graph with onnxruntime.

    Args:
        contents: The bytes of an ONNX file.
        path: Its `Path`, for messages.
        providers: As for `Translator`.
        threads: As for `Translator`.
        data: Contents of the files that hold its weights, by name.
        megabytes: As for `Translator`.
        capture: As for `open_graph`.

    Raises:
        ValueError: A provider is not installed, could not be started, or does not open the graph;
            or this onnxruntime does not bound `megabytes`.
        CorruptArtifactError: onnxruntime finds no graph in it that it can run.
    """
    onnxruntime = require("onnxruntime", extra="runtime")
    available = onnxruntime.get_available_providers()
    chosen = chosen_providers(providers, available, capture)
    names = [name for name, _ in chosen]
    options = onnxruntime.SessionOptions()
    # Warnings are of names inside graphs. What fails is raised; only why a provider does not start
    # is printed and no more.
    options.log_severity_level = 4 if names == [CPU] else 3
    if threads is not None:
        options.intra_op_num_threads = threads
    if names != [CPU]:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    data = data or {}
    if data:
        names_and_bytes = list(data), list(data.values()), [len(part) for part in data.values()]
        options.add_external_initializers_from_files_in_memory(*names_and_bytes)
    # Products of weights are made now and not at every run, but no tensor that a few numbers swell.
    size = len(contents) + sum(map(len, data.values()))
    swollen = str(max(_FOLDED, _FOLDED_SHARE * size))
    options.add_session_config_entry(
        "optimization.constant_folding_max_output_size_in_bytes", swollen
    )
    try:
        with _arena(onnxruntime, options, megabytes, size):
            session = onnxruntime.InferenceSession(
                contents,
                options,
                providers=chosen,
                # On the CPU it would only try the same again, and say so on standard output.
                enable_fallback=names != [CPU],
            )
    except _onnxruntime_errors() as error:
        if names != [CPU] and _opens_on_cpu(onnxruntime, contents, options):
            raise ValueError(
                f"Argument `providers` must name some that open {path}. Received: "
                f"{[name for name in names if name != CPU]}, which fail where the CPU does not: "
                f"{_one_line(error)}"
            ) from error
        raise CorruptArtifactError(
            f"{path}: expected a graph that onnxruntime opens. Received: {_one_line(error)}"
        ) from error
    names_of = [value.name for value in (*session.get_inputs(), *session.get_outputs())]
    if len(set(names_of)) < len(names_of):
        raise CorruptArtifactError(
            f"{path}: expected a name of its own for each input and output. Received: {names_of}"
        )
    if names == [CPU]:
        session._model_bytes = None  # kept to fall back on other providers, as large as the file
    give_memory_back()
    session.weights = data  # which onnxruntime reads where they are
    # onnxruntime goes on without a provider whose libraries do not load, and only prints so.
    used = session.get_providers()
    lost = [name for name in names if name not in used]
    if lost and not is_auto(providers):
        raise ValueError(
            f"Argument `providers` must name some that start. Received: {lost}, which did not; "
            f"onnxruntime printed why and would use {used}."
        )
    if lost:
        logger.warning("%s could not be started; onnxruntime printed why.", lost)
    logger.info(
        "Running %s on %s (providers=%r, asked for as %r; available: %s).",
        path,
        ", ".join(used),
        providers,
        chosen,
        ", ".join(available),
    )
    if used[0] != CPU:
        warn_of_cpu(session, path, used[0], names_in_loops(contents))
    return session


def _opens_on_cpu(onnxruntime: Any, contents: bytes, options: Any) -> bool:
    """Whether the CPU opens a graph that another provider does not open."""
    try:
        onnxruntime.InferenceSession(contents, options, providers=[CPU], enable_fallback=False)
    except _onnxruntime_errors():
        return False
    return True


def give_memory_back() -> None:
    """Returns free memory to the system; of what reading a graph took glibc would keep 60 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def _arena(onnxruntime: Any, options: Any, megabytes: float | None, weights: int) -> Iterator[None]:
    """Gives a session that is made in the block an arena of at most this size, for the CPU.

    An arena with a bound is to be had only as the one that the process shares. A session keeps the
    one that it found: a new one for each is thus its own. The copies of weights that onnxruntime
    packs for its products are in it, too, up to `weights` bytes; a bound below what they take
    would be none, as onnxruntime subtracts them without a sign.
    """
    if megabytes is None:
        yield
        return
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < _BOUNDED:
        raise ValueError(
            "Argument `megabytes` must be None with onnxruntime before 1.27, which does not bound "
            f"all tensors. Received: {megabytes} with onnxruntime {onnxruntime.__version__}"
        )
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    most = math.ceil(min(megabytes * 2**20, _MOST_BYTES)) + weights
    bound = onnxruntime.OrtArenaCfg({"max_mem": most, "arena_extend_strategy": _AS_REQUESTED})
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _one_arena:
        onnxruntime.create_and_register_allocator(place, bound)
        try:
            yield
        finally:  # what the process opens itself is not to be bound, nor to take from this one
            unbound = onnxruntime.OrtArenaCfg({"max_mem": 0})
            onnxruntime.create_and_register_allocator(place, unbound)


@functools.cache
def _onnxruntime_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises; its classes have no base of their own."""
    state = require("onnxruntime.capi.onnxruntime_pybind11_state", extra="runtime")
    classes = (kind for kind in vars(state).values() if isinstance(kind, type))
    own = (kind for kind in classes if issubclass(kind, Exception))
    # A message of its own that holds a name of the graph which is no UTF-8 makes the fourth.
    return (*own, RuntimeError, MemoryError, UnicodeDecodeError)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def device_of(session: Any) -> tuple[str, int]:
    """Where a session computes: `("cuda", number)` or `("cpu", 0)`."""
    first = session.get_providers()[0]
    if first not in GPU:
        return "cpu", 0
    return "cuda", int(session.get_provider_options()[first].get("device_id", 0))


def empty_like(value: Any, session: Any) -> Any:
    """An uninitialised `OrtValue` of the shape and dtype of another, where `session` computes."""
    return empty(value.shape(), _DTYPES[value.data_type()], session)


def empty(shape: Sequence[int], dtype: Any, session: Any) -> Any:
    """An uninitialised `OrtValue` of a shape and a NumPy dtype, where `session` computes."""
    made = require("onnxruntime", extra="runtime").OrtValue.ortvalue_from_shape_and_type
    return made(shape, dtype, *device_of(session))


def run(
    session: Any,
    inputs: Mapping[str, NDArray[Any] | Any],
    outputs: Sequence[str] | Mapping[str, Any],
    graph_id: int | None = None,
    timeout: float | None = None,
    shrink: bool = False,
) -> dict[str, Any]:
    """Runs a graph and leaves the outputs where it computes.

    Args:
        session: A session of `open_session`.
        inputs: Arrays, or `OrtValue`s of another run, by name.
        outputs: Names; or `OrtValue`s by name, to write into.
        graph_id: int. The CUDA graph to record or replay, for a session with `capture`.
        timeout: The longest that it may take. onnxruntime looks at the clock before each operator,
            in loops, too, and stops; within a single operator it does not.
        shrink: Whether to give memory back to the system afterwards, which onnxruntime otherwise
            keeps for the next run. On the CPU.

    Returns:
        The outputs, `OrtValue`s by name. `.numpy()` of one copies it to the host.

    Raises:
        LimitError: It took longer than `timeout`, or more memory than there was.
        RunError: It failed otherwise.
    """
    binding, device, options = session.io_binding(), device_of(session), _run_options()
    if graph_id is not None and device[0] == "cuda":
        options.add_run_config_entry("gpu_graph_id", str(graph_id))
    if shrink and device[0] == "cpu":
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with _told(options, timeout):
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.asarray(value, order="C"))  # a scalar stays one
            else:
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
    """Runs a graph on arrays and gives arrays.

    A graph of a few operators on the CPU takes a quarter of the time that it takes in `run`, with
    its `OrtValue`s: 26 us and not 110.

    Args:
        session: A session of `open_session`.
        inputs: Arrays by name.
        outputs: Names.
        timeout: As for `run`.

    Raises:
        LimitError: As `run`.
        RunError: As `run`.
    """
    options = _run_options()
    with _told(options, timeout), deadline(timeout, options):
        found = session.run(outputs, inputs, options)
    return dict(zip(outputs, found, strict=True))


def _run_options() -> Any:
    options = require("onnxruntime", extra="runtime").RunOptions()
    options.log_severity_level = 4  # what fails is raised, not printed
    return options


@contextlib.contextmanager
def _told(options: Any, timeout: float | None) -> Iterator[None]:
    """Raises what a run in the block fails with as an error of ours."""
    try:
        yield
    except _onnxruntime_errors() as error:
        if options.terminate:
            raise LimitError(f"A run of the graph took longer than {timeout} s.") from error
        message = _one_line(error)
        scarce = isinstance(error, MemoryError) or "alloc" in message.lower()
        kind = LimitError if scarce else RunError
        raise kind(f"onnxruntime could not run the graph: {message}") from error


MOST_SHAPES = 32  # of sources, whose recorded steps are kept
_LENGTHS = 16


def padded_length(source: NDArray[np.int32]) -> NDArray[np.int32]:
    """`source` `(B, Tx)` int32, padded to the next multiple of 16 tokens.

    Example:

    >>> padded_length(np.ones((2, 17), np.int32)).shape
    (2, 32)
    """
    return np.pad(source, ((0, 0), (0, -source.shape[1] % _LENGTHS)), constant_values=PAD)
