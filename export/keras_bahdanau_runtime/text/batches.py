"""Padded arrays of ids, batches of similar length, and windows over a stream of texts."""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD

logger = logging.getLogger("keras_bahdanau_runtime")


def pad(
    sequences: Sequence[Sequence[int]], bucket: int = 1, max_length: int | None = None
) -> NDArray[np.int32]:
    """Pad lists of ids at the right with `PAD` to one array.

    Args:
        sequences: At least one list of ids. An empty list becomes a row of padding.
        bucket: The width is rounded up to a multiple of this.
        max_length: Longer lists are cut to this many ids, whose last id stays the last, and their
            number is logged. `None` for no limit.

    Returns:
        int32 array `(B, T)`.

    Raises:
        ValueError: `sequences` is empty, or `bucket` or `max_length` is below 1.

    Example:

    >>> pad([[5, 6, 3], [3]], bucket=4).tolist()
    [[5, 6, 3, 0], [3, 0, 0, 0]]
    """
    if not len(sequences):
        raise argument_error("sequences", "hold at least one list of ids", received="none")
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
    """Sort sentences into batches of similar length, from the longest to the shortest.

    To restore the order, the caller assigns `results[indices] = generated`.

    Args:
        lengths: Length of each sentence.
        batch_size: Largest number of sentences in a batch.
        batch_tokens: Largest number of ids in a batch, including padding; a longer sentence is a
            batch of one. `None` for no limit.

    Returns:
        An int array of indices into `lengths` for each batch.

    Raises:
        ValueError: `batch_size` or `batch_tokens` is below 1.

    Example:

    >>> [batch.tolist() for batch in length_sorted_batches([4, 9, 7], batch_size=2)]
    [[1, 2], [0]]
    >>> [batch.tolist() for batch in length_sorted_batches([4, 9, 4], 2, batch_tokens=10)]
    [[1], [0, 2]]
    """
    check_range("batch_size", batch_size, int, 1)
    if batch_tokens is not None:
        check_range("batch_tokens", batch_tokens, int, 1)
    sizes = np.asarray(list(lengths), "int64")
    order = np.argsort(-sizes, kind="stable")
    batches, start = [], 0
    while start < len(order):
        rows = batch_size
        if batch_tokens is not None:  # padded to the width of the first, which is the longest
            rows = min(rows, max(1, batch_tokens // max(1, int(sizes[order[start]]))))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def round_up(lengths: int | Sequence[int], bucket: int) -> Any:
    """Round an int or a list of ints up to multiples of `bucket`; return an int or an array."""
    return -(np.negative(lengths) // bucket) * bucket


def truncate_sequences(max_length: int, **lists: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Return `lists` with sequences cut to `max_length` ids, and log their number.

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
_POLL_INTERVAL = 0.1  # seconds after which the reader checks whether the caller has stopped


def read_windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Group a stream of texts into the windows that have arrived since the last one.

    A thread reads at most `size` texts ahead while the caller processes a window. So texts from a
    slow source arrive one by one, and texts from a fast one in full windows.

    Args:
        texts: Any iterable, such as the lines of a pipe.
        size: int, largest number of texts in a window.

    Yields:
        Lists of 1 to `size` texts.

    Raises:
        The exceptions of `texts`, after the texts before.

    Example:

    >>> [len(window) for window in read_windows(["a"], size=3)]
    [1]
    """
    # The deque is checked far more often than it is empty or full, so it needs no lock per text.
    queue: deque[object] = deque()
    has_items, has_room, is_closed = threading.Event(), threading.Event(), threading.Event()

    def put(item: object) -> bool:
        while len(queue) >= size:
            has_room.clear()
            if len(queue) >= size:
                has_room.wait(_POLL_INTERVAL)
            if is_closed.is_set():
                return False
        queue.append(item)
        if not has_items.is_set():
            has_items.set()
        return not is_closed.is_set()

    def read() -> None:
        try:
            for text in texts:
                if not put((text,)):
                    return
            put(_END)
        except BaseException as error:  # raised again in the caller's thread
            put(error)

    # A daemon thread, because nothing can interrupt it while it waits for a line of a terminal.
    threading.Thread(target=read, daemon=True, name="keras_bahdanau texts").start()
    try:
        item: object = ()
        while isinstance(item, tuple):
            has_items.wait()
            has_items.clear()
            window: list[str] = []
            while queue:
                item = queue.popleft()
                if not isinstance(item, tuple):
                    break
                window.extend(item)
                if len(window) == size:
                    has_items.set()  # there may be more
                    break
            has_room.set()
            if window:
                yield window
        if isinstance(item, BaseException):
            raise item
    finally:
        is_closed.set()
        has_room.set()
