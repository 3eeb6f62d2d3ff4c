"""A callback that evaluates the loss of held-out pairs."""

import keras
import numpy as np

from keras_bahdanau.optimizers import ema_weights, keeps_mean


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
