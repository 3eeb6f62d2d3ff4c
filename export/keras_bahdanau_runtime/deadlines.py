"""Runs that end when their time is up, with one clock for all of them.

with deadline(5.0, options):            # `options.terminate` is set after five seconds
    session.run_with_iobinding(binding, options)
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class _Run:
    """What is to be stopped, and when, by `time.monotonic`."""

    options: Any
    end: float


class _Clock:
    """A thread that sleeps until the next end. One for each run would take 0.2 ms to start."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: set[_Run] = set()
        self._wakes = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, run: _Run) -> None:
        with self._changed:
            self._runs.add(run)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, daemon=True, name="keras_bahdanau deadlines"
                )
                self._thread.start()
            elif run.end < self._wakes:
                self._changed.notify()

    def remove(self, run: _Run) -> None:
        with self._changed:
            self._runs.discard(run)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for run in [run for run in self._runs if run.end <= now]:
                    run.options.terminate = True
                    self._runs.discard(run)
                # Without a run it sleeps until the next one comes.
                self._wakes = min((run.end for run in self._runs), default=float("inf"))
                # Python waits for so long at most; then it looks again.
                self._changed.wait(min(self._wakes - now, threading.TIMEOUT_MAX))


_clock = _Clock()


def _begin_anew() -> None:
    """In a process that was forked: another thread of its parent may have held the lock."""
    global _clock
    _clock = _Clock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_anew)


@contextlib.contextmanager
def deadline(seconds: float | None, options: Any) -> Iterator[None]:
    """Sets `options.terminate` when the block has taken longer than `seconds`.

    Args:
        seconds: float; no deadline if `None`.
        options: `onnxruntime.RunOptions`.
    """
    if seconds is None:
        yield
        return
    run, clock = _Run(options, time.monotonic() + seconds), _clock
    clock.add(run)
    try:
        yield
    finally:
        clock.remove(run)
