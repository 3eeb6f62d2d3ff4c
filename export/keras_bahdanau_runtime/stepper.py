"""Decodes token by token with `encoder.onnx` and `step.onnx`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import UnsupportedArtifactError, require
from keras_bahdanau_runtime.ids import BOS, EOS
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.session import Providers, device_of, empty_like, open_graph, run
from keras_bahdanau_runtime.signature import ENCODER_FILE, STEP_FILE

Values = dict[str, Any]  # `onnxruntime.OrtValue`s by name, which stay where the graph computes


@dataclass
class _Buffers:
    """Where the steps of sources of one shape read and write: always the same places."""

    number: int
    made: Values  # by the encoder
    memory: Values
    states: tuple[Values, Values]  # a step reads one and writes the other
    tokens: Any
    results: Values


class Stepper:
    """The decoder of an artifact, one step at a time.

    State and memory stay on the device between the steps; tokens go in and log-probabilities come
    out as arrays.

    Args:
        manifest: The manifest of an artifact that was exported with `stepwise=True`.
        providers: As for `Translator`.
        threads: int, the threads of one operator. `None` takes one: a step is too small to share,
            with two threads it took 1.4 times as long (256 units, 8,000 tokens, one sentence).
        fixed: bool. Whether all steps for sources of one shape use the same buffers. On CUDA each
            shape's step is then recorded as a CUDA graph and replayed, which spares the launch of
            its kernels. Only the last state of the last `start` of that shape can then be stepped
            from, by one thread.

    Raises:
        UnsupportedArtifactError: The artifact holds no `encoder.onnx` and `step.onnx`.

    Example:

    >>> stepper = Stepper(read_manifest("artifact"), "CPUExecutionProvider", None)
    >>> state, memory = stepper.start(np.array([[5, 6, 3]], np.int32))
    >>> log_probs, weights, state = stepper.step(np.array([2], np.int32), state, memory)
    """

    def __init__(
        self, manifest: Manifest, providers: Providers, threads: int | None, fixed: bool = False
    ) -> None:
        missing = [name for name in (ENCODER_FILE, STEP_FILE) if name not in manifest.files]
        if missing:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: holds no {missing[0]}. Export it with stepwise=True."
            )
        threads = threads or 1
        self._encoder = open_graph(manifest, ENCODER_FILE, providers, threads)
        self._step = open_graph(manifest, STEP_FILE, providers, threads, capture=fixed)
        # A part of the memory that a step does not read is no input of it.
        self._reads = {value.name for value in self._step.get_inputs()}
        self._made = [value.name for value in self._encoder.get_outputs()]
        self._fixed = fixed
        self._buffers: dict[tuple[int, ...], _Buffers] = {}

    def start(self, source: NDArray[np.int32]) -> tuple[Values, Values]:
        """Encodes `source` `(B, Tx)` int32: the first state and the memory, `OrtValue`s by name."""
        buffers = self._buffers.get(source.shape)
        found = run(self._encoder, {"source": source}, buffers.made if buffers else self._made)
        if buffers is None:
            state = {name: part for name, part in found.items() if name.startswith("state_")}
            read = self._reads - set(state)
            memory = {name: part for name, part in found.items() if name in read}
            if not self._fixed:
                return state, memory
            buffers = self._buffers[source.shape] = self._new_buffers(found, state, memory)
        return buffers.states[0], buffers.memory

    def _new_buffers(self, made: Values, state: Values, memory: Values) -> _Buffers:
        onnxruntime = require("onnxruntime", extra="runtime")
        rows = next(iter(state.values())).shape()[0]
        tokens = onnxruntime.OrtValue.ortvalue_from_numpy(
            np.zeros(rows, np.int32), *device_of(self._step)
        )
        inputs = self._inputs(tokens, state, memory)
        results = run(self._step, inputs, ["log_probs", "alignment"], graph_id=-1)  # not recorded
        other = {name: empty_like(part, self._step) for name, part in state.items()}
        return _Buffers(len(self._buffers), made, memory, (state, other), tokens, results)

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
            ValueError: With `fixed`, `state` is not the one that the last step left.
        """
        if not self._fixed:
            names = ["log_probs", "alignment", *(f"next_{name}" for name in state)]
            found = run(self._step, self._inputs(tokens, state, memory), names)
            after = {name: found[f"next_{name}"] for name in state}
            return found["log_probs"].numpy(), found["alignment"].numpy(), after
        for buffers in self._buffers.values():
            if memory is buffers.memory and any(state is known for known in buffers.states):
                break
        else:
            raise ValueError(
                "Arguments `state` and `memory` must be those of the last start or step. "
                "Received: others; without fixed=True any can be stepped from."
            )
        turn = int(state is buffers.states[1])
        after = buffers.states[1 - turn]
        buffers.tokens.update_inplace(np.ascontiguousarray(tokens, np.int32))
        written = {**buffers.results, **{f"next_{name}": part for name, part in after.items()}}
        inputs = self._inputs(buffers.tokens, state, memory)
        run(self._step, inputs, written, graph_id=2 * buffers.number + turn + 1)
        results = buffers.results
        return results["log_probs"].numpy(), results["alignment"].numpy(), after

    def greedy(self, source: NDArray[np.int32], max_length: int) -> Iterator[int]:
        """Yields the likeliest token at every step, up to the end of the sentence.

        Args:
            source: `(1, Tx)` int32 ids of one sentence.
            max_length: int. Number of tokens after which the output is cut.
        """
        state, memory = self.start(source)
        token = BOS
        for _ in range(max_length):
            log_probs, _, state = self.step(np.array([token], np.int32), state, memory)
            token = int(log_probs[0].argmax())
            if token == EOS:
                return
            yield token
