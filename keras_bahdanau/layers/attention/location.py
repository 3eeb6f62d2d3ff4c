"""Location-sensitive attention of Chorowski et al. (2015)."""

import keras
from keras import ops

from keras_bahdanau.layers.attention.bahdanau import HistoryAttention, project
from keras_bahdanau_runtime.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class LocationSensitiveAttention(HistoryAttention):
    """Additive attention that reads the last weights (arXiv 1506.07503, section 2.1, Eq. 8 and 9).

        f_i  = F * a_{i-1}
        e_ij = v_a . tanh(W_a s_i + U_a h_j + U_f f_ij + b)

    `F` is a convolution over source positions. With `cumulative` it also reads the sum of all
    previous weights, as in speech synthesis. Before the first step all weights are zero.

    Args:
        units: Width `U` of the alignment model.
        filters: Number of features `f_ij`.
        kernel_size: Kernel size of the convolution, which uses zero padding ("same").
        cumulative: Whether the convolution also reads the sum of all previous weights.
        use_bias: Whether to add the bias `b`.
        location_initializer: Initializer of the convolution `F`. `U_f` uses `kernel_initializer`.
        **kwargs: Passed to `BahdanauAttention`: `normalize`, `num_heads`, `normalizer`, `dropout`,
            initializers, regularizers, constraints. With several heads the weights in the state
            and the returned weights are the mean over the heads.

    Call arguments: see `Attention.call`. Queries are taken in order, so `use_causal_mask` and
        `attention_mask` are not supported.

    Raises:
        ValueError: If a number is out of range.

    Example:

    >>> import numpy as np
    >>> attention = LocationSensitiveAttention(units=8, filters=4, kernel_size=3)
    >>> queries, annotations = np.ones((2, 5, 3)), np.ones((2, 7, 6))
    >>> context, weights = attention(queries, annotations, return_attention_scores=True)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 5, 6), (2, 5, 7))
    """

    def __init__(
        self,
        units: int,
        filters: int = 32,
        kernel_size: int = 31,
        cumulative: bool = True,
        use_bias: bool = True,
        location_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(units, use_bias=use_bias, **kwargs)
        check_positive(filters=filters, kernel_size=kernel_size)
        self.filters = filters
        self.kernel_size = kernel_size
        self.cumulative = cumulative
        self.location_initializer = keras.initializers.get(location_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.location_filters = self.add_weight(
            shape=(self.kernel_size, 2 if self.cumulative else 1, self.filters),
            initializer=self.location_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name="location_filters",
        )
        self.location_kernel = self._add_kernel("location_kernel", self.filters, self.units)

    def initial_state(self, memory):
        """Return zero weights, and their zero sum if `cumulative`, `(B, Tx)` each."""
        return (self._zero_weights(memory),) * (2 if self.cumulative else 1)

    def features(self, state):
        """Return `U_f f_ij`, `(B * G, Tx, U)`."""
        features = ops.conv(
            ops.stack(state, axis=-1),
            ops.cast(self.location_filters, "float32"),
            padding="same",
            data_format="channels_last",
        )
        return project(ops.cast(features, self.compute_dtype), self.location_kernel)

    def next_state(self, state, weights, memory):
        """Return the weights of the step, and the sum of all weights if `cumulative`."""
        return (weights, state[1] + weights) if self.cumulative else (weights,)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "cumulative": self.cumulative,
            "location_initializer": keras.initializers.serialize(self.location_initializer),
        }
