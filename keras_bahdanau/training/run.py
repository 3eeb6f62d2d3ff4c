"""A training run: two text files in, a folder with a model out, resumable at any moment.

run/
  options.json     what the run was started with
  tokenizer.json
  last.keras       model and optimiser after the last whole epoch
  best.keras       the model with the best validation BLEU
  history.csv      one row an epoch
"""

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from keras_bahdanau import RNNEncoderDecoder, RNNSearch, TokenCrossentropy, Tokenizer
from keras_bahdanau.data.dataset import TranslationDataset
from keras_bahdanau.search import BeamSearch
from keras_bahdanau.training.callbacks import RunCheckpoint, TranslationScore
from keras_bahdanau_runtime.text.corpus import read_parallel

logger = logging.getLogger("keras_bahdanau_export")

MODELS = {"rnnsearch": RNNSearch, "rnnencdec": RNNEncoderDecoder}
OPTIONS_FILE, TOKENIZER_FILE = "options.json", "tokenizer.json"
LAST_FILE, BEST_FILE = "last.keras", "best.keras"


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that decides a run. Paths are of UTF-8 text, one sentence a line, or .gz.

    Lengths are in tokens, `dropout` and `label_smoothing` are shares in [0, 1). The learning rate
    rises for `warmup` epochs to `learning_rate` and falls to zero by a half cosine over the rest.
    """

    source: str
    target: str
    validation_source: str
    validation_target: str
    model: str = "rnnsearch"
    vocabulary_size: int = 5000
    joint: bool = True
    units: int = 256
    embedding_dim: int = 256
    attention_units: int = 256
    tie_embeddings: bool = True
    dropout: float = 0.3
    label_smoothing: float = 0.1
    batch_size: int = 64
    epochs: int = 20
    learning_rate: float = 1e-3
    warmup: float = 0.5
    clip_norm: float = 1.0
    max_length: int = 100
    validation_beam: int = 1
    seed: int = 0

    def __post_init__(self):
        if self.model not in MODELS:
            raise ValueError(f"model: expected one of {sorted(MODELS)}. Received: {self.model!r}")
        for name in ("units", "embedding_dim", "attention_units", "batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1. Received: {getattr(self, name)}")
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name}: expected 0 <= {name} < 1. Received: {getattr(self, name)}"
                )
        for name in ("learning_rate", "clip_norm"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: expected more than 0. Received: {getattr(self, name)}")


def train(options, output, resume=False, console=None):
    """Trains a model, or goes on with an interrupted run.

    Args:
        options: `TrainingOptions`.
        output: The run's folder. It must not exist, unless `resume`.
        resume: Whether to go on from `last.keras` of an earlier run with the same options.
        console: A rich console for the progress display, or `None` for one of its own.

    Returns:
        The path of `best.keras`.

    Raises:
        ValueError: If the folder exists without `resume`, or the options differ from the run's.
    """
    output = Path(output)
    _check_folder(options, output, resume)
    # Keras saves no dropout state: a resumed run draws other masks than it has had.
    keras.utils.set_random_seed(options.seed + resume)
    sources, targets = read_parallel(options.source, options.target)
    references = read_parallel(options.validation_source, options.validation_target)
    resuming = _start_folder(options, output, resume)
    if (output / TOKENIZER_FILE).exists():
        tokenizer = Tokenizer.load(output / TOKENIZER_FILE)
    else:
        tokenizer = Tokenizer.train(sources, targets, options.vocabulary_size, options.joint)
        tokenizer.save(output / TOKENIZER_FILE)
    dataset = TranslationDataset(
        [tokenizer.encode_source(text) for text in sources],
        [tokenizer.encode_target(text) for text in targets],
        batch_size=options.batch_size,
        # JAX compiles a step for every shape; the others run any shape, so padding only costs.
        bucket=8 if keras.config.backend() == "jax" else 1,
        max_length=options.max_length,
        seed=options.seed,
    )
    if resuming:
        model = keras.saving.load_model(output / LAST_FILE)
        done = int(model.optimizer.iterations) // len(dataset)
        logger.info("Going on after epoch %d of %d.", done, options.epochs)
    else:
        model, done = build(options, tokenizer, len(dataset)), 0
    dataset.epoch = done
    checkpoint = RunCheckpoint(output, epochs_done=done)
    callbacks = [
        TranslationScore(
            *references,
            tokenizer,
            search=BeamSearch(options.validation_beam, 1.0 if options.validation_beam > 1 else 0.0),
            max_length=options.max_length,
        ),
        checkpoint,
        ProgressDisplay(dataset, options.epochs, console),
    ]
    logger.info(
        "%d pairs, %d target tokens and %d batches an epoch in %d shapes; %s weights on %s.",
        len(sources), dataset.tokens, len(dataset), len(dataset.shapes),
        f"{model.count_params():,}", keras.config.backend(),
    )  # fmt: skip
    model.fit(
        dataset,
        epochs=options.epochs,
        initial_epoch=done,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return output / BEST_FILE


def build(options, tokenizer, steps_per_epoch):
    """The compiled model of a run; `steps_per_epoch` sets the length of the schedule."""
    model = MODELS[options.model](
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        units=options.units,
        embedding_dim=options.embedding_dim,
        attention_units=options.attention_units,
        maxout_units=options.embedding_dim,
        reset_after=True,
        readout_state="current",
        initializer=None,
        dropout=options.dropout,
        tie_embeddings=options.tie_embeddings,
    )
    model.build()
    warmup = max(1, int(options.warmup * steps_per_epoch))
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=options.learning_rate / warmup,
        warmup_target=options.learning_rate,
        warmup_steps=warmup,
        decay_steps=max(1, options.epochs * steps_per_epoch - warmup),
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, global_clipnorm=options.clip_norm),
        loss=TokenCrossentropy(label_smoothing=options.label_smoothing),
        # Measured on two cores: TensorFlow's own kernels run a step in about 0.6 of XLA's time.
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return model


def _check_folder(options, output, resume):
    """Refuses a folder that is taken, or whose run had other options."""
    if output.exists() and not resume:
        raise ValueError(
            f"output: {str(output)!r} exists. Choose another folder, or pass --resume to go on "
            "with the run in it."
        )
    path = output / OPTIONS_FILE
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else asdict(options)
    changed = [
        f"{name} was {before.get(name)!r}, is {value!r}"
        for name, value in asdict(options).items()
        if before.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"resume: expected the options of the run in {output}. {', '.join(changed)}"
        )


def _start_folder(options, output, resume):
    """Makes the run's folder; returns whether it holds a checkpoint to go on from."""
    output.mkdir(parents=True, exist_ok=True)
    writing = output / "writing.json"
    writing.write_text(json.dumps(asdict(options), indent=2) + "\n", encoding="utf-8")
    os.replace(writing, output / OPTIONS_FILE)
    found = (output / LAST_FILE).exists()
    if resume and not found:
        logger.info("%s holds no checkpoint yet: starting from the beginning.", output)
    return found


