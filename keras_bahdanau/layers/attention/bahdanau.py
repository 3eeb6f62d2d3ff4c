"""Additive attention of Bahdanau, Cho and Bengio (2015)."""

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.additive import additive_scores, chunked_scores, project
from keras_bahdanau.layers.attention.scored import ScoredAttention
from keras_bahdanau_runtime.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class BahdanauAttention(ScoredAttention):
    """Additive attention with its projections (arXiv 1409.0473, Eq. 5 and 6, A.1.2).

        e_ij = v_a . tanh(W_a s_i + U_a h_j [+ b])        a_ij = softmax_j(e_ij)
        c_i  = sum_j a_ij h_j

    The widths of query, key, value and alignment model are independent, and `U_a h` is computed
    once for a source (`memory`). However many queries there are, the hidden layer
    `(B, Tq, Tx, U)` never exists as a whole.

    With `num_heads=H`, head `h` owns `U / H` units, its own normalised weights and `D / H`
    features of the projected values `W_v h_j`; the contexts of the heads stand side by side.

    Args:
        units: Width `U` of the alignment model.
        use_bias: Whether the alignment model adds a bias inside the tanh.
        normalize: Whether `v_a` is weight-normalised, `g v / |v|` (arXiv 1602.07868), with a gain
            of `1 / sqrt(U / H)` at first and a bias inside the tanh.
        num_heads: Number of heads `H`, a divisor of `U` and of `D`.
        chunk_size: Number of queries scored at once when there are many; `None` chooses.
        kernel_initializer: Initialiser of `W_a`, `U_a` and `W_v`.
        score_initializer: Initialiser of `v_a`.
        bias_initializer: Initialiser of the bias.
        kernel_regularizer: Regulariser of `W_a`, `U_a` and `W_v`.
        score_regularizer: Regulariser of `v_a`.
        bias_regularizer: Regulariser of the bias.
        kernel_constraint: Constraint on `W_a`, `U_a` and `W_v`.
        score_constraint: Constraint on `v_a`.
        bias_constraint: Constraint on the bias.
        normalizer: "softmax" or "sparsemax".
        dropout: Share of places dropped in training, the same ones for all queries of a source.
        seed: Int, the randomness of `dropout`, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`. With several heads `return_attention_scores` gives
        `(B, H, Tq, Tx)` weights; `step` gives their mean over the heads.

    Raises:
        ValueError: If a number is out of its range, `num_heads` does not divide a width, or
            `normalize` comes with a `score_initializer` of zeros.

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
        normalize: bool = False,
        num_heads: int = 1,
        chunk_size: int | None = None,
        kernel_initializer="glorot_uniform",
        score_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        score_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        score_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(units=units, num_heads=num_heads)
        if chunk_size is not None:
            check_positive(chunk_size=chunk_size)
        if units % num_heads:
            raise ValueError(
                f"Argument `num_heads` must divide `units`, {units}. Received: {num_heads}"
            )
        self.units = units
        self.use_bias = use_bias
        self.normalize = normalize
        self.num_heads = num_heads
        self.chunk_size = chunk_size
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.score_initializer = keras.initializers.get(score_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        if normalize and isinstance(self.score_initializer, keras.initializers.Zeros):
            raise ValueError(
                "Argument `score_initializer` must not be zeros with `normalize`, because v / |v| "
                f"has no value there. Received: {score_initializer!r}"
            )
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.score_regularizer = keras.regularizers.get(score_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.score_constraint = keras.constraints.get(score_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.query_kernel = self._add_kernel("query_kernel", self._query_width, self.units)
        self.key_kernel = self._add_kernel("key_kernel", self._key_width, self.units)
        if self.num_heads > 1:
            width = self._value_width
            if width % self.num_heads:
                raise ValueError(
                    "Argument `num_heads` must divide the width of the values, "
                    f"{width}. Received: {self.num_heads}"
                )
            self.value_kernel = self._add_kernel("value_kernel", width, width)
        self.score_kernel = self.add_weight(
            shape=(self.units, 1),
            initializer=self.score_initializer,
            regularizer=self.score_regularizer,
            constraint=self.score_constraint,
            name="score_kernel",
        )
        if self.normalize:
            gain = keras.initializers.Constant((self.units / self.num_heads) ** -0.5)
            self.gain = self.add_weight(shape=(self.num_heads,), initializer=gain, name="gain")
        self.bias = None
        if self.use_bias or self.normalize:
            self.bias = self.add_weight(
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )

    def _add_kernel(self, name, width, units):
        return self.add_weight(
            shape=(width, units),
            initializer=clone_initializer(self.kernel_initializer),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name=name,
        )

    def make_keys(self, key):
        """`U_a h_j`, and the bias if there is one: `(B, Tx, U)`."""
        keys = ops.matmul(key, self.key_kernel)
        return keys if self.bias is None else keys + ops.cast(self.bias, keys.dtype)

    def make_values(self, values):
        """The annotations, or with several heads `W_v h_j` split: `(B, H, Tx, D / H)`."""
        if self.num_heads == 1:
            return values
        batch, steps = ops.shape(values)[:2]
        # Outside of a Keras call, in a step, weights are not cast.
        product = ops.matmul(values, ops.cast(self.value_kernel, values.dtype))
        values = ops.cast(product, values.dtype)  # float32 of two float64 tensors on torch
        width = self._value_width // self.num_heads
        values = ops.reshape(values, (batch, steps, self.num_heads, width))
        return ops.transpose(values, (0, 2, 1, 3))

    def scores(self, query, keys, chunked=False, features=None):
        """`e_ij` of queries `(B, G, N)`, with `features` `(B, G, Tx, U)` added inside the tanh."""
        query, vectors = project(query, self.query_kernel), self._vectors()
        if chunked:
            scores = chunked_scores(query, keys, vectors, self.chunk_size)
        else:
            scores = additive_scores(query, keys, vectors, features)
        if self.num_heads == 1:
            return ops.squeeze(scores, -1)
        return ops.transpose(scores, (0, 3, 1, 2))

    def _vectors(self):
        """`v_a` as `(U, H)`: each column holds one head's units and zeros."""
        vectors = ops.convert_to_tensor(self.score_kernel)
        if self.num_heads > 1:
            vectors = vectors * ops.repeat(
                ops.eye(self.num_heads, dtype=vectors.dtype), self.units // self.num_heads, axis=0
            )
        if self.normalize:
            length = ops.sqrt(ops.sum(ops.square(ops.cast(vectors, "float32")), axis=0))
            vectors = ops.cast(vectors, "float32") * (ops.cast(self.gain, "float32") / length)
        return vectors

    def get_config(self):
        config = {
            **super().get_config(),
            "units": self.units,
            "use_bias": self.use_bias,
            "normalize": self.normalize,
            "num_heads": self.num_heads,
            "chunk_size": self.chunk_size,
        }
        for name in ("kernel", "score", "bias"):
            for kind in ("initializer", "regularizer", "constraint"):
                module = getattr(keras, f"{kind}s")
                config[f"{name}_{kind}"] = module.serialize(getattr(self, f"{name}_{kind}"))
        return config
