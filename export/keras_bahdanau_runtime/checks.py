"""Checks of arguments that many layers share."""


def check_positive(**numbers):
    """Raises a `ValueError` that names the first of `numbers` that is not a positive integer.

    Example:

    >>> check_positive(units=0)
    Traceback (most recent call last):
    ValueError: Argument `units` must be a positive integer. Received: 0
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"Argument `{name}` must be a positive integer. Received: {value!r}")


def check_range(name, value, kind, low, high=None, open_low=False, open_high=False):
    """Raises a `ValueError` unless `value` is of `kind` and between `low` and `high`.

    Args:
        name: The argument's name, for the message.
        value: What was given; a bool is no number.
        kind: `int`, or `float`, which takes ints too; NaN is in no range.
        low: The least value.
        high: The greatest value; no limit if `None`.
        open_low: Whether `low` itself is too low.
        open_high: Whether `high` itself is too high.

    Example:

    >>> check_range("top_p", 1.5, float, 0, 1, open_low=True)
    Traceback (most recent call last):
    ValueError: Argument `top_p` must be a number above 0 and at most 1. Received: 1.5
    """
    kinds = (int, float) if kind is float else int
    if isinstance(value, kinds) and not isinstance(value, bool):
        enough = value > low if open_low else value >= low
        if enough and (high is None or value < high or (value == high and not open_high)):
            return
    noun = "an int" if kind is int else "a number"
    limits = f"{'above' if open_low else 'of at least'} {low}"
    if high is not None:
        limits += f" and {'below' if open_high else 'at most'} {high}"
    raise ValueError(f"Argument `{name}` must be {noun} {limits}. Received: {value!r}")
