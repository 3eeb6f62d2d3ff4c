"""Measures of confidences, by hand."""

import pytest

from keras_bahdanau_runtime.text.confidence_scores import (
    calibration_error,
    calibration_interval,
    coverage_errors,
    reliability,
    risk_curve,
)

# Two bins: 0.2 on average with none of two right, 0.8 with both right.
CONFIDENCES, IS_RIGHT = [0.9, 0.1, 0.7, 0.3], [True, False, True, False]


def test_calibration_error_is_the_mean_over_bins_of_the_same_size():
    assert calibration_error(CONFIDENCES, IS_RIGHT, bins=2) == pytest.approx(20.0)
    # One bin: 0.5 on average, and half of them right.
    assert calibration_error(CONFIDENCES, IS_RIGHT, bins=1) == pytest.approx(0.0)


def test_bins_count_by_their_outputs():
    rows = reliability([0.1, 0.2, 0.3, 0.4, 0.5], [False, False, False, True, True], bins=2)
    assert [pytest.approx(row) for row in rows] == [(0.2, 0.0, 0.6), (0.45, 1.0, 0.4)]
    assert calibration_error([0.1, 0.2, 0.3, 0.4, 0.5], [False] * 3 + [True] * 2, 2) == (
        pytest.approx(100 * (0.6 * 0.2 + 0.4 * 0.55))
    )


def test_more_bins_than_outputs_have_one_each():
    assert len(reliability([0.5, 0.6], [True, False])) == 2


def test_errors_are_those_of_the_most_confident_outputs():
    assert risk_curve(CONFIDENCES, IS_RIGHT) == pytest.approx([0, 0, 100 / 3, 50])
    assert coverage_errors(CONFIDENCES, IS_RIGHT, [50, 100]) == pytest.approx({50: 0, 100: 50})


def test_equal_confidences_count_as_their_mean():
    assert risk_curve([0.5, 0.5], [True, False]) == [50.0, 50.0]
    assert risk_curve([0.5, 0.5], [False, True]) == [50.0, 50.0]


def test_interval_of_a_perfect_set_has_no_width():
    assert calibration_interval([1.0] * 20, [True] * 20) == (0.0, 0.0)


def test_interval_narrows_with_more_outputs():
    def width(count):
        low, high = calibration_interval([0.5] * count, [True, False] * (count // 2), bins=1)
        return high - low

    assert 0 < width(1000) < width(100)


@pytest.mark.parametrize("arguments", [([], []), ([0.5], [True, False])])
def test_lists_of_different_lengths_are_refused(arguments):
    with pytest.raises(
        ValueError, match="`confidences` and `is_right` must have one item for each"
    ):
        calibration_error(*arguments)
