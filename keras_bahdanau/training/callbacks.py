"""Callbacks for `model.fit`: translation quality at the end of each epoch, and checkpoints."""

import csv
import math
import shutil
from pathlib import Path

import keras
import numpy as np

from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.search import GreedySearch
from keras_bahdanau.search.base import check_kind
from keras_bahdanau.training.averaging import keeps_mean, running_mean
from keras_bahdanau.training.devices import by_itself, updates_done
from keras_bahdanau_runtime.checks import check_positive, check_range, checked_texts
from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.text.scores import bleu_metric, corpus_scores


class TranslationScore(keras.callbacks.Callback):
    """Translates held-out sentences after each epoch: `val_bleu` and `val_chrf` in the logs.

    Put it before callbacks that read the logs, such as `EarlyStopping(monitor="val_bleu",
    mode="max")`. With an optimiser that keeps a running mean of the weights (`use_ema`), the mean
    translates.

    Args:
        sources: List of `str`.
        references: List of `str`, one for each source.
        tokenizer: A `Tokenizer` to attach to the model; `None` if it has one.
        search: A `BeamSearch` or `GreedySearch`; `GreedySearch()` if `None`.
        max_length: Number of tokens after which a hypothesis is cut.
        batch_size: Sentences searched at once.
        prefix: What the names in the logs begin with.
        tokenize: How BLEU splits words; see `corpus_scores`.

    Raises:
        ValueError: If there is no source, or not one reference for each, one of them is no `str`,
            another argument is of the wrong kind; when training begins, if there is no tokenizer.
        MissingDependencyError: If sacrebleu is not installed.
    """

    def __init__(
        self,
        sources,
        references,
        tokenizer=None,
        search=None,
        max_length=100,
        batch_size=64,
        prefix="val_",
        tokenize="13a",
    ):
        super().__init__()
        bleu_metric(tokenize)  # refuses it before an epoch is trained
        self.sources = checked_texts("sources", sources)
        self.references = checked_texts("references", references)
        if len(self.references) != len(self.sources):
            raise ValueError(
                f"Argument `references` must hold one for each of {len(self.sources)} sources. "
                f"Received: {len(self.references)}"
            )
        if not self.sources:
            raise ValueError("Argument `sources` must hold a sentence. Received: none")
        check_positive(batch_size=batch_size)
        if not callable(max_length):
            check_positive(max_length=max_length)
        self.tokenizer = tokenizer
        self.search = GreedySearch() if search is None else search
        check_kind(self.search)
        self.max_length = max_length
        self.batch_size = batch_size
        self.prefix = prefix
        self.tokenize = tokenize

    def set_model(self, model):
        super().set_model(model)
        if self.tokenizer is not None:
            model.tokenizer = self.tokenizer

    def on_train_begin(self, logs=None):
        check_tokenizer(self.model)

    def on_epoch_end(self, epoch, logs=None):
        scores = self.score(self.model)
        if logs is not None:
            logs.update({f"{self.prefix}{name}": score for name, score in scores.items()})

    def score(self, model):
        """The scores of a model on the held-out sentences, `{"bleu": float, "chrf": float}`."""
        with running_mean(model):
            translations = model.translate(
                self.sources,
                search=self.search,
                max_length=self.max_length,
                batch_size=self.batch_size,
                alignments=False,
            )
        texts = [found.text for found in translations]
        return corpus_scores(texts, self.references, self.tokenize)


class HeldOutLoss(keras.callbacks.Callback):
    """Evaluates held-out pairs after each epoch: `val_loss` and other metrics in the logs.

    It differs from `fit(validation_data=...)` where the optimiser keeps a running mean of the
    weights (`use_ema`): the mean is evaluated, as it is what `RunCheckpoint` keeps. And the loss is
    the mean over tokens, however they are cut into batches; Keras's is that over rows.

    Args:
        dataset: A `TranslationDataset` or `PreparedDataset`.

    Raises:
        ValueError: If `dataset` is no `keras.utils.PyDataset`; when training begins, if the model
            is compiled with `steps_per_execution`, of whose batches Keras tells only the mean.
    """

    def __init__(self, dataset):
        super().__init__()
        if not isinstance(dataset, keras.utils.PyDataset):
            raise ValueError(
                f"Argument `dataset` must be a TranslationDataset. Received: {dataset!r:.80}"
            )
        self.dataset = dataset

    def on_train_begin(self, logs=None):
        _check_batch_by_batch(self.model)

    def on_epoch_end(self, epoch, logs=None):
        values = self.score(self.model)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in values.items()})

    def score(self, model):
        """The loss and metrics of a compiled model on the held-out pairs, a `dict` of floats."""
        _check_batch_by_batch(model)
        losses = _BatchLosses(self.dataset)
        with running_mean(model):
            if keras.config.backend() == "jax" and keeps_mean(model):
                # The arrays are the optimiser's own, and an evaluation deletes those it is given.
                for weight in model.trainable_variables:
                    weight.assign(keras.ops.copy(weight))
            values = model.evaluate(self.dataset, verbose=0, return_dict=True, callbacks=[losses])
        return {**values, "loss": losses.mean()}


def _check_batch_by_batch(model):
    steps = getattr(model, "steps_per_execution", 1)
    if steps != 1:
        raise ValueError(
            "Argument `steps_per_execution` of `compile` must be 1 with a HeldOutLoss, which needs "
            f"the loss of each batch. Received: {steps}"
        )


class _BatchLosses(keras.callbacks.Callback):
    """Gathers the loss of each batch of an evaluation, for the mean over tokens."""

    def __init__(self, dataset):
        super().__init__()
        self._dataset = dataset
        self._rows = self._tokens = 0
        self._of_rows = self._of_tokens = 0.0

    def on_test_batch_end(self, batch, logs=None):
        _, labels = self._dataset[batch]
        # Keras tells the mean of the rows so far.
        of_rows = logs["loss"] * (self._rows + len(labels))
        loss = (of_rows - self._of_rows) / len(labels)
        tokens = np.count_nonzero(labels)
        self._rows, self._tokens = self._rows + len(labels), self._tokens + tokens
        self._of_rows, self._of_tokens = of_rows, self._of_tokens + loss * tokens

    def mean(self):
        return self._of_tokens / max(self._tokens, 1)


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
        row = {"epoch": epoch + 1, "update": updates_done(self.model), **values}
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
        with by_itself(), written(self.folder / "last.keras") as fresh:
            if copies:
                with running_mean(self.model):
                    self.model.save(fresh)
                for name in copies:
                    self._copy(fresh, name)
            if not copies or keeps_mean(self.model):
                self.model.save(fresh)
            # Before the model: a kill between leaves a row too many, which a resumed run drops.
            self._write_history()
        if self.keep:
            self._delete_all_but(range(epoch + 2 - self.keep, epoch + 2))
        self.model.stop_training |= self.exhausted

    def _copy(self, fresh, name):
        with written(self.folder / name) as copy:
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
            written(path) as writing,
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
