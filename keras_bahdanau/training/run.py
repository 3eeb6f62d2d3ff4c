"""A training run: two text files in, a folder with a model out, resumable at any moment.

run/
  options.json     what the run was started with
  texts.json       hashes of the text files it was started with
  last.keras       model, tokenizer and optimiser after the last whole epoch
  best.keras       the same after the epoch with the best validation BLEU
  history.csv      one row an epoch
  average.keras    the mean of the last epochs, with `average`
"""

import contextlib
import hashlib
import json
import logging
import shutil
from pathlib import Path

import keras

from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.dataset import TranslationDataset
from keras_bahdanau.search import BeamSearch
from keras_bahdanau.training.averaging import average_checkpoints
from keras_bahdanau.training.callbacks import RunCheckpoint, TranslationScore
from keras_bahdanau.training.losses import TokenCrossentropy
from keras_bahdanau.training.options import MODELS, TrainingOptions, read_options
from keras_bahdanau.training.progress import ProgressDisplay
from keras_bahdanau_runtime.files import locked, written
from keras_bahdanau_runtime.text.corpus import read_parallel
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

logger = logging.getLogger("keras_bahdanau")

OPTIONS_FILE, TEXTS_FILE = "options.json", "texts.json"
LAST_FILE, BEST_FILE, AVERAGE_FILE = "last.keras", "best.keras", "average.keras"


def train(options, output, resume=False, callbacks=(), verbose=True, console=None):
    """Trains a model, or goes on with an interrupted run.

    Args:
        options: `TrainingOptions`.
        output: The run's folder. It must not exist, unless `resume`; its parents are made.
        resume: Whether to go on from `last.keras` of an earlier run with the same options.
        callbacks: More callbacks for `fit`. The logs they read at the end of an epoch hold
            `val_bleu` and `val_chrf`.
        verbose: Whether progress is shown, by a `ProgressDisplay`.
        console: The `rich.console.Console` that shows it; one on standard error if `None`.

    Returns:
        The path of `best.keras`.

    Raises:
        ValueError: If the folder exists without `resume`, another process trains in it, the options
            or texts differ from the run's, or a text file is not as `read_parallel` wants it.
            Nothing is made then.

    Example:

    ```python
    options = TrainingOptions("train.en", "train.de", "dev.en", "dev.de", epochs=10)
    best = train(options, "run")
    model = keras.saving.load_model(best, compile=False)
    model.translate(["a man on a bike"])[0].text
    ```
    """
    output = Path(output)
    _check_folder(options, output, resume)
    sources, targets = read_parallel(options.source, options.target)
    references = read_parallel(options.validation_source, options.validation_target)
    with _claimed(output):
        model, dataset = _begin(options, output, sources, targets)
        search = BeamSearch(options.validation_beam, 1.0 if options.validation_beam > 1 else 0.0)
        display = [ProgressDisplay(dataset.tokens / len(dataset), console)] if verbose else []
        model.fit(
            dataset,
            epochs=options.epochs,
            initial_epoch=dataset.epoch,
            shuffle=False,
            verbose=0,
            callbacks=[
                TranslationScore(*references, search=search, max_length=options.max_length),
                *callbacks,
                RunCheckpoint(output, keep=options.average, epochs_done=dataset.epoch),
                *display,
            ],
        )
        if options.average:
            _try_average(output, references, search, options.max_length)
    return output / BEST_FILE


def _try_average(output, references, search, max_length):
    """Makes the mean of the last epochs the best model, where it translates better than that."""
    average = output / AVERAGE_FILE
    average_checkpoints(sorted(output.glob("epoch-*.keras")), average)
    held_out = TranslationScore(*references, search=search, max_length=max_length)
    mean, best = (
        held_out.score(_load(path, compile=False))["bleu"] for path in (average, output / BEST_FILE)
    )
    better = mean > best
    if better:
        with written(output / BEST_FILE) as copy:
            shutil.copyfile(average, copy)
    logger.info(
        "The mean of the last epochs has %.2f BLEU, the best epoch %.2f: %s stays.",
        mean,
        best,
        "the mean" if better else "the epoch",
    )


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
        dropout=[
            options.dropout if share is None else share
            for share in (None, options.annotation_dropout, options.readout_dropout)
        ],
        tie_embeddings=options.tie_embeddings,
        encoder_layers=options.encoder_layers,
        conditional=options.conditional,
        layer_normalization=options.layer_normalization,
        tokenizer=tokenizer,
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
        optimizer=keras.optimizers.Adam(
            schedule,
            global_clipnorm=options.clip_norm,
            use_ema=options.ema > 0,
            ema_momentum=options.ema or None,
        ),
        loss=TokenCrossentropy(label_smoothing=options.label_smoothing),
        # Measured on two cores: TensorFlow's own kernels run a step in about 0.6 of XLA's time.
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return model


