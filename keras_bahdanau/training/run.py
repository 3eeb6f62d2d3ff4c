"""A training run: text or a prepared corpus in, a folder with a model out, resumable at any moment.

run/
  options.json     what the run was started with
  texts.json       hashes of the files it was started with
  corpus/          the texts as `prepare` leaves them, unless a prepared corpus was given
  last.keras       model, tokenizer and optimiser at the last checkpoint
  best.keras       the same at the best one by held-out text
  history.csv      one row a checkpoint
  epoch-01.keras   each of the last checkpoints, with `keep` or `average`
  average.keras    the mean of the last checkpoints, with `average`

An epoch, to Keras, is what lies between two checkpoints: `every` updates, or a pass over the text.
"""

import logging
import shutil
from pathlib import Path

import keras

from keras_bahdanau.callbacks.checkpoint import ResumableEpochs, RunCheckpoint, kept_epochs
from keras_bahdanau.callbacks.evaluation import HeldOutLoss, TranslationScore
from keras_bahdanau.callbacks.progress import ProgressDisplay
from keras_bahdanau.callbacks.tensorboard import TensorBoardScalars
from keras_bahdanau.data.bpe_dropout import BPEDropout
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
from keras_bahdanau.losses.crossentropy import TokenCrossentropy
from keras_bahdanau.models.ensemble import Ensemble
from keras_bahdanau.models.rnn_search import RNNEncoderDecoder, RNNSearch
from keras_bahdanau.optimizers import WarmupSchedule, update_count
from keras_bahdanau.search import BeamSearch
from keras_bahdanau.training.averaging import average_checkpoints
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.runs.folder import (
    AVERAGE_FILE,
    BEST_FILE,
    CORPUS_FOLDER,
    LAST_FILE,
    OPTIONS_FILE,
    TEXTS_FILE,
    best_file,
)
from keras_bahdanau_runtime.runs.options import MODELS, TrainingOptions
from keras_bahdanau_runtime.runs.start import prepare_texts, start_run, text_hashes, write_json

logger = logging.getLogger("keras_bahdanau")

_MODELS = dict(zip(MODELS, (RNNSearch, RNNEncoderDecoder), strict=True))
_LONGEST_WARMUP = 4000  # updates, where the options leave it open


def train(options, output, resume=False, callbacks=(), verbose=True, console=None):
    """Trains a model, or goes on with an interrupted run.

    A run that was interrupted after a checkpoint has the weights of an unbroken one, bit for bit
    on TensorFlow and JAX.

    Args:
        options: `TrainingOptions`.
        output: The run's folder. It must not exist, unless `resume`, or hold nothing but `corpus`;
            its parents are made. Several hosts must all see it, and the texts.
        resume: Whether to go on from `last.keras` of an earlier run with the same options.
        callbacks: More callbacks for `fit`, several or one, in the first of several processes. One
            that ends training ends it with the next checkpoint. The logs they read at the end of an
            epoch hold `val_bleu` and `val_chrf`, `val2_bleu` and so on for further held-out sets,
            and `val_loss` where `options.best_by` is "loss".
        verbose: Whether progress is shown, by a `ProgressDisplay`.
        console: The `rich.console.Console` that shows it; one on standard error if `None`.

    Returns:
        The path of `best.keras`.

    Raises:
        ValueError: If `callbacks` are none, the folder exists without `resume`, another process
            trains in it, the options or texts differ from the run's, sacreBLEU knows no such
            `tokenize`, or a text file is not as `read_parallel` wants it.
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
        raise ValueError(f"Argument `options` must be TrainingOptions. Received: {options!r:.80}")
    output, callbacks = Path(output), _checked_callbacks(callbacks)
    with start_run(options, output, resume, rank=rank_and_world_size()[0]) as held_out:
        return train_begun(options, output, held_out, callbacks, verbose, console)


def train_begun(options, output, held_out, callbacks=(), verbose=True, console=None):
    """Train inside the block of `start_run`, which yields `held_out`."""
    rank, _ = rank_and_world_size()
    with data_parallel(options.devices):
        corpus = _corpus(options, output, rank)
        model, dataset, epochs = _begin(options, output, corpus)
        judges = _judges(options, held_out, corpus.tokenizer)
        checkpoint = RunCheckpoint(
            output,
            f"val_{options.best_by}",
            keep=max(options.keep, options.average),
            epochs_done=dataset.epoch,
            patience=options.patience,
        )
        display = ProgressDisplay(dataset.tokens / dataset.pass_steps, console)
        writing = [
            *callbacks,
            checkpoint,
            *([TensorBoardScalars(options.log_dir)] if options.log_dir else []),
            *([display] * verbose),
        ]
        # Losses are of all processes, and so are asked for in each.
        everywhere = [
            each for each in judges if rank == 0 or is_spmd() or isinstance(each, HeldOutLoss)
        ]
        if dataset.epoch >= epochs or broadcast_from_rank0(checkpoint.exhausted):
            logger.warning(
                "The run in %s is finished at update %d: nothing is left to train.",
                output,
                update_count(model),
            )
        else:
            with display:
                model.fit(
                    dataset,
                    epochs=epochs,
                    initial_epoch=dataset.epoch,
                    shuffle=False,
                    verbose=0,
                    callbacks=[
                        ResumableEpochs(dataset, options.seed, 0 if is_spmd() else rank),
                        *everywhere,
                        *(writing if rank == 0 else []),
                        SynchronizedStop(),
                    ],
                )
    if options.average and rank == 0:
        with single_process():
            _try_average(options, output, judges)
    return output / BEST_FILE


def load_best(*runs):
    """The best model of a run, with its tokenizer and without its optimiser.

    Args:
        *runs: A run's folder, as `train` leaves it; of several, an `Ensemble` of their models.

    Raises:
        ValueError: If a folder holds no best model yet, or one without a tokenizer; or the models
            have other vocabularies.
    """
    models = [load(best_file(run), compile=False) for run in runs]
    return models[0] if len(models) == 1 else Ensemble(models)


def load(path, compile):
    """A model of a run, which must hold its tokenizer."""
    model = keras.saving.load_model(path, compile=compile)
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "Argument `run` must be the folder of a run of this version of keras_bahdanau. "
            f"Received: {str(path.parent)!r}, whose {path.name} holds no tokenizer: set "
            "`model.tokenizer` and save it again, or train anew"
        )
    return model


class SynchronizedStop(keras.callbacks.Callback):
    """Ends training in all processes when the first one ends it, with an epoch. Put it last.

    Within an epoch the others would wait for it, and a checkpoint would lie between two epochs.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self._told = False

    def on_train_batch_end(self, batch, logs=None):
        self._told = self._told or self.model.stop_training
        self.model.stop_training = False

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = broadcast_from_rank0(self._told or self.model.stop_training)


