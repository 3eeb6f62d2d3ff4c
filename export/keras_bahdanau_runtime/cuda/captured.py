"""Drives the loop of a search itself, with one step of it as a graph that CUDA can record."""

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
    MOST_SHAPES,
    Providers,
    device_of,
    empty,
    empty_like,
    open_graph,
    padded_length,
    run,
)
from keras_bahdanau_runtime.signature import BEAM_FILES, SHORTLIST_FILE, TRANSLATE

logger = logging.getLogger("keras_bahdanau_runtime")

Values = dict[str, Any]  # `onnxruntime.OrtValue`s by name, which stay where the graph computes

_START, _STEP, _END = BEAM_FILES


@dataclass
class _Buffers:
    """Where the searches for sources of one shape read and write: always the same places."""

    number: int
    made: Values  # by the start
    states: tuple[Values, Values]  # a step reads one and writes the other
    go_on: Any


class CapturedSearch:
    """The search of an artifact, step by step.

    The states stay on the device; after a step one byte comes back, whether to go on. On CUDA the
    steps for sources of one shape are recorded as CUDA graphs, and replayed from then on. So that
    there are few shapes, sources are padded to multiples of 16, and batches to powers of two up to
    32 and multiples of 32 above; the steps of at most 32 shapes are kept.

    Args:
        manifest: The manifest of an artifact that was exported with `captured=True`.
        providers: As for `Translator`.
        threads: As for `Translator`.
        timeout: As for `Translator`, for a whole search.
        megabytes: As for `Translator`.

    Raises:
        UnsupportedArtifactError: The artifact holds no such graphs, or CUDA cannot record a step.
        CorruptArtifactError: They are not what the manifest says, or do not fit each other.

    Example:

    >>> search = CapturedSearch(read_manifest("artifact"), "CPUExecutionProvider", None)
    >>> found, shape = search.run({"source": np.array([[5, 6, 3]], np.int32)})
    >>> found["tokens"].numpy().shape, shape
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
                f"{manifest.folder}: holds no {missing[0]}. Export it with captured=True."
            )
        self._manifest, self._timeout = manifest, timeout
        self._given = providers, threads, megabytes
        self._start = open_graph(manifest, _START, *self._given)
        self._end = open_graph(manifest, _END, *self._given)
        self._open_step()
        _check_graphs(self._start, self.session, self._end, manifest)
        self._made = [value.name for value in self._start.get_outputs()]
        self._reads = [value.name for value in self.session.get_inputs()]
        self._ends = [value.name for value in self._end.get_inputs()]
        # The buffers are one search's, and a CUDA graph is replayed by the thread that recorded it.
        self._thread = ThreadPoolExecutor(1, "keras_bahdanau captured")
        self._process = os.getpid()

    def _open_step(self) -> None:
        try:
            self.session = open_graph(self._manifest, _STEP, *self._given, capture=True)
        except ValueError as error:  # of the provider, which has opened the start of the search
            if device_of(self._start)[0] == "cpu":
                raise
            raise UnsupportedArtifactError(
                'Argument `loop` must be "graph" or "auto" where CUDA cannot record the step of a '
                f"search, all of which must run there. Received: {error}"
            ) from error
        self._buffers: dict[tuple[int, ...], _Buffers] = {}

    def run(
        self, inputs: Mapping[str, NDArray[Any]], shrink: bool = False
    ) -> tuple[Values, tuple[int, ...]]:
        """Searches.

        Args:
            inputs: Those of the search, arrays by name.
            shrink: As for `session.run`.

        Returns:
            `(found, shape)`: the outputs of `TRANSLATE`, `OrtValue`s by name, and the shape of the
            padded source, for which they are.

        Raises:
            LimitError: It took longer than `timeout`, or more memory than there was.
            RunError: It failed otherwise, or this is a fork of the process that opened it.
        """
        if os.getpid() != self._process:
            raise RunError(
                f"A captured search runs in the process that opened it, {self._process}. Received: "
                f'{os.getpid()}, a fork of it. Open the artifact there, or with loop="graph".'
            )
        padded = {name: self._padded(name, array) for name, array in inputs.items()}
        found = self._thread.submit(self._search, padded, shrink).result()
        return found, padded["source"].shape

    def _padded(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An input in one of the shapes that steps are recorded for; the last row is repeated.

        Not where all rows choose the ids of a shortlist together, in which it would count again.
        """
        rows = len(array)
        wanted = 1 << (rows - 1).bit_length() if rows <= 32 else -(-rows // 32) * 32
        if wanted > rows and SHORTLIST_FILE not in self._manifest.files:
            array = np.concatenate([array, np.repeat(array[-1:], wanted - rows, axis=0)])
        return padded_length(array) if name == "source" else array

    def _search(self, padded: Mapping[str, NDArray[Any]], shrink: bool) -> Values:
        timeout = self._timeout
        end = math.inf if timeout is None else time.monotonic() + timeout
        try:
            return self._found(padded, shrink, end)
        except LimitError as error:
            if time.monotonic() < end:  # it was for want of memory
                raise
            raise LimitError(f"A search took longer than {timeout} s.") from error

    def _found(self, padded: Mapping[str, NDArray[Any]], shrink: bool, end: float) -> Values:
        shape = padded["source"].shape

        def left() -> float | None:
            """Of the timeout, what is left; `LimitError` if nothing is."""
            rest = end - time.monotonic()
            if rest <= 0:
                raise LimitError("No time is left.")
            return None if rest == math.inf else rest

        buffers = self._buffers.get(shape)
        where = self._made if buffers is None else buffers.made
        made = run(self._start, padded, where, timeout=left(), shrink=shrink)
        if buffers is None:
            buffers = self._new_buffers(shape, made)
        turn, go_on = 0, True
        while go_on:
            go_on = self._advance(buffers, turn, left())
            turn = 1 - turn
        known = {**buffers.made, **buffers.states[turn]}
        names = [tensor.name for tensor in TRANSLATE.outputs]
        last = {name: known[name] for name in self._ends}
        return run(self._end, last, names, timeout=left(), shrink=shrink)

    def _advance(self, buffers: _Buffers, turn: int, timeout: float | None) -> bool:
        """One step, out of the states `turn` into the others; whether another is to follow."""
        known = {**buffers.made, **buffers.states[turn]}
        written = {f"next_{name}": part for name, part in buffers.states[1 - turn].items()}
        run(
            self.session,
            {name: known[name] for name in self._reads},
            {**written, "go_on": buffers.go_on},
            graph_id=2 * buffers.number + turn + 1,
            timeout=timeout,
        )
        return bool(buffers.go_on.numpy())

    def _new_buffers(self, shape: tuple[int, ...], made: Values) -> _Buffers:
        if len(self._buffers) == MOST_SHAPES:
            logger.info("Steps for sources of %d shapes are recorded; begun anew.", MOST_SHAPES)
            self._open_step()
        first = {name: part for name, part in made.items() if name.startswith("state_")}
        other = {name: empty_like(part, self.session) for name, part in first.items()}
        go_on = empty((), np.bool_, self.session)
        buffers = _Buffers(len(self._buffers), made, (first, other), go_on)
        self._buffers[shape] = buffers
        return buffers


def _check_graphs(start: Any, step: Any, end: Any, manifest: Manifest) -> None:
    """Raises `CorruptArtifactError` unless the graphs give each other what they read."""
    made, read, written, ends, found = (
        {value.name: value.type for value in values}
        for values in (
            start.get_outputs(),
            step.get_inputs(),
            step.get_outputs(),
            end.get_inputs(),
            end.get_outputs(),
        )
    )
    states = {f"next_{name}": of for name, of in made.items() if name.startswith("state_")}
    if (
        not states
        or not read.items() <= made.items()
        or not ends.items() <= made.items()
        or written != {"go_on": "tensor(bool)", **states}
        or set(found) != {tensor.name for tensor in TRANSLATE.outputs}
    ):
        raise CorruptArtifactError(
            f"{manifest.folder}: expected {', '.join(BEAM_FILES)} that are the parts of one "
            f"search. Received: {made}, {read}, {written}, {ends}, {found}"
        )
