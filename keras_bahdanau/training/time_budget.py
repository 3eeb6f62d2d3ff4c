"""Choose as many updates as fit into a time, from the times of a few updates.

The model that makes these updates is thrown away. The run then starts with the chosen options, so
it does not depend on the measurement otherwise, and is resumed like any other run.
"""

import time
from dataclasses import replace
from typing import NamedTuple

import keras
import numpy as np

from keras_bahdanau.callbacks.evaluation import TranslationScore
from keras_bahdanau.run_folder import LAST_FILE
from keras_bahdanau_runtime.files import temporary_file

MEASURED_BATCHES = 20
_PASS_BATCHES = 300  # whose sizes are compared with those of the measured ones
_VALIDATION_TEXTS = 64  # that are translated to measure a validation
_MIN_VALIDATIONS, _MAX_VALIDATIONS = 5, 20
_MAX_VALIDATION_SHARE = 0.25  # of the time
_WARMUP_SHARE = 0.1  # of the updates


class Timing(NamedTuple):
    """Seconds of the parts of a run.

    Args:
        update: Seconds of an update.
        validation: Seconds of a validation and its checkpoint.
        start: Seconds that the first updates and the first validation take in addition, because the
            backend compiles.
    """

    update: float
    validation: float
    start: float


class _RepeatedEpoch(keras.callbacks.Callback):
    """Trains on the batches of the first epoch in every epoch, and measures the seconds of each."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset, self.seconds = dataset, []

    def on_epoch_begin(self, epoch, logs=None):
        self.dataset.epoch = 0
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)


def measure(model, dataset, evaluators, accumulate, folder):
    """Train a compiled model on the first batches of a dataset, twice, and return the `Timing`.

    Args:
        model: A compiled `Seq2Seq` with a tokenizer.
        dataset: A `PreparedDataset`, whose `steps` are the batches to train on.
        evaluators: The callbacks of the validation.
        accumulate: Number of batches of an update.
        folder: `Path` of the run, in which a temporary checkpoint is written.
    """
    epochs = _RepeatedEpoch(dataset)
    model.fit(dataset, epochs=2, verbose=0, callbacks=[epochs])
    first, second = epochs.seconds
    start = max(0.0, first - second)
    if keras.config.backend() == "jax":  # which compiles each shape
        start *= len(dataset.shapes) / len({_size(dataset, i)[0] for i in range(dataset.steps)})
    # The batches of a whole pass may have other lengths.
    pass_size = np.mean(
        [_size(dataset, i)[1] for i in range(min(dataset.pass_steps, _PASS_BATCHES))]
    )
    size = np.mean([_size(dataset, i)[1] for i in range(dataset.steps)])
    update = second / dataset.steps * accumulate * float(pass_size / size)
    began = time.perf_counter()
    with temporary_file(folder / LAST_FILE) as path:
        model.save(path)
    validation = time.perf_counter() - began
    for evaluator in evaluators:
        share, sample = _sample(evaluator, model.tokenizer)
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            sample.score(model)
            seconds.append(time.perf_counter() - began)
        start += max(0.0, seconds[0] - seconds[1])
        validation += seconds[1] / share
    return Timing(update, validation, start)


def _size(dataset, index):
    """Return the shape of a batch and its number of positions."""
    inputs, labels = dataset.batch(index)
    return (inputs["source"].shape, labels.shape), inputs["source"].size + labels.size


def _sample(evaluator, tokenizer):
    """Return an evaluator of some of the texts, and their share.

    Outputs of a trained model are about as long as the references, but those of a new model often
    do not end, so they are limited to this length.
    """
    if not isinstance(evaluator, TranslationScore):
        return 1.0, evaluator
    texts = slice(_VALIDATION_TEXTS)
    sources, references = evaluator.sources[texts], evaluator.references[texts]
    lengths = map(len, tokenizer.encode_targets([each[0] for each in references], sources))
    sample = TranslationScore(
        sources,
        references,
        search=evaluator.search,
        max_length=min(max(lengths), evaluator.max_length),
        batch_size=evaluator.batch_size,
        tokenize=evaluator.tokenize,
    )
    return len(sources) / len(evaluator.sources), sample


def plan_updates(seconds, timing, updates_per_pass, every=None):
    """Return the number of updates that fit into a time, and that between two validations.

    Without `every`, there is about one validation for each pass, but between 5 and 20, and fewer if
    they would take more than a quarter of the time.

    Args:
        seconds: float. The time.
        timing: `Timing`.
        updates_per_pass: int. Updates of a pass over the text.
        every: int. Updates between two validations; `None` to choose it.

    Example:

    >>> plan_updates(100.0, Timing(update=0.1, validation=1.0, start=10.0), updates_per_pass=100)
    (816, 102)
    """
    seconds = max(0.0, seconds - timing.start)
    if every is not None:
        validations = max(1, int(seconds / (every * timing.update + timing.validation)))
        return validations * every, every
    passes = seconds / (updates_per_pass * timing.update + timing.validation)
    validations = min(max(passes, _MIN_VALIDATIONS), _MAX_VALIDATIONS)
    if timing.validation:
        validations = min(validations, _MAX_VALIDATION_SHARE * seconds / timing.validation)
    validations = max(1, int(validations))
    # Keras on TensorFlow needs two batches between two validations.
    every = max(2, int((seconds / validations - timing.validation) / timing.update))
    return validations * every, every


def fit_options(options, seconds, timing, updates_per_pass):
    """Return `TrainingOptions` whose updates and schedule fit into a time, without `minutes`."""
    updates, every = plan_updates(seconds, timing, updates_per_pass, options.every)
    warmup = options.warmup
    if warmup is None:
        warmup = min(updates_per_pass // 2, int(updates * _WARMUP_SHARE))
    return replace(options, minutes=None, updates=updates, every=every, warmup=warmup)
