"""Sequences of ids on their way to a model: padding, and batches of like length."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import PAD

logger = logging.getLogger("keras_bahdanau_runtime")


def pad(
    sequences: Sequence[Sequence[int]], bucket: int = 1, max_length: int | None = None
) -> NDArray[np.int32]:
    """Puts id lists into one array, with `PAD` at the right.

    Args:
        sequences: At least one list of ids. An empty list becomes a row of padding.
        bucket: The width is rounded up to a multiple of this.
        max_length: Longer lists are cut to this many ids, the last of which stays the last; a
            warning in the log says how many. `None` for no limit.

    Returns:
        int32 array `(B, T)`.

    Raises:
        ValueError: If there are no `sequences`, or `bucket` or `max_length` is below 1.

    Example:

    >>> pad([[5, 6, 3], [3]], bucket=4).tolist()
    [[5, 6, 3, 0], [3, 0, 0, 0]]
    """
    if not len(sequences):
        raise ValueError("Argument `sequences` must hold at least one list of ids. Received: none")
    check_range("bucket", bucket, int, 1)
    if max_length is not None:
        check_range("max_length", max_length, int, 1)
        (sequences,) = cut(max_length, sequences=sequences)
    width = int(round_up(max(1, max(map(len, sequences))), bucket))
    padded = np.full((len(sequences), width), PAD, np.int32)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def length_sorted_batches(
    lengths: Iterable[int], batch_size: int, batch_tokens: int | None = None
) -> list[NDArray[np.int64]]:
    """Cuts sentences into batches of similar length, from the longest to the shortest.

    The caller puts results back in order: `results[indices] = generated`.

    Args:
        lengths: Length of each sentence.
        batch_size: Largest number of sentences in a batch.
        batch_tokens: Largest number of ids in a batch, padding included; a longer sentence is a
            batch of its own. `None` for no limit.

    Returns:
        One int array of indices into `lengths` for each batch.

    Raises:
        ValueError: If `batch_size` or `batch_tokens` is below 1.

    Example:

    >>> [batch.tolist() for batch in length_sorted_batches([4, 9, 7], batch_size=2)]
    [[1, 2], [0]]
    >>> [batch.tolist() for batch in length_sorted_batches([4, 9, 4], 2, batch_tokens=10)]
    [[1], [0, 2]]
    """
    check_range("batch_size", batch_size, int, 1)
    if batch_tokens is not None:
        check_range("batch_tokens", batch_tokens, int, 1)
    known = np.asarray(list(lengths), "int64")
    order = np.argsort(-known, kind="stable")
    batches, start = [], 0
    while start < len(order):
        most = batch_size
        if batch_tokens is not None:  # all are as wide as the first, which is the longest
            most = min(most, max(1, batch_tokens // max(1, int(known[order[start]]))))
        batches.append(order[start : start + most])
        start += most
    return batches


def round_up(lengths: int | Sequence[int], bucket: int) -> Any:
    """`lengths`, an int or a list of them, rounded up to multiples of `bucket`: int or an array."""
    return -(np.negative(lengths) // bucket) * bucket


def cut(max_length: int, **lists: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Each of `lists` with its sequences cut to `max_length` ids; one warning counts them.

    The last id of a sequence stays the last.
    """
    too_long = {name: sum(len(ids) > max_length for ids in lists[name]) for name in lists}
    if any(too_long.values()):
        counts = (f"{too_long[name]} of {len(lists[name])} {name}" for name in lists)
        logger.warning("Cut %s to %d ids.", " and ".join(counts), max_length)
    return [
        [
            ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]
            for ids in lists[name]
        ]
        for name in lists
    ]
