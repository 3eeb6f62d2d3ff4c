"""Score and align given targets with `score.onnx`, which runs the decoder without a search.

encode the pairs -> sort by length -> run in batches -> restore the order
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keras_bahdanau_runtime.batch_sizes import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.checks import (
    check_positive,
    check_text,
    checked_ids,
    checked_stream,
)
from keras_bahdanau_runtime.errors import RunError, UnsupportedArtifactError, argument_error
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search import check_signature
from keras_bahdanau_runtime.session import Providers, open_graph, run
from keras_bahdanau_runtime.signature import SCORE, SCORE_FILE, SCORE_WITH_COPIES
from keras_bahdanau_runtime.text.batches import length_sorted_batches, pad
from keras_bahdanau_runtime.text.tokenizer import Tokenizer
from keras_bahdanau_runtime.text.unknown import warn_about_unknown
from keras_bahdanau_runtime.translation import Outputs, ordered_map

Pair = tuple[list[int], list[int]]  # ids of a source and of its target
_OF_SOURCE_TOKENS = ("alignments", "copied")  # outputs with a number for each source token


@dataclass(frozen=True, eq=False)
class TargetScore:
    """Log-probability of a target text, given its source.

    Args:
        total: float. Log-probability of the target, in nats: the sum of `log_probs`.
        log_probs: float32 array of shape `(len(tokens),)`, the log-probability of each token.
        tokens: list of str. Readable pieces of the target; the last one is `"</s>"`, whose
            log-probability counts, too.
        source_tokens: list of str. The same for the source.
        alignment: float32 array of shape `(len(tokens), len(source_tokens))`, the attention
            weights; `None` if they were not requested.
        copied: float32 array of the same shape, the share of the probability of each token that was
            copied from each source token; `None` for a model that does not copy, or without
            `alignment`.
        error: str. With `on_error="keep"`, the reason why the pair was not scored; `total` is then
            NaN and the lists are empty. `None` for a scored pair.
    """

    total: float
    log_probs: NDArray[np.float32] = field(repr=False)
    tokens: list[str]
    source_tokens: list[str]
    alignment: NDArray[np.float32] | None = field(repr=False)
    copied: NDArray[np.float32] | None = field(default=None, repr=False)
    error: str | None = None


class Scorer:
    """Forced decoding of an artifact: log-probabilities of given target ids.

    Args:
        manifest: Manifest of the artifact.
        providers: As for `Translator`.
        threads: As for `Translator`.
        timeout: As for `Translator`.
        megabytes: As for `Translator`.

    Raises:
        UnsupportedArtifactError: The artifact has no `score.onnx`, as older ones.
        CorruptArtifactError: The graph does not match the manifest, or does not score targets.

    Example:

    >>> scorer = Scorer(read_manifest("artifact"), "CPUExecutionProvider")
    >>> scorer.score(np.array([[5, 6, 3]], np.int32), np.array([[7, 3]], np.int32))["totals"]
    array([-3.2], dtype=float32)
    """

    def __init__(
        self,
        manifest: Manifest,
        providers: Providers = "auto",
        threads: int | None = None,
        timeout: float | None = None,
        megabytes: float | None = None,
    ) -> None:
        if SCORE_FILE not in manifest.files:
            raise UnsupportedArtifactError(
                f"{manifest.folder}: has no {SCORE_FILE}, because an older version wrote it. "
                "Export it again to score or align given targets."
            )
        self._manifest, self._timeout = manifest, timeout
        self.session = open_graph(manifest, SCORE_FILE, providers, threads, megabytes)
        copies = manifest.signatures.get(SCORE_FILE) == SCORE_WITH_COPIES.to_json()
        self._signature = SCORE_WITH_COPIES if copies else SCORE
        check_signature(self.session, self._signature, manifest.folder / SCORE_FILE)

    @property
    def max_target_length(self) -> int | None:
        """Largest number of target tokens, the `max_length` of the search; `None` for no limit."""
        limit = self._manifest.search.max_length
        return None if limit is None else int(limit)

    def release_memory(self) -> None:
        """Return the memory of earlier calls to the system; see `Translator.release_memory`."""
        inputs = dict.fromkeys(("source", "target"), np.full((1, 1), EOS, np.int32))
        run(self.session, inputs, ["totals"], timeout=self._timeout, shrink=True)

    def score(
        self, source: ArrayLike, target: ArrayLike, alignments: bool = True
    ) -> dict[str, NDArray[Any]]:
        """Return the log-probabilities and the attention weights of given targets.

        Args:
            source: As for `Translator.translate_ids`.
            target: Integer array of shape `(B, Ty)`, padded with 0 at the right. `EOS` is scored
                where it is present.
            alignments: bool. Whether to return the attention weights and what was copied, by far
                the largest outputs.

        Returns:
            Dict of `"totals"` float32 `(B,)`, `"log_probs"` float32 `(B, Ty)`, `"lengths"` int32
            `(B,)` and, if requested, `"alignments"` float32 `(B, Ty, Tx)` and, for a model that
            copies, `"copied"` of the same shape. Values after the end of a target are zero.

        Raises:
            ValueError: As `Translator.translate_ids`, for both arrays; a target continues after
                `EOS`; or the numbers of sources and targets differ.
            RunError, LimitError: As `Translator.translate`.
        """
        vocabulary = self._manifest.vocabulary
        sizes = (vocabulary.get(side, 2**31) for side in ("source", "target"))
        limits = self._manifest.max_source_length, self.max_target_length
        source, target = (
            checked_ids(name, value, size, limit)
            for name, value, size, limit in zip(
                ("source", "target"), (source, target), sizes, limits, strict=True
            )
        )
        if len(source) != len(target):
            raise argument_error(
                "target",
                f"have one row for each of {len(source)} sources",
                received=str(len(target)),
            )
        continued = np.argwhere((target[:, :-1] == EOS) & (target[:, 1:] != PAD))
        if continued.size:
            row = int(continued[0, 0])
            raise argument_error(
                "target",
                f"hold nothing after the end of a sentence, {EOS}",
                received=f"row {row}, {target[row]}",
            )
        names = [tensor.name for tensor in self._signature.outputs]
        names = [name for name in names if alignments or name not in _OF_SOURCE_TOKENS]
        inputs = {"source": source, "target": target}
        is_large = max(source.size, target.size) > BATCH_TOKENS
        outputs = run(self.session, inputs, names, timeout=self._timeout, shrink=is_large)
        expected = {
            "totals": target.shape[:1],
            "log_probs": target.shape,
            "lengths": target.shape[:1],
            **dict.fromkeys(_OF_SOURCE_TOKENS, (*target.shape, source.shape[1])),
        }
        shapes = {name: tuple(value.shape()) for name, value in outputs.items()}
        if shapes != {name: expected[name] for name in names}:
            raise RunError(
                f"The graph must return scores for targets of shape {target.shape} and sources of "
                f"shape {source.shape}. Received: {shapes}"
            )
        return {name: value.numpy() for name, value in outputs.items()}


def score_texts(
    sources: Iterable[str],
    targets: Iterable[str],
    tokenizer: Tokenizer,
    score: Callable[[NDArray[np.int32], NDArray[np.int32]], Outputs],
    batch_size: int = BATCH_SIZE,
    batch_tokens: int | None = BATCH_TOKENS,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    progress: Callable[[int], object] | None = None,
    on_error: str = "raise",
    parallel_batches: int = 1,
) -> list[TargetScore]:
    """Score pairs of texts in batches of similar length, and return the results in input order.

    Args:
        sources: list of str, one sentence each.
        targets: list of str, the target of each source.
        tokenizer: `Tokenizer`.
        score: Function of int32 ids `(B, Tx)` and `(B, Ty)`, right-padded with 0, that returns the
            arrays of `Scorer.score`; without "alignments" the results have none.
        batch_size: int. Largest number of pairs in a batch.
        batch_tokens: int. Largest number of ids of one side in a batch, including padding; a longer
            pair is a batch of one. `None` for no limit.
        max_source_length: int, longest source in tokens; `None` for no limit.
        max_target_length: int, longest target in tokens; `None` for no limit.
        progress: Called after each batch with the number of finished pairs.
        on_error: "raise"; or "keep" to return a `TargetScore` with an `error` for a pair that is
            invalid or whose run fails. After a failed run, the pairs of the batch run one by one.
        parallel_batches: int. Number of threads that call `score`, each with its own batch.

    Returns:
        A list of `TargetScore`.

    Raises:
        ValueError: `sources` or `targets` is a single str, their numbers differ, an item is not a
            str, is blank or too long, or a number is out of range.
    """
    check_positive(batch_size=batch_size)
    if on_error not in ("raise", "keep"):
        raise argument_error("on_error", 'be "raise" or "keep"', on_error)
    keep = on_error == "keep"
    limits = max_source_length, max_target_length
    texts, pairs, errors = _encode_pairs(sources, targets, tokenizer, limits, keep)
    if errors and not keep:
        raise ValueError(errors[min(errors)])
    count, results = len(pairs), {index: _failed(reason) for index, reason in errors.items()}
    pending = [index for index in range(count) if index not in results]
    done, report = len(results), progress or (lambda done: None)
    if done:
        report(done)
    lengths = [max(map(len, pairs[index])) for index in pending]
    batches = [
        [pending[position] for position in batch]
        for batch in length_sorted_batches(lengths, batch_size, batch_tokens)
    ]

    def score_batch(batch: list[int]) -> list[Outputs | str]:
        return _score(score, [pairs[index] for index in batch], keep)

    with ordered_map(score_batch, batches, parallel_batches) as outputs:
        for batch, rows in zip(batches, outputs, strict=True):
            for index, row in zip(batch, rows, strict=True):
                results[index] = (
                    _failed(row)
                    if isinstance(row, str)
                    else decode_score(tokenizer.for_source(texts[index]), row, pairs[index])
                )
            done += len(batch)
            report(done)
    return [results[index] for index in range(count)]


def _encode_pairs(
    sources: Iterable[str],
    targets: Iterable[str],
    tokenizer: Tokenizer,
    limits: tuple[int | None, int | None],
    keep: bool,
) -> tuple[list[str], list[Pair], dict[int, str]]:
    """Encode pairs of texts.

    Args:
        sources: As for `score_texts`.
        targets: As for `score_texts`.
        tokenizer: `Tokenizer`.
        limits: Largest number of source and of target ids; `None` for no limit.
        keep: Whether texts may contain lone surrogates, which is then one of the errors.

    Returns:
        The sources, the ids of each pair, and the reasons by index why pairs cannot be scored.
    """
    texts = [
        list(checked_stream(name, side, allow_surrogates=keep))
        for name, side in (("sources", sources), ("targets", targets))
    ]
    if len(texts[0]) != len(texts[1]):
        raise argument_error(
            "targets",
            f"have one text for each of {len(texts[0])} sources",
            received=str(len(texts[1])),
        )
    errors, encoded = dict[int, str](), list[list[list[int]]]()
    for name, side, limit in zip(("sources", "targets"), texts, limits, strict=True):
        for index, text in enumerate(side):
            reason = _invalid_text(f"{name}[{index}]", text)
            if reason:
                errors.setdefault(index, reason)
        valid = ["" if i in errors else text for i, text in enumerate(side)]
        if name == "sources":
            valid_sources = valid
            encoded.append(tokenizer.encode_sources(valid))
        else:
            encoded.append(tokenizer.encode_targets(valid, valid_sources))
        warn_about_unknown(name, encoded[-1])
        for index, ids in enumerate(encoded[-1]):
            if limit is not None and len(ids) > limit:
                errors.setdefault(
                    index,
                    f"Argument `{name}[{index}]` must have at most {limit} tokens, including the "
                    f"end of sentence. Received: {len(ids)}",
                )
    return texts[0], list(zip(*encoded, strict=True)), errors


def _invalid_text(name: str, text: str) -> str | None:
    """Return why a text cannot be scored, or `None`."""
    try:
        check_text(name, text)
    except ValueError as error:
        return str(error)
    return None if text.strip() else f"Argument `{name}` must not be blank. Received: {text!r:.80}"


def _score(
    score: Callable[[NDArray[np.int32], NDArray[np.int32]], Outputs], pairs: list[Pair], keep: bool
) -> list[Outputs | str]:
    """Return the outputs of each pair or, with `keep`, the error message of a failed pair."""
    sources, targets = zip(*pairs, strict=True)
    try:
        outputs = score(pad(sources), pad(targets))
    except Exception as error:  # any exception of any engine; its message is returned
        if not keep:
            raise
        if len(pairs) == 1:
            return [f"{type(error).__name__}: {error}"]
        return [outputs for pair in pairs for outputs in _score(score, [pair], keep)]
    return [{name: values[i] for name, values in outputs.items()} for i in range(len(pairs))]


def decode_score(tokenizer: Tokenizer, outputs: Outputs, pair: Pair) -> TargetScore:
    """Return the `TargetScore` of a pair from its row of each output of `Scorer.score`.

    Args:
        tokenizer: `Tokenizer` of the source, as `Tokenizer.for_source` returns it.
        outputs: The rows.
        pair: The ids of source and target.
    """
    source, target = pair
    # A view would keep the whole batch in memory.
    alignment, copied = (
        None if outputs.get(name) is None else outputs[name][: len(target), : len(source)].copy()
        for name in _OF_SOURCE_TOKENS
    )
    return TargetScore(
        total=float(outputs["totals"]),
        log_probs=outputs["log_probs"][: len(target)].copy(),
        tokens=tokenizer.target_decoder().tokens(target),
        source_tokens=tokenizer.source_decoder().tokens(source),
        alignment=alignment,
        copied=copied,
    )


def _failed(reason: str) -> TargetScore:
    return TargetScore(math.nan, np.zeros(0, np.float32), [], [], None, error=reason)
