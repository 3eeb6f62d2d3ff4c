"""The training loss over token sequences."""

import keras
from keras import ops

from keras_bahdanau.ids import PAD


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class TokenCrossentropy(keras.losses.Loss):
    """Mean cross-entropy per token in nats; padding counts for nothing.

        loss = mean over real tokens of  -(1 - s) log p(y_i) - s / V sum_v log p(v)

    Args:
        label_smoothing: Share `s` of the target spread evenly over the vocabulary, in [0, 1).
        name: Name of the loss.
        **kwargs: Passed to `keras.losses.Loss`.

    Call arguments:
        y_true: `(B, Ty)` int tensor of ids; places that hold `PAD` (0) are left out.
        y_pred: `(B, Ty, V)` float tensor of logits.

    Raises:
        ValueError: If `label_smoothing` is outside [0, 1).

    Example:

    >>> import numpy as np
    >>> loss = TokenCrossentropy()(np.array([[4, 0]]), np.zeros((1, 2, 8)))
    >>> round(float(loss), 4)                                         # log 8
    2.0794
    """

    def __init__(self, label_smoothing=0.0, name="token_crossentropy", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(
                f"Argument `label_smoothing` must be in [0, 1). Received: {label_smoothing}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(y_true, "int32")
        picked = ops.squeeze(ops.take_along_axis(logits, ops.expand_dims(labels, -1), -1), -1)
        if self.label_smoothing:
            s = self.label_smoothing
            picked = (1.0 - s) * picked + s * ops.mean(logits, axis=-1)
        real = ops.cast(ops.not_equal(labels, PAD), "float32")
        losses = (ops.logsumexp(logits, axis=-1) - picked) * real
        if self.reduction in ("sum", "none", None):
            return losses
        # Keras takes the mean over all places; scaled so, it is the mean over the real ones.
        places = ops.cast(ops.size(real), "float32")
        return losses * (places / ops.maximum(ops.sum(real), 1.0))

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
