"""Callbacks that save a training run and make it resumable."""

import csv
import math
import shutil
from pathlib import Path

import keras
import numpy as np

from keras_bahdanau.distribution import single_process
from keras_bahdanau.optimizers import ema_weights, update_count, uses_ema
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.files import atomic_write

# The words that end a value's name and tell which way is better.
DIRECTIONS = {
    **dict.fromkeys(("loss", "error", "perplexity", "crossentropy", "mse", "mae", "ter"), "min"),
    **dict.fromkeys(("accuracy", "acc", "bleu", "chrf", "auc", "f1", "precision", "recall"), "max"),
}


def kept_epochs(folder):
    """The files of single epochs that `RunCheckpoint` has kept, by epoch, the earliest first."""
    numbers = {path: path.stem.removeprefix("epoch-") for path in folder.glob("epoch-*.keras")}
    return dict(sorted((int(n), path) for path, n in numbers.items() if n.isdecimal()))


class RunCheckpoint(keras.callbacks.Callback):
    """Keeps a training run on disk so that it can be stopped at any moment and go on.

    After each epoch it writes `last.keras` (weights and optimiser), `best.keras` if the
    monitored value is the best so far, and `history.csv`, each to a temporary file first and then
    renamed: a run killed while writing keeps what it had. `last.keras` comes last, and all else
    of an epoch that it does not hold is written once more by a resumed run. With `keep`, also
    `epoch-01.keras` and so on, for `average_checkpoints`. With an optimiser that keeps a running
    mean of the weights (`use_ema`), all but `last.keras` hold the mean.

    Args:
        folder: Where the files go; must exist.
        monitor: Name of the value in the logs that tells the best epoch, such as "val_bleu".
        mode: "max" if the best is the largest value, "min" if it is the smallest, "auto" to tell by
            the name's last word: that of "val_loss" falls, that of "val_token_accuracy" grows.
        keep: How many of the last epochs keep a file of their own; older ones are deleted, and so
            are those of epochs that a resumed run is yet to repeat. 0 for none, and to leave alone
            what is there.
        epochs_done: How many epochs the model has behind it; rows of an older `history.csv`
            beyond them are dropped.
        patience: Epochs without a better one, those of an older `history.csv` too, after which
            training ends; 0 for never.

    Raises:
        ValueError: If `folder` does not exist, `keep` or `patience` is not an int of at least 0,
            `mode` is unknown, or "auto" and the name tells nothing; at the end of an epoch, if
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
            raise ValueError(
                f"Argument `folder` must be a folder that exists. Received: {str(folder)!r}"
            )
        self.monitor = monitor
        self.mode = _direction(monitor, mode)
        self.keep = keep
        self.patience = patience
        self.rows = [row for row in self._read_history() if int(row["epoch"]) <= epochs_done]

    @property
    def best(self):
        """The row of `history.csv` that `best.keras` is of, or `None`."""
        rows = [row for row in self.rows if not math.isnan(self._quality(row))]
        return max(reversed(rows), key=self._quality, default=None)  # the latest of equals

    @property
    def exhausted(self):
        """Whether `patience` has run out."""
        best, first = self.best, 0
        if best is not None:  # the earliest of equals
            first = 1 + [self._quality(row) for row in self.rows].index(self._quality(best))
        return 0 < self.patience <= len(self.rows) - first

    def _quality(self, row):
        """What the best epoch has the most of: the monitored value, or its negative."""
        # An older run may have monitored something else.
        value = row.get(self.monitor, "")
        value = math.nan if value == "" else float(value)
        return -value if self.mode == "min" else value

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in (logs or {}).items()}
        row = {"epoch": epoch + 1, "update": update_count(self.model), **values}
        if self.monitor not in row:
            raise ValueError(
                f"Argument `monitor` must name a value in the logs. Received: {self.monitor!r}; "
                f"the logs hold {sorted(row)}"
            )
        best = self.best
        self.rows.append(row)
        copies = [f"epoch-{epoch + 1:02d}.keras"] if self.keep else []
        if best is None or self._quality(row) >= self._quality(best):
            copies.append("best.keras")
        with single_process(), atomic_write(self.folder / "last.keras") as fresh:
            if copies:
                with ema_weights(self.model):
                    self.model.save(fresh)
                for name in copies:
                    self._copy(fresh, name)
            if not copies or uses_ema(self.model):
                self.model.save(fresh)
            # Before the model: a kill between leaves a row too many, which a resumed run drops.
            self._write_history()
        if self.keep:
            self._delete_all_but(range(epoch + 2 - self.keep, epoch + 2))
        self.model.stop_training |= self.exhausted

    def _copy(self, fresh, name):
        with atomic_write(self.folder / name) as copy:
            shutil.copyfile(fresh, copy)

    def _delete_all_but(self, epochs):
        for number, path in kept_epochs(self.folder).items():
            if number not in epochs:
                path.unlink()

    def _read_history(self):
        path = self.folder / "history.csv"
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
            raise ValueError(
                "Argument `folder` must be new, or of a run whose history.csv holds a row of "
                f"numbers for each epoch. Received: {str(path)!r}: {type(error).__name__} {error}"
            ) from error
        return rows

    def _write_history(self):
        path = self.folder / "history.csv"
        with (
            atomic_write(path) as writing,
            writing.open("w", newline="", encoding="utf-8") as file,
        ):
            names = dict.fromkeys(name for row in self.rows for name in row)
            writer = csv.DictWriter(file, fieldnames=names, restval="")
            writer.writeheader()
            writer.writerows(self.rows)


def _direction(monitor, mode):
    """Whether the best of a value of this name is its "max" or its "min"."""
    if mode not in ("auto", "max", "min"):
        raise ValueError(f'Argument `mode` must be "auto", "max" or "min". Received: {mode!r}')
    if mode != "auto":
        return mode
    word = monitor.lower().rsplit("_", 1)[-1]
    if word not in DIRECTIONS:
        raise ValueError(
            'Argument `mode` must be "max" or "min" where the name of `monitor` ends in none of '
            f"{sorted(DIRECTIONS)}. Received: monitor={monitor!r}"
        )
    return DIRECTIONS[word]


class ResumableEpochs(keras.callbacks.Callback):
    """Makes each epoch's data and random draws functions of its number, and of nothing before it.

    A run that goes on after epoch `n` then has the batches and the dropout masks that an unbroken
    one would have had. Keras saves neither, and tells a dataset of one epoch's end too many. The
    seeds of Python, NumPy and the backend are set, too, anew for each epoch.

    Args:
        dataset: A dataset with an `epoch` that can be set, such as `TranslationDataset`.
        seed: Non-negative int.
        rank: Which this is of several processes that train together; each has other draws.

    Example:

    ```python
    model.fit(data, epochs=20, shuffle=False, callbacks=[ResumableEpochs(data, seed=1)])
    # later, with the model of epoch 7
    again = ResumableEpochs(data, seed=1)
    model.fit(data, epochs=20, initial_epoch=7, shuffle=False, callbacks=[again])
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
        # On torch, Keras's dropout draws from torch's own generator.
        keras.utils.set_random_seed(int(rng.integers(2**32)))
        for variable in self.model.variables:
            # Only the states of seed generators are no weights, metrics or counters.
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=2))
