"""Confidence of outputs: which of them are right, estimated from the numbers of their search.

log-probabilities of the hypotheses -> features -> logistic models -> probabilities

The exporter fits the models on pairs that the training has not seen.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import CorruptArtifactError, RunError
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_options import NO_CONSTRAINTS, Constraints
from keras_bahdanau_runtime.search_settings import JSON_KEYS
from keras_bahdanau_runtime.signature import MANIFEST_FILE

_LARGEST = 20.0  # of the absolute logits and margins, in nats
_LARGEST_WEIGHT = 1_000_000  # so that no sum overflows
_NAMES = {key: name for name, key in JSON_KEYS.items()}

# The features of an output. Each but the length has a weight of at least 0: an output for which it
# is larger is at least as likely to be right.
OUTPUT_FEATURES = ("total", "mean", "smallest", "margin", "share", "length")
# The features of one of its tokens.
TOKEN_FEATURES = ("token", "output")


@dataclass(frozen=True)
class LogisticModel:
    """Probability as the logistic function of a weighted sum of features.

    Args:
        bias: float. The sum if all features are 0.
        weights: float by the name of a feature; a missing one counts as 0.
    """

    bias: float
    weights: Mapping[str, float]

    def logit(self, features: Mapping[str, Any]) -> Any:
        """Return the weighted sum, an array like the features; a float without weights."""
        return self.bias + sum(weight * features[name] for name, weight in self.weights.items())


@dataclass(frozen=True)
class Calibration:
    """Models of the confidence for one search of one artifact or run.

    Args:
        search: Settings of the search, as in a manifest.
        pairs: int. Number of pairs that the models were fitted on.
        confidence: `LogisticModel` of whether an output is right, from `OUTPUT_FEATURES`.
        expected_errors: `LogisticModel` of the share of wrong symbols, from the same.
        tokens: `LogisticModel` of whether a token is right, from `TOKEN_FEATURES`.
        measured: Figures of the models on pairs that they were not fitted on: "wrong", the share
            of outputs that are wrong, and "calibration_error", in percent.

    Example:

    >>> model = LogisticModel(0.0, {"total": 1.0})
    >>> tokens = LogisticModel(0.0, {"token": 1.0})
    >>> calibration = Calibration({}, 500, model, LogisticModel(-3.0, {}), tokens, {})
    >>> outputs = {"log_probs": np.log([[[0.5, 0.8]]]), "scores": [[-0.9]], "lengths": [[2]]}
    >>> judged = calibration.judge({name: np.array(each) for name, each in outputs.items()})
    >>> judged["confidence"].round(3).tolist(), judged["token_confidences"].round(3).tolist()
    ([0.4], [[0.5, 0.8]])
    """

    search: Mapping[str, Any]
    pairs: int
    confidence: LogisticModel
    expected_errors: LogisticModel
    tokens: LogisticModel
    measured: Mapping[str, float]

    def judge(self, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return how likely the best hypotheses of a batch are right.

        Args:
            outputs: `"log_probs"` `(B, K, T)`, the log-probabilities of the tokens of each
                hypothesis, best first, 0 after its end; `"scores"` `(B, K)`, -inf for hypotheses
                that do not exist; and `"lengths"` `(B, K)`.

        Returns:
            `"confidence"` float64 `(B,)`, the probability that the whole output is right;
            `"expected_errors"` float64 `(B,)`, the expected number of wrong symbols, divided by
            that of the right output, at most 1; and `"token_confidences"` float32 `(B, L)`, the
            probability of each token that it is right; `L` is the largest of the lengths.

        Raises:
            RunError: A log-probability is NaN or infinite.
        """
        # An output has as many steps as the longest output of any batch.
        log_probs = outputs["log_probs"][:, :, : int(outputs["lengths"].max())]
        features, log_probs = output_features({**outputs, "log_probs": log_probs}), log_probs[:, 0]
        rows = log_probs.shape[:1]
        logits = np.broadcast_to(self.confidence.logit(features), rows)
        errors = np.broadcast_to(self.expected_errors.logit(features), rows)
        tokens = self.tokens.logit(token_features(log_probs, logits))
        return {
            "confidence": logistic(logits),
            "expected_errors": logistic(errors),
            "token_confidences": logistic(np.broadcast_to(tokens, log_probs.shape)).astype(
                np.float32
            ),
        }

    def mismatch(self, search: Mapping[str, Any]) -> str | None:
        """Return why the models do not hold for a search, or `None` if they do.

        Args:
            search: Settings of the search, as in a manifest.
        """
        for key in sorted({*self.search, *search}):
            expected, received = self.search.get(key), search.get(key)
            if expected != received:
                name = _NAMES.get(key, key)
                return f"The confidence holds for {name}={expected!r}. Received: {received!r}."
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as plain dicts, for a manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, path: Path, document: Any) -> "Calibration":
        """Return the calibration of a JSON document after checking every value.

        Args:
            path: The file of the document, for messages.
            document: The JSON value.

        Raises:
            CorruptArtifactError: A value is missing or wrong.
        """

        def check(condition: bool, expected: str, received: Any) -> None:
            if not condition:
                raise CorruptArtifactError(
                    f"{path}: expected in 'calibration', {expected}. Received: {received!r:.80}"
                )

        names = {field.name for field in fields(cls)}
        check(isinstance(document, dict), "an object", document)
        check(document.keys() == names, f"the keys {sorted(names)}", sorted(document))
        models = {}
        for name, allowed in (
            ("confidence", OUTPUT_FEATURES),
            ("expected_errors", OUTPUT_FEATURES),
            ("tokens", TOKEN_FEATURES),
        ):
            model = document[name]
            is_model = isinstance(model, dict) and model.keys() == {"bias", "weights"}
            is_model = is_model and isinstance(model["weights"], dict)
            check(is_model, f"{name!r} with a bias and weights", model)
            check({*model["weights"]} <= {*allowed}, f"{name!r} with weights of {allowed}", model)
            values = [model["bias"], *model["weights"].values()]
            is_small = all(_is_finite(value) and abs(value) <= _LARGEST_WEIGHT for value in values)
            check(is_small, f"{name!r} with numbers of at most {_LARGEST_WEIGHT:,}", model)
            models[name] = LogisticModel(float(model["bias"]), model["weights"])
        search, pairs, measured = (document[name] for name in ("search", "pairs", "measured"))
        check(isinstance(search, dict), "'search' to be an object", search)
        check(type(pairs) is int and pairs > 0, "'pairs' to be a positive int", pairs)
        is_measured = isinstance(measured, dict) and all(map(_is_finite, measured.values()))
        check(is_measured, "'measured' to be an object of finite numbers", measured)
        return cls(search=search, pairs=pairs, measured=measured, **models)


