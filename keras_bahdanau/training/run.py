"""A training run: text or a prepared corpus in, a folder with a model out, resumable at any time.

run/
  options.json     the options of the run, with the dtype policy of its training steps
  texts.json       hashes of the text files, and the folder from which their relative paths start
  corpus/          the texts as written by `prepare`, unless a prepared corpus is given
  mixed/           links to the files of the corpora of `mix`
  last.keras       model, tokenizer and optimizer at the last checkpoint
  best.keras       the checkpoint with the best result on held-out text
  history.csv      one row per checkpoint
  epoch-01.keras   each of the last checkpoints, with `keep` or `average`
  average.keras    the mean of the last checkpoints, with `average`
  calibration.json confidence of the best model, written by `export`

For Keras, an epoch is the time between two checkpoints: `every` updates, or a pass over the text.
"""

import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
from rich.console import Console

from keras_bahdanau.callbacks.checkpoint import ResumableEpochs, RunCheckpoint, epoch_checkpoints
from keras_bahdanau.callbacks.evaluation import HeldOutLoss, TranslationScore
from keras_bahdanau.callbacks.progress import ProgressDisplay
from keras_bahdanau.callbacks.tensorboard import TensorBoardScalars
from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.data.prepared_dataset import PreparedDataset
from keras_bahdanau.data.translation_dataset import TranslationDataset
from keras_bahdanau.distribution import (
    average_gradients,
    broadcast_from_rank0,
    data_parallel,
    is_spmd,
    rank_and_world_size,
    single_process,
)
from keras_bahdanau.layers.dtype_policies import MIXED_POLICIES, check_policy, replace_policies
from keras_bahdanau.losses.crossentropy import TokenCrossentropy
from keras_bahdanau.model_defaults import ARCHITECTURE
from keras_bahdanau.models.ensemble import Ensemble
from keras_bahdanau.models.rnn_search import RNNEncoderDecoder, RNNSearch
from keras_bahdanau.models.saved_models import load_saved_model
from keras_bahdanau.optimizers import Adam, WarmupSchedule, update_count
from keras_bahdanau.run_folder import (
    AVERAGE_FILE,
    BEST_FILE,
    CORPUS_FOLDER,
    LAST_FILE,
    OPTIONS_FILE,
    best_file,
    member_runs,
)
from keras_bahdanau.search.beam import BeamSearch
from keras_bahdanau.training.averaging import average_checkpoints
from keras_bahdanau.training.calibration import load_calibration
from keras_bahdanau.training.fine_tuning import initial_model
from keras_bahdanau.training.options import MODELS, TrainingOptions
from keras_bahdanau.training.own_attention import (
    attention_class,
    check_own_attention,
    own_attention,
)
from keras_bahdanau.training.precision import resolve_dtype_policy
from keras_bahdanau.training.rules import SHORT_KINDS
from keras_bahdanau.training.seeds import prepare_seeds
from keras_bahdanau.training.start import (
    RunTexts,
    mixed_corpora,
    prepare_texts,
    record_texts,
    start_run,
)
from keras_bahdanau.training.time_budget import MEASURED_BATCHES, fit_options, measure
from keras_bahdanau.training.word_vectors import set_word_vectors
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write, write_json
from keras_bahdanau_runtime.text.columns import first_column
from keras_bahdanau_runtime.text.scores import MEASURES
from keras_bahdanau_runtime.text.unknown import unknown_share, warn_about_unknown, warn_about_unseen

logger = logging.getLogger("keras_bahdanau")

_MODELS = dict(zip(MODELS, (RNNSearch, RNNEncoderDecoder), strict=True))
_LONGEST_WARMUP = 4000  # updates, if `warmup` is not set
_MAX_UNKNOWN = 0.05  # share of unknown pieces in split text; see `_check_held_out`
_SMALL_WIDTH = 8  # of a layer whose width is chosen later
_CHECKED_PAIRS = 1000  # of the training text
_MIN_SHAPES, _MAX_SHAPES, _STEPS_PER_SHAPE = 8, 96, 300  # see `_compiled_shapes`


