"""Texts that come one after another, gathered into windows that are worth a batch."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator

_END = object()
_PATIENCE = 0.1  # seconds between looks whether anybody still waits


def windows(texts: Iterable[str], size: int) -> Iterator[list[str]]:
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
