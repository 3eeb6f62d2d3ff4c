"""Callbacks that save a training run and make it resumable."""

import csv
import math
import shutil
from pathlib import Path

import keras
import numpy as np

from keras_bahdanau.distribution import single_process
from keras_bahdanau.optimizers import ema_weights, update_count, uses_ema
from keras_bahdanau.run_folder import HISTORY_FILE
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write

# The mode of a monitored value by the last word of its name.
MODES = {
    **dict.fromkeys(("loss", "error", "perplexity", "crossentropy", "mse", "mae", "ter"), "min"),
    **dict.fromkeys(("accuracy", "acc", "bleu", "chrf", "auc", "f1", "precision", "recall"), "max"),
}


class RunCheckpoint(keras.callbacks.Callback):
    """Saves a training run after each epoch, so that it can be stopped at any time and resumed.

    It writes `last.keras` (weights and optimizer), `best.keras` if the monitored value is the best
    so far, and `history.csv`. Each file is written under a temporary name and then renamed, so a
    run that is killed while writing keeps its old files. `last.keras` is written last: a resumed
    run repeats the epochs after it and rewrites their files. With `keep`, it also writes
    `epoch-01.keras` and so on, for `average_checkpoints`. If the optimizer keeps a moving average
    of the weights (`use_ema`), all files but `last.keras` contain the average.

    Args:
        folder: An existing folder for the files.
        monitor: Name of the value in the logs that selects the best epoch, such as "val_bleu".
        mode: "max" if the largest value is the best, "min" if the smallest is, or "auto" to choose
            by the last word of the name: "min" for "val_loss", "max" for "val_token_accuracy".
        keep: Number of last epochs with a file of their own. Older files are deleted, and so are
            files of later epochs, which a resumed run repeats. With 0, no such file is written or
            deleted.
        epochs_done: Number of epochs that the model has been trained for. Later rows of an existing
            `history.csv` are dropped.
        patience: Number of epochs without an improvement after which training stops, including
            those in an existing `history.csv`; 0 for never.

    Raises:
        ValueError: If `folder` does not exist, `keep` or `patience` is not a non-negative int,
            `mode` is unknown, or "auto" does not apply to the name; at the end of an epoch, if
            `monitor` is not in the logs.

    Example:

    ```python
    model.fit(data, epochs=20, callbacks=[score, RunCheckpoint("run")])
    # later, in a new process
    model = keras.saving.load_model("run/last.keras")
    done = int(model.optimizer.iterations) // len(data)
    checkpoint = RunCheckpoint("run", epochs_done=done)
    model.fit(data, epochs=20, initial_epoch=done, callbacks=[score, checkpoint])
    ```
    """

    def __init__(self, folder, monitor="val_bleu", mode="auto", keep=0, epochs_done=0, patience=0):
        super().__init__()
        check_range("keep", keep, int, 0)
        check_range("patience", patience, int, 0)
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise argument_error("folder", "be a folder that exists", str(folder))
        self.monitor = monitor
        self.mode = _mode_of(monitor, mode)
        self.keep = keep
        self.patience = patience
        self.rows = [row for row in self._read_history() if int(row["epoch"]) <= epochs_done]

    @property
    def best(self):
        """The row of `history.csv` that belongs to `best.keras`, or `None`."""
        rows = [row for row in self.rows if not math.isnan(self._quality(row))]
        return max(reversed(rows), key=self._quality, default=None)  # the latest of equal ones

    @property
    def exhausted(self):
        """Whether there was no improvement in the last `patience` epochs."""
        best, first = self.best, 0
        if best is not None:  # the earliest of equal ones
            first = 1 + [self._quality(row) for row in self.rows].index(self._quality(best))
        return 0 < self.patience <= len(self.rows) - first

    def _quality(self, row):
        """Return the monitored value, negated for the mode "min"; NaN if the row has none."""
        # An older run may have monitored another value.
        value = row.get(self.monitor, "")
        value = math.nan if value == "" else float(value)
        return -value if self.mode == "min" else value

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in (logs or {}).items()}
        row = {"epoch": epoch + 1, "update": update_count(self.model), **values}
        if self.monitor not in row:
            raise argument_error(
                "monitor",
                "name a value in the logs",
                received=f"{self.monitor!r}; the logs hold {sorted(row)}",
            )
        best = self.best
        self.rows.append(row)
        copies = [f"epoch-{epoch + 1:02d}.keras"] if self.keep else []
        if best is None or self._quality(row) >= self._quality(best):
            copies.append("best.keras")
        with single_process(), atomic_write(self.folder / "last.keras") as path:
            if copies:
                with ema_weights(self.model):
                    self.model.save(path)
                for name in copies:
                    with atomic_write(self.folder / name) as copy:
                        shutil.copyfile(path, copy)
            if not copies or uses_ema(self.model):
                self.model.save(path)
            # Before `last.keras` is renamed: a resumed run drops the rows after its epoch.
            self._write_history()
        if self.keep:
            self._delete_all_but(range(epoch + 2 - self.keep, epoch + 2))
        self.model.stop_training |= self.exhausted

    def _delete_all_but(self, epochs):
        for number, path in epoch_checkpoints(self.folder).items():
            if number not in epochs:
                path.unlink()

    def _read_history(self):
        path = self.folder / HISTORY_FILE
        if not path.exists():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            for row in rows:
                int(row["epoch"])
                for value in row.values():
                    if value != "":
                        float(value)
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise argument_error(
                "folder",
                "be new, or of a run whose history.csv holds a row of numbers for each epoch",
                received=f"{str(path)!r}: {type(error).__name__} {error}",
            ) from error
        return rows

    def _write_history(self):
        with (
            atomic_write(self.folder / HISTORY_FILE) as path,
            path.open("w", newline="", encoding="utf-8") as file,
        ):
            names = dict.fromkeys(name for row in self.rows for name in row)
            writer = csv.DictWriter(file, fieldnames=names, restval="")
            writer.writeheader()
            writer.writerows(self.rows)