def train(options, output, resume=False, callbacks=(), verbose=True, console=None):
    """Train a model, or resume an interrupted run.

    A resumed run ends with the same weights as an uninterrupted one, bit for bit on TensorFlow and
    JAX.

    Args:
        options: `TrainingOptions`. Those that are open are chosen from the pairs, and logged.
        output: Folder of the run; its parents are created. Without `resume` it must not exist, or
            contain only `corpus`, `distilled` and `mixed`. With several hosts, all of them need
            access to it and to the texts.
        resume: Whether to resume from `last.keras` of a run with the same options. The model of
            `options.init` is then not needed.
        callbacks: Additional callbacks for `fit`, several or a single one. With several processes
            they run in the first. A callback that stops training stops it at the next checkpoint.
            At the end of an epoch the logs contain `val_bleu` and the other measures of
            `TranslationScore`, `val2_bleu` and so on for further held-out sets, and `val_loss` if
            `options.best_by` is "loss".
        verbose: Whether to show progress with a `ProgressDisplay`.
        console: A `rich.console.Console` for the progress; one on standard error if `None`.

    Returns:
        The path of `best.keras`.

    Raises:
        ValueError: If `callbacks` has the wrong type, the folder exists without `resume`, another
            process trains in it, the options or texts differ from those of the run, sacreBLEU does
            not have the tokenizer `tokenize`, `read_parallel` refuses a text file, `options.init`
            is not a `Seq2Seq` with a tokenizer, options contradict its architecture, a corpus of
            `options.mix` has another tokenizer, or `options.attention` is not an `Attention` that
            passes `check_attention`.
        MissingDependencyError: If sacrebleu is not installed.

    Example:

    ```python
    options = TrainingOptions(
        "train.en", "train.de", validation_source="dev.en", validation_target="dev.de", epochs=10
    )
    best = train(options, "run")
    model = keras.saving.load_model(best, compile=False)
    model.translate(["a man on a bike"])[0].text
    ```
    """
    if not isinstance(options, TrainingOptions):
        raise argument_error("options", "be TrainingOptions", options)
    output, callbacks = Path(output), _checked_callbacks(callbacks)
    with start_run(options, output, resume, rank=rank_and_world_size()[0]) as texts:
        return run_training(texts, callbacks, verbose, console)


def train_seeds(options, output, seeds, resume=False, callbacks=(), verbose=True, console=None):
    """Train several models that differ only in their seed, one after the other.

    They share one corpus. Their predictions can be averaged: `load_best(output)` returns their
    `Ensemble`, and the commands `evaluate` and `export` take the folder.

    Args:
        options: `TrainingOptions`. The models have the seeds `options.seed`, `options.seed + 1` and
            so on.
        output: Folder of the runs; each one is in a folder such as `seed-0` inside.
        seeds: Number of models.
        resume: Whether to continue: finished models stay, the interrupted one is resumed, and the
            others are trained. `seeds` may be larger than before, not smaller.
        callbacks: As for `train`; the same ones for each model.
        verbose: As for `train`.
        console: As for `train`.

    Returns:
        The paths of the files `best.keras`.

    Raises:
        ValueError: As `train`, or `seeds` is not positive, or `options.devices` is not 1, or a run
            in the folder is left out. The folder then stays as it is.
        MissingDependencyError: As `train`.

    Example:

    ```python
    train_seeds(options, "run", seeds=3)
    load_best("run").translate(["a man on a bike"])[0].text
    ```
    """
    if not isinstance(options, TrainingOptions):
        raise argument_error("options", "be TrainingOptions", options)
    members = prepare_seeds(options, Path(output), seeds, resume)
    return [train(*member, resume, callbacks, verbose, console) for member in members]


