"""Measures of confidences: how well they are calibrated, and how well they rank outputs."""

from collections.abc import Sequence
from typing import Any

from keras_bahdanau_runtime.errors import argument_error

BINS = 10
COVERAGES = (50, 80, 90, 100)  # percent of the outputs


def calibration_error(
    confidences: Sequence[float], is_right: Sequence[bool], bins: int = BINS
) -> float:
    """Return the expected calibration error (ECE) in percent.

    The outputs are sorted by confidence and divided into bins of the same size. The error is the
    mean, over the outputs, of the absolute difference between the mean confidence of their bin and
    its share of right outputs.

    Args:
        confidences: A float from 0 to 1 for each output.
        is_right: Whether each output is right.
        bins: Number of bins; fewer if there are fewer outputs.

    Raises:
        ValueError: There are no outputs, or the lists differ in length.

    Example:

    >>> calibration_error([0.75, 0.75, 0.75, 0.75], [True, True, False, False], bins=1)
    25.0
    """
    return 100 * sum(
        abs(mean - share) * part for mean, share, part in reliability(confidences, is_right, bins)
    )


def reliability(
    confidences: Sequence[float], is_right: Sequence[bool], bins: int = BINS
) -> list[tuple[float, float, float]]:
    """Return `(confidence, right, part)` of each bin of a reliability diagram.

    Args:
        confidences: As for `calibration_error`.
        is_right: As for `calibration_error`.
        bins: As for `calibration_error`.

    Returns:
        For each bin, those of the lowest confidence first: the mean confidence, the share of right
        outputs, and the part of all outputs that it has, from 0 to 1.

    Raises:
        ValueError: As `calibration_error`.
    """
    import numpy as np  # a command imports this module for its help page

    values, right = _checked(confidences, is_right)
    order = np.argsort(values, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return [
        (float(values[part].mean()), float(right[part].mean()), len(part) / len(values))
        for part in parts
    ]


def calibration_interval(
    confidences: Sequence[float],
    is_right: Sequence[bool],
    bins: int = BINS,
    samples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % interval of the calibration error in percent, by the bootstrap.

    The error of a sample is larger than that of the outputs that it is drawn from, because chance
    adds to it twice. The errors of the samples are shifted so that their mean is that of the
    outputs.

    Args:
        confidences: As for `calibration_error`.
        is_right: As for `calibration_error`.
        bins: As for `calibration_error`.
        samples: Number of samples, each as large as the test set.
        seed: Random seed of the samples.

    Raises:
        ValueError: As `calibration_error`.
    """
    import numpy as np

    values, right = _checked(confidences, is_right)
    rng = np.random.default_rng(seed)
    error = calibration_error(values, right, bins)
    errors = []
    for _ in range(samples):
        rows = rng.integers(0, len(values), len(values))
        errors.append(calibration_error(values[rows], right[rows], bins))
    shifted = np.array(errors) - np.mean(errors) + error
    low, high = np.percentile(shifted, [2.5, 97.5])
    return max(0.0, float(low)), max(0.0, float(high))


def coverage_errors(
    confidences: Sequence[float],
    is_right: Sequence[bool],
    coverages: Sequence[float] = COVERAGES,
) -> dict[float, float]:
    """Return the share of wrong outputs among the most confident ones, in percent.

    Args:
        confidences: As for `calibration_error`.
        is_right: As for `calibration_error`.
        coverages: Parts of the outputs in percent.

    Returns:
        The share by coverage. Outputs of the same confidence count by their mean.

    Raises:
        ValueError: As `calibration_error`.

    Example:

    >>> coverage_errors([0.9, 0.8, 0.2, 0.1], [True, True, False, True], [50, 100])
    {50: 0.0, 100: 25.0}
    """
    curve = risk_curve(confidences, is_right)
    return {
        coverage: curve[max(1, round(coverage / 100 * len(curve))) - 1] for coverage in coverages
    }


def risk_curve(confidences: Sequence[float], is_right: Sequence[bool]) -> list[float]:
    """Return the share of wrong outputs among the 1, 2, ... most confident ones, in percent.

    Args:
        confidences: As for `calibration_error`.
        is_right: As for `calibration_error`.

    Raises:
        ValueError: As `calibration_error`.
    """
    import numpy as np

    values, right = _checked(confidences, is_right)
    order = np.argsort(-values, kind="stable")
    values, wrong = values[order], 1.0 - right[order]
    # The order of equal confidences means nothing, so each counts as the mean of them.
    _, first, counts = np.unique(-values, return_index=True, return_counts=True)
    means = np.add.reduceat(wrong, first) / counts
    wrong = np.repeat(means, counts)
    shares: list[float] = (100 * np.cumsum(wrong) / np.arange(1, len(wrong) + 1)).tolist()
    return shares


def _checked(confidences: Sequence[float], is_right: Sequence[bool]) -> tuple[Any, Any]:
    """Return both lists as float arrays."""
    import numpy as np

    values, right = np.asarray(confidences, float), np.asarray(is_right, float)
    if values.ndim != 1 or values.shape != right.shape or not values.size:
        raise argument_error(
            ("confidences", "is_right"),
            "have one item for each output, at least one",
            received=f"{values.size} and {right.size}",
        )
    return values, right
