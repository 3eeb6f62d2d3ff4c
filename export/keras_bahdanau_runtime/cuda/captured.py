"""Run the loop of a search in Python, with each step as a graph that CUDA can record."""

import logging
import math
import os
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
)
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.session import (
    MAX_CUDA_GRAPH_SHAPES,
    Providers,
    device_of,
    empty,
    empty_like,
    open_graph,
    pad_for_cuda_graph,
    run,
)
from keras_bahdanau_runtime.signature import BEAM_FILES, SHORTLIST_FILE, TRANSLATE

logger = logging.getLogger("keras_bahdanau_runtime")

Values = dict[str, Any]  # `onnxruntime.OrtValue`s by name, on the device of the session

_START, _STEP, _END = BEAM_FILES


@dataclass
class _Buffers:
    """Fixed buffers for searches with one source shape; a recorded graph reuses the addresses."""

    number: int
    initial: Values  # outputs of the start graph
    states: tuple[Values, Values]  # a step reads one and writes the other
    go_on: Any


class CapturedSearch:
    """Search of an artifact that runs one step at a time.

    States stay on the device. After each step, one byte is copied to the host: whether to continue.
    On CUDA, the steps for each source shape are recorded as CUDA graphs and then replayed. To limit
    the number of shapes, sources are padded to multiples of 16 tokens, and batches to powers of two
    up to 32 and to multiples of 32 above. The steps of at most 32 shapes are kept.

    Args:
        manifest: Manifest of an artifact that was exported with `captured=True`.
        providers: As for `Translator`.
        threads: As for `Translator`.
        timeout: As for `Translator`, for a whole search.
        megabytes: As for `Translator`.

    Raises:
        UnsupportedArtifactError: The artifact has no such graphs, or CUDA cannot record a step.
        CorruptArtifactError: The graphs do not match the manifest, or do not fit each other.

    Example:

    >>> search = CapturedSearch(read_manifest("artifact"), "CPUExecutionProvider", None)
    >>> outputs, shape = search.run({"source": np.array([[5, 6, 3]], np.int32)})
    >>> outputs["tokens"].numpy().shape, shape
    ((1, 5, 100), (1, 16))
    """

    files = BEAM_FILES

    def __init__(
        self,
        manifest: Manifest,
        providers: Providers,
        threads: int | None,
        timeout: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        missing = [name for name in BEAM_FILES if name not in manifest.files]
        if missing:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: has no {missing[0]}. Export it with captured=True."
            )
        self._manifest, self._timeout = manifest, timeout
        self._session_settings = providers, threads, megabytes
        self._start = open_graph(manifest, _START, *self._session_settings)
        self._end = open_graph(manifest, _END, *self._session_settings)
        self._open_step()
        _check_graphs(self._start, self.session, self._end, manifest)
        self._start_outputs = [value.name for value in self._start.get_outputs()]
        self._step_inputs = [value.name for value in self.session.get_inputs()]
        self._end_inputs = [value.name for value in self._end.get_inputs()]
        # One thread: a search owns the buffers, and CUDA replays a graph on its recording thread.
        self._thread = ThreadPoolExecutor(1, "keras_bahdanau captured")
        self._process = os.getpid()

    def _open_step(self) -> None:
        try:
            self.session = open_graph(self._manifest, _STEP, *self._session_settings, capture=True)
        except ValueError as error:  # the provider did open the start graph
            if device_of(self._start)[0] == "cpu":
                raise
            raise UnsupportedArtifactError(
                'Argument `loop` must be "graph" or "auto" if CUDA cannot record the step of a '
                f"search, whose operators must all run on CUDA. Received: {error}"
            ) from error
        self._buffers: dict[tuple[int, ...], _Buffers] = {}

    def run(
        self, inputs: Mapping[str, NDArray[Any]], shrink: bool = False
    ) -> tuple[Values, tuple[int, ...]]:
        """Run the search.

        Args:
            inputs: Inputs of the search, arrays by name.
            shrink: As for `session.run`.

        Returns:
            `(outputs, shape)`: the outputs of `TRANSLATE`, `OrtValue`s by name, and the shape of
            the padded source that they are for.

        Raises:
            LimitError: The search exceeded `timeout` or the available memory.
            RunError: The search failed for another reason, or this process is a fork of the one
                that opened the artifact.
        """
        if os.getpid() != self._process:
            raise RunError(
                f"A captured search runs only in the process that opened it, {self._process}. "
                f"Received: {os.getpid()}, a fork of it. Open the artifact in the fork, or with "
                'loop="graph".'
            )
        padded = {name: self._padded(name, array) for name, array in inputs.items()}
        outputs = self._thread.submit(self._search_in_time, padded, shrink).result()
        return outputs, padded["source"].shape

    def _padded(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Pad an input to one of the recorded shapes, and repeat its last row.

        Rows are not repeated with a shortlist: its ids are chosen from all rows together.
        """
        rows = len(array)
        padded_rows = 1 << (rows - 1).bit_length() if rows <= 32 else -(-rows // 32) * 32
        if padded_rows > rows and SHORTLIST_FILE not in self._manifest.files:
            array = np.concatenate([array, np.repeat(array[-1:], padded_rows - rows, axis=0)])
        return pad_for_cuda_graph(array) if name == "source" else array

    def _search_in_time(self, padded: Mapping[str, NDArray[Any]], shrink: bool) -> Values:
        timeout = self._timeout
        end = math.inf if timeout is None else time.monotonic() + timeout
        try:
            return self._search(padded, shrink, end)
        except LimitError as error:
            if time.monotonic() < end:  # out of memory
                raise
            raise LimitError(f"A search took longer than {timeout} s.") from error

    def _search(self, padded: Mapping[str, NDArray[Any]], shrink: bool, end: float) -> Values:
        shape = padded["source"].shape

        def remaining() -> float | None:
            """Return the remaining seconds, or raise a `LimitError` if there are none."""
            seconds = end - time.monotonic()
            if seconds <= 0:
                raise LimitError("The time limit is reached.")
            return None if seconds == math.inf else seconds

        buffers = self._buffers.get(shape)
        destination = self._start_outputs if buffers is None else buffers.initial
        initial = run(self._start, padded, destination, timeout=remaining(), shrink=shrink)
        if buffers is None:
            buffers = self._new_buffers(shape, initial)
        current, go_on = 0, True
        while go_on:
            go_on = self._advance(buffers, current, remaining())
            current = 1 - current
        values = {**buffers.initial, **buffers.states[current]}
        names = [tensor.name for tensor in TRANSLATE.outputs]
        inputs = {name: values[name] for name in self._end_inputs}
        return run(self._end, inputs, names, timeout=remaining(), shrink=shrink)

    def _advance(self, buffers: _Buffers, current: int, timeout: float | None) -> bool:
        """Run one step from state `current` to the other; return whether to continue."""
        values = {**buffers.initial, **buffers.states[current]}
        next_state = {f"next_{name}": value for name, value in buffers.states[1 - current].items()}
        run(
            self.session,
            {name: values[name] for name in self._step_inputs},
            {**next_state, "go_on": buffers.go_on},
            graph_id=2 * buffers.number + current + 1,
            timeout=timeout,
        )
        return bool(buffers.go_on.numpy())

    def _new_buffers(self, shape: tuple[int, ...], initial: Values) -> _Buffers:
        if len(self._buffers) == MAX_CUDA_GRAPH_SHAPES:
            logger.info("Dropped the recorded steps of %d source shapes.", MAX_CUDA_GRAPH_SHAPES)
            self._open_step()
        state = {name: value for name, value in initial.items() if name.startswith("state_")}
        next_state = {name: empty_like(value, self.session) for name, value in state.items()}
        go_on = empty((), np.bool_, self.session)
        buffers = _Buffers(len(self._buffers), initial, (state, next_state), go_on)
        self._buffers[shape] = buffers
        return buffers


def _check_graphs(start: Any, step: Any, end: Any, manifest: Manifest) -> None:
    """Raise a `CorruptArtifactError` unless the graphs produce each other's inputs."""
    start_outputs, step_inputs, step_outputs, end_inputs, end_outputs = (
        {value.name: value.type for value in values}
        for values in (
            start.get_outputs(),
            step.get_inputs(),
            step.get_outputs(),
            end.get_inputs(),
            end.get_outputs(),
        )
    )
    states = {
        f"next_{name}": kind for name, kind in start_outputs.items() if name.startswith("state_")
    }
    if (
        not states
        or not step_inputs.items() <= start_outputs.items()
        or not end_inputs.items() <= start_outputs.items()
        or step_outputs != {"go_on": "tensor(bool)", **states}
        or set(end_outputs) != {tensor.name for tensor in TRANSLATE.outputs}
    ):
        raise CorruptArtifactError(
            f"{manifest.folder}: expected {', '.join(BEAM_FILES)} to be the graphs of one search. "
            f"Received: {start_outputs}, {step_inputs}, {step_outputs}, {end_inputs}, {end_outputs}"
        )