def compare_seeds(members):
    """Evaluate the best model of each of several runs, and their ensemble, on held-out text.

    Args:
        members: `Member`s, as returned by `prepare_seeds`.

    Returns:
        A dict by the name of a run's folder, and "ensemble", of dicts as of `corpus_scores`.
    """
    options, folder = members[0]
    models = [load_best(member.folder) for member in members]
    texts = RunTexts(options, folder).held_out[0]
    evaluator = _translation_score(options, texts, "val_")
    names = [*(member.folder.name for member in members), "ensemble"]
    models.append(Ensemble(models))
    return {name: evaluator.score(model) for name, model in zip(names, models, strict=True)}


def shown_measures(options):
    """Return the names of the measures of held-out text that fit on a line."""
    is_exact = options.best_by in ("exact", "ser")
    return ("exact", "ser") if is_exact else ("loss", "bleu", "chrf")


def run_training(texts, callbacks=(), verbose=True, console=None):
    """Do the part of `train` that needs Keras, with the `RunTexts` that `start_run` yields."""
    options, output = texts.options, texts.output
    start = time.perf_counter()
    console = Console(stderr=True) if console is None else console
    if options.attention is not None:
        attention_class(options.attention)  # the import registers it for checkpoints and `init`
    rank, _ = rank_and_world_size()
    with data_parallel(options.devices):
        corpus = _open_corpus(texts, rank)
        _warn_about_corpus(corpus)
        evaluators = _evaluators(options, texts.held_out, corpus.tokenizer)
        if options.minutes is not None:
            options, message = _fit_to_minutes(options, output, corpus, evaluators, start)
            if verbose:
                console.print(message, soft_wrap=True)
            else:
                logger.info("%s", message)
        model, dataset, epochs = _start_or_resume(options, output, corpus, texts)
        checkpoint = RunCheckpoint(
            output,
            f"val_{options.best_by}",
            keep=max(options.keep, options.average),
            epochs_done=dataset.epoch,
            patience=options.patience,
        )
        display = ProgressDisplay(
            dataset.tokens / dataset.pass_steps, console, shown_measures(options)
        )
        rank0_callbacks = [
            *callbacks,
            checkpoint,
            *([TensorBoardScalars(options.log_dir)] if options.log_dir else []),
            *([display] * verbose),
        ]
        # A loss is reduced over all processes, so all of them must evaluate it.
        local_evaluators = [
            evaluator
            for evaluator in evaluators
            if rank == 0 or is_spmd() or isinstance(evaluator, HeldOutLoss)
        ]
        if dataset.epoch >= epochs or broadcast_from_rank0(checkpoint.exhausted):
            logger.warning(
                "The run in %s is finished at update %d: nothing is left to train.",
                output,
                update_count(model),
            )
        else:
            message = _start_message(corpus, model, dataset, epochs, options.accumulate)
            if verbose and rank == 0:
                console.print(message, soft_wrap=True)
            else:
                logger.info("%s", message)
            with display:
                model.fit(
                    dataset,
                    epochs=epochs,
                    initial_epoch=dataset.epoch,
                    verbose=0,
                    callbacks=[
                        ResumableEpochs(dataset, options.seed, 0 if is_spmd() else rank),
                        *local_evaluators,
                        *(rank0_callbacks if rank == 0 else []),
                        _SynchronizedStop(),
                    ],
                )
    if options.average and rank == 0:
        with single_process():
            _try_average(options, output, evaluators[0])
    return output / BEST_FILE


