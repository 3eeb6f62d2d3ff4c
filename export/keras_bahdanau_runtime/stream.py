"""Texts that come one after another, gathered into windows that are worth a batch."""

import queue
import threading
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
    arrived: queue.Queue[object] = queue.Queue(maxsize=size)
    left = threading.Event()

    def put(item: object) -> bool:
        while not left.is_set():
            try:
                arrived.put(item, timeout=_PATIENCE)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for text in texts:
                if not put((text,)):
                    return
            put(_END)
        except Exception as error:  # raised again where the texts are awaited
            put(error)

    # A daemon: nothing can wake a thread that waits for a line of a terminal.
    threading.Thread(target=read, daemon=True, name="keras_bahdanau texts").start()
    try:
        ended = False
        while not ended:
            window: list[str] = []
            item = arrived.get()
            while isinstance(item, tuple):
                window.extend(item)
                if len(window) == size:
                    break
                try:
                    item = arrived.get_nowait()
                except queue.Empty:
                    break
            if window:
                yield window
            ended = not isinstance(item, tuple)
            if isinstance(item, Exception):
                raise item
    finally:
        left.set()
