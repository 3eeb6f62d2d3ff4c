"""Callbacks that evaluate held-out text after each epoch."""

import keras
import numpy as np

from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.optimizers import ema_weights, uses_ema
from keras_bahdanau.search import GreedySearch
from keras_bahdanau.search.base import check_is_search
from keras_bahdanau_runtime.checks import check_positive, checked_texts
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
        check_is_search(self.search)
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
        with ema_weights(model):
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
        with ema_weights(model):
            if keras.config.backend() == "jax" and uses_ema(model):
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
