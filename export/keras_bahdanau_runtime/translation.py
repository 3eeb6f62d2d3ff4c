"""Translate texts with any search function, that of a Keras model or of an artifact.

encode the texts -> sort by length -> search in batches -> decode hypotheses -> restore the order
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.batch_sizes import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.checks import check_positive, check_text, checked_stream, checked_texts
from keras_bahdanau_runtime.errors import (
    ArgumentError,
    CorruptArtifactError,
    RunError,
    UnsupportedArtifactError,
    argument_error,
    require,
)
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.signature import TOKENIZER_FILE
from keras_bahdanau_runtime.text.batches import length_sorted_batches, pad, truncate_sequences
from keras_bahdanau_runtime.text.tokenizer import Tokenizer, TokenizerVersionError
from keras_bahdanau_runtime.text.unknown import warn_about_unknown

_T = TypeVar("_T")
_Result = TypeVar("_Result")
Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Translation:
    """Translation of a text.

    Args:
        text: str. The translation.
        score: float. Score of the search; higher is better. `None` for a blank text.
        tokens: list of str. Readable pieces of `text`; the last one is `"</s>"` if the sentence is
            complete. A character that consists of several tokens is shown at the last of them.
        source_tokens: list of str. The same for the source.
        alignment: float32 array of shape `(len(tokens), len(source_tokens))`, the attention
            weights; `None` if they were not requested.
        error: str. With `on_error="keep"`, the reason why the text was not translated; `text` is
            then empty and `score` is NaN. `None` for a translated text.
        log_probs: float32 array of shape `(len(tokens),)`, the log-probability of each token in
            nats; `None` for a blank text, and for an artifact of an earlier version.
        confidence: float. Probability that the whole text is right, for the best hypothesis of a
            calibrated artifact or run; otherwise `None`.
        expected_errors: float. Expected number of its wrong symbols, divided by that of the right
            text; `None` without a confidence.
        token_confidences: float32 array of shape `(len(tokens),)`, the probability of each token
            that it is right; `None` without a confidence.
        uncalibrated: str. Why the best hypothesis of a calibrated artifact or run has no
            confidence, such as another beam size; otherwise `None`.
    """

    text: str
    score: float | None
    tokens: list[str]
    source_tokens: list[str]
    alignment: NDArray[np.float32] | None = field(repr=False)
    error: str | None = None
    log_probs: NDArray[np.float32] | None = field(default=None, repr=False)
    confidence: float | None = None
    expected_errors: float | None = None
    token_confidences: NDArray[np.float32] | None = field(default=None, repr=False)
    uncalibrated: str | None = None


def confidence_fields(translation: Translation) -> dict[str, Any]:
    """Return the confidence of a translation as JSON values.

    Returns:
        "confidence", "expected_errors", "token_confidences" and "uncalibrated" by name; an empty
        dict for a translation that has neither a confidence nor a reason for having none.
    """
    if translation.confidence is None and translation.uncalibrated is None:
        return {}
    tokens = translation.token_confidences
    return {
        "confidence": _rounded(translation.confidence),
        "expected_errors": _rounded(translation.expected_errors),
        "token_confidences": None if tokens is None else [_rounded(value) for value in tokens],
        "uncalibrated": translation.uncalibrated,
    }


def _rounded(value: Any) -> float | None:
    return None if value is None else round(float(value), 6)


@dataclass(frozen=True)
class Alternative:
    """A word that may follow the beginning of a translation.

    Args:
        text: str. The text that it adds; empty for the end of the sentence.
        probability: float. Its probability after that beginning.
    """

    text: str
    probability: float


def translate_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    search: Callable[[NDArray[np.int32], list[int]], Outputs],
    batch_size: int = BATCH_SIZE,
    batch_tokens: int | None = BATCH_TOKENS,
    n_best: int = 1,
    max_source_length: int | None = None,
    truncate: bool = False,
    progress: Callable[[int], object] | None = None,
    alignments: bool = True,
    on_error: str = "raise",
    parallel_batches: int = 1,
    uncalibrated: Callable[[int], str | None] = lambda index: None,
) -> list[Translation] | list[list[Translation]]:
    """Translate texts in batches of similar length, and return the results in input order.

    A blank text (empty or only white space) gives an empty `Translation` without a score; the
    search is not called for it.

    Args:
        texts: list of str, one sentence each.
        tokenizer: `Tokenizer`.
        search: Function of int32 ids `(B, Tx)`, right-padded with 0, and of the indices of their
            texts. Returns NumPy arrays `"tokens"` int32 `(B, K, T)`, `"scores"` `(B, K)`,
            `"lengths"` `(B, K)` and, if requested, `"alignments"` `(B, K, T, Tx)`, hypotheses best
            first. A missing hypothesis has a score of -inf. The result may also have `"log_probs"`
            `(B, K, T)`, and what `Calibration.judge` returns.
        batch_size: int. Largest number of sentences in a batch.
        batch_tokens: int. Largest number of source ids in a batch, including padding; a longer
            sentence is a batch of one. `None` for no limit.
        n_best: int. Number of hypotheses for each text, best first; fewer if the search found
            fewer.
        max_source_length: int, longest source in tokens; `None` for no limit.
        truncate: bool. Whether to cut longer texts, with a warning in the log, instead of raising
            an error.
        progress: Called after each batch with the number of finished texts.
        alignments: bool. Whether translations contain the attention weights.
        on_error: "raise"; or "keep" to return a `Translation` with an `error` for a text that is
            too long, is not Unicode, or whose search fails. After a failed search, the texts of the
            batch are searched one by one.
        parallel_batches: int. Number of threads that call `search`, each with its own batch.
        uncalibrated: Function of the index of a text that returns its `uncalibrated` for
            `decode_hypotheses`.

    Returns:
        A list of `Translation`; with `n_best` above 1, a list of such lists. A blank text, and one
        with an error, has one hypothesis.

    Raises:
        ValueError: `texts` is a single str, an item is not a str or is too long, a number is out of
            range, or `n_best` is above the number of hypotheses `K`.
    """
    check_positive(batch_size=batch_size, n_best=n_best)
    if on_error not in ("raise", "keep"):
        raise argument_error("on_error", 'be "raise" or "keep"', on_error)
    keep = on_error == "keep"
    encoding_limit = None if keep and not truncate else max_source_length
    texts, invalid = _replace_invalid(texts) if keep else (checked_texts("texts", texts), {})
    encoded = encode_texts(texts, tokenizer, encoding_limit, truncate)
    results = [[] if ids else [empty_translation(alignments)] for ids in encoded]
    for index, reason in invalid.items():
        results[index] = [_failed(reason)]
    if keep and max_source_length is not None:
        for index, ids in enumerate(encoded):
            if len(ids) > max_source_length:
                results[index] = [_failed(str(_too_long(max_source_length, len(ids))))]
    pending = [index for index, ids in enumerate(encoded) if ids and not results[index]]
    report = progress or (lambda done: None)
    done = len(encoded) - len(pending)
    if done:
        report(done)
    # The longest batch runs first, so that a lack of memory shows early.
    lengths = [len(encoded[index]) for index in pending]
    batches = [
        [pending[position] for position in batch]
        for batch in length_sorted_batches(lengths, batch_size, batch_tokens)
    ]

    def search_batch(batch: list[int]) -> list[Outputs | str]:
        return _search(search, encoded, batch, n_best, keep)

    with ordered_map(search_batch, batches, parallel_batches) as outputs:
        for batch, rows in zip(batches, outputs, strict=True):
            for index, row in zip(batch, rows, strict=True):
                if isinstance(row, str):
                    results[index] = [_failed(row)]
                    continue
                try:
                    of_text = tokenizer.for_source(texts[index])
                    results[index] = decode_hypotheses(
                        of_text, row, encoded[index], n_best, uncalibrated(index)
                    )
                except (ValueError, RunError) as error:
                    if not keep:
                        raise
                    results[index] = [_failed(f"{type(error).__name__}: {error}")]
            done += len(batch)
            report(done)
    return [hypotheses[0] for hypotheses in results] if n_best == 1 else results


def _replace_invalid(texts: Iterable[str]) -> tuple[list[str], dict[int, str]]:
    """Replace each `str` with lone surrogates by a blank text.

    Returns:
        `(texts, reasons)`: the texts, and an error message by index for each replaced one.
    """
    valid = list(checked_stream("texts", texts, allow_surrogates=True))
    reasons = dict[int, str]()
    for index, text in enumerate(valid):
        try:
            check_text("text", text)
        except ValueError as error:
            valid[index], reasons[index] = "", str(error)
    return valid, reasons


@contextlib.contextmanager
def ordered_map(
    function: Callable[[_T], _Result], items: list[_T], threads: int
) -> Iterator[Iterator[_Result]]:
    """Map a function over items in several threads, which end with the block."""
    if threads == 1 or len(items) < 2:
        yield map(function, items)
        return
    pool = ThreadPoolExecutor(min(threads, len(items)), "keras_bahdanau search")
    try:
        yield pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _search(
    search: Callable[[NDArray[np.int32], list[int]], Outputs],
    encoded: list[list[int]],
    batch: list[int],
    n_best: int,
    keep: bool,
) -> list[Outputs | str]:
    """Return the outputs of each text of a batch or, with `keep`, the error of a failed text."""
    try:
        outputs = search(pad([encoded[index] for index in batch]), batch)
    except Exception as error:  # any exception of any engine; its message is returned
        if not keep:
            raise
        if len(batch) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [
            outputs
            for index in batch
            for outputs in _search(search, encoded, [index], n_best, keep)
        ]
    beam = outputs["tokens"].shape[1]
    if n_best > beam:
        raise argument_error(
            "n_best",
            f"be at most {beam}, the hypotheses that the search returns",
            received=str(n_best),
        )
    return [{name: values[i] for name, values in outputs.items()} for i in range(len(batch))]


def encode_texts(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    max_source_length: int | None = None,
    truncate: bool = False,
) -> list[list[int]]:
    """Return the ids of texts, an empty list for a blank text; arguments as `translate_texts`.

    `checked_texts` has checked the texts.

    Example:

    >>> tokenizer = Tokenizer.train(["a"], ["a"], vocabulary_size=300)
    >>> [len(ids) for ids in encode_texts(["a", " "], tokenizer)]
    [2, 0]
    """
    filled = [index for index, text in enumerate(texts) if text.strip()]
    encoded: list[list[int]] = [[] for _ in texts]
    encodings = tokenizer.encode_sources([texts[index] for index in filled])
    warn_about_unknown("texts", encodings)
    for index, ids in zip(filled, encodings, strict=True):
        if not truncate and max_source_length is not None and len(ids) > max_source_length:
            raise _too_long(max_source_length, len(ids), f" at index {index}")
        encoded[index] = ids
    if max_source_length is not None:
        [encoded] = truncate_sequences(max_source_length, texts=encoded)
    return encoded


def _too_long(limit: int, length: int, where: str = "") -> ArgumentError:
    return argument_error(
        "texts",
        f"have at most {limit} tokens each, including the end of sentence",
        received=f"{length}{where}. Split the text, or translate it with truncate=True.",
    )


def empty_translation(alignments: bool) -> Translation:
    """Return the `Translation` of a blank text, with an empty alignment if `alignments`."""
    return Translation("", None, [], [], np.zeros((0, 0), np.float32) if alignments else None)


def _failed(reason: str) -> Translation:
    return Translation("", math.nan, [], [], None, reason)


def decode_hypotheses(
    tokenizer: Tokenizer,
    outputs: Outputs,
    source: list[int],
    n_best: int,
    uncalibrated: str | None = None,
) -> list[Translation]:
    """Decode the best hypotheses for one source.

    Args:
        tokenizer: `Tokenizer` of the source, as `Tokenizer.for_source` returns it.
        outputs: One row of each output of a search, as described in `translate_texts`.
        source: Ids of the source.
        n_best: int. Largest number of hypotheses.
        uncalibrated: str. The reason why the calibration of the search does not hold, so that the
            best hypothesis has no confidence.

    Raises:
        ValueError: There is no hypothesis.
        RunError: A score is NaN or infinite.
    """
    scores = outputs["scores"][:n_best]
    existing = [k for k, score in enumerate(scores) if not np.isneginf(score)]
    if not existing:
        raise argument_error(
            "options",
            "leave an output for each text",
            received="options and constraints that exclude all tokens of a step",
        )
    if not np.isfinite(scores[existing]).all():
        raise RunError(
            "The model must return finite scores. Its weights may have values that are not finite. "
            f"Received: {scores[existing].tolist()}"
        )
    source_tokens = tokenizer.source_decoder().tokens(source)
    alignments, log_probs = outputs.get("alignments"), outputs.get("log_probs")
    confidence: dict[str, Any] = {}  # of the best hypothesis
    if uncalibrated is not None:
        confidence = {"uncalibrated": uncalibrated}
    elif "confidence" in outputs:
        length = int(outputs["lengths"][existing[0]])
        confidence = {
            "confidence": float(outputs["confidence"]),
            "expected_errors": float(outputs["expected_errors"]),
            "token_confidences": outputs["token_confidences"][:length].copy(),
        }
    translations: list[Translation] = []
    for k in existing:
        ids = outputs["tokens"][k, : int(outputs["lengths"][k])].tolist()
        words = ids[: ids.index(EOS)] if EOS in ids else ids
        ids = ids[: len(words) + 1]
        tokens = tokenizer.target_decoder().tokens(ids)
        alignment = None
        if alignments is not None:  # a view would keep the whole batch in memory
            alignment = alignments[k, : len(ids), : len(source)].copy()
        translations.append(
            Translation(
                text="".join(tokens[: len(words)]),
                score=float(outputs["scores"][k]),
                tokens=tokens,
                source_tokens=list(source_tokens),
                alignment=alignment,
                log_probs=None if log_probs is None else log_probs[k, : len(ids)].copy(),
                **({} if translations else confidence),
            )
        )
    return translations


def load_tokenizer(manifest: Manifest) -> Tokenizer:
    """Load the artifact's tokenizer, which may have at most as many ids as the model."""
    require("tokenizers", extra="runtime")
    path, vocabulary = manifest.folder / TOKENIZER_FILE, manifest.vocabulary
    try:
        tokenizer = Tokenizer.parse(manifest.read(TOKENIZER_FILE), path)
    except TokenizerVersionError as error:
        raise UnsupportedArtifactError(str(error)) from error
    except ValueError as error:
        raise CorruptArtifactError(str(error)) from error
    for side in ("source", "target"):
        size = getattr(tokenizer, f"{side}_vocabulary_size")
        model_size = vocabulary.get(side)
        if model_size is not None and size > model_size:
            raise CorruptArtifactError(
                f"{path}: expected at most {model_size} {side} tokens, the model's vocabulary. "
                f"Received: {size}"
            )
    return tokenizer
