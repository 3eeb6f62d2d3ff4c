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

from keras_bahdanau_runtime.errors import CorruptArtifactError
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
class Judgment:
    """How likely an output is right.

    Args:
        confidence: float. Probability that the whole output is right.
        expected_errors: float. Expected number of wrong symbols, divided by that of the right
            output, at most 1.
        token_confidences: float32 array, the probability of each token that it is right.
    """

    confidence: float
    expected_errors: float
    token_confidences: NDArray[np.float32]


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
        """Return the weighted sum, a float or an array like the features."""
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
    >>> judgment = calibration.judge(np.log([[0.5, 0.8]]), np.array([-0.9]), 2)
    >>> round(judgment.confidence, 3), judgment.token_confidences.round(3).tolist()
    (0.4, [0.5, 0.8])
    """

    search: Mapping[str, Any]
    pairs: int
    confidence: LogisticModel
    expected_errors: LogisticModel
    tokens: LogisticModel
    measured: Mapping[str, float]

    def judge(
        self, log_probs: NDArray[np.float32], scores: NDArray[np.float32], length: int
    ) -> Judgment:
        """Return the judgment of the best hypothesis for one text.

        Args:
            log_probs: Float array `(K, T)`, the log-probabilities of the tokens of each hypothesis,
                best first; 0 after its end.
            scores: Float array `(K,)`, their scores; -inf for those that do not exist.
            length: Number of tokens of the best hypothesis.
        """
        features = output_features(log_probs, scores, length)
        logit = self.confidence.logit(features)
        tokens = self.tokens.logit(token_features(log_probs[0, :length], logit))
        return Judgment(
            confidence=float(_logistic(logit)),
            expected_errors=float(_logistic(self.expected_errors.logit(features))),
            token_confidences=_logistic(tokens).astype(np.float32),
        )

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


def constrained(
    calibration: Calibration | str | None, constraints: Constraints
) -> Calibration | str | None:
    """Return the calibration for a text with constraints, or why it does not hold."""
    if isinstance(calibration, Calibration) and constraints != NO_CONSTRAINTS:
        return "The confidence holds for outputs without a prefix, suppressed and required tokens."
    return calibration


def output_features(
    log_probs: NDArray[np.float32], scores: NDArray[np.float32], length: int
) -> dict[str, float]:
    """Return the features of the best hypothesis; arguments as for `Calibration.judge`.

    Returns:
        A float by each name of `OUTPUT_FEATURES`: "total", the logit of the probability of the
        output; "mean", the mean log-probability of its tokens; "smallest", the logit of the
        probability of its least likely token; "margin", its log-probability minus that of the
        second hypothesis; "share", the logit of its share of the probability of all hypotheses;
        and "length", the logarithm of its number of tokens. Logits and the margin are limited to
        20.
    """
    exists = scores > -np.inf
    totals = log_probs.sum(axis=1, dtype=np.float64)[exists]
    tokens = log_probs[0, :length].astype(np.float64)
    margin = totals[0] - totals[1] if len(totals) > 1 else _LARGEST
    others = np.logaddexp.reduce(totals[1:] - totals[0]) if len(totals) > 1 else -_LARGEST
    return {
        "total": float(_logit(totals[0])),
        "mean": float(np.mean(tokens)),
        "smallest": float(_logit(np.min(tokens))),
        "margin": float(np.clip(margin, -_LARGEST, _LARGEST)),
        # The share is 1 / (1 + exp(others)).
        "share": float(np.clip(-others, -_LARGEST, _LARGEST)),
        "length": math.log(length),
    }


def token_features(log_probs: NDArray[np.float32], output: float) -> dict[str, Any]:
    """Return the features of the tokens of an output.

    Args:
        log_probs: Float array `(T,)` of their log-probabilities.
        output: The logit of the confidence in the whole output.

    Returns:
        By each name of `TOKEN_FEATURES`: "token", an array of the logits of their probabilities,
        and "output".
    """
    return {"token": _logit(log_probs.astype(np.float64)), "output": output}


def _logit(log_probability: Any) -> Any:
    """Return the logit of a probability, from its logarithm, limited to 20."""
    log_probability = np.minimum(log_probability, -1e-12)
    logit = log_probability - np.log(-np.expm1(log_probability))
    return np.clip(logit, -_LARGEST, _LARGEST)


def _logistic(logit: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(logit, -_LARGEST, _LARGEST)))


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