def _checked_callbacks(callbacks):
    """Callbacks as a list, from what `fit` takes: several, a single one, `None`."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.Callback):
        return [callbacks]
    if not isinstance(callbacks, list | tuple) or not all(
        isinstance(each, keras.callbacks.Callback) for each in callbacks
    ):
        raise ValueError(f"Argument `callbacks` must be Keras callbacks. Received: {callbacks!r}")
    return list(callbacks)


def _begin(options, output, corpus):
    """The model, the data and the number of epochs of a run that begins, or goes on."""
    resuming = (output / LAST_FILE).exists()
    keras.utils.set_random_seed(options.seed)
    rank, processes = rank_and_world_size()
    dropout, on_jax = options.bpe_dropout, keras.config.backend() == "jax"
    dataset = PreparedDataset(
        corpus,
        options.batch_size,
        options.batch_tokens,
        max_length=options.max_length,
        seed=options.seed,
        rank=rank,
        replicas=processes,
        # Keras on JAX refuses a batch whose rows the devices cannot share evenly.
        multiple=options.devices if on_jax else 1,
        # JAX compiles a step for every shape; the others run any shape, so padding only costs.
        **({} if on_jax else {"shapes": 256, "padding": 0.0}),
        bucket=8 if on_jax and dropout else 1,
        resample=BPEDropout(corpus.tokenizer, dropout, options.seed) if dropout else None,
    )
    a_pass = -(-dataset.pass_steps // options.accumulate)
    every = options.every or a_pass
    updates = options.updates or options.epochs * a_pass
    epochs = -(-updates // every)
    dataset.steps = every * options.accumulate
    if keras.config.backend() == "tensorflow" and dataset.steps == 1 < epochs:
        _check_one_shape(dataset, dropout)
    if resuming:
        model = load(output / LAST_FILE, compile=True)
        _check_updates(model, epochs * every)
        dataset.epoch = update_count(model) // every
        logger.info("Going on after epoch %d of %d.", dataset.epoch, epochs)
    else:
        warmup = options.warmup
        if warmup is None:
            warmup = min(a_pass // 2, _LONGEST_WARMUP, epochs * every - 1)
        model = build(options, corpus.tokenizer, epochs * every, warmup)
        if rank == 0:
            write_json(output / TEXTS_FILE, text_hashes(options))
            write_json(output / OPTIONS_FILE, options.to_dict())
    average_gradients(model)
    logger.info(
        "%d pairs, %d target tokens and %d batches a pass in %d shapes; %d updates, %d from one "
        "checkpoint to the next; %s weights on %s.",
        corpus.pairs,
        corpus.tokens,
        dataset.pass_steps,
        len(dataset.shapes),
        epochs * every,
        every,
        f"{model.count_params():,}",
        keras.config.backend(),
    )
    return model, dataset, epochs


def _check_updates(model, updates):
    """Raises a `ValueError` where a run was begun with another number of updates."""
    saved_updates = model.optimizer.get_config()["learning_rate"]["config"]["updates"]
    if saved_updates != updates:
        raise ValueError(
            f"Argument `resume` must go on with a run of {updates} updates, which these options "
            f"come to on {keras.config.backend()}. Received: True, for one of "
            f"{saved_updates}; go on with "
            "the backend that it was begun with, as they cut other batches"
        )


def _check_one_shape(dataset, dropout):
    """Raises a `ValueError` where TensorFlow would see several shapes, and has seen one."""
    if dropout or len(dataset.shapes) > 1:
        raise ValueError(
            "Argument `every` must be at least 2 on TensorFlow for batches of several shapes, as "
            "Keras takes those of all from the first two between validations. Received: 1. Choose "
            "a larger `every` or, where all pairs are one batch, a smaller `batch_size`"
        )


def _corpus(options, output, rank):
    """The prepared corpus of a run, which with several devices the first process makes here."""
    if options.target is None:
        return PreparedCorpus(options.source)
    if rank == 0 and options.devices > 1:
        prepare_texts(options, output)
    broadcast_from_rank0(True)  # has made it
    return PreparedCorpus(output / CORPUS_FOLDER)


def _judges(options, held_out, tokenizer):
    """The callbacks that judge a model by held-out texts; the one that decides comes first."""
    beam = options.validation_beam_size
    search = BeamSearch(beam, 1.0 if beam > 1 else 0.0)
    judges = [
        TranslationScore(
            *texts,
            search=search,
            max_length=options.max_length,
            prefix="val_" if number == 1 else f"val{number}_",
            tokenize=options.tokenize,
        )
        for number, texts in enumerate(held_out, start=1)
    ]
    if options.best_by == "loss":
        sources, targets = held_out[0]
        pairs = TranslationDataset(
            [tokenizer.encode_source(text) for text in sources],
            [tokenizer.encode_target(text) for text in targets],
            batch_size=-(-options.batch_size // options.devices) * options.devices,
            max_length=options.max_length,
            shuffle=False,
        )
        judges.insert(0, HeldOutLoss(pairs))
    return judges


def _try_average(options, output, judges):
    """Makes the mean of the last checkpoints the best model, where it is better than that."""
    paths = list(kept_epochs(output).values())
    average = output / AVERAGE_FILE
    average_checkpoints(paths[-options.average :], average)
    mean, best = (_judged(options, judges[0], path) for path in (average, output / BEST_FILE))
    better = mean > best if options.best_by == "bleu" else mean < best
    if better:
        with atomic_write(output / BEST_FILE) as copy:
            shutil.copyfile(average, copy)
    logger.info(
        "The mean of the last checkpoints has a %s of %.2f, the best one %.2f: %s stays.",
        options.best_by,
        mean,
        best,
        "the mean" if better else "the checkpoint",
    )


def _judged(options, judge, path):
    """What held-out text says of the model in a file: the value that is monitored."""
    model = load(path, compile=False)
    if options.best_by == "loss":
        model.compile(loss=_loss(options))
    return judge.score(model)[options.best_by]


def build(options, tokenizer, updates, warmup):
    """The compiled model of a run; `updates` and `warmup` set the schedule."""
    model = _MODELS[options.model](
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        units=options.units,
        embedding_dim=options.embedding_dim,
        attention_units=options.attention_units,
        maxout_units=options.embedding_dim,
        reset_after=True,
        readout_state="current",
        initializer=None,
        dropout=options.dropouts,
        tie_embeddings=options.tie_embeddings,
        join_embeddings=options.join_embeddings,
        encoder_layers=options.encoder_layers,
        encoder_dropout=options.encoder_dropout,
        conditional=options.conditional,
        layer_normalization=options.layer_normalization,
        tokenizer=tokenizer,
        dtype=options.dtype_policy,
    )
    model.build()
    accumulate = options.accumulate
    schedule = WarmupSchedule(options.learning_rate, options.schedule, updates, warmup, accumulate)
    model.compile(
        optimizer=keras.optimizers.Adam(
            schedule,
            global_clipnorm=options.clip_norm,
            use_ema=options.ema > 0,
            # Keras moves the mean at every batch, and not only where it updates the weights.
            ema_momentum=options.ema ** (1 / accumulate) if options.ema else None,
            gradient_accumulation_steps=accumulate if accumulate > 1 else None,
        ),
        loss=_loss(options),
        # Measured on two cores: TensorFlow's own kernels run a step in about 0.6 of XLA's time.
        jit_compile="auto" if keras.config.backend() == "jax" else False,
    )
    return model


def _loss(options):
    return TokenCrossentropy(
        label_smoothing=options.label_smoothing,
        chunk_size=options.chunk_size,
        sampled=options.sampled_softmax,
    )