def _mode_of(monitor, mode):
    if mode not in ("auto", "max", "min"):
        raise argument_error("mode", 'be "auto", "max" or "min"', mode)
    if mode != "auto":
        return mode
    word = monitor.lower().rsplit("_", 1)[-1]
    if word not in MODES:
        raise argument_error(
            "mode",
            f'be "max" or "min" where the name of `monitor` ends in none of {sorted(MODES)}',
            received=f"monitor={monitor!r}",
        )
    return MODES[word]


def epoch_checkpoints(folder):
    """Return the files of single epochs that `RunCheckpoint` has kept, by epoch, in order."""
    numbers = {path: path.stem.removeprefix("epoch-") for path in folder.glob("epoch-*.keras")}
    return dict(sorted((int(n), path) for path, n in numbers.items() if n.isdecimal()))


class ResumableEpochs(keras.callbacks.Callback):
    """Makes the data and the random numbers of each epoch functions of its number only.

    A run that is resumed after epoch `n` then gets the same batches and dropout masks as an
    uninterrupted run. Keras saves neither of them, and calls `on_epoch_end` of a dataset once too
    often. The seeds of Python, NumPy and the backend are also set at the start of each epoch.

    Args:
        dataset: A dataset with an assignable `epoch`, such as `TranslationDataset`.
        seed: Non-negative int.
        rank: Rank of this process among those that train together; each draws other numbers.

    Example:

    ```python
    model.fit(data, epochs=20, callbacks=[ResumableEpochs(data, seed=1)])
    # later, with the model of epoch 7
    again = ResumableEpochs(data, seed=1)
    model.fit(data, epochs=20, initial_epoch=7, callbacks=[again])
    ```
    """

    def __init__(self, dataset, seed=0, rank=0):
        super().__init__()
        check_range("seed", seed, int, 0)
        check_range("rank", rank, int, 0)
        self.dataset = dataset
        self.seed = seed
        self.rank = rank

    def on_epoch_begin(self, epoch, logs=None):
        if self.dataset.epoch != epoch:
            self.dataset.epoch = epoch
        rng = np.random.default_rng([self.seed, self.rank, epoch])
        # On torch, Keras's dropout uses torch's own generator.
        keras.utils.set_random_seed(int(rng.integers(2**32)))
        for variable in self.model.variables:
            # Seed generators hold the only random state among the variables.
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=2))
