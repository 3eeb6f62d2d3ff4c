"""Resumable training of the four models, each in its own folder."""

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

# Model class and maximum length of training sentences, in words.
RUNS = {
    "RNNsearch-50": (RNNSearch, 50),
    "RNNsearch-30": (RNNSearch, 30),
    "RNNencdec-50": (RNNEncoderDecoder, 50),
    "RNNencdec-30": (RNNEncoderDecoder, 30),
}
LIMITS = sorted({limit for _, limit in RUNS.values()})


@dataclass(frozen=True)
class Settings:
    """All settings that determine the results, except the data.

    Attributes:
        units: Width of the recurrences, the embeddings and the alignment model.
        vocabulary_size: Number of ids per language.
        pairs: Number of joined training pairs, the same for 30 and 50 words, so that equal epochs
            are equal updates; a multiple of 15, since 30 words have 3 buckets and 50 have 5.
        validation_pairs: Number of joined validation pairs; also a multiple of 15.
        test_pairs: Maximum number of joined test pairs per length bucket.
        epochs: Number of epochs, with a checkpoint after each.
        batch_size: Pairs per update.
        learning_rate: Initial learning rate of Adam; a half cosine decays it to zero.
        dropout: As in `RNNSearch`.
        label_smoothing: As in `TokenCrossentropy`.
        beam: Beam size.
        seed: Seed of texts, weights, order and dropout.
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
    """Print one line per epoch, and add updates, wall time and processor time to the logs."""

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


def train_or_load(name, settings, tokenizer, training, validation, folder, callbacks=()):
    """Return the model of a run after its last update, trained as far as necessary.

    These are the last weights, not the best on validation text, so all models have equally many
    updates.

    Args:
        name: One of `RUNS`.
        settings: `Settings`.
        tokenizer: `Tokenizer`.
        training: Joined training pairs.
        validation: Joined validation pairs.
        folder: Folder of the run, with `last.keras`, `best.keras` and `history.csv`.
        callbacks: Additional callbacks for `fit`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "last.keras"
    # Keras does not save dropout seeds. A resumed run needs another seed to get other masks.
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
        # JAX compiles a step per shape. The other backends do not, so they need no extra padding.
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
        # The GRU form of fast kernels, and Keras's initializers, which suit Adam.
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
        # On CPUs TensorFlow's own kernels are faster than XLA.
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return model


def training_figures(folder):
    """Return updates, seconds and final losses of a run, from its `history.csv`."""
    with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        "updates": int(float(rows[-1]["updates"])),
        "seconds": sum(float(row["seconds"]) for row in rows),
        "cpu_seconds": sum(float(row["cpu_seconds"]) for row in rows),
        "loss": float(rows[-1]["loss"]),
        "val_loss": float(rows[-1]["val_loss"]),
    }
