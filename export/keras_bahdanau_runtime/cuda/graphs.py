"""Run the loop of a search in Python, with each step as a CUDA graph."""

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    LimitError,
    RunError,
    UnsupportedArtifactError,
    argument_error,
    require,
)
from keras_bahdanau_runtime.ids import PAD
from keras_bahdanau_runtime.manifest import Manifest, expect_unreplaced
from keras_bahdanau_runtime.search import GraphSearch, checked_outputs
from keras_bahdanau_runtime.session import (
    CUDA,
    Providers,
    device_of,
    open_graph,
    resolve_providers,
    run,
    with_cuda_options,
)
from keras_bahdanau_runtime.signature import CUDA_GRAPH_FILES, SHORTLIST_FILE, TRANSLATE

logger = logging.getLogger("keras_bahdanau_runtime")

Values = dict[str, Any]  # `onnxruntime.OrtValue`s by name, on the device of the session

_START, _STEP, _END = CUDA_GRAPH_FILES
_MAX_SHAPES = 32  # source shapes whose CUDA graphs are kept
_LENGTHS = 16  # source lengths of CUDA graphs are multiples of this


@dataclass
class _Buffers:
    """Fixed buffers for searches with one source shape; a CUDA graph reuses the addresses."""

    number: int
    initial: Values  # outputs of the start graph
    states: tuple[Values, Values]  # a step reads one and writes the other
    go_on: Any

    def inputs(self, session: Any, current: int) -> Values:
        """Return the inputs of the step or the end, with state `current`."""
        values = self.initial | self.states[current]
        return {value.name: values[value.name] for value in session.get_inputs()}


def open_search(
    manifest: Manifest, cuda_graphs: bool | None, providers: Providers, *limits: Any
) -> "GraphSearch | CudaGraphSearch":
    """Open the search of an artifact.

    Args:
        manifest: Manifest of the artifact.
        cuda_graphs: As for `Translator`; a `ValueError` if it is neither a bool nor `None`.
        providers: As for `Translator`.
        *limits: The other arguments of `GraphSearch`.
    """
    if cuda_graphs is not None and type(cuda_graphs) is not bool:
        raise argument_error("cuda_graphs", "be a bool or None", cuda_graphs)
    if cuda_graphs:
        return CudaGraphSearch(manifest, providers, *limits)
    if cuda_graphs is None and set(CUDA_GRAPH_FILES) <= set(manifest.files):
        available = require("onnxruntime", extra="runtime").get_available_providers()
        if resolve_providers(providers, available)[0][0] == CUDA:
            try:
                search = CudaGraphSearch(manifest, providers, *limits)
                if device_of(search.session)[0] == "cuda":
                    return search
                logger.info("The loop runs as one graph, because CUDA did not start.")
            except ValueError as error:  # CUDA cannot record the step
                logger.warning("The loop runs as one graph: %s", error)
    return GraphSearch(manifest, providers, *limits)


