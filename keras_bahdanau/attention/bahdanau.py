"""Additive attention of Bahdanau, Cho and Bengio (2015)."""

import keras
from keras import ops

from keras_bahdanau.attention.base import Attention
from keras_bahdanau.initializers import fresh


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class BahdanauAttention(Attention):
    """Additive attention with its projections (arXiv 1409.0473, Eq. 5 and 6, A.1.2).

        e_ij = v_a . tanh(W_a s_i + U_a h_j)        a_ij = softmax_j(e_ij)
        c_i  = sum_j a_ij h_j

    The widths of query, value and alignment model are independent, and `U_a h` is computed
    once for a source (`memory`).

    Args:
        units: Width `U` of the alignment model.
        use_bias: Whether the alignment model adds a bias inside the tanh.
        kernel_initializer: Initialiser of `W_a` and `U_a`.
        score_initializer: Initialiser of `v_a`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`.

    Raises:
        ValueError: If `units` is not a positive integer.

    Example:

    >>> import numpy as np
    >>> attention = BahdanauAttention(units=8)
    >>> query, annotations = np.ones((2, 5)), np.ones((2, 7, 6))
    >>> context, weights = attention(query, annotations, return_attention_scores=True)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 6), (2, 7))
    """

    def __init__(
        self,
        units: int,
        use_bias: bool = False,
        kernel_initializer="glorot_uniform",
        score_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(units, int) or units < 1:
            raise ValueError(f"Argument `units` must be a positive integer. Received: {units!r}")
        self.units = units
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.score_initializer = keras.initializers.get(score_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self.query_kernel = self.add_weight(
            shape=(query_shape[-1], self.units),
            initializer=fresh(self.kernel_initializer),
            name="query_kernel",
        )
        self.key_kernel = self.add_weight(
            shape=(key_shape[-1], self.units),
            initializer=fresh(self.kernel_initializer),
            name="key_kernel",
        )
        self.score_kernel = self.add_weight(
            shape=(self.units, 1), initializer=self.score_initializer, name="score_kernel"
        )
        self.bias = (
            self.add_weight(shape=(self.units,), initializer="zeros", name="bias")
            if self.use_bias
            else None
        )

    def make_keys(self, key, mask=None):
        """`U_a h_j`, and the bias if there is one: `(B, Tx, U)`."""
        keys = ops.matmul(key, self.key_kernel)
        return keys if self.bias is None else keys + self.bias

    def score(self, query, keys):
        """`e_ij` of queries `(B, G, N)`: `(B, G, Tx)`."""
        projected = ops.expand_dims(ops.matmul(query, self.query_kernel), 2)  # (B, G, 1, U)
        hidden = ops.tanh(projected + ops.expand_dims(keys, 1))  # (B, G, Tx, U)
        return ops.squeeze(ops.matmul(hidden, self.score_kernel), -1)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "score_initializer": keras.initializers.serialize(self.score_initializer),
        }
