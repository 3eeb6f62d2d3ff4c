"""Additive attention (arXiv 1409.0473): the layer, its score, and the base class of variants."""

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.base import Attention, ScoredAttention, mask_scores
from keras_bahdanau_runtime.checks import check_positive

# Floats of one chunk's hidden layer, (B, chunk, Tx, U), when no chunk size is given: 16 MiB.
_CHUNK_FLOATS = 2**22


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


class HistoryAttention(BahdanauAttention):
    """Base of mechanisms with `e_ij = v_a . tanh(W_a s_i + U_a h_j + f_ij + b)`.

    The features `f_ij` come from the weights of the steps before, so queries are taken in order.
    Subclasses give `initial_state`, `features` and `next_state`. With several heads the state,
    and the weights that a call returns, are the mean over the heads.

    Args:
        units: Width `U` of the alignment model.
        use_bias: Whether the alignment model adds a bias inside the tanh, as both papers do.
        **kwargs: Passed to `BahdanauAttention`.
    """

    def __init__(self, units: int, use_bias: bool = True, **kwargs):
        super().__init__(units, use_bias=use_bias, **kwargs)

    @property
    def supports_attention_mask(self):
        """False: queries are taken in order."""
        return False

    def features(self, state):
        """`f_ij` for a state of `B * G` rows: `(B * G, Tx, U)`."""
        raise NotImplementedError

    def next_state(self, state, weights, memory):
        """The state after a step with `weights` `(B * G, Tx)`."""
        raise NotImplementedError

    def step(self, query, memory, state=(), training=None, t=None, return_logits=False):
        """Attends once and remembers where; see `Attention.step`."""
        queries = self._grouped(query, memory)  # (B, G, N)
        features = ops.cast(self.features(state), self.compute_dtype)
        shape = (*ops.shape(queries)[:2], ops.shape(features)[1], self.units)
        features = ops.reshape(features, shape)
        scores = self.scores(queries, memory.keys, features=features)
        mask = self._mask(scores, memory)
        context, weights = self._ungrouped(*self._weigh(scores, mask, memory), memory)
        state = self.next_state(state, weights, memory)
        if return_logits:
            weights = ops.reshape(mask_scores(scores, mask), ops.shape(weights))
        return context, weights, state

    _attend = Attention._attend  # one by one, not at once

    def _no_weights(self, memory):
        """Zeros `(B, Tx)`, the weights before the first step."""
        batch, steps = ops.shape(memory.keys)[:2]
        return ops.zeros((batch, steps), dtype="float32")


def additive_scores(query, keys, vectors, features=None):
    """Scores every query against every key with a hidden layer between (A.1.2).

        e_ijh = v_h . tanh(q_i + k_j [+ f_ij])

    Args:
        query: `(B, G, U)` float tensor, projected queries.
        keys: `(B, Tx, U)` float tensor, projected keys.
        vectors: `(U, H)` float tensor, one column `v_h` for each head.
        features: `(B, G, Tx, U)` float tensor added inside the tanh, or `None`.

    Returns:
        `(B, G, Tx, H)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = additive_scores(np.zeros((1, 2, 3)), np.zeros((1, 4, 3)), np.ones((3, 1)))
    >>> tuple(scores.shape)
    (1, 2, 4, 1)
    """
    # Weights have the dtype of the Keras call that this is part of, and outside of any, in a
    # search, their own. So query, keys and features may differ in dtype.
    hidden = ops.add(ops.expand_dims(query, 2), ops.expand_dims(keys, 1))  # (B, G, Tx, U)
    if features is not None:
        hidden = hidden + ops.cast(features, hidden.dtype)
    *sizes, width = ops.shape(hidden)
    # A matrix before the tanh: JAX would keep its result twice for the gradient, as it came out of
    # the tanh and as it went into the product.
    hidden = ops.tanh(ops.reshape(hidden, (-1, width)))
    scores = ops.matmul(ops.cast(hidden, "float32"), ops.cast(vectors, "float32"))
    return ops.reshape(scores, (*sizes, vectors.shape[-1]))


