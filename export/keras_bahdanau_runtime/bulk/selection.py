"""Select sources of low confidence, whose translations a person should write.

translate the sources -> sort by confidence -> drop near duplicates
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from keras_bahdanau_runtime.bulk.text_model import TextModel
from keras_bahdanau_runtime.errors import UnsupportedArtifactError, require
from keras_bahdanau_runtime.translation import Translation
from keras_bahdanau_runtime.translator import WINDOW_SIZE


@dataclass(frozen=True)
class Candidate:
    """A source that a person could translate.

    Args:
        line: int. Number of its line, from 1.
        source: str. The source.
        answer: str. The translation of the model.
        confidence: float. Confidence of the model in its answer, from 0 to 1.
    """

    line: int
    source: str
    answer: str
    confidence: float


def estimated_confidence(translation: Translation) -> float | None:
    """Return the probability that a translation is right, or `None` if nothing tells it.

    It is the confidence of a calibrated model, otherwise the probability of the translation.

    Example:

    >>> estimated_confidence(Translation("a", -1.0, ["a"], ["a"], None, confidence=0.8))
    0.8
    """
    if translation.confidence is not None:
        return translation.confidence
    if translation.log_probs is not None:
        return math.exp(float(translation.log_probs.sum()))
    return None


def find_candidates(
    lines: Sequence[tuple[int, str]],
    model: TextModel,
    on_failed: Callable[[int, str], object],
    progress: Callable[[int], object] | None = None,
) -> Iterator[Candidate]:
    """Translate sources, and yield each with the confidence of its answer, in their order.

    A blank answer has the confidence 0.

    Args:
        lines: Line number and text of each source. Blank and repeated sources are left out.
        model: `TextModel`.
        on_failed: Called with the line number of a source that cannot be translated, and the
            reason.
        progress: Called with the number of finished sources.

    Raises:
        UnsupportedArtifactError: An older version wrote the artifact, whose answers have neither a
            confidence nor log-probabilities.
    """
    first = dict[str, int]()
    for number, text in lines:
        if text.strip():
            first.setdefault(text, number)
    unique = list(first)
    for start in range(0, len(unique), WINDOW_SIZE):
        window = unique[start : start + WINDOW_SIZE]
        translations = model.translate(window)
        for text, translation in zip(window, translations, strict=True):
            if translation.error is not None:
                on_failed(first[text], translation.error)
                continue
            confidence = estimated_confidence(translation) if translation.text.strip() else 0.0
            if confidence is None:
                raise UnsupportedArtifactError(
                    "The artifact gives no log-probabilities, because an older version wrote it. "
                    "Export it again to select sources."
                )
            yield Candidate(first[text], text, translation.text, confidence)
        if progress is not None:
            progress(start + len(window))


def select_candidates(
    candidates: Iterable[Candidate], count: int, similarity: float
) -> list[Candidate]:
    """Return candidates of low confidence, the lowest first, without near duplicates.

    The candidates are visited by rising confidence. One is left out if it is too similar to one
    that was selected before.

    Args:
        candidates: `Candidate`s.
        count: int. Largest number of selected ones, which bounds the comparisons of a candidate.
        similarity: float. Two sources are near duplicates from this similarity on: 1 minus the
            edits that turn one into the other, per character of the longer one. 1 keeps all
            different sources.

    Raises:
        MissingDependencyError: rapidfuzz is not installed.

    Example:

    >>> names = ["walking", "walkings", "bee"]
    >>> candidates = [Candidate(i, name, "", i / 10) for i, name in enumerate(names, 1)]
    >>> [item.source for item in select_candidates(candidates, 2, 0.8)]
    ['walking', 'bee']
    """
    process = require("rapidfuzz.process", extra="text")
    scorer = require("rapidfuzz.distance", extra="text").Levenshtein.normalized_similarity
    selected: list[Candidate] = []
    sources: list[str] = []
    for candidate in sorted(candidates, key=lambda item: (item.confidence, item.line)):
        if len(selected) == count:
            break
        text = candidate.source
        if process.extractOne(text, sources, scorer=scorer, score_cutoff=similarity) is None:
            selected.append(candidate)
            sources.append(candidate.source)
    return selected
