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


def check_range(name, value, kind, low, high=None, open_low=False):
    """Raises a `ValueError` unless `value` is of `kind` and between `low` and `high`."""
    kinds = (int, float) if kind is float else int
    wrong = isinstance(value, bool) or not isinstance(value, kinds)
    if wrong or value < low or (open_low and value == low) or (high is not None and value > high):
        noun = "an int" if kind is int else "a number"
        limits = f"{'above' if open_low else 'at least'} {low}"
        limits += "" if high is None else f" and at most {high}"
        raise ValueError(f"Argument `{name}` must be {noun} of {limits}. Received: {value!r}")
