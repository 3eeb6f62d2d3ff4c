"""Argument checks shared by all three packages."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD

# Many modules need only the checks without arrays, and numpy takes a third of a command's start.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


def check_positive(**numbers: Any) -> None:
    """Raise a `ValueError` for the first of `numbers` that is not a positive integer.

    Example:

    >>> check_positive(units=0)
    Traceback (most recent call last):
    ValueError: Argument `units` must be a positive integer. Received: 0
    """
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise argument_error(name, "be a positive integer", value)


def check_range(
    name: str,
    value: Any,
    kind: type[int] | type[float],
    low: float,
    high: float | None = None,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raise a `ValueError` unless `value` is of `kind` and between `low` and `high`.

    Args:
        name: The argument's name, for the message.
        value: The argument's value; a bool is not a number.
        kind: `int`, or `float`, which accepts ints too; NaN and infinity are outside every range.
        low: Smallest allowed value.
        high: Largest allowed value; `None` for no limit.
        open_low: Whether `low` itself is excluded.
        open_high: Whether `high` itself is excluded.

    Example:

    >>> check_range("top_p", 1.5, float, 0, 1, open_low=True)
    Traceback (most recent call last):
    ValueError: Argument `top_p` must be a number above 0 and at most 1. Received: 1.5
    """
    noun = "an int" if kind is int else "a number"
    if kind is float and isinstance(value, float) and math.isinf(value):
        noun = "a finite number"
    elif isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool):
        above_low = value > low if open_low else value >= low
        if above_low and (high is None or value < high or (value == high and not open_high)):
            return
    limits = f"{'above' if open_low else 'of at least'} {low}"
    if high is not None:
        limits += f" and {'below' if open_high else 'at most'} {high}"
    raise argument_error(name, f"be {noun} {limits}", value)


def check_limits(threads: int | None, timeout: float | None, megabytes: float | None) -> None:
    """Raise a `ValueError` unless the limits for running a graph are positive or `None`."""
    if threads is not None:
        check_positive(threads=threads)
    for name, limit in (("timeout", timeout), ("megabytes", megabytes)):
        if limit is not None:
            check_range(name, limit, float, 0, open_low=True)


def checked_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Return the texts as a list.

    Args:
        name: The argument's name, for the message.
        texts: Iterable of str.

    Raises:
        ValueError: `texts` is a single `str`, or an item is not Unicode text.
    """
    if isinstance(texts, str):
        raise argument_error(name, "be a list of str", received=f"one str, {texts!r:.80}")
    if not isinstance(texts, Iterable):
        raise argument_error(name, "be a list of str", texts)
    texts = list(texts)
    for index, text in enumerate(texts):
        check_text(f"{name}[{index}]", text)
    return texts


def unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict of keys and values, for a parser; parsers disagree on which duplicate counts.

    Raises:
        ValueError: A key occurs more than once.

    Example:

    >>> unique_keys([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    document = dict(pairs)
    if len(document) < len(pairs):
        [(key, count)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!a:.80} occurs {count} times")
    return document


def parse_json(text: str, constants: bool = True) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        constants: Whether it may contain NaN, Infinity and -Infinity, which are not JSON.

    Raises:
        ValueError: The text is not JSON, a key occurs twice in an object, objects are nested too
            deeply, or an integer has more digits than Python converts. For a text of one line the
            message has only the column, because the text may be any line of a file.

    Example:

    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' occurs 2 times
    """
    try:
        return _DECODERS[constants].decode(text)
    except json.JSONDecodeError as error:
        if "\n" in text.strip():
            raise
        raise ValueError(f"{error.msg.removesuffix(' at')} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("JSON with too many levels") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is not a JSON number")


_DECODERS = {
    True: json.JSONDecoder(object_pairs_hook=unique_keys),
    False: json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_refuse_constant),
}


def check_text(name: str, text: Any) -> None:
    """Raise a `ValueError` unless `text` is a `str` without lone surrogates.

    Example:

    >>> check_text("texts[1]", b"a man")
    Traceback (most recent call last):
    ValueError: Argument `texts[1]` must be a str. Received: b'a man'
    """
    if not isinstance(text, str):
        raise argument_error(name, "be a str", text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise argument_error(name, "be a str without lone surrogates", text) from error


def checked_stream(
    name: str, texts: Iterable[str], allow_surrogates: bool = False
) -> Iterator[str]:
    """Iterate over the texts and check each one when it is read.

    Args:
        name: The argument's name, for the message.
        texts: Iterable of str.
        allow_surrogates: Whether a `str` may contain lone surrogates.

    Raises:
        ValueError: As `checked_texts`; the iterator raises it for an item that is not text.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        checked_texts(name, texts)

    def checked() -> Iterator[str]:
        for index, text in enumerate(texts):
            if not (allow_surrogates and isinstance(text, str)):
                check_text(f"{name}[{index}]", text)
            yield text

    return checked()


def checked_array(name: str, value: "ArrayLike") -> "NDArray[Any]":
    """Return the value as an array; raise a `ValueError` if its rows differ in length."""
    import numpy as np

    try:
        return np.asarray(value)
    except ValueError as error:
        raise argument_error(
            name, "be an array with rows of one length", received=str(error)
        ) from error


def checked_ids(
    name: str, value: "ArrayLike", vocabulary: int, max_length: int | None
) -> "NDArray[np.int32]":
    """Return ids as an int32 array `(B, T)`.

    Raises:
        ValueError: Wrong rank or dtype, no rows, a row with only padding or with padding between
            ids, an id outside the vocabulary, or a row longer than `max_length`.

    Example:

    >>> checked_ids("source", [[5, 3], [3, 0]], vocabulary=10, max_length=None).shape
    (2, 2)
    """
    import numpy as np

    array = checked_array(name, value)
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
        raise argument_error(
            name,
            f"be a non-empty integer array of shape (batch, {name}_length)",
            received=f"dtype {array.dtype}, shape {array.shape}",
        )
    limit = max_length or array.shape[1]
    for is_invalid, expected in (
        ((array < 0) | (array >= vocabulary), f"ids from 0 to {vocabulary - 1}"),
        ((array == PAD).all(axis=1, keepdims=True), "a token in every row"),
        ((array[:, :-1] == PAD) & (array[:, 1:] != PAD), "padding (0) at the right only"),
        (array[:, limit:] != PAD, f"at most {limit} tokens a row"),
    ):
        if is_invalid.any():
            row = int(np.argwhere(is_invalid)[0, 0])
            raise argument_error(name, f"hold {expected}", received=f"row {row}, {array[row]}")
    return array.astype(np.int32)
