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
