"""Decode token by token with `encoder.onnx` and `step.onnx`."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_limits, checked_ids
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    RunError,
    UnsupportedArtifactError,
    argument_error,
)
from keras_bahdanau_runtime.ids import BOS, EOS
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.session import Providers, open_graph, run
from keras_bahdanau_runtime.signature import ENCODER_FILE, STEP_FILE

Values = dict[str, Any]  # `onnxruntime.OrtValue`s by name, on the device of the session

# Outputs of a step other than the next state: log-probabilities, likeliest token, attention.
_STEP_OUTPUTS = {
    "log_probs": "tensor(float)",
    "best": "tensor(int32)",
    "alignment": "tensor(float)",
}


_MAX_WORD_TOKENS = 8  # of an alternative, in languages without spaces between words


class Stepper:
    """Decoder of an artifact that runs one step at a time.

    State and memory stay on the device between steps; tokens and log-probabilities are arrays. A
    stepper is pickled and copied as its manifest and settings: the copy opens the graphs again.

    Args:
        manifest: Manifest of an artifact that was exported with `stepwise=True`.
        providers: As for `Translator`.
        threads: int, threads of one operator. `None` for one: a step is too small to be shared. Two
            threads took 1.4 times as long (256 units, 8,000 tokens, one sentence).
        timeout: As for `Translator`, for one step.
        megabytes: As for `Translator`.

    Raises:
        ValueError: `threads`, `timeout` or `megabytes` is not positive.
        UnsupportedArtifactError: The artifact has no `encoder.onnx` and `step.onnx`.
        CorruptArtifactError: The graphs do not match the manifest, or are no encoder and step.

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
        timeout: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        check_limits(threads, timeout, megabytes)
        self._settings = manifest, providers, threads, timeout, megabytes
        missing = [name for name in (ENCODER_FILE, STEP_FILE) if name not in manifest.files]
        if missing:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: has no {missing[0]}. Export it with stepwise=True."
            )
        threads = threads or 1
        self._encoder = open_graph(manifest, ENCODER_FILE, providers, threads, megabytes)
        self._step = open_graph(manifest, STEP_FILE, providers, threads, megabytes)
        self._run = functools.partial(run, timeout=timeout)
        _check_graphs(self._encoder, self._step, manifest)
        self._manifest, self._vocabulary = manifest, manifest.vocabulary.get("target")
        # Values that a step does not read are not among its inputs.
        self._step_inputs = {value.name for value in self._step.get_inputs()}
        self._encoder_outputs = [value.name for value in self._encoder.get_outputs()]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._settings

    def start(self, source: NDArray[np.int32]) -> tuple[Values, Values]:
        """Encode `source` `(B, Tx)` int32 and return the first state and the memory.

        Returns:
            `(state, memory)`, `OrtValue`s by name.

        Raises:
            ValueError, RunError, LimitError: As `Translator.translate_ids`.
        """
        vocabulary = self._manifest.vocabulary.get("source", 2**31)
        source = checked_ids("source", source, vocabulary, self._manifest.max_source_length)
        encoded = self._run(self._encoder, {"source": source}, self._encoder_outputs)
        state = {name: value for name, value in encoded.items() if name.startswith("state_")}
        _check_rows(state, len(source))
        names = self._step_inputs - set(state)
        return state, {name: value for name, value in encoded.items() if name in names}

    def step(
        self, tokens: NDArray[np.int32], state: Values, memory: Values
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], Values]:
        """Run one step after `tokens` `(B,)` int32.

        Returns:
            `(log_probs, weights, state)`: float32 log-probabilities `(B, V)` of the next token,
            attention weights `(B, Tx)`, and the state after the step.

        Raises:
            ValueError: `tokens` are not ints, one for each row of `state`, or an id is outside the
                vocabulary.
            RunError: onnxruntime could not run the graph, or its outputs are invalid.
            LimitError: The step exceeded `timeout` or `megabytes`.
        """
        outputs, next_state = self._advance(tokens, state, memory)
        log_probs, weights = self._log_probs(outputs, len(tokens))
        return log_probs, weights, next_state

    def _advance(
        self, tokens: NDArray[np.int32], state: Values, memory: Values
    ) -> tuple[Values, Values]:
        """Run one step; return its outputs on the device and the next state."""
        shape = (next(iter(state.values())).shape()[0],) if state else None
        tokens = np.asarray(tokens)
        if tokens.shape != shape or tokens.dtype.kind not in "iu":
            raise argument_error(
                "tokens",
                f"be ints of shape {shape}, one for each row of the state",
                received=f"{tokens.dtype} of shape {tokens.shape}",
            )
        size = self._vocabulary or 2**31
        # The graph takes a negative id for one of the last, and an int32 wraps.
        if np.any((tokens < 0) | (tokens >= size)):
            raise argument_error("tokens", f"hold ids from 0 to {size - 1}", tokens)
        tokens = np.ascontiguousarray(tokens, np.int32)
        names = [*_STEP_OUTPUTS, *(f"next_{name}" for name in state)]
        read = {name: value for name, value in state.items() if name in self._step_inputs}
        outputs = self._run(self._step, {"tokens": tokens, **read, **memory}, names)
        next_state = {name: outputs[f"next_{name}"] for name in state}
        _check_rows(next_state, len(tokens))
        return outputs, next_state

    def _log_probs(
        self, outputs: Values, rows: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the log-probabilities and attention weights of a step as arrays."""
        log_probs, weights = outputs["log_probs"].numpy(), outputs["alignment"].numpy()
        expected = (rows, self._vocabulary or log_probs.shape[-1])
        if log_probs.shape != expected or weights.shape[:-1] != (rows,):
            raise RunError(
                f"The graph must return log-probabilities of shape {expected} and an alignment for "
                f"each row. Received: shapes {log_probs.shape} and {weights.shape}"
            )
        return log_probs, weights

    def greedy(
        self,
        source: NDArray[np.int32],
        search: ManifestSearch,
        max_length: int,
        prefix: Sequence[int] = (),
        completions: Iterable[tuple[int, int]] = (),
    ) -> Iterator[int]:
        """Yield the likeliest token of every step until the end of the sentence.

        Args:
            source: `(1, Tx)` int32 ids of one sentence.
            search: Settings of a search. Tokens excluded by `forbidden`, `min_length` and
                `no_repeat_ngram` are skipped.
            max_length: int. Largest number of tokens.
            prefix: The first tokens.
            completions: Pairs of a position and a token that may end the prefix there.
        """
        completions = set(completions)
        state, memory = self.start(source)
        token, output = BOS, list[int]()
        while len(output) < max_length:
            outputs, state = self._advance(np.array([token], np.int32), state, memory)
            token, excluded = self._best_token(outputs), _excluded_tokens(search, output)
            position = len(output)
            if position < len(prefix) and output == list(prefix[:position]):
                log_probs, _ = self._log_probs(outputs, 1)
                ending = {index for at, index in completions if at == position} - excluded
                token = max({prefix[position], *ending}, key=log_probs[0].__getitem__)
            elif token in excluded:
                log_probs, _ = self._log_probs(outputs, 1)
                token = _best_allowed(log_probs[0], search, output)
            if token == EOS:
                return
            output.append(token)
            yield token

    def likeliest_words(
        self,
        source: NDArray[np.int32],
        search: ManifestSearch,
        prefix: Sequence[int],
        allowed: Collection[int] | None,
        count: int,
        is_complete: Callable[[list[int], int], bool],
    ) -> list[tuple[list[int], float]]:
        """Return the likeliest tokens after a prefix, each continued greedily to a whole word.

        Args:
            source: `(1, Tx)` int32 ids of one sentence.
            search: Settings of a search, whose excluded tokens are skipped as in `greedy`.
            prefix: The first tokens of the output.
            allowed: Ids of which the next token is one; `None` for any.
            count: int. Largest number of words.
            is_complete: Function of the ids of a word and of the next id that returns whether the
                word ends before that id.

        Returns:
            Ids and log-probability of each word, in the order of their first tokens. `[EOS]` is the
            end of the sentence.
        """
        state, memory = self.start(np.repeat(source, count, axis=0))
        for token in (BOS, *prefix):
            outputs, state = self._advance(np.full(count, token, np.int32), state, memory)
        first = self._log_probs(outputs, count)[0][0].copy()
        possible = np.zeros(len(first), bool)
        possible[range(len(first)) if allowed is None else [*allowed]] = True
        excluded = _excluded_tokens(search, list(prefix))
        possible[[index for index in excluded if index < len(first)]] = False
        first[~possible] = -np.inf
        best = np.argsort(-first, kind="stable")[: min(count, np.count_nonzero(possible))].tolist()
        words, totals = [[index] for index in best], [float(first[index]) for index in best]
        pending = [row for row, index in enumerate(best) if index != EOS]
        for _ in range(_MAX_WORD_TOKENS - 1):
            if not pending:
                break
            tokens = np.zeros(count, np.int32)
            tokens[: len(words)] = [word[-1] for word in words]
            outputs, state = self._advance(tokens, state, memory)
            log_probs, _ = self._log_probs(outputs, count)
            for row in tuple(pending):
                index = _best_allowed(log_probs[row], search, [*prefix, *words[row]])
                if index == EOS or is_complete(words[row], index):
                    pending.remove(row)
                else:
                    words[row].append(index)
                    totals[row] += float(log_probs[row, index])
        return list(zip(words, totals, strict=True))

    def _best_token(self, outputs: Values) -> int:
        """Return the likeliest token of a step with one row."""
        best, size = outputs["best"].numpy(), self._vocabulary or 2**31
        if best.shape != (1,) or not 0 <= best[0] < size:
            raise RunError(f"The graph must return one id below {size}. Received: {best}")
        return int(best[0])


def _check_rows(state: Values, rows: int) -> None:
    """Raise a `RunError` unless every value of the state has one row per sentence."""
    for name, value in state.items():
        if value.shape()[:1] != [rows]:
            raise RunError(
                f"The graph must return a state of {rows} rows, one for each sentence. "
                f"Received: {name} of shape {tuple(value.shape())}"
            )


def _excluded_tokens(search: ManifestSearch, output: list[int]) -> set[int]:
    """Return the ids that the settings of a search exclude after the tokens `output`."""
    excluded = set(search.forbidden)
    if len(output) + 1 < (search.min_length or 0):
        excluded.add(EOS)
    n = search.no_repeat_ngram or 0
    if 0 < n <= len(output):
        prefix = output[len(output) - n + 1 :]
        starts = range(len(output) - n + 1)
        excluded.update(output[i + n - 1] for i in starts if output[i : i + n - 1] == prefix)
    return excluded


def _best_allowed(log_probs: NDArray[np.float32], search: ManifestSearch, output: list[int]) -> int:
    """Return the likeliest id that the settings of a search do not exclude after `output`."""
    scores = log_probs.copy()
    excluded = _excluded_tokens(search, output)
    scores[[index for index in excluded if index < len(scores)]] = -np.inf
    return int(scores.argmax())


def _check_graphs(encoder: Any, step: Any, manifest: Manifest) -> None:
    """Raise a `CorruptArtifactError` unless the step reads the encoder's outputs and its own."""
    encoder_inputs, encoder_outputs, step_inputs, step_outputs = (
        {value.name: value.type for value in values}
        for values in (
            encoder.get_inputs(),
            encoder.get_outputs(),
            step.get_inputs(),
            step.get_outputs(),
        )
    )
    states = {
        f"next_{name}": kind for name, kind in encoder_outputs.items() if name.startswith("state_")
    }
    if (
        encoder_inputs != {"source": "tensor(int32)"}
        or not {"tokens": "tensor(int32)"}.items() <= step_inputs.items()
        or not step_inputs.items() <= {"tokens": "tensor(int32)", **encoder_outputs}.items()
        or step_outputs != {**_STEP_OUTPUTS, **states}
        or not states
    ):
        raise CorruptArtifactError(
            f"{manifest.folder}: expected {STEP_FILE} to read the outputs of {ENCODER_FILE}. "
            f"Received: {encoder_inputs} to {encoder_outputs}, and {step_inputs} to {step_outputs}"
        )
