"""Decodes token by token with `encoder.onnx` and `step.onnx`."""

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_resources, checked_ids
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    RunError,
    UnsupportedArtifactError,
    require,
)
from keras_bahdanau_runtime.ids import BOS, EOS
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.session import (
    MOST_SHAPES,
    Providers,
    device_of,
    empty_like,
    open_graph,
    padded_length,
    run,
)
from keras_bahdanau_runtime.signature import ENCODER_FILE, STEP_FILE

logger = logging.getLogger("keras_bahdanau_runtime")

Values = dict[str, Any]  # `onnxruntime.OrtValue`s by name, which stay where the graph computes

# What a step gives besides the state after it: odds of all tokens, the likeliest, the attention.
_RESULTS = {"log_probs": "tensor(float)", "best": "tensor(int32)", "alignment": "tensor(float)"}


@dataclass
class _Buffers:
    """Where the steps of sources of one shape read and write: always the same places."""

    number: int
    width: int  # of the last source, before it was padded
    made: Values  # by the encoder
    memory: Values
    states: tuple[Values, Values]  # a step reads one and writes the other
    tokens: Any
    results: Values
    turn: int = 0  # which of the states the last step left
    last: tuple[Values, Values] = ({}, {})  # the state and the memory that were given out last


class Stepper:
    """The decoder of an artifact, one step at a time.

    State and memory stay on the device between the steps; tokens go in and log-probabilities come
    out as arrays. A stepper is pickled and copied as its manifest and its settings: the copy opens
    the graphs again.

    Args:
        manifest: The manifest of an artifact that was exported with `stepwise=True`.
        providers: As for `Translator`.
        threads: int, the threads of one operator. `None` takes one: a step is too small to share,
            with two threads it took 1.4 times as long (256 units, 8,000 tokens, one sentence).
        fixed: bool. Whether all steps for sources of one shape use the same buffers. On CUDA each
            shape's step is then recorded as a CUDA graph and replayed, which spares the launch of
            its kernels. Only the last state of the last `start` of that shape can then be stepped
            from, by one thread. So that there are few shapes, sources are padded to multiples of 16
            tokens, and the steps of at most 32 shapes are kept.
        timeout: As for `Translator`, for one step.
        megabytes: As for `Translator`.

    Raises:
        ValueError: `threads`, `timeout` or `megabytes` is not positive.
        UnsupportedArtifactError: The artifact holds no `encoder.onnx` and `step.onnx`.
        CorruptArtifactError: They are not what the manifest says, or no encoder and step.

    Example:

    >>> stepper = Stepper(read_manifest("artifact"), "CPUExecutionProvider")
    >>> state, memory = stepper.start(np.array([[5, 6, 3]], np.int32))
    >>> log_probs, weights, state = stepper.step(np.array([2], np.int32), state, memory)
    """

    def __init__(
        self,
        manifest: Manifest,
        providers: Providers = "auto",
        threads: int | None = None,
        fixed: bool = False,
        timeout: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        check_resources(threads, timeout, megabytes)
        self._settings = manifest, providers, threads, fixed, timeout, megabytes
        missing = [name for name in (ENCODER_FILE, STEP_FILE) if name not in manifest.files]
        if missing:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: holds no {missing[0]}. Export it with stepwise=True."
            )
        threads = threads or 1
        self._encoder = open_graph(manifest, ENCODER_FILE, providers, threads, megabytes)
        self._open_step = functools.partial(
            open_graph, manifest, STEP_FILE, providers, threads, megabytes, capture=fixed
        )
        self._step = self._open_step()
        self._run = functools.partial(run, timeout=timeout)
        _check_graphs(self._encoder, self._step, manifest)
        self._manifest, self._vocabulary = manifest, manifest.vocabulary.get("target")
        # A part of the memory that a step does not read is no input of it.
        self._reads = {value.name for value in self._step.get_inputs()}
        self._made = [value.name for value in self._encoder.get_outputs()]
        self._fixed = fixed
        self._buffers: dict[tuple[int, ...], _Buffers] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._settings

    def start(self, source: NDArray[np.int32]) -> tuple[Values, Values]:
        """Encodes `source` `(B, Tx)` int32: the first state and the memory, `OrtValue`s by name.

        Raises:
            ValueError, RunError, LimitError: As `Translator.translate_ids`.
        """
        ids = self._manifest.vocabulary.get("source", 2**31)
        source = checked_ids("source", source, ids, self._manifest.max_source_length)
        width = source.shape[1]
        source = padded_length(source) if self._fixed else source
        buffers = self._buffers.get(source.shape)
        found = self._run(
            self._encoder, {"source": source}, buffers.made if buffers else self._made
        )
        if buffers is None:
            state = {name: part for name, part in found.items() if name.startswith("state_")}
            _check_rows(state, len(source))
            read = self._reads - set(state)
            memory = {name: part for name, part in found.items() if name in read}
            if not self._fixed:
                return state, memory
            buffers = self._new_buffers(found, state, memory)
            self._buffers[source.shape] = buffers
        buffers.width, buffers.turn = width, 0
        buffers.last = dict(buffers.states[0]), dict(buffers.memory)
        return buffers.last

    def _new_buffers(self, made: Values, state: Values, memory: Values) -> _Buffers:
        onnxruntime = require("onnxruntime", extra="runtime")
        if len(self._buffers) == MOST_SHAPES:
            logger.info("Steps for sources of %d shapes are recorded; begun anew.", MOST_SHAPES)
            self._step, self._buffers = self._open_step(), {}
        rows = next(iter(state.values())).shape()[0]
        tokens = onnxruntime.OrtValue.ortvalue_from_numpy(
            np.zeros(rows, np.int32), *device_of(self._step)
        )
        inputs = self._inputs(tokens, state, memory)
        results = self._run(self._step, inputs, list(_RESULTS), graph_id=-1)  # not recorded
        other = {name: empty_like(part, self._step) for name, part in state.items()}
        return _Buffers(len(self._buffers), 0, made, memory, (state, other), tokens, results)

    def _inputs(self, tokens: Any, state: Values, memory: Values) -> Values:
        read = {name: part for name, part in state.items() if name in self._reads}
        return {"tokens": tokens, **read, **memory}

    def step(
        self, tokens: NDArray[np.int32], state: Values, memory: Values
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], Values]:
        """One step after `tokens` `(B,)` int32.

        Returns:
            `(log_probs, weights, state)`: float32 `(B, V)` of the next token, the attention
            `(B, Tx)`, and the state after the step.

        Raises:
            ValueError: `tokens` are no ints, one for each row of `state`; or, with `fixed`, `state`
                is not the one that the last step left.
            RunError: onnxruntime could not run the graph, or it gave no such outputs.
            LimitError: It took longer than `timeout`, or more than `megabytes`.
        """
        found, after = self._advance(tokens, state, memory)
        log_probs, weights = self._odds(found, len(tokens))
        buffers = self._of_memory(memory)
        return log_probs, weights if buffers is None else weights[:, : buffers.width], after

    def _of_memory(self, memory: Values) -> _Buffers | None:
        """The buffers that hold the memory, which the last start of their shape gave."""
        return next((one for one in self._buffers.values() if memory is one.last[1]), None)

    def _advance(
        self, tokens: NDArray[np.int32], state: Values, memory: Values
    ) -> tuple[Values, Values]:
        """One step: its results, left where they were computed, and the state after it."""
        shape = (next(iter(state.values())).shape()[0],) if state else None
        tokens = np.asarray(tokens)
        if tokens.shape != shape or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"Argument `tokens` must be ints of shape {shape}, one for each row of the state. "
                f"Received: {tokens.dtype} of shape {tokens.shape}"
            )
        tokens = np.ascontiguousarray(tokens, np.int32)
        if not self._fixed:
            names = [*_RESULTS, *(f"next_{name}" for name in state)]
            found = self._run(self._step, self._inputs(tokens, state, memory), names)
            after = {name: found[f"next_{name}"] for name in state}
            _check_rows(after, len(tokens))
            return found, after
        buffers = self._of_memory(memory)
        if buffers is None or state is not buffers.last[0]:
            raise ValueError(
                "Arguments `state` and `memory` must be those of the last start or step. "
                "Received: others; without fixed=True any can be stepped from."
            )
        turn = buffers.turn
        after = buffers.states[1 - turn]
        buffers.tokens.update_inplace(tokens)
        written = {**buffers.results, **{f"next_{name}": part for name, part in after.items()}}
        inputs = self._inputs(buffers.tokens, buffers.states[turn], buffers.memory)
        self._run(self._step, inputs, written, graph_id=2 * buffers.number + turn + 1)
        # Others than before, though they hold the same places: those before hold them no longer.
        buffers.turn, buffers.last = 1 - turn, (dict(after), memory)
        return buffers.results, buffers.last[0]

    def _odds(self, found: Values, rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The log-probabilities and the alignment of a step as arrays."""
        log_probs, weights = found["log_probs"].numpy(), found["alignment"].numpy()
        expected = (rows, self._vocabulary or log_probs.shape[-1])
        if log_probs.shape != expected or weights.shape[:-1] != (rows,):
            raise RunError(
                f"The graph must give log-probabilities of shape {expected} and an alignment for "
                f"each row. Received: shapes {log_probs.shape} and {weights.shape}"
            )
        return log_probs, weights

    def greedy(
        self, source: NDArray[np.int32], search: Mapping[str, Any], max_length: int
    ) -> Iterator[int]:
        """Yields the likeliest token at every step, up to the end of the sentence.

        Args:
            source: `(1, Tx)` int32 ids of one sentence.
            search: Settings of a search. Its `forbidden`, `min_length` and `no_repeat_ngram` say
                what is passed over for the likeliest of the rest.
            max_length: int. Number of tokens after which the output is cut.
        """
        state, memory = self.start(source)
        token, made = BOS, list[int]()
        while len(made) < max_length:
            found, state = self._advance(np.array([token], np.int32), state, memory)
            token, barred = self._best(found), _barred(search, made)
            if token in barred:
                log_probs, _ = self._odds(found, 1)
                allowed = log_probs[0].copy()
                allowed[[one for one in barred if one < len(allowed)]] = -np.inf
                token = int(allowed.argmax())
            if token == EOS:
                return
            made.append(token)
            yield token

    def _best(self, found: Values) -> int:
        """The likeliest token of a step for one row."""
        best, size = found["best"].numpy(), self._vocabulary or 2**31
        if best.shape != (1,) or not 0 <= best[0] < size:
            raise RunError(f"The graph must give one id below {size}. Received: {best}")
        return int(best[0])


def _check_rows(state: Values, rows: int) -> None:
    """Raises a `RunError` unless every part of a state has a row for each sentence."""
    for name, part in state.items():
        if part.shape()[:1] != [rows]:
            raise RunError(
                f"The graph must give a state of {rows} rows, one for each sentence. "
                f"Received: {name} of shape {tuple(part.shape())}"
            )


def _barred(search: Mapping[str, Any], tokens: list[int]) -> set[int]:
    """The ids that a search, by its settings, does not choose after these tokens."""
    barred = set(search.get("forbidden") or ())
    if len(tokens) + 1 < (search.get("min_length") or 0):
        barred.add(EOS)
    n = search.get("no_repeat_ngram") or 0
    if 0 < n <= len(tokens):
        last = tokens[len(tokens) - n + 1 :]
        begins = range(len(tokens) - n + 1)
        barred.update(tokens[i + n - 1] for i in begins if tokens[i : i + n - 1] == last)
    return barred


def most_tokens(search: Mapping[str, Any], source: int) -> int:
    """Tokens after which a search, by its settings, cuts the output for so many source tokens."""
    most, ratio = int(search.get("max_length", 100)), search.get("max_length_ratio")
    if ratio is None:
        return most
    return min(most, max(1, int(np.float32(ratio) * np.float32(source))))  # as the graph computes


def _check_graphs(encoder: Any, step: Any, manifest: Manifest) -> None:
    """Raises `CorruptArtifactError` unless a step reads what the encoder makes and goes on."""
    source, made, read, written = (
        {value.name: value.type for value in values}
        for values in (
            encoder.get_inputs(),
            encoder.get_outputs(),
            step.get_inputs(),
            step.get_outputs(),
        )
    )
    states = {f"next_{name}": of for name, of in made.items() if name.startswith("state_")}
    if (
        source != {"source": "tensor(int32)"}
        or not {"tokens": "tensor(int32)"}.items() <= read.items()
        or not read.items() <= {"tokens": "tensor(int32)", **made}.items()
        or written != {**_RESULTS, **states}
        or not states
    ):
        raise CorruptArtifactError(
            f"{manifest.folder}: expected a {STEP_FILE} that reads what {ENCODER_FILE} makes. "
            f"Received: {source} to {made}, and {read} to {written}"
        )
