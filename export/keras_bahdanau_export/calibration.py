"""Fit the confidence of an artifact on pairs that the training has not seen.

translations and references -> features and right or wrong -> logistic regressions -> `Calibration`
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bahdanau_runtime.calibration import (
    Calibration,
    LogisticModel,
    logistic,
    output_features,
    token_features,
)
from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.text.confidence_scores import calibration_error
from keras_bahdanau_runtime.text.error_rates import Comparison, compare, shared_references
from keras_bahdanau_runtime.translation import Translation

logger = logging.getLogger("keras_bahdanau_export")

MIN_PAIRS, MAX_PAIRS = 100, 5000
_FOLDS = 10
_SMALLEST_SCALE = 1e-4  # nats: a feature that differs less between outputs is rounding
_SIGNED = {"length"}  # features whose weight may be negative


def fit_calibration(translator, sources, references):
    """Fit the confidence of the outputs of an artifact's search.

    Args:
        translator: A `Translator`.
        sources: List of `str`. Lines with the same source are one pair with several references.
        references: List of `str`, the right output of each source.

    Returns:
        `(calibration, reason)`: a `Calibration`, or `None` and why there is none. At most
        `MAX_PAIRS` pairs are used.
    """
    search = translator.manifest.search
    if translator.manifest.is_sampling():
        return None, "The search samples, so an output has no fixed confidence."
    by_source = dict(
        zip(sources, shared_references(sources, [[text] for text in references]), strict=True)
    )
    limit = translator.manifest.max_source_length
    tokenizer = translator.require_tokenizer()
    texts = list(by_source)[:MAX_PAIRS]
    lengths = map(len, tokenizer.encode_sources(texts))
    texts = [
        text
        for text, length in zip(texts, lengths, strict=True)
        if text.strip() and (limit is None or length <= limit)
    ]
    if len(texts) < MIN_PAIRS:
        return None, f"There are {len(texts)} pairs, and at least {MIN_PAIRS} are needed."
    n_best = search.num_returned
    translations = translator.translate(texts, n_best=n_best, alignments=False)
    hypotheses = translations if n_best > 1 else [[each] for each in translations]
    best = [row[0] for row in hypotheses]
    references = [[tokenizer.join_target(text) for text in by_source[source]] for source in texts]
    comparisons = compare([each.text for each in best], references, tokenizer.target_unit)
    return _fit(hypotheses, comparisons, search.document), None


def _fit(
    hypotheses: Sequence[Sequence[Translation]],
    comparisons: Sequence[Comparison],
    search: Any,
) -> Calibration:
    """Fit the three models, and measure them by folds."""
    arrays = _as_arrays(hypotheses)
    outputs = output_features(arrays)
    is_right = np.array([comparison.is_exact for comparison in comparisons], float)
    symbols = np.array([max(comparison.length, 1) for comparison in comparisons], float)
    wrong_symbols = np.minimum([len(comparison.edits) for comparison in comparisons], symbols)

    confidence = fit_logistic(outputs, is_right)
    errors = fit_logistic(outputs, wrong_symbols / symbols, symbols, sign=-1)
    folds = np.arange(len(is_right)) % _FOLDS
    logits, held_out_errors = (np.empty(len(is_right)) for _ in range(2))
    for fold in range(_FOLDS):
        rest, part = folds != fold, folds == fold
        model = fit_logistic(_rows(outputs, rest), is_right[rest])
        logits[part] = model.logit(_rows(outputs, part))
        shares = wrong_symbols[rest] / symbols[rest]
        model = fit_logistic(_rows(outputs, rest), shares, symbols[rest], sign=-1)
        held_out_errors[part] = logistic(model.logit(_rows(outputs, part)))
    # The tokens are judged with the confidence of their output on pairs that it was not fitted on.
    features = token_features(arrays["log_probs"][:, 0], logits)
    is_token = np.arange(arrays["log_probs"].shape[2]) < arrays["lengths"][:, :1]
    tokens = {
        name: np.broadcast_to(column, is_token.shape)[is_token] for name, column in features.items()
    }
    is_right_token = np.concatenate(
        [
            right_tokens(row[0].tokens, comparison)
            for row, comparison in zip(hypotheses, comparisons, strict=True)
        ]
    )
    return Calibration(
        search=search,
        pairs=len(comparisons),
        confidence=confidence,
        expected_errors=errors,
        tokens=fit_logistic(tokens, is_right_token.astype(float)),
        measured={
            "wrong": 100 * float(1 - is_right.mean()),
            "calibration_error": calibration_error(logistic(logits), is_right),
            "symbol_errors": 100 * float(wrong_symbols.sum() / symbols.sum()),
            "expected_symbol_errors": 100
            * float((held_out_errors * symbols).sum() / symbols.sum()),
        },
    )


def fit_logistic(features, shares, counts=None, sign=1):
    """Fit a logistic regression whose weights do not contradict the meaning of the features.

    A feature whose weight would have the wrong sign is left out, one after the other.

    Args:
        features: Float array `(N,)` by name.
        shares: Float array `(N,)` from 0 to 1: whether, or how much of, each row is right.
        counts: Float array `(N,)`, how often each row counts; once if `None`.
        sign: 1 if the weights must be at least 0, -1 if they must be at most 0. The weight of the
            length may have any sign.

    Returns:
        A `LogisticModel`. If all rows are right, or all are wrong, it is a constant by Laplace's
        rule of succession.
    """
    linear_model = require("sklearn.linear_model", extra="export")
    counts = np.ones(len(shares)) if counts is None else counts
    right, total = float((shares * counts).sum()), float(counts.sum())
    if right in (0.0, total):
        return LogisticModel(float(np.log((right + 1) / (total - right + 1))), {})
    means = {name: float(np.mean(column)) for name, column in features.items()}
    scales = {name: float(np.std(column)) for name, column in features.items()}
    names = [name for name in features if scales[name] > _SMALLEST_SCALE]
    # Each row is there twice, as right and as wrong.
    labels = np.repeat([1, 0], len(shares))
    counts = np.concatenate([shares * counts, (1 - shares) * counts])
    while True:
        columns = [(features[name] - means[name]) / scales[name] for name in names]
        table = np.stack(columns, axis=1) if names else np.zeros((len(shares), 1))
        regression = linear_model.LogisticRegression(max_iter=1000, tol=1e-8)
        regression.fit(np.concatenate([table, table]), labels, sample_weight=counts)
        weights = dict(zip(names, regression.coef_[0].tolist(), strict=False))
        worst = min(names, key=lambda name: _size(name, weights, sign), default=None)
        if worst is None or _size(worst, weights, sign) >= 0:
            break
        names.remove(worst)
    weights = {name: weight / scales[name] for name, weight in weights.items()}
    bias = float(regression.intercept_[0])
    bias -= sum(weight * means[name] for name, weight in weights.items())
    return LogisticModel(bias, weights)


def right_tokens(tokens, comparison):
    """Return whether each token of an output is right.

    A token is right if all of its symbols are those of the reference; the end of the sentence, if
    the reference ends there, too.

    Args:
        tokens: List of `str`, those of a `Translation`.
        comparison: The `Comparison` of its text with the nearest reference.

    Returns:
        Bool array `(len(tokens),)`.

    Example:

    >>> from keras_bahdanau_runtime.text.error_rates import compare
    >>> [comparison] = compare(["kot"], [["kats"]])
    >>> right_tokens(["k", "o", "t", "</s>"], comparison).tolist()
    [True, False, True, False]
    """
    received = [edit for edit in comparison.alignment if edit.received]
    wrong, at = np.zeros(len(comparison.output), bool), 0  # by character
    for edit in received:
        at = comparison.output.index(edit.received, at)
        wrong[at : at + len(edit.received)] = edit.expected != edit.received
        at += len(edit.received)
    is_right, at = [], 0
    for token in tokens:
        is_right.append(not wrong[at : at + len(token)].any())
        at += len(token)
    if at > len(wrong):  # the last token is the end of the sentence
        last = comparison.alignment[-1] if comparison.alignment else None
        is_right[-1] = last is None or last.received != ""
    return np.array(is_right, bool)


def _as_arrays(hypotheses):
    """Return the hypotheses of each source as outputs of a search."""
    num = max(map(len, hypotheses))
    longest = max(len(each.tokens) for row in hypotheses for each in row)
    log_probs = np.zeros((len(hypotheses), num, longest), np.float32)
    scores = np.full((len(hypotheses), num), -np.inf)
    lengths = np.zeros((len(hypotheses), num), np.int32)
    for n, row in enumerate(hypotheses):
        for k, each in enumerate(row):
            scores[n, k], lengths[n, k] = each.score, len(each.tokens)
            log_probs[n, k, : len(each.tokens)] = each.log_probs
    return {"log_probs": log_probs, "scores": scores, "lengths": lengths}


def _rows(table, rows):
    return {name: column[rows] for name, column in table.items()}


def _size(name, weights, sign):
    """Return a weight, negative only if its sign is wrong."""
    return 0.0 if name in _SIGNED else sign * weights[name]
