"""Ranges of the settings of a search, for Keras, artifacts, commands and the service alike.

A graph computes with int32 and float32. Within these ranges no setting overflows there, none
becomes 0 that is not, and every score is finite.
"""

from typing import Any, NamedTuple

from keras_bahdanau_runtime.checks import check_range

_INT32_MAX = 2**31 - 1
_LONGEST = 2**20  # tokens of an output
_WIDEST = 10_000  # hypotheses of a text


class Range(NamedTuple):
    """Range of a setting.

    Attributes:
        kind: `int`, or `float`, which accepts ints too.
        low: Smallest value.
        high: Largest value.
    """

    kind: type[int] | type[float]
    low: float
    high: float


# Keys are names of the arguments of searches and of the options of a call.
RANGES = {
    "size": Range(int, 1, _WIDEST),
    "beam_size": Range(int, 1, _WIDEST),
    "n": Range(int, 1, _WIDEST),
    "n_best": Range(int, 1, _WIDEST),
    "groups": Range(int, 1, _WIDEST),
    "min_length": Range(int, 0, _LONGEST),
    "max_length": Range(int, 1, _LONGEST),
    "max_length_ratio": Range(float, 0.001, 1000),
    "no_repeat_ngram": Range(int, 0, _LONGEST),
    "length_offset": Range(int, 0, _LONGEST),
    # With 5, the length of an output is divided by at most 1e32 for 2 * `_LONGEST` tokens.
    "length_penalty": Range(float, 0, 5),
    "coverage_penalty": Range(float, 0, 1000),
    "diversity": Range(float, 0, 1000),
    "repetition_penalty": Range(float, 1, 1000),
    "temperature": Range(float, 1e-6, 1_000_000),
    "top_k": Range(int, 0, _INT32_MAX),
    "top_p": Range(float, 1e-6, 1),
    "seed": Range(int, 0, _INT32_MAX),
    "forbidden": Range(int, 0, _INT32_MAX),
}


def check_setting(
    name: str, value: Any, low: float | None = None, high: float | None = None
) -> None:
    """Raise a `ValueError` unless a setting is in its range.

    Args:
        name: A name of `RANGES`.
        value: Value of the setting.
        low: A smallest value in place of that of the range.
        high: A largest value in place of that of the range.

    Example:

    >>> check_setting("top_p", 1e-46)
    Traceback (most recent call last):
    ValueError: Argument `top_p` must be a number of at least 1e-06 and at most 1. Received: 1e-46
    """
    kind, lowest, highest = RANGES[name]
    check_range(
        name, value, kind, lowest if low is None else low, highest if high is None else high
    )