def load_best(*runs, dtype_policy="float32"):
    """Load the best model of a training run, with its tokenizer and without its optimizer.

    The model computes in float32, also if it was trained, or saved by an earlier version, with
    another dtype policy.

    Args:
        *runs: Folders that `train` or `train_seeds` has written.
        dtype_policy: Name of the dtype policy in which the model computes: "float32",
            "mixed_bfloat16" or "mixed_float16".

    Returns:
        The model, or an `Ensemble` of the models of several runs. If `runs` is one folder that was
        exported, `model.calibration` is the `Calibration` fitted then; otherwise `None`.

    Raises:
        ValueError: If a folder contains no best model, a model has no tokenizer, or NaN or infinity
            in a weight, or a class of a module that is not imported, the models have different
            vocabularies, or `dtype_policy` is another one.
    """
    check_policy("dtype_policy", dtype_policy)
    members = [member for run in runs for member in member_runs(run)]
    models = [_load(best_file(member), compile=False) for member in members]
    for model in models:
        replace_policies(model, dtype_policy, old=("float32",))
    model = models[0] if len(models) == 1 else Ensemble(models)
    model.calibration = load_calibration(runs[0]) if len(runs) == 1 else None
    return model


def _load(path, compile):
    model = load_saved_model(path, "run", compile=compile)
    if getattr(model, "tokenizer", None) is None:
        raise argument_error(
            "run",
            "be the folder of a run of this version of keras_bahdanau",
            received=(
                f"{str(path.parent)!r}, whose {path.name} holds no tokenizer: set "
                "`model.tokenizer` and save it again, or train again"
            ),
        )
    # Earlier versions saved the policy of the training steps as that of the model.
    policy = model.dtype_policy.name
    if replace_policies(model, "float32", old=MIXED_POLICIES):
        model.training_dtype_policy = policy
    return model


class _SynchronizedStop(keras.callbacks.Callback):
    """Stops training in all processes after the epoch in which the first process stops it.

    It must be the last callback. If one process stopped within an epoch, the others would wait for
    it forever, and there would be a checkpoint between two epochs.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self._is_stopping = False

    def on_train_batch_end(self, batch, logs=None):
        self._is_stopping = self._is_stopping or self.model.stop_training
        self.model.stop_training = False

    def on_epoch_end(self, epoch, logs=None):
        is_stopping = self._is_stopping or self.model.stop_training
        self.model.stop_training = broadcast_from_rank0(is_stopping)


def _checked_callbacks(callbacks):
    """Return the `callbacks` of `fit`, which may be `None`, one or several, as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.Callback):
        return [callbacks]
    if not isinstance(callbacks, list | tuple) or not all(
        isinstance(callback, keras.callbacks.Callback) for callback in callbacks
    ):
        raise argument_error("callbacks", "be Keras callbacks", callbacks)
    return list(callbacks)