def load_best(run):
    """The best model of a run, with its tokenizer and without its optimiser.

    Args:
        run: A run's folder, as `train` leaves it.

    Raises:
        ValueError: If the folder holds no best model yet, or one without a tokenizer.
    """
    path = Path(run) / BEST_FILE
    if not path.exists():
        raise ValueError(
            f"Argument `run` must be the folder of a training run. Received: {str(run)!r}, which "
            f"has no {BEST_FILE}"
        )
    return _load(path, compile=False)


def _load(path, compile):
    model = keras.saving.load_model(path, compile=compile)
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "Argument `run` must be the folder of a run of this version of keras_bahdanau. "
            f"Received: {str(path.parent)!r}, whose {path.name} holds no tokenizer: set "
            "`model.tokenizer` and save it again, or train anew"
        )
    return model


def _begin(options, output, sources, targets):
    """The model and data of a run that begins, or goes on from its last checkpoint."""
    resuming = (output / LAST_FILE).exists()
    # Keras saves no dropout state: a resumed run draws other masks than it has had.
    keras.utils.set_random_seed(options.seed + resuming)
    if resuming:
        model = _load(output / LAST_FILE, compile=True)
        tokenizer = model.tokenizer
    else:
        tokenizer = Tokenizer.train(sources, targets, options.vocabulary_size, options.joint)
    dataset = TranslationDataset(
        [tokenizer.encode_source(text) for text in sources],
        [tokenizer.encode_target(text) for text in targets],
        batch_size=options.batch_size,
        # JAX compiles a step for every shape; the others run any shape, so padding only costs.
        bucket=8 if keras.config.backend() == "jax" else 1,
        max_length=options.max_length,
        seed=options.seed,
        resample=BPEDropout(tokenizer, sources, targets, options.bpe_dropout, options.seed)
        if options.bpe_dropout
        else None,
    )
    if resuming:
        dataset.epoch = int(model.optimizer.iterations) // len(dataset)
        logger.info("Going on after epoch %d of %d.", dataset.epoch, options.epochs)
    else:
        model = build(options, tokenizer, len(dataset))
        _write_json(output / TEXTS_FILE, _hashes(options))
        _write_json(output / OPTIONS_FILE, options.to_dict())
    logger.info(
        "%d pairs, %d target tokens and %d batches an epoch in %d shapes; %s weights on %s.",
        len(sources), dataset.tokens, len(dataset), len(dataset.shapes),
        f"{model.count_params():,}", keras.config.backend(),
    )  # fmt: skip
    return model, dataset


def _check_folder(options, output, resume):
    """Refuses a folder that is taken, or whose run had other options."""
    if not resume:
        if output.exists():
            raise ValueError(
                "Argument `output` must be a new folder; `resume` goes on with the run in an old "
                f"one. Received: {str(output)!r}, which exists"
            )
        return
    path = output / OPTIONS_FILE
    if not path.exists():
        return  # interrupted before it began
    try:
        before = TrainingOptions.from_file(path).to_dict()
    except ValueError as error:
        raise ValueError(
            "Argument `output` must be the folder of a run of this version of keras_bahdanau. "
            f"Received: {str(output)!r}, whose {OPTIONS_FILE} says otherwise: {error}"
        ) from error
    changed = [
        f"`{name}` was {before[name]!r}, is {value!r}"
        for name, value in options.to_dict().items()
        if before[name] != value
    ]
    if changed:
        raise ValueError(
            f"Argument `options` must be those of the run in {output}. "
            f"Received: {', '.join(changed)}"
        )
    _check_texts(options, output / TEXTS_FILE)


def _check_texts(options, path):
    """Refuses texts that are no longer those that the run was started with."""
    if not path.exists():
        logger.warning("%s is missing: the texts may be others than the run's.", path)
        return
    before = read_options(path)
    changed = [
        f"`{name}` {getattr(options, name)}"
        for name, value in _hashes(options).items()
        if before.get(name) != value
    ]
    if changed:
        raise ValueError(
            "Argument `options` must name the texts that the run was started with. "
            f"Received: {', '.join(changed)}, changed since then"
        )


def _hashes(options):
    """The SHA-256 of each text file, by the name of its option."""
    found = {}
    for name in ("source", "target", "validation_source", "validation_target"):
        with open(getattr(options, name), "rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


@contextlib.contextmanager
def _claimed(output):
    """Makes the run's folder and keeps other processes out; takes it away again if it stays empty.

    Files that a killed process was writing are removed.
    """
    output.mkdir(parents=True, exist_ok=True)
    with locked(output) as ours:
        if not ours:
            raise ValueError(
                "Argument `output` must be a folder that no other process trains in. "
                f"Received: {str(output)!r}"
            )
        for path in output.glob(".*.writing.*"):
            path.unlink()
        try:
            yield
        finally:
            if not any(output.iterdir()):
                output.rmdir()


def _write_json(path, values):
    with written(path) as writing:
        writing.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