class CudaGraphSearch:
    """Search of an artifact that runs one step at a time.

    States stay on the device. After each step, one byte is copied to the host: whether to continue.
    On CUDA, the steps for each source shape are recorded as CUDA graphs and then replayed. To limit
    the number of shapes, sources are padded to multiples of 16 tokens, and batches to powers of two
    up to 32 and to multiples of 32 above. The steps of at most 32 shapes are kept. A call with
    options runs `model.onnx`, which is opened by the first such call.

    The arguments are those of `GraphSearch`, for an artifact exported with `cuda_graphs=True`.

    Raises:
        ValueError: CUDA cannot record a step.
        UnsupportedArtifactError: The artifact has no such graphs.
        CorruptArtifactError: The graphs do not match the manifest, or do not fit each other.
    """

    files = CUDA_GRAPH_FILES

    def __init__(
        self,
        manifest: Manifest,
        providers: Providers,
        threads: int | None,
        timeout: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        missing = [name for name in CUDA_GRAPH_FILES if name not in manifest.files]
        if missing:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: has no {missing[0]}. Export it with cuda_graphs=True."
            )
        self._manifest, self._timeout = manifest, timeout
        self._settings = providers, threads, timeout, megabytes
        self._start = open_graph(manifest, _START, providers, threads, megabytes)
        self._end = open_graph(manifest, _END, providers, threads, megabytes)
        self._open_step()
        _check_graphs(self._start, self.session, self._end, manifest)
        self._whole_search: GraphSearch | None = None
        self._whole_search_lock = threading.Lock()
        # One thread: a search owns the buffers, and CUDA replays a graph on its recording thread.
        self._thread = ThreadPoolExecutor(1, "keras_bahdanau CUDA graphs")
        self._process = os.getpid()

    def _open_step(self) -> None:
        providers, threads, _, megabytes = self._settings
        recording = with_cuda_options(providers, enable_cuda_graph="1")
        self.session = open_graph(self._manifest, _STEP, recording, threads, megabytes)
        self._buffers: dict[tuple[int, ...], _Buffers] = {}

    def run(
        self, inputs: Mapping[str, NDArray[Any]], alignments: bool = True, shrink: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Run the search; arguments, results and errors as `GraphSearch.run`.

        Raises:
            RunError: This process is a fork of the one that opened the artifact.
        """
        if not inputs.keys() <= {value.name for value in self._start.get_inputs()}:
            return self._open_whole_search().run(inputs, alignments, shrink)
        if os.getpid() != self._process:
            raise RunError(
                f"CUDA graphs run only in the process that opened them, {self._process}. "
                f"Received: {os.getpid()}, a fork of it. Open the artifact in the fork, or with "
                "cuda_graphs=False."
            )
        padded = {name: self._padded(name, array) for name, array in inputs.items()}
        outputs = self._thread.submit(self._search, padded, shrink).result()
        shape, (rows, length) = padded["source"].shape, inputs["source"].shape
        arrays = checked_outputs(outputs, shape, self._manifest, alignments)
        arrays = {name: array[:rows] for name, array in arrays.items()}
        if alignments:
            arrays["alignments"] = arrays["alignments"][..., :length]
        return arrays

    def _open_whole_search(self) -> GraphSearch:
        with self._whole_search_lock, expect_unreplaced(self._manifest):
            if self._whole_search is None:
                self._whole_search = GraphSearch(self._manifest, *self._settings)
            return self._whole_search

    def _padded(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Pad an input to one of the shapes of CUDA graphs, and repeat its last row.

        Rows are not repeated with a shortlist: its ids are chosen from all rows together.
        """
        rows = len(array)
        padded_rows = 1 << (rows - 1).bit_length() if rows <= 32 else -(-rows // 32) * 32
        if padded_rows > rows and SHORTLIST_FILE not in self._manifest.files:
            array = np.concatenate([array, np.repeat(array[-1:], padded_rows - rows, axis=0)])
        if name == "source":
            padding = -array.shape[1] % _LENGTHS
            array = np.pad(array, ((0, 0), (0, padding)), constant_values=PAD)
        return array

    def _search(self, padded: Mapping[str, NDArray[Any]], shrink: bool) -> Values:
        end = math.inf if self._timeout is None else time.monotonic() + self._timeout
        too_long = f"A search took longer than {self._timeout} s."

        def run_in_time(session: Any, inputs: Any, outputs: Any, **options: Any) -> Values:
            """Run a graph in the remaining time."""
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise LimitError(too_long)
            try:
                timeout = None if seconds == math.inf else seconds
                return run(session, inputs, outputs, timeout=timeout, **options)
            except LimitError as error:
                if time.monotonic() < end:  # out of memory
                    raise
                raise LimitError(too_long) from error

        shape = padded["source"].shape
        buffers = self._buffers.get(shape)
        names = [value.name for value in self._start.get_outputs()]
        destination = names if buffers is None else buffers.initial
        initial = run_in_time(self._start, padded, destination, shrink=shrink)
        buffers = buffers or self._new_buffers(shape, initial)
        current, go_on = 0, True
        while go_on:
            following = buffers.states[1 - current]
            run_in_time(
                self.session,
                buffers.inputs(self.session, current),
                {"go_on": buffers.go_on} | {f"next_{name}": following[name] for name in following},
                graph_id=2 * buffers.number + current + 1,
            )
            current, go_on = 1 - current, bool(buffers.go_on.numpy())
        names = [value.name for value in self._end.get_outputs()]
        return run_in_time(self._end, buffers.inputs(self._end, current), names, shrink=shrink)

    def _new_buffers(self, shape: tuple[int, ...], initial: Values) -> _Buffers:
        if len(self._buffers) == _MAX_SHAPES:
            logger.info("Dropped the CUDA graphs of %d source shapes.", _MAX_SHAPES)
            self._open_step()
        new = require("onnxruntime", extra="runtime").OrtValue.ortvalue_from_numpy
        device = device_of(self.session)
        state = {name: value for name, value in initial.items() if name.startswith("state_")}
        following = {name: new(value.numpy(), *device) for name, value in state.items()}
        go_on = new(np.array(True), *device)
        self._buffers[shape] = _Buffers(len(self._buffers), initial, (state, following), go_on)
        return self._buffers[shape]


def _check_graphs(start: Any, step: Any, end: Any, manifest: Manifest) -> None:
    """Raise a `CorruptArtifactError` unless the graphs produce each other's inputs."""
    signature = manifest.search_signature or TRANSLATE
    inputs, outputs = (
        [{value.name: value.type for value in values} for values in lists]
        for lists in (
            [step.get_inputs(), end.get_inputs()],
            [start.get_outputs(), step.get_outputs(), end.get_outputs()],
        )
    )
    available = outputs[0].items()
    states = {f"next_{name}": kind for name, kind in available if name.startswith("state_")}
    if (
        not states
        or not all(read.items() <= available for read in inputs)
        or outputs[1] != {"go_on": "tensor(bool)", **states}
        or set(outputs[2]) != {tensor.name for tensor in signature.outputs}
    ):
        raise CorruptArtifactError(
            f"{manifest.folder}: expected {', '.join(CUDA_GRAPH_FILES)} to be the graphs of one "
            f"search. Received: inputs {inputs} and outputs {outputs}"
        )
