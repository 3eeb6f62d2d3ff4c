"""Jobs of models: what the engine computes from the payloads of a batch."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from keras_bahdanau_runtime.request import NO_OPTIONS
from keras_bahdanau_runtime.scoring import decode_score
from keras_bahdanau_runtime.search_options import (
    NO_CONSTRAINTS,
    Constraints,
    SearchOptions,
    constraint_inputs,
)
from keras_bahdanau_runtime.service.errors import argument_errors
from keras_bahdanau_runtime.service.metrics import ModelMetrics, Statistics
from keras_bahdanau_runtime.session import run_arrays
from keras_bahdanau_runtime.text.batches import pad
from keras_bahdanau_runtime.translation import decode_hypotheses
from keras_bahdanau_runtime.translator import Translator


class SearchPayload(NamedTuple):
    """A text to translate; the payloads of a batch have equal options."""

    ids: list[int]
    n_best: int
    alignments: bool
    options: SearchOptions
    constraints: Constraints


class StreamPayload(NamedTuple):
    """A text to translate piece by piece; `put` gets each piece until `stopped` is set."""

    text: str
    prefix: str | None
    put: Callable[[str], object]
    stopped: threading.Event


class AlternativesPayload(NamedTuple):
    """A text, the beginning of its translation, and the largest number of words after it."""

    text: str
    prefix: str
    max_words: int


class ScorePayload(NamedTuple):
    """Ids of a text and of its target."""

    source: list[int]
    target: list[int]
    alignments: bool


class GraphPayload(NamedTuple):
    """Inputs of a graph, and the names of the outputs to return."""

    feeds: Mapping[str, NDArray[Any]]
    outputs: list[str]


class ModelJob:
    """Base class of jobs that count their runs.

    A job has no reference to its model, because a reference cycle would keep the memory of an
    unloaded model until the next garbage collection.

    Args:
        metrics: `ModelMetrics` of the model.
        counts: `Statistics` of the model.
    """

    batches_requests = False

    def __init__(self, metrics: ModelMetrics, counts: Statistics) -> None:
        self.metrics, self._counts = metrics, counts

    def run(self, payloads: Sequence[Any]) -> list[Any]:
        """Return the result for each payload."""
        results = self._run(payloads)
        self._counts.count_run(len(payloads))
        return results

    def record_times(self, queued: float, computed: float) -> None:
        """Record the seconds that one request waited and was computed."""
        self._counts.add_times(round(queued * 1e9), round(computed * 1e9))

    def _run(self, payloads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError


class TextJob(ModelJob):
    """Base class of the jobs of a text model.

    Args:
        metrics: As for `ModelJob`.
        counts: As for `ModelJob`.
        translator: `Translator` of an artifact with a tokenizer.
    """

    def __init__(self, metrics: ModelMetrics, counts: Statistics, translator: Translator) -> None:
        super().__init__(metrics, counts)
        self._translator, self._tokenizer = translator, translator.require_tokenizer()


class SearchJob(TextJob):
    """Search for translations, in batches."""

    batches_requests = True

    def _run(self, payloads: Sequence[SearchPayload]) -> list[Any]:
        aligned, options = any(payload.alignments for payload in payloads), payloads[0].options
        rows = [payload.constraints for payload in payloads]
        inputs = {} if options is NO_OPTIONS else options.inputs()
        if any(row is not NO_CONSTRAINTS for row in rows):
            inputs |= constraint_inputs(rows)
        source = pad([payload.ids for payload in payloads])
        arrays = self._translator.search(source, aligned, inputs=inputs)
        results = []
        for row, payload in enumerate(payloads):
            outputs = _outputs_of(arrays, row, payload.alignments)
            with argument_errors():  # the options leave no output
                results.append(
                    decode_hypotheses(self._tokenizer, outputs, payload.ids, payload.n_best)
                )
        return results


class StreamJob(TextJob):
    """Translate one text and pass on its pieces."""

    def _run(self, payloads: Sequence[StreamPayload]) -> list[Any]:
        [(text, prefix, put, stopped)] = payloads
        with argument_errors():  # the prefix is too long, or cannot be spelled
            stream = self._translator.stream(text, prefix=prefix)
        pieces = []
        for piece in stream:
            if stopped.is_set():
                break
            pieces.append(piece)
            put(piece)
        return ["".join(pieces)]


class AlternativesJob(TextJob):
    """Return the alternatives for one prefix."""

    def _run(self, payloads: Sequence[AlternativesPayload]) -> list[Any]:
        with argument_errors():  # a blank text, or a prefix that is too long
            return [self._translator.alternatives(*payloads[0])]


class ScoreJob(TextJob):
    """Score targets, in batches.

    The first batch opens the graph, so that services that score nothing do not need its memory.
    """

    batches_requests = True

    def _run(self, payloads: Sequence[ScorePayload]) -> list[Any]:
        sources, targets, alignments = zip(*payloads, strict=True)
        scorer = self._translator.open_scorer()
        arrays = scorer.score(pad(sources), pad(targets), any(alignments))
        return [
            decode_score(self._tokenizer, _outputs_of(arrays, row, payload.alignments), payload[:2])
            for row, payload in enumerate(payloads)
        ]


class GraphJob(ModelJob):
    """Run a graph, one payload at a time.

    Args:
        metrics: As for `ModelJob`.
        counts: As for `ModelJob`.
        session: Session of `open_graph`.
        timeout: float, seconds of one run.
    """

    def __init__(
        self, metrics: ModelMetrics, counts: Statistics, session: Any, timeout: float
    ) -> None:
        super().__init__(metrics, counts)
        self._session, self._timeout = session, timeout

    def _run(self, payloads: Sequence[GraphPayload]) -> list[Any]:
        return [run_arrays(self._session, *payload, self._timeout) for payload in payloads]


def _outputs_of(
    arrays: Mapping[str, NDArray[Any]], row: int, alignments: bool
) -> dict[str, NDArray[Any]]:
    """Return one row of each output, without alignments that its request does not want."""
    names = [name for name in arrays if alignments or name != "alignments"]
    return {name: arrays[name][row] for name in names}
