"""How far confidences can be trusted, as a picture: calibration, and errors by coverage."""

import os
from collections.abc import Sequence

from keras_bahdanau_runtime.pictures.figures import check_suffix
from keras_bahdanau_runtime.pictures.style import COLORS, GRAY, saved_figure
from keras_bahdanau_runtime.text.confidence_scores import (
    calibration_error,
    coverage_errors,
    reliability,
    risk_curve,
)


def check_confidence_picture(path: str | os.PathLike[str]) -> None:
    """Raise a `ValueError` unless `confidence_picture` can write a file with this name."""
    check_suffix(path)


def confidence_picture(
    confidences: Sequence[float], is_right: Sequence[bool], path: str | os.PathLike[str]
) -> None:
    """Draw the reliability diagram and the risk-coverage curve.

    At the left, a point for each tenth of the outputs: its mean confidence and its share of right
    outputs, with an interval of 95 % for so few outputs. Points on the diagonal are calibrated. At
    the right, the share of wrong outputs among the most confident ones.

    Args:
        confidences: A float from 0 to 1 for each output.
        is_right: Whether each output is right.
        path: Where to save the picture: a path with the suffix of a PNG, SVG or PDF.

    Raises:
        ValueError: As `calibration_error`, or the suffix is another one.
        MissingDependencyError: matplotlib is not installed.
    """
    check_confidence_picture(path)
    bins, curve = reliability(confidences, is_right), risk_curve(confidences, is_right)
    with saved_figure(path, 9, 4) as figure:
        left, right = figure.subplots(1, 2)
        left.plot([0, 100], [0, 100], color=GRAY, linewidth=1)
        points = [(100 * mean, 100 * share) for mean, share, _ in bins]
        limits = [_interval(share, part * len(curve)) for _, share, part in bins]
        errors = [
            [max(0.0, y - 100 * low) for (_, y), (low, _) in zip(points, limits, strict=True)],
            [max(0.0, 100 * high - y) for (_, y), (_, high) in zip(points, limits, strict=True)],
        ]
        x, y = zip(*points, strict=True)
        left.errorbar(x, y, errors, fmt="o", color=COLORS[0], elinewidth=1, capsize=3)
        left.set(
            title=f"Calibration error {calibration_error(confidences, is_right):.1f} %",
            xlabel="confidence (%), mean of a tenth of the outputs",
            ylabel="right outputs (%)",
            xlim=(-3, 103),
            ylim=(-3, 103),
        )
        count = len(curve)
        right.plot([100 * (n + 1) / count for n in range(count)], curve, color=COLORS[1])
        right.axhline(curve[-1], color=GRAY, linewidth=1)
        at_80 = coverage_errors(confidences, is_right, [80])[80]
        right.plot([80], [at_80], "o", color=COLORS[1])
        right.annotate(
            f"{at_80:.1f} % at 80 %", (80, at_80), (-8, 8), textcoords="offset points", ha="right"
        )
        right.set(
            title=f"{curve[-1]:.1f} % of all {count:,} outputs are wrong",
            xlabel="most confident outputs (%)",
            ylabel="wrong outputs (%)",
            xlim=(0, 101),
            ylim=(0, None),
        )


def _interval(share: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` outputs (Wilson)."""
    z = 1.959964
    center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5 / (1 + z**2 / count)
    return center - half, center + half