def load_calibration(manifest: Manifest) -> Calibration | None:
    """Return the calibration of an artifact; `None` if it has none.

    Raises:
        CorruptArtifactError: It is damaged, or the search returns no log-probabilities.
    """
    document, path = manifest.other.get("calibration"), manifest.folder / MANIFEST_FILE
    if document is None or (isinstance(document, dict) and document.keys() == {"reason"}):
        return None
    calibration, signature = Calibration.from_json(path, document), manifest.search_signature
    if signature is None or signature.outputs[-1].name != "log_probs":
        raise CorruptArtifactError(f"{path}: expected no 'calibration' without 'log_probs'.")
    return calibration


def why_uncalibrated(calibration: Calibration | str | None, constraints: Constraints) -> str | None:
    """Return why a calibration does not hold for a text with these constraints.

    Args:
        calibration: As `Translator.calibration_for` returns it.
        constraints: `Constraints` of the text.

    Returns:
        A str; `None` if the calibration holds, or there is none.
    """
    if isinstance(calibration, Calibration) and constraints != NO_CONSTRAINTS:
        return "The confidence holds for outputs without a prefix, suppressed and required tokens."
    return calibration if isinstance(calibration, str) else None


def output_features(outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the features of the best hypotheses of a batch; `outputs` as for `Calibration.judge`.

    Returns:
        A float64 array `(B,)` by each name of `OUTPUT_FEATURES`: "total", the logit of the
        probability of the output; "mean", the mean log-probability of its tokens; "smallest", the
        logit of the probability of its least likely token; "margin", its log-probability minus
        that of the second hypothesis; "share", the logit of its share of the probability of all
        hypotheses; and "length", the logarithm of its number of tokens. Logits and the margin are
        limited to 20.

    Raises:
        RunError: A log-probability is NaN or infinite.
    """
    exists = outputs["scores"] > -np.inf
    totals = outputs["log_probs"].sum(axis=2, dtype=np.float64)
    if not np.isfinite(totals[exists]).all():
        raise RunError(
            "The model must return finite log-probabilities. Its weights may have values that are "
            "not finite."
        )
    best = totals[:, 0]
    others = np.where(exists, totals, -np.inf)[:, 1:] - best[:, None]
    lengths = outputs["lengths"][:, 0].astype(np.float64)
    # The share is 1 / (1 + the sum of exp(others)).
    sums = np.logaddexp.reduce(others, axis=1, initial=-np.inf)
    second = others.max(axis=1, initial=-np.inf) if not others.shape[1] else others[:, 0]
    return {
        "total": _logit(best),
        "mean": best / lengths,
        "smallest": _logit(outputs["log_probs"][:, 0].min(axis=1).astype(np.float64)),
        "margin": np.clip(-second, -_LARGEST, _LARGEST),
        "share": np.clip(-sums, -_LARGEST, _LARGEST),
        "length": np.log(lengths),
    }


def token_features(
    log_probs: NDArray[np.float32], outputs: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return the features of the tokens of outputs.

    Args:
        log_probs: Float array `(B, T)` of their log-probabilities.
        outputs: Float64 array `(B,)`, the logits of the confidences in the whole outputs.

    Returns:
        A float64 array by each name of `TOKEN_FEATURES`: "token" `(B, T)`, the logits of their
        probabilities, and "output" `(B, 1)`.
    """
    return {"token": _logit(log_probs.astype(np.float64)), "output": outputs[:, None]}


def _logit(log_probability: Any) -> Any:
    """Return the logit of a probability, from its logarithm, limited to 20."""
    log_probability = np.minimum(log_probability, -1e-12)
    logit = log_probability - np.log(-np.expm1(log_probability))
    return np.clip(logit, -_LARGEST, _LARGEST)


def logistic(logit: Any) -> Any:
    """Return the probability of a logit, which counts as at most 20."""
    return 1 / (1 + np.exp(-np.clip(logit, -_LARGEST, _LARGEST)))


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
