import re

import numpy as np
import pytest

from keras_bahdanau_runtime.checks import check_positive, check_range, checked_ids, checked_stream
from keras_bahdanau_runtime.errors import LimitError
from keras_bahdanau_runtime.search import checked_noise
from keras_bahdanau_runtime.search_settings import ManifestSearch


@pytest.mark.parametrize(
    "value", [0, -3, 1.0, "1", None, True, np.float32(1), np.int64(2)], ids=repr
)
def test_check_positive_refuses_other_values(value):
    check_positive(first=1, second=10**9)
    with pytest.raises(ValueError, match=r"Argument `second` must be a positive integer. Received"):
        check_positive(first=1, second=value, third=0)


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="`source` must be an array with rows of one length"):
        checked_ids("source", [[5, 3], [6, 7, 3]], vocabulary=10, max_length=None)


def test_stream_is_checked_text_by_text():
    stream = checked_stream("texts", iter(["a", "\ud800"]))
    assert next(stream) == "a"
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be a str without lone surrogates"):
        next(stream)
    for wrong in ("abc", None):
        with pytest.raises(ValueError, match="`texts` must be a list of str"):
            checked_stream("texts", wrong)


def test_noise_is_rounded_to_below_one():
    search = ManifestSearch(n=1, max_length=2)
    noise = checked_noise(np.array([[[0.5, 1 - 1e-12]]]), search, rows=1)
    assert noise.dtype == np.float32 and 0.999 < noise.max() < 1
    with pytest.raises(ValueError, match=r"`noise` must hold numbers .* Received: 1\.5"):
        checked_noise([[[0.5, 1.5]]], search, rows=1)


@pytest.mark.parametrize("megabytes", [None, 100])
def test_noise_that_does_not_fit_in_memory_is_refused(megabytes):
    search = ManifestSearch(n=10**5, max_length=2**31 - 1, seed=1)  # 781 TiB of noise
    with pytest.raises(LimitError, match=r"needs 819200000 MB of random numbers, shape \(1, "):
        checked_noise(None, search, 1, megabytes)
    assert checked_noise(None, ManifestSearch(n=1, max_length=9, seed=1), 2, 100).shape == (2, 1, 9)


@pytest.mark.parametrize(
    "value, arguments, expected",
    [
        (-1, (int, 0), "an int of at least 0"),
        (2.0, (int, 0), "an int of at least 0"),
        (True, (int, 0), "an int of at least 0"),
        ("1", (float, 0), "a number of at least 0"),
        (None, (float, 0), "a number of at least 0"),
        (float("nan"), (float, 0), "a number of at least 0"),
        (float("inf"), (float, 0), "a finite number of at least 0"),
        (6, (int, 1, 5), "an int of at least 1 and at most 5"),
        (0, (float, 0, 1, True), "a number above 0 and at most 1"),
        (1.5, (float, 0, 1, True), "a number above 0 and at most 1"),
    ],
)
def test_values_outside_the_range_are_refused(value, arguments, expected):
    message = re.escape(f"Argument `it` must be {expected}. Received: {value!r}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_range("it", value, *arguments)


def test_values_within_the_range_pass():
    check_range("it", 0, int, 0)
    check_range("it", 5, int, 1, 5)
    check_range("it", 1, float, 0, 1, True)
    check_range("it", 0.5, float, 0)