def _open_dataset(options, output, corpus):
    """Return the dataset of a run, and its updates per pass."""
    rank, world_size = rank_and_world_size()
    dropout, on_jax = options.bpe_dropout, keras.config.backend() == "jax"
    dataset = PreparedDataset(
        [corpus, *(folder for folder, _ in mixed_corpora(options, output))],
        options.batch_size,
        options.batch_tokens,
        max_length=options.max_length,
        seed=options.seed,
        rank=rank,
        replicas=world_size,
        # Keras on JAX needs a number of rows that is a multiple of the number of devices.
        multiple=options.devices if on_jax else 1,
        # The other backends compile nothing, and more shapes need less padding.
        shapes=_compiled_shapes(options, corpus) if on_jax else 256,
        padding=0.0,
        bucket=8 if on_jax and dropout else 1,
        resample=BPEDropout(corpus.tokenizer, dropout, options.seed) if dropout else None,
        shares=[share for _, share in options.mixed] or None,
    )
    return dataset, -(-dataset.pass_steps // options.accumulate)


def _fit_to_minutes(options, output, corpus, evaluators, start):
    """Return the options whose updates fit into `options.minutes`, and a message.

    Args:
        options: `TrainingOptions` with `minutes`.
        output: Folder of the run.
        corpus: As for `_start_or_resume`.
        evaluators: The callbacks of the validation.
        start: `time.perf_counter()` at the start of the run.
    """
    updates = -(-MEASURED_BATCHES // options.accumulate)
    measured = replace(options, minutes=None, updates=updates, every=updates)
    keras.utils.set_random_seed(options.seed)
    dataset, updates_per_pass = _open_dataset(measured, output, corpus)
    dataset.steps = updates * options.accumulate
    model = build(measured, corpus.tokenizer, updates, warmup=0)
    timing = measure(model, dataset, evaluators, options.accumulate, output)
    seconds = 60 * options.minutes - (time.perf_counter() - start)
    fitted = fit_options(options, seconds, timing, updates_per_pass)
    passes, validations = fitted.updates / updates_per_pass, fitted.updates // fitted.every
    message = (
        f"In {options.minutes:g} minutes: {fitted.updates:,} updates of {timing.update:.3f} s "
        f"({passes:,.1f} passes), and {validations} validation{'s' * (validations > 1)} of "
        f"{timing.validation:.1f} s."
    )
    return fitted, message


def _start_or_resume(options, output, corpus, texts):
    """Return the model, the dataset and the number of epochs of a new or resumed run."""
    is_resuming = (output / LAST_FILE).exists()
    keras.utils.set_random_seed(options.seed)
    rank, _ = rank_and_world_size()
    dataset, updates_per_pass = _open_dataset(options, output, corpus)
    every = options.every or updates_per_pass
    updates = options.updates or options.epochs * updates_per_pass
    epochs = -(-updates // every)
    dataset.steps = every * options.accumulate
    if keras.config.backend() == "tensorflow" and dataset.steps == 1 < epochs:
        _check_single_shape(dataset, options.bpe_dropout)
    if is_resuming:
        model = _load(output / LAST_FILE, compile=True)
        _check_updates(model, epochs * every)
        dataset.epoch = update_count(model) // every
        logger.info("Resuming after epoch %d of %d.", dataset.epoch, epochs)
    else:
        warmup = options.warmup
        if warmup is None:
            warmup = min(updates_per_pass // 2, _LONGEST_WARMUP, epochs * every - 1)
        model = build(options, corpus.tokenizer, epochs * every, warmup)
        if rank == 0:
            record_texts(texts)
            chosen = replace(options, dtype_policy=model.training_dtype_policy)
            write_json(output / OPTIONS_FILE, chosen.to_dict())
    average_gradients(model)
    return model, dataset, epochs


def _start_message(corpus, model, dataset, epochs, accumulate):
    """Return the sizes of a run, and what happens before the end of its first batch."""
    backend = keras.config.backend()
    every = dataset.steps // accumulate
    message = (
        f"{corpus.pairs:,} pairs, {corpus.tokens:,} target tokens, {dataset.pass_steps:,} batches "
        f"per pass in {len(dataset.shapes)} shapes; {epochs * every:,} updates, a checkpoint every "
        f"{every:,}; {model.count_params():,} weights on {backend}."
    )
    slow = {
        "jax": " Compiling at the first batch of each shape.",
        "tensorflow": " Tracing at the first batch.",
    }
    return message + slow.get(backend, "")


def _compiled_shapes(options, corpus):
    """Return the largest number of batch shapes on JAX, which compiles a step for each of them.

    Compiling takes as long as about ten steps. Eight shapes need 15 % padding, 30 need 7 %, so a
    longer run gets more.
    """
    if options.updates is not None:
        steps = options.updates * options.accumulate
    elif options.batch_tokens is not None:
        tokens = corpus.source_tokens + corpus.tokens
        steps = options.epochs * tokens / options.batch_tokens
    else:
        steps = options.epochs * corpus.pairs / options.batch_size
    return min(max(_MIN_SHAPES, int(steps / _STEPS_PER_SHAPE)), _MAX_SHAPES)


def _check_updates(model, updates):
    """Raise a `ValueError` if the schedule of a resumed run has another number of updates."""
    scheduled = model.optimizer.get_config()["learning_rate"]["config"]["updates"]
    if scheduled != updates:
        raise argument_error(
            "resume",
            f"continue a run of {updates} updates, which is what these options give on "
            f"{keras.config.backend()}",
            received=(
                f"a run of {scheduled}; use the backend of that run, because backends cut "
                "different batches"
            ),
        )


def _check_single_shape(dataset, dropout):
    """Raise a `ValueError` if batches differ in shape but epochs have only one batch."""
    if dropout or len(dataset.shapes) > 1:
        raise argument_error(
            "every",
            "be at least 2 on TensorFlow for batches of several shapes, because Keras "
            "compares the first two batches of an epoch to find the variable axes",
            received=(
                "1. Choose a larger `every` or, if all pairs are one batch, a smaller `batch_size`"
            ),
        )


def _open_corpus(texts, rank):
    """Open the prepared corpus of a run; with several devices, rank 0 prepares the texts first."""
    options = texts.options
    if options.is_prepared:
        return PreparedCorpus(options.source)
    if rank == 0 and options.devices > 1:
        prepare_texts(texts)
    broadcast_from_rank0(True)  # wait until the corpus is complete
    return PreparedCorpus(texts.output / CORPUS_FOLDER)


def _evaluators(options, held_out, tokenizer):
    """Return the callbacks that evaluate held-out texts; the first one selects the best model."""
    for number, texts in enumerate(held_out):
        _check_held_out(number, *texts, tokenizer)
    evaluators = [
        _translation_score(options, texts, "val_" if number == 1 else f"val{number}_")
        for number, texts in enumerate(held_out, start=1)
    ]
    if options.best_by == "loss":
        sources, targets = held_out[0]
        pairs = TranslationDataset(
            tokenizer.encode_sources(sources),
            tokenizer.encode_targets(targets, sources),
            batch_size=-(-options.batch_size // options.devices) * options.devices,
            max_length=options.max_length,
            shuffle=False,
        )
        evaluators.insert(0, HeldOutLoss(pairs))
    return evaluators


def _translation_score(options, texts, prefix):
    """Return the callback that translates the sources of a held-out set."""
    sources, targets = texts
    beam_size = options.validation_beam_size
    return TranslationScore(
        sources,
        targets,
        search=BeamSearch(beam_size, 1.0 if beam_size > 1 else 0.0),
        max_length=options.max_length,
        prefix=prefix,
        tokenize=options.tokenize,
    )


def _check_held_out(number, sources, targets, tokenizer):
    """Check that held-out texts are in the form that the tokenizer encodes.

    Raises:
        ValueError: If targets for a model of split text are not split.
    """
    warn_about_unknown(f"validation_source[{number}]", tokenizer.encode_sources(sources))
    encoded = tokenizer.encode_targets(targets)
    mark, share = tokenizer.target_mark, unknown_share(encoded)
    if mark and share > _MAX_UNKNOWN and not any(mark in text for text in targets):
        raise argument_error(
            "validation_target",
            f"be split into pieces like the training text, with {mark!r} in some of them",
            received=(
                f"{targets[0]!r:.60} and other lines without it; {share:.1%} of their pieces are "
                "unknown"
            ),
        )
    warn_about_unknown(f"validation_target[{number}]", encoded)
    symbols = [symbol for text in sources for symbol in tokenizer.unknown_symbols(text)]
    if tokenizer.has_columns:
        sources = [first_column(text) for text in sources]
    for name, texts, side, kind, unknown in (
        ("validation_source", sources, tokenizer.source, tokenizer.kinds[0], symbols),
        ("validation_target", targets, tokenizer.target, tokenizer.kinds[1], ()),
    ):
        if kind in SHORT_KINDS:
            warn_about_unseen(f"{name}[{number}]", side, texts, unknown)


def _warn_about_corpus(corpus):
    """Log the share of unknown pieces at the start of the training text if it is large."""
    shard = corpus.shard(0)
    pairs = shard.take(np.arange(min(len(shard), _CHECKED_PAIRS)))
    sequences = [ids.tolist() for ids in np.split(pairs.ids, pairs.offsets[1:-1])]
    warn_about_unknown("source", sequences[::2])
    warn_about_unknown("target", sequences[1::2])


def _try_average(options, output, evaluator):
    """Replace the best model by the mean of the last checkpoints if the mean is better."""
    paths = list(epoch_checkpoints(output).values())
    average = output / AVERAGE_FILE
    average_checkpoints(paths[-options.average :], average)
    mean, best = (_evaluate(options, evaluator, path) for path in (average, output / BEST_FILE))
    is_better = MEASURES[options.best_by].improvement(best, mean) > 0
    if is_better:
        with atomic_write(output / BEST_FILE) as copy:
            shutil.copyfile(average, copy)
    logger.info(
        "%s of the mean of the last checkpoints: %.2f, of the best one: %.2f. Keeping %s.",
        options.best_by,
        mean,
        best,
        "the mean" if is_better else "the checkpoint",
    )


def _evaluate(options, evaluator, path):
    """Return the monitored value of the model in a file."""
    model = _load(path, compile=False)
    if options.best_by == "loss":
        model.compile(loss=_loss(options))
    return evaluator.score(model)[options.best_by]


def build(options, tokenizer, updates, warmup):
    """Return the compiled model of a run; `updates` and `warmup` are those of the schedule.

    It computes in float32, except in training steps.
    """
    model = (
        new_model(options, tokenizer) if options.init is None else initial_model(options, tokenizer)
    )
    model.training_dtype_policy = resolve_dtype_policy(options.dtype_policy)
    accumulate = options.accumulate
    schedule = WarmupSchedule(options.learning_rate, options.schedule, updates, warmup, accumulate)
    model.compile(
        optimizer=Adam(
            schedule,
            global_clipnorm=options.clip_norm,
            use_ema=options.ema > 0,
            # Keras updates the average at every batch, not only when it updates the weights.
            ema_momentum=options.ema ** (1 / accumulate) if options.ema else None,
            gradient_accumulation_steps=accumulate if accumulate > 1 else None,
        ),
        loss=_loss(options),
        # Measured on two cores: a step without XLA takes 0.6 times as long on TensorFlow.
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return model


def check_model(options, tokenizer):
    """Check devices, `attention` and `init` before texts are made that only this run needs.

    Args:
        options: `TrainingOptions` of a new run. Those that are chosen from the pairs may be open.
        tokenizer: The tokenizer of `init`, or `None` without it.

    Raises:
        ValueError: As `train`.
    """
    with data_parallel(options.devices):  # raises the error of too few devices
        pass
    if options.attention is not None:
        attention_class(options.attention)
    if options.init is not None:
        initial_model(options, tokenizer)
    elif options.attention is not None:
        architecture = {name: getattr(options, name) for name in ARCHITECTURE}
        # The widths that are chosen later are in the same proportion to each other.
        widths = ("units", "embedding_dim", "attention_units")
        architecture |= {name: architecture[name] or _SMALL_WIDTH for name in widths}
        checked = replace(options, **{name: architecture[name] for name in widths})
        architecture |= {"attention": own_attention(checked), "copy": None}
        maxout_units = architecture["embedding_dim"]
        model = _MODELS[options.model](4, 4, maxout_units=maxout_units, **architecture)
        model.build()
        check_own_attention(options, model.decoder.attention)


def new_model(options, tokenizer):
    """Return a model with random weights."""
    architecture = {name: getattr(options, name) for name in ARCHITECTURE}
    if options.attention is not None:
        architecture["attention"] = own_attention(options)
    model = _MODELS[options.model].from_tokenizer(
        tokenizer, dropout=options.dropouts_after(), dtype="float32", **architecture
    )
    model.build()
    if options.attention is not None:
        check_own_attention(options, model.decoder.attention)
    for side, path in options.word_vectors.items():
        set_word_vectors(model, side, path)
    return model


def _loss(options):
    return TokenCrossentropy(
        label_smoothing=options.label_smoothing,
        chunk_size=options.chunk_size,
        sampled=options.sampled_softmax,
    )