def chunked_scores(query, keys, vectors, chunk_size=None):
    """`additive_scores` of many queries.

    The hidden layer exists for `chunk_size` queries at a time and is computed again in the backward
    pass, so that memory grows with `Tq * Tx`, not with `Tq * Tx * U`.

    Args:
        query: `(B, Tq, U)` float tensor, projected queries.
        keys: `(B, Tx, U)` float tensor, projected keys.
        vectors: `(U, H)` float tensor, one column `v_h` for each head.
        chunk_size: Number of queries scored at once; `None` chooses one, about 16 MiB of hidden
            layer.

    Returns:
        `(B, Tq, Tx, H)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = chunked_scores(np.zeros((1, 5, 3)), np.zeros((1, 4, 3)), np.ones((3, 1)), 2)
    >>> tuple(scores.shape)
    (1, 5, 4, 1)
    """
    query, keys = ops.convert_to_tensor(query), ops.convert_to_tensor(keys)
    (batch, count, width), steps = ops.shape(query), ops.shape(keys)[1]
    # A tensor of its own: TensorFlow counts the gradient twice where a variable is recomputed with.
    vectors = ops.reshape(vectors, (width, -1))
    known = all(isinstance(size, int) or ops.is_tensor(size) for size in (batch, count, steps))
    if not known or query.shape[1] == 1:
        # On JAX a size that is neither belongs to a trace that only asks for shapes.
        return additive_scores(query, keys, vectors)
    chunk = _chunk_size(batch, steps, width) if chunk_size is None else chunk_size
    chunks = _quotient_up(count, chunk)
    if isinstance(chunks, int):
        if chunks <= 1:
            return additive_scores(query, keys, vectors)
        chunk = _quotient_up(count, chunks)  # even chunks need the least padding
    scored = keras.remat(additive_scores)
    if keras.config.backend() == "torch":
        return _in_place(scored, query, keys, vectors, chunk)
    padding = ops.zeros((batch, chunks * chunk - count, width), dtype=query.dtype)
    parts = ops.reshape(ops.concatenate([query, padding], 1), (batch, chunks, chunk, width))
    scores = ops.map(lambda part: scored(part, keys, vectors), ops.transpose(parts, (1, 0, 2, 3)))
    scores = ops.transpose(scores, (1, 0, 2, 3, 4))  # (B, chunks, chunk, Tx, H)
    scores = ops.reshape(scores, (batch, chunks * chunk, steps, vectors.shape[-1]))[:, :count]
    # TensorFlow loses the number of queries in a slice; it is known again from here on.
    return ops.reshape(scores, (batch, count, steps, vectors.shape[-1]))


def _in_place(scored, query, keys, vectors, chunk):
    # `ops.map` on torch is a list of results. The C library's allocator puts each of them into the
    # room of the hidden layer just freed, where the next one then finds no place: memory grew by
    # the whole (B, Tq, Tx, U). One result that is written to leaves no such holes.
    batch, count, _ = query.shape
    scores = ops.zeros((batch, count, keys.shape[1], vectors.shape[-1]), dtype="float32")
    for start in range(0, count, chunk):
        part = scored(query[:, start : start + chunk], keys, vectors)
        scores[:, start : start + chunk] = part  # `ops.slice_update` copies all of it
    return scores


def _chunk_size(batch, steps, width):
    floats = batch * steps * width
    if isinstance(floats, int):
        return max(1, _quotient_up(_CHUNK_FLOATS, max(1, floats)))
    return ops.maximum(1, _quotient_up(_CHUNK_FLOATS, ops.maximum(1, floats)))


def _quotient_up(size, part):
    """`size / part`, rounded up, of positive ints; of negative ones ONNX rounds otherwise."""
    return (size + part - 1) // part


def project(inputs, kernel):
    """`inputs (..., M) @ kernel (M, N)` as one product of two matrices.

    `ops.matmul` on TensorFlow makes one of it too, but with a permutation that XLA no longer
    knows in the backward pass of a loop.

    Example:

    >>> import numpy as np
    >>> float(project(np.ones((1, 1, 2)), np.ones((2, 1)))[0, 0, 0])
    2.0
    """
    inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel)
    *sizes, width = ops.shape(inputs)
    product = ops.matmul(ops.reshape(inputs, (-1, width)), kernel)
    return ops.reshape(product, (*sizes, kernel.shape[-1]))
