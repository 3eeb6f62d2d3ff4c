"""A callback that shows the progress of training on a console."""

import time
from datetime import timedelta

import keras
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from keras_bahdanau.optimizers import update_count
from keras_bahdanau_runtime.text.scores import MEASURES

_LINE_SECONDS = 60.0  # between lines on a console that is not a terminal
_FIRST_BATCHES = 5  # of a process, which compile and do not count
_ESTIMATE_BATCHES = 25  # after which there is a first line with the speed


class _RunClock:
    """Speed and remaining time of a run, from the times of its batches and validations.

    The first batches of the process do not count.

    Args:
        batches: Number of batches of an epoch.
        epochs: Number of epochs.
    """

    def __init__(self, batches, epochs):
        self.batches, self.epochs = batches, epochs
        self.done = self._counted = self._validations = 0
        self._batch_seconds = self._validation_seconds = 0.0
        self._left = None

    def start_epoch(self, epoch):
        self._left = (self.epochs - epoch) * self.batches, self.epochs - epoch
        self._last = time.perf_counter()

    def end_batch(self):
        now = time.perf_counter()
        self.done += 1
        self._left = self._left[0] - 1, self._left[1]
        if self.done > _FIRST_BATCHES:
            self._counted += 1
            self._batch_seconds += now - self._last
        self._last = now

    def end_epoch(self):
        self._left = self._left[0], self._left[1] - 1
        self._validations += 1
        self._validation_seconds += time.perf_counter() - self._last

    @property
    def batches_per_second(self):
        """Batches per second, or 0 if they are unknown."""
        return self._counted / self._batch_seconds if self._counted else 0.0

    @property
    def left(self):
        """The remaining time in words; empty if it is unknown, or nothing is left."""
        batches, validations = self._left
        if not self._counted or not validations:
            return ""
        seconds = batches / self.batches_per_second
        note = " without validations"
        if self._validations:
            seconds += validations * self._validation_seconds / self._validations
            note = ""
        return f"{timedelta(seconds=round(seconds))} left{note}"


class ProgressDisplay(keras.callbacks.Callback):
    """Shows epoch, loss, tokens per second and the remaining time of the run on a rich console.

    The time is estimated from the batches so far, without the first five, which compile. After the
    first epoch it includes the validations.

    After each epoch it prints one line that also contains the results on held-out text. If the
    console is not a terminal, there is no progress bar, but a line after the first batch, after the
    25th, and after each minute of a long epoch. The bar redirects standard output until training
    ends. Keras calls no callback after an error or Ctrl-C, so use `with display: model.fit(...)` to
    restore standard output in any case.

    Args:
        tokens_per_step: Mean number of target tokens in a batch.
        console: A `rich.console.Console` (rich is a dependency of Keras); one on standard error if
            `None`.
        measures: Names of the `MEASURES` of held-out text to show, if they are in the logs.
    """

    def __init__(self, tokens_per_step, console=None, measures=("loss", "bleu", "chrf")):
        super().__init__()
        self.measures = measures
        console = Console(stderr=True) if console is None else console
        self.tokens_per_step = tokens_per_step
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def on_train_begin(self, logs=None):
        self.progress.start()
        self.line_time = float("-inf")
        self.clock = _RunClock(self.params["steps"], self.params["epochs"])

    def on_epoch_begin(self, epoch, logs=None):
        self.start_time = time.perf_counter()
        self.clock.start_epoch(epoch)
        self.task = self.progress.add_task(
            f"epoch {epoch + 1}/{self.params['epochs']}",
            total=self.params["steps"],
            loss=float("nan"),
            rate=0.0,
            left=self.clock.left,
        )

    def on_train_batch_end(self, batch, logs=None):
        self.clock.end_batch()
        rate, left = self.tokens_per_step * self.clock.batches_per_second, self.clock.left
        loss = float(logs["loss"])
        self.progress.update(self.task, completed=batch + 1, loss=loss, rate=rate, left=left)
        now = time.perf_counter()
        is_due = now - self.line_time >= _LINE_SECONDS or self.clock.done == _ESTIMATE_BATCHES
        if not self.console.is_terminal and is_due:
            name = self.progress.tasks[-1].description
            speed = f"  {rate:,.0f} tokens/s  {left}" if rate else ""
            self.console.print(
                f"in {name}: batch {batch + 1:,} of {self.params['steps']:,}  loss {loss:.3f}"
                f"{speed}",
                soft_wrap=True,  # a line of a log file is not cut at 80 columns
            )
            self.line_time = now

    def on_epoch_end(self, epoch, logs=None):
        self.progress.remove_task(self.task)
        self.clock.end_epoch()
        left = self.clock.left
        seconds = time.perf_counter() - self.start_time
        held_out = "".join(
            f"{'val_loss' if name == 'loss' else MEASURES[name].title} "
            f"{logs[f'val_{name}']:.{MEASURES[name].places}f}  "
            for name in self.measures
            if f"val_{name}" in logs
        )
        self.console.print(
            f"epoch {epoch + 1}/{self.params['epochs']}  "
            f"update {update_count(self.model):,}  loss {logs['loss']:.3f}  "
            f"{held_out}{seconds:.0f} s{'  ' if left else ''}{left}",
            soft_wrap=True,
        )
        self.line_time = time.perf_counter()

    def on_train_end(self, logs=None):
        if self.progress.live.is_started:
            self.progress.stop()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.on_train_end()
