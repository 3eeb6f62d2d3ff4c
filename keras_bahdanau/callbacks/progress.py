"""A callback that shows the progress of training on a console."""

import time

import keras
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from keras_bahdanau.optimizers import update_count
from keras_bahdanau_runtime.text.scores import MEASURES

_LINE_SECONDS = 60.0  # between lines on a console that is not a terminal


class ProgressDisplay(keras.callbacks.Callback):
    """Shows epoch, loss, tokens per second and the remaining time on a rich console.

    After each epoch it prints one line that also contains the results on held-out text. If the
    console is not a terminal, there is no progress bar, but a line after the first batch, and one
    after each minute of a long epoch. The bar redirects standard output until training ends. Keras
    calls no callback after an error or Ctrl-C, so use `with display: model.fit(...)` to restore
    standard output in any case.

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
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def on_train_begin(self, logs=None):
        self.progress.start()
        self.line_time = float("-inf")

    def on_epoch_begin(self, epoch, logs=None):
        self.start_time = time.perf_counter()
        self.task = self.progress.add_task(
            f"epoch {epoch + 1}/{self.params['epochs']}",
            total=self.params["steps"],
            loss=float("nan"),
            rate=0.0,
        )

    def on_train_batch_end(self, batch, logs=None):
        rate = self.tokens_per_step * (batch + 1) / (time.perf_counter() - self.start_time)
        loss = float(logs["loss"])
        self.progress.update(self.task, completed=batch + 1, loss=loss, rate=rate)
        now = time.perf_counter()
        if not self.console.is_terminal and now - self.line_time >= _LINE_SECONDS:
            name = self.progress.tasks[-1].description
            self.console.print(
                f"in {name}: batch {batch + 1:,} of {self.params['steps']:,}  loss {loss:.3f}"
            )
            self.line_time = now

    def on_epoch_end(self, epoch, logs=None):
        self.progress.remove_task(self.task)
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
            f"{held_out}{seconds:.0f} s"
        )
        self.line_time = time.perf_counter()

    def on_train_end(self, logs=None):
        if self.progress.live.is_started:
            self.progress.stop()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.on_train_end()
