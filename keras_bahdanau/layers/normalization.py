"""Normalization of each window of a time series, and its inverse for forecasts."""

import keras
from keras import ops

from keras_bahdanau.layers.sequences import (
    SequenceLayer,
    check_widths,
    checked_mask,
    last_kept_step,
    sequence_lengths,
    zero_masked,
)
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error

_CENTERS = ("last", "mean")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class WindowNormalization(SequenceLayer):
    """Normalize a series by the level and the deviation of its own window (RevIN, Kim et al. 2022).

        normalize:  z = (x - center) / scale        inverse:  x = z scale + center

    `center` and `scale` are numbers of each row and variable of the window. A model of normalized
    values forecasts the difference to the window, so it also works at a level that the training
    data did not have. The layer has no weights: the same layer normalizes the past and, with
    `inverse=True`, converts a forecast back.

    Args:
        center: "last", the last value of the window, or "mean".
        scale: Whether to divide by the standard deviation of the window. If `False`, `scale` is 1.
        epsilon: Added to the variance of the window, for constant windows.
        **kwargs: Passed to `keras.layers.Layer`. Under a half-precision policy pass
            `dtype="float32"`, so that large values are not rounded before the subtraction.

    Call arguments:
        series: `(B, T, V)` float tensor of `V` variables, or `(B, T, V, ...)`, such as quantiles.
        window: `(B, Tx, V)` float tensor, the past of each row.
        window_mask: `(B, Tx)` bool, True = keep, or `None`. The last value is the last kept one.
        inverse: Whether to convert normalized values back.

    Output shape:
        That of `series`.

    Raises:
        ValueError: If `center` is unknown, `epsilon` is negative, or a tensor has another rank,
            width or number of rows.

    Example:

    >>> import numpy as np
    >>> normalize, past = WindowNormalization("last", scale=False), np.array([[[3.0], [5.0]]])
    >>> z = normalize(past, past)
    >>> [float(value) for value in z[0, :, 0]]
    [-2.0, 0.0]
    >>> [float(value) for value in normalize(z, past, inverse=True)[0, :, 0]]
    [3.0, 5.0]
    """

    def __init__(self, center: str = "last", scale: bool = True, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        if center not in _CENTERS:
            raise argument_error("center", f"be one of {_CENTERS}", center)
        check_range("epsilon", epsilon, float, 0)
        self.center = center
        self.scale = scale
        self.epsilon = epsilon
        self.supports_masking = True

    def build(self, series_shape, window_shape):
        self._check_shapes(series_shape, window_shape)

    def _check_shapes(self, series, window):
        check_shape("window", tuple(window), "batch time width")
        check_widths(window=window)
        others = [f"axis{number}" for number in range(3, len(series))]
        check_shape(
            "series",
            tuple(series),
            " ".join(["batch", "time", "width", *others]),
            batch=window[0],
            width=window[-1],
        )

    def call(self, series, window, window_mask=None, inverse=False):
        self._check_shapes(series.shape, window.shape)
        window_mask = checked_mask("window_mask", window_mask, window)
        window = zero_masked(ops.cast(window, self.compute_dtype), window_mask)
        center, scale = self._center_and_scale(window, window_mask)
        shape = (-1, 1, window.shape[-1], *[1] * (len(series.shape) - 3))
        center, scale = ops.reshape(center, shape), ops.reshape(scale, shape)
        outputs = series * scale + center if inverse else (series - center) / scale
        # Keras on torch returns float32 for two float64 tensors.
        return ops.cast(outputs, self.compute_dtype)

    def _center_and_scale(self, window, mask):
        """Return the center and the scale of each row and variable, `(B, V)` each."""
        if mask is None:
            count = ops.shape(window)[1]
        else:
            count = ops.expand_dims(ops.maximum(sequence_lengths(mask), 1), -1)
        count = ops.cast(count, window.dtype)
        mean = ops.sum(window, axis=1) / count
        center = mean if self.center == "mean" else last_kept_step(window, mask)
        if not self.scale:
            return center, ops.ones_like(center)
        deviations = zero_masked(window - ops.expand_dims(mean, 1), mask)
        variance = ops.sum(ops.square(deviations), axis=1) / count
        return center, ops.sqrt(variance + self.epsilon)

    def compute_output_shape(self, series_shape, window_shape):
        return tuple(series_shape)

    def get_config(self):
        names = ("center", "scale", "epsilon")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
