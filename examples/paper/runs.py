"""The four models, each trained in a folder of its own, as often started again as need be."""

import csv
import time
from dataclasses import dataclass

import keras

from keras_bahdanau import (
    RNNEncoderDecoder,
    RNNSearch,
    RunCheckpoint,
    TokenCrossentropy,
    TranslationDataset,
)

# Class and longest training sentence, in words.
RUNS = {
    "RNNsearch-50": (RNNSearch, 50),
    "RNNsearch-30": (RNNSearch, 30),
    "RNNencdec-50": (RNNEncoderDecoder, 50),
    "RNNencdec-30": (RNNEncoderDecoder, 30),
}
LIMITS = sorted({limit for _, limit in RUNS.values()})


@dataclass(frozen=True)
class Settings:
    """Everything that decides the figures, but for the data.

    Attributes:
        units: Width of the recurrences, the embeddings and the alignment model.
        vocabulary_size: Ids of each language.
        pairs: Joined pairs of each training text, as many for 30 as for 50 words, so that equal
            epochs are equal updates; a multiple of 15, as 30 words are 3 buckets and 50 are 5.
        validation_pairs: Joined pairs of each validation text, likewise.
        test_pairs: Most joined test pairs in a bucket of lengths.
        epochs: Passes over the training text, after each of which there is a checkpoint.
        batch_size: Pairs of an update.
        learning_rate: Adam's first rate, which falls to zero by a half cosine.
        dropout: As in `RNNSearch`.
        label_smoothing: As in `TokenCrossentropy`.
        beam: Width of the search.
        seed: Randomness of texts, weights, order and dropout.
    """

    units: int = 256
    vocabulary_size: int = 6000
    pairs: int = 30000
    validation_pairs: int = 600
    test_pairs: int = 300
    epochs: int = 6
    batch_size: int = 64
    learning_rate: float = 1e-3
    dropout: float = 0.2
    label_smoothing: float = 0.1
    beam: int = 5
    seed: int = 1


QUICK = Settings(
    units=64,
    vocabulary_size=2000,
    pairs=6000,
    validation_pairs=150,
    test_pairs=40,
    epochs=4,
    learning_rate=3e-3,
    beam=2,
)


class Progress(keras.callbacks.Callback):
    """Prints a line an epoch; adds updates and times, of wall and processor, to the logs."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.times = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.began[0]
        self.times.append(seconds)
        logs["updates"] = int(self.model.optimizer.iterations)
        logs["seconds"] = seconds
        logs["cpu_seconds"] = time.process_time() - self.began[1]
        epochs = self.params["epochs"]
        left = (epochs - epoch - 1) * sum(self.times) / len(self.times)
        print(
            f"{self.name}  epoch {epoch + 1}/{epochs}  {logs['updates']} updates  "
            f"loss {logs['loss']:.3f}  val_loss {logs['val_loss']:.3f}  "
            f"{seconds:.0f} s, {left / 60:.0f} min left of this model",
            flush=True,
        )


def trained(name, settings, tokenizer, training, validation, folder, callbacks=()):
    """The model of a run after its last update: trained now, or what is left of it, or read.

    The last weights count, not the best on validation text: all models have had as many updates.

    Args:
        name: One of `RUNS`.
        settings: `Settings`.
        tokenizer: `Tokenizer`.
        training: Joined training pairs.
        validation: Joined validation pairs.
        folder: The run's own folder, with `last.keras`, `best.keras` and `history.csv`.
        callbacks: More callbacks for `fit`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "last.keras"
    # Keras saves no dropout state: a resumed run draws other masks than it has had.
    keras.utils.set_random_seed(settings.seed + last.exists())
    data = _dataset(tokenizer, training, settings)
    if last.exists():
        model = keras.saving.load_model(last)
    else:
        model = _compiled(name, settings, tokenizer, len(data))
    done = int(model.optimizer.iterations) // len(data)
    if done < settings.epochs:
        data.epoch = done
        model.fit(
            data,
            validation_data=_dataset(tokenizer, validation, settings, shuffle=False),
            epochs=settings.epochs,
            initial_epoch=done,
            shuffle=False,
            verbose=0,
            callbacks=[
                Progress(name),
                *callbacks,
                RunCheckpoint(folder, monitor="val_loss", epochs_done=done),
            ],
        )
    return model


def _dataset(tokenizer, pairs, settings, shuffle=True):
    return TranslationDataset(
        [tokenizer.encode_source(pair.source) for pair in pairs],
        [tokenizer.encode_target(pair.target) for pair in pairs],
        batch_size=settings.batch_size,
        # JAX compiles a step for every shape; the others run any shape, so padding only costs.
        bucket=8 if keras.config.backend() == "jax" else 1,
        max_length=None,
        shuffle=shuffle,
        seed=settings.seed,
    )


def _compiled(name, settings, tokenizer, updates_per_epoch):
    kind, _ = RUNS[name]
    model = kind(
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        units=settings.units,
        embedding_dim=settings.units,
        attention_units=settings.units,
        maxout_units=settings.units,
        # The form that fast kernels want, and Keras's initialisers, made for Adam.
        reset_after=True,
        initializer=None,
        dropout=settings.dropout,
        tie_embeddings=True,
        tokenizer=tokenizer,
    )
    schedule = keras.optimizers.schedules.CosineDecay(
        settings.learning_rate, settings.epochs * updates_per_epoch
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        loss=TokenCrossentropy(label_smoothing=settings.label_smoothing),
        # On processors TensorFlow's own kernels are faster than XLA.
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return model


def training_figures(folder):
    """Updates, seconds and last losses of a run, from its `history.csv`."""
    with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        "updates": int(float(rows[-1]["updates"])),
        "seconds": sum(float(row["seconds"]) for row in rows),
        "cpu_seconds": sum(float(row["cpu_seconds"]) for row in rows),
        "loss": float(rows[-1]["loss"]),
        "val_loss": float(rows[-1]["val_loss"]),
    }
