"""Decodes token by token with `encoder.onnx` and `step.onnx`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_export.artifact import Manifest
from keras_bahdanau_export.contents import check_contents
from keras_bahdanau_export.errors import UnsupportedArtifactError
from keras_bahdanau_export.session import Providers, open_session
from keras_bahdanau_export.signature import BOS_ID, ENCODER_FILE, EOS_ID, STEP_FILE


class Stepper:
    """The decoder of an artifact, one step at a time.

    Args:
        manifest: The manifest of an artifact that was exported with `stepwise=True`.
        providers: As for `Translator`.
        threads: As for `Translator`.

    Raises:
        UnsupportedArtifactError: The artifact holds no `encoder.onnx` and `step.onnx`.

    Example:

    >>> stepper = Stepper(read_manifest("artifact"), "CPUExecutionProvider", None)
    >>> state, memory = stepper.start(np.array([[5, 6, 3]], np.int32))
    >>> log_probs, weights, state = stepper.step(np.array([2], np.int32), state, memory)
    """

    def __init__(self, manifest: Manifest, providers: Providers, threads: int | None) -> None:
        missing = [name for name in (ENCODER_FILE, STEP_FILE) if name not in manifest.files]
        if missing:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: holds no {missing[0]}. Export it with stepwise=True."
            )
        for name in (ENCODER_FILE, STEP_FILE):
            check_contents(manifest.folder / name, manifest.files)
        self._encoder = open_session(manifest.folder / ENCODER_FILE, providers, threads)
        self._step = open_session(manifest.folder / STEP_FILE, providers, threads)
        # A part of the memory that a step does not read is no input of it.
        self._reads = {value.name for value in self._step.get_inputs()}

    def start(
        self, source: NDArray[np.int32]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Encodes `source` `(B, Tx)` int32: the first state and the memory, arrays by name."""
        names = [value.name for value in self._encoder.get_outputs()]
        found = dict(zip(names, self._encoder.run(names, {"source": source}), strict=True))
        state = {name: part for name, part in found.items() if name.startswith("state_")}
        memory = {name: part for name, part in found.items() if name in self._reads - set(state)}
        return state, memory

    def step(
        self,
        tokens: NDArray[np.int32],
        state: dict[str, NDArray[Any]],
        memory: dict[str, NDArray[Any]],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], dict[str, NDArray[Any]]]:
        """One step after `tokens` `(B,)` int32.

        Returns:
            `(log_probs, weights, state)`: float32 `(B, V)` of the next token, the attention
            `(B, Tx)`, and the state after the step.
        """
        after = [f"next_{name}" for name in state]
        read = {name: part for name, part in state.items() if name in self._reads}
        log_probs, weights, *parts = self._step.run(
            ["log_probs", "alignment", *after], {"tokens": tokens, **read, **memory}
        )
        return log_probs, weights, dict(zip(state, parts, strict=True))

    def greedy(self, source: NDArray[np.int32], max_length: int) -> Iterator[int]:
        """Yields the likeliest token at every step, up to the end of the sentence.

        Args:
            source: `(1, Tx)` int32 ids of one sentence.
            max_length: int. Number of tokens after which the output is cut.
        """
        state, memory = self.start(source)
        token = BOS_ID
        for _ in range(max_length):
            log_probs, _, state = self.step(np.array([token], np.int32), state, memory)
            token = int(log_probs[0].argmax())
            if token == EOS_ID:
                return
            yield token
