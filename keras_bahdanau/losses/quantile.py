"""Loss of forecasts that predict quantiles."""

import keras
from keras import ops

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class QuantileLoss(keras.losses.Loss):
    """Mean pinball loss of predicted quantiles (Koenker and Bassett 1978).

        loss = mean over all values y and quantiles q of  max(q (y - y_q), (q - 1) (y - y_q))

    It is least if a share `q` of all values is below the prediction `y_q`. For the quantile 0.5,
    the median, it is half of the absolute error.

    Args:
        quantiles: List of numbers between 0 and 1, such as `[0.1, 0.5, 0.9]` for a median and an
            interval that contains 80 % of the values.
        reduction: As for any Keras loss.
        name: Name of the loss.

    Call arguments:
        y_true: `(B, ...)` float tensor.
        y_pred: `(B, ..., Q)` float tensor, one prediction for each quantile.
        sample_weight: As for any Keras loss of values `(B, ...)`.

    Raises:
        ValueError: If `quantiles` is empty or has a number that is not between 0 and 1, or `y_pred`
            does not have the shape of `y_true` with one more axis of the size of `quantiles`.

    Example:

    >>> import numpy as np
    >>> loss = QuantileLoss([0.1, 0.9])(np.array([[2.0]]), np.array([[[1.0, 5.0]]]))
    >>> round(float(loss), 4)                                         # (0.1 * 1 + 0.1 * 3) / 2
    0.2
    """

    def __init__(
        self, quantiles=(0.1, 0.5, 0.9), reduction="sum_over_batch_size", name="quantile_loss"
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        if not isinstance(quantiles, (list, tuple)) or not quantiles:
            raise argument_error("quantiles", "be a list of numbers, such as [0.1, 0.9]", quantiles)
        for number, quantile in enumerate(quantiles):
            check_range(
                f"quantiles[{number}]", quantile, float, 0, 1, open_low=True, open_high=True
            )
        self.quantiles = list(quantiles)

    def call(self, y_true, y_pred):
        sizes = list(zip((*y_true.shape, len(self.quantiles)), y_pred.shape, strict=False))
        if len(y_pred.shape) != len(y_true.shape) + 1 or any(
            None not in pair and pair[0] != pair[1] for pair in sizes
        ):
            raise argument_error(
                "y_pred",
                f"have the shape of `y_true` and a last axis of {len(self.quantiles)} quantiles",
                received=f"y_true of shape {tuple(y_true.shape)}, y_pred of {tuple(y_pred.shape)}",
            )
        quantiles = ops.convert_to_tensor(self.quantiles, dtype="float32")
        errors = ops.expand_dims(y_true, -1) - y_pred
        return ops.mean(ops.maximum(quantiles * errors, (quantiles - 1.0) * errors), axis=-1)

    def get_config(self):
        return {**super().get_config(), "quantiles": self.quantiles}
