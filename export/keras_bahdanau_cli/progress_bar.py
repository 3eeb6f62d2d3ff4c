"""Progress of a translation: a bar in a terminal, else a message every minute."""

import time
from datetime import timedelta

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from keras_bahdanau_cli.terminal import console, has_progress_bars, print_message

_SECONDS_PER_MESSAGE = 60.0  # when standard error is no terminal


class ProgressBar:
    """Progress, speed and remaining time: as a bar in a terminal, else as a line every minute.

    Args:
        unit: Plural name of the counted items.
    """

    def __init__(self, unit: str = "sentences") -> None:
        self._unit = unit
        self._bar = Progress(
            TextColumn("translating"),
            BarColumn(),
            MofNCompleteColumn(),
            _SpeedColumn(unit),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not has_progress_bars(),
        )
        self._task: TaskID | None = None
        self._initial = 0  # done by an earlier, interrupted run
        self._start = self._last_message = time.monotonic()

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int | None) -> None:
        """Update the progress; `total` is `None` if it is unknown."""
        if self._task is None:
            self._task, self._initial = self._bar.add_task("", completed=done, total=total), done
            self._start = self._last_message = time.monotonic()
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if self._bar.disable and now - self._last_message >= _SECONDS_PER_MESSAGE:
            self._last_message, speed = now, (done - self._initial) / (now - self._start)
            remaining = ""
            if total and speed:
                remaining = f", {timedelta(seconds=round((total - done) / speed))} left"
            count = f"{done:,} of {total:,}" if total else f"{done:,}"
            print_message(f"{count} {self._unit}, {speed:,.1f}/s{remaining}")


class _SpeedColumn(ProgressColumn):
    """Number of units done per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.1f} {self._unit}/s")
