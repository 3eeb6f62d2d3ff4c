"""Metrics over target tokens for `model.compile(metrics=[...])`, without padding."""

import keras
from keras import ops

from keras_bahdanau.losses.crossentropy import (
    broadcast_weight,
    check_logits,
    convert_predictions,
    token_ids,
    token_losses,
)
from keras_bahdanau.losses.projection import Projection
from keras_bahdanau_runtime.ids import PAD

__all__ = ["Perplexity", "TokenAccuracy"]


class _TokenMean(keras.metrics.Mean):
    """Mean of one value per real token, over the tokens of all batches."""

    needs_correct = False  # whether the metric reads `Projection.correct`

    def __init__(self, name):
        super().__init__(name=name, dtype="float32")

    def token_values(self, labels, logits):
        """Return a `(B, Ty)` float32 tensor, from logits or from a `Projection`."""
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        logits = convert_predictions(y_pred)
        labels = token_ids(y_true, logits)
        is_real = ops.cast(ops.not_equal(labels, PAD), "float32")
        weight = is_real
        if sample_weight is not None:
            weight = is_real * broadcast_weight(sample_weight, like=is_real)
        # Flat, because Keras first averages each row and so ignores its number of tokens.
        values = self.token_values(labels, logits)
        values = ops.reshape(ops.where(ops.equal(weight, 0.0), 0.0, values), (-1,))
        super().update_state(values, sample_weight=ops.reshape(weight, (-1,)))

    def get_config(self):
        return {"name": self.name}


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Perplexity(_TokenMean):
    """`exp` of the mean cross-entropy per real token: 1 is perfect, `V` is uniform guessing.

        perplexity = exp(mean over real tokens of -log p(y_i))

    The mean is over the tokens of all batches since the last reset, so it does not depend on the
    batch size. It ignores label smoothing, so runs with different smoothing can be compared.

    Args:
        name: Name of the metric.

    Call arguments:
        y_true: `(B, Ty)` or `(B, Ty, 1)` int tensor of ids. Positions with `PAD` (0) are ignored.
        y_pred: `(B, Ty, V)` float tensor of logits.
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` weights of the tokens in the mean, or `None`.

    Returns:
        From `result()` a float32 scalar; 1 without any token.

    Raises:
        ValueError: If `y_pred` does not have the shape of `y_true` with one more axis.

    Example:

    >>> import numpy as np
    >>> metric = Perplexity()
    >>> metric.update_state(np.array([[4, 0]]), np.zeros((1, 2, 8)))
    >>> round(float(metric.result()), 4)
    8.0
    """

    def __init__(self, name="perplexity"):
        super().__init__(name)

    def token_values(self, labels, logits):
        if isinstance(logits, Projection):
            return -logits.log_probs
        return token_losses(labels, logits)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class TokenAccuracy(_TokenMean):
    """Share of real tokens with the largest logit, given the correct previous tokens.

    Args:
        name: Name of the metric.

    Call arguments:
        y_true: `(B, Ty)` or `(B, Ty, 1)` int tensor of ids. Positions with `PAD` (0) are ignored.
        y_pred: `(B, Ty, V)` float tensor of logits.
        sample_weight: `(B,)`, `(B, 1)` or `(B, Ty)` weights of the tokens in the mean, or `None`.

    Returns:
        From `result()` a float32 scalar; 0 without any token.

    Raises:
        ValueError: If `y_pred` does not have the shape of `y_true` with one more axis.

    Example:

    >>> import numpy as np
    >>> metric = TokenAccuracy()
    >>> metric.update_state(np.array([[2, 1, 0]]), np.eye(3)[None, [2, 2, 2]])
    >>> float(metric.result())
    0.5
    """

    needs_correct = True

    def __init__(self, name="token_accuracy"):
        super().__init__(name)

    def token_values(self, labels, logits):
        if isinstance(logits, Projection):
            return ops.cast(logits.correct, "float32")
        check_logits(labels, logits)
        best = ops.argmax(logits, axis=-1)
        return ops.cast(ops.equal(ops.cast(labels, best.dtype), best), "float32")