class ProgressDisplay(keras.callbacks.Callback):
    """Shows epoch, loss, tokens per second and the time left on a rich console."""

    def __init__(self, dataset, epochs, console=None):
        super().__init__()
        self.tokens_per_step = dataset.tokens / len(dataset)
        self.steps = len(dataset)
        self.epochs = epochs
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            # Where nobody watches, the line printed after each epoch is enough.
            disable=console is not None and not console.is_terminal,
        )

    def on_train_begin(self, logs=None):
        self.progress.start()

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()
        self.task = self.progress.add_task(
            f"epoch {epoch + 1}/{self.epochs}", total=self.steps, loss=float("nan"), rate=0.0
        )

    def on_train_batch_end(self, batch, logs=None):
        rate = self.tokens_per_step * (batch + 1) / (time.perf_counter() - self.began)
        loss = float(logs["loss"])
        self.progress.update(self.task, completed=batch + 1, loss=loss, rate=rate)

    def on_epoch_end(self, epoch, logs=None):
        self.progress.remove_task(self.task)
        seconds = time.perf_counter() - self.began
        self.progress.console.print(
            f"epoch {epoch + 1}/{self.epochs}  loss {logs['loss']:.3f}  "
            f"BLEU {logs['val_bleu']:.2f}  chrF {logs['val_chrf']:.2f}  {seconds:.0f} s"
        )

    def on_train_end(self, logs=None):
        self.progress.stop()
