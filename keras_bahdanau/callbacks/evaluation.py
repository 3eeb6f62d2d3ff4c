"""Callbacks that evaluate held-out text after each epoch."""

import keras
import numpy as np

from keras_bahdanau.models.generation import check_tokenizer
from keras_bahdanau.models.saved_models import check_finite_weights
from keras_bahdanau.optimizers import ema_weights, uses_ema
from keras_bahdanau.search.base import check_is_search
from keras_bahdanau.search.beam import GreedySearch
from keras_bahdanau_runtime.checks import check_positive, checked_texts
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.search_settings import check_setting
from keras_bahdanau_runtime.text.scores import bleu_metric, corpus_scores


class TranslationScore(keras.callbacks.Callback):
    """Translates held-out sentences after each epoch and adds their measures to the logs.

    The names in the logs are `val_bleu`, `val_chrf`, `val_exact` (exact matches) and `val_ser`
    (symbol error rate), all in percent. The symbols are those of the model's tokenizer. Place it
    before callbacks that read the logs, such as `EarlyStopping(monitor="val_bleu", mode="max")`.
    If the optimizer keeps a moving average of the weights (`use_ema`), the model translates with
    the average.

    Args:
        sources: List of `str`.
        references: A `str`, or a list of several, for each source. Those that are split into pieces
            are joined like the translations.
        tokenizer: A `Tokenizer` to attach to the model; `None` if the model has one.
        search: A `BeamSearch` or `GreedySearch`; `GreedySearch()` if `None`.
        max_length: Largest number of tokens of a hypothesis.
        batch_size: Number of sentences in a batch.
        prefix: Prefix of the names in the logs.
        tokenize: BLEU tokenizer; see `corpus_scores`.

    Raises:
        ValueError: If `sources` is empty, `references` has a different length, or an argument has
            the wrong type; when training begins, if the model has no tokenizer; at the end of an
            epoch, if a weight is NaN or infinity.
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
        bleu_metric(tokenize)  # raises an error for an unknown tokenizer before training starts
        self.sources = checked_texts("sources", sources)
        self.references = [
            checked_texts("references", [texts] if isinstance(texts, str) else texts)
            for texts in references
        ]
        if len(self.references) != len(self.sources):
            raise argument_error(
                "references",
                f"hold one for each of {len(self.sources)} sources",
                received=str(len(self.references)),
            )
        if not self.sources:
            raise argument_error("sources", "hold a sentence", received="none")
        check_positive(batch_size=batch_size)
        if not callable(max_length):
            check_setting("max_length", max_length)
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
        advice = ", but training has diverged. Choose a smaller learning rate"
        check_finite_weights(self.model, "model", advice=advice)
        scores = self.score(self.model)
        if logs is not None:
            logs.update({f"{self.prefix}{name}": score for name, score in scores.items()})

    def score(self, model):
        """Return the measures on the held-out sentences as `corpus_scores` does."""
        with ema_weights(model):
            translations = model.translate(
                self.sources,
                search=self.search,
                max_length=self.max_length,
                batch_size=self.batch_size,
                alignments=False,
            )
        texts = [translation.text for translation in translations]
        unit, join = model.tokenizer.target_unit, model.tokenizer.join_target
        references = [[join(text) for text in row] for row in self.references]
        return corpus_scores(texts, references, self.tokenize, unit, self.sources)


class HeldOutLoss(keras.callbacks.Callback):
    """Evaluates held-out pairs after each epoch: `val_loss` and other metrics in the logs.

    There are two differences to `fit(validation_data=...)`. If the optimizer keeps a moving average
    of the weights (`use_ema`), the average is evaluated, because `RunCheckpoint` saves it. The loss
    is the mean over tokens for any batch size, while Keras averages over rows.

    Args:
        dataset: A `TranslationDataset` or `PreparedDataset`.

    Raises:
        ValueError: If `dataset` is not a `keras.utils.PyDataset`; when training begins, if the
            model is compiled with `steps_per_execution`, because Keras then reports only the mean
            of several batches.
    """

    def __init__(self, dataset):
        super().__init__()
        if not isinstance(dataset, keras.utils.PyDataset):
            raise argument_error("dataset", "be a TranslationDataset", dataset)
        self.dataset = dataset

    def on_train_begin(self, logs=None):
        _check_steps_per_execution(self.model)

    def on_epoch_end(self, epoch, logs=None):
        values = self.score(self.model)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in values.items()})

    def score(self, model):
        """Return the loss and the metrics of a compiled model, a `dict` of floats."""
        _check_steps_per_execution(model)
        losses = _BatchLosses(self.dataset)
        with ema_weights(model):
            if keras.config.backend() == "jax" and uses_ema(model):
                # Keras on JAX donates the arrays of an evaluation, and these are the optimizer's.
                for weight in model.trainable_variables:
                    weight.assign(keras.ops.copy(weight))
            values = model.evaluate(self.dataset, verbose=0, return_dict=True, callbacks=[losses])
        return {**values, "loss": losses.token_mean()}


def _check_steps_per_execution(model):
    steps = getattr(model, "steps_per_execution", 1)
    if steps != 1:
        raise argument_error(
            "steps_per_execution",
            "be 1 with a HeldOutLoss, which needs the loss of each batch",
            received=f"{steps}",
            of="`compile`",
        )


class _BatchLosses(keras.callbacks.Callback):
    """Collects the loss of each batch of an evaluation and averages it over tokens."""

    def __init__(self, dataset):
        super().__init__()
        self._dataset = dataset
        self._rows = self._tokens = 0
        self._row_sum = self._token_sum = 0.0

    def on_test_batch_end(self, batch, logs=None):
        _, labels = self._dataset[batch]
        # The logs hold the mean over all rows up to this batch.
        row_sum = logs["loss"] * (self._rows + len(labels))
        loss = (row_sum - self._row_sum) / len(labels)
        tokens = np.count_nonzero(labels)
        self._rows, self._tokens = self._rows + len(labels), self._tokens + tokens
        self._row_sum, self._token_sum = row_sum, self._token_sum + loss * tokens

    def token_mean(self):
        return self._token_sum / max(self._tokens, 1)
