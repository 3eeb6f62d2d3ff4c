"""Padded arrays of ids, batches of similar length, and windows over a stream of texts."""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
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
        (sequences,) = truncate_sequences(max_length, sequences=sequences)
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


def truncate_sequences(max_length: int, **lists: Sequence[Sequence[int]]) -> list[list[Any]]:
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


_END = object()
_PATIENCE = 0.1  # seconds between looks whether anybody still waits


def read_windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """What has come of `texts` since the last window: one text at least, `size` at most.

    A thread reads ahead, by no more than `size` texts, while the caller works on a window. A slow
    source is thus answered text by text, and a quick one in whole windows.

    Args:
        texts: Any iterable, such as the lines of a pipe.
        size: int, the most texts in a window.

    Raises:
        What `texts` raises, after the texts before it.

    Example:

    >>> [len(window) for window in windows(["a"], size=3)]
    [1]
    """
    # Looked at far more often than waited for: a deque and two events, and no lock for each text.
    arrived: deque[object] = deque()
    some, room, left = threading.Event(), threading.Event(), threading.Event()

    def put(item: object) -> bool:
        while len(arrived) >= size:
            room.clear()
            if len(arrived) >= size:
                room.wait(_PATIENCE)
            if left.is_set():
                return False
        arrived.append(item)
        if not some.is_set():
            some.set()
        return not left.is_set()

    def read() -> None:
        try:
            for text in texts:
                if not put((text,)):
                    return
            put(_END)
        except BaseException as error:  # raised again where the texts are awaited
            put(error)

    # A daemon: nothing can wake a thread that waits for a line of a terminal.
    threading.Thread(target=read, daemon=True, name="keras_bahdanau texts").start()
    try:
        item: object = ()
        while isinstance(item, tuple):
            some.wait()
            some.clear()
            window: list[str] = []
            while arrived:
                item = arrived.popleft()
                if not isinstance(item, tuple):
                    break
                window.extend(item)
                if len(window) == size:
                    some.set()  # there may be more
                    break
            room.set()
            if window:
                yield window
        if isinstance(item, BaseException):
            raise item
    finally:
        left.set()
        room.set()
