"""Additive attention (arXiv 1409.0473): the layer, its score, and the base class of variants.

`additive_scores` computes the score for a few queries, `chunked_scores` for many with less memory.
"""

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.base import (
    Attention,
    ScoredAttention,
    mask_scores,
    missing_method,
)
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error

# Maximum number of floats in the hidden layer (B, chunk, Tx, U) of one chunk by default: 4 MiB.
_CHUNK_FLOATS = 2**20


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class BahdanauAttention(ScoredAttention):
    """Additive attention with its projections (arXiv 1409.0473, Eq. 5 and 6, A.1.2).

        e_ij = v_a . tanh(W_a s_i + U_a h_j [+ b])        a_ij = softmax_j(e_ij)
        c_i  = sum_j a_ij h_j

    Query, key, value and alignment model may have different widths. `U_a h` is computed once per
    source (`memory`). Many queries are scored in chunks, so that the hidden layer
    `(B, Tq, Tx, U)` is never in memory as a whole.

    With `num_heads=H` each head has `U / H` units of the alignment model, its own weights, and
    `D / H` features of the projected values `W_v h_j`. The contexts of the heads are concatenated.

    Args:
        units: Width `U` of the alignment model.
        use_bias: Whether to add the bias `b` inside the tanh.
        normalize: Whether to use weight normalization for `v_a`, `g v / |v|` (arXiv 1602.07868),
            with an initial gain of `1 / sqrt(U / H)` and the bias `b`.
        num_heads: Number of heads `H`, a divisor of `U` and of `D`.
        chunk_size: Number of queries in a chunk; chosen by memory if `None`.
        kernel_initializer: Initializer of `W_a`, `U_a` and `W_v`.
        score_initializer: Initializer of `v_a`.
        bias_initializer: Initializer of the bias.
        kernel_regularizer: Regularizer of `W_a`, `U_a` and `W_v`.
        score_regularizer: Regularizer of `v_a`.
        bias_regularizer: Regularizer of the bias.
        kernel_constraint: Constraint on `W_a`, `U_a` and `W_v`.
        score_constraint: Constraint on `v_a`.
        bias_constraint: Constraint on the bias.
        normalizer: "softmax" or "sparsemax".
        dropout: Fraction of positions dropped in training, the same for all queries of a source.
        seed: Int seed of `dropout`, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`. With several heads `return_attention_scores` returns
        weights `(B, H, Tq, Tx)`; `step` returns their mean over the heads.

    Raises:
        ValueError: If a number is out of range, `num_heads` does not divide a width, or
            `score_initializer` is zeros with `normalize`.

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
            raise argument_error("num_heads", f"divide `units`, {units}", received=str(num_heads))
        self.units = units
        self.use_bias = use_bias
        self.normalize = normalize
        self.num_heads = num_heads
        self.chunk_size = chunk_size
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.score_initializer = keras.initializers.get(score_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        if normalize and isinstance(self.score_initializer, keras.initializers.Zeros):
            raise argument_error(
                "score_initializer",
                "not be zeros with `normalize`, because v / |v| is undefined for v = 0",
                score_initializer,
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
                raise argument_error(
                    "num_heads",
                    f"divide the width of the values, {width}",
                    received=str(self.num_heads),
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
        """Return `U_a h_j [+ b]`, `(B, Tx, U)`."""
        keys = ops.matmul(key, self.key_kernel)
        return keys if self.bias is None else keys + ops.cast(self.bias, keys.dtype)

    def make_values(self, values):
        """Return the annotations, or with several heads `W_v h_j` as `(B, H, Tx, D / H)`."""
        if self.num_heads == 1:
            return values
        batch, steps = ops.shape(values)[:2]
        # Keras casts weights in `__call__` only, not in `memory` and `step`.
        product = ops.matmul(values, ops.cast(self.value_kernel, values.dtype))
        # Keras on torch returns float32 for two float64 tensors.
        values = ops.cast(product, values.dtype)
        width = self._value_width // self.num_heads
        values = ops.reshape(values, (batch, steps, self.num_heads, width))
        return ops.transpose(values, (0, 2, 1, 3))

    def scores(self, query, memory, chunked=False, features=None):
        """Return `e_ij` for queries `(B, G, N)`; see `ScoredAttention.scores`.

        Args:
            query: `(B, G, N)` float tensor.
            memory: The `Memory` of `B` rows.
            chunked: Whether to score the queries in chunks.
            features: `(B, G, Tx, U)` float tensor to add inside the tanh, or `None`.
        """
        query, score_kernel = project(query, self.query_kernel), self._score_kernel_by_head()
        if chunked:
            scores = chunked_scores(query, memory.keys, score_kernel, self.chunk_size)
        else:
            scores = additive_scores(query, memory.keys, score_kernel, features)
        if self.num_heads == 1:
            return ops.squeeze(scores, -1)
        return ops.transpose(scores, (0, 3, 1, 2))

    def _score_kernel_by_head(self):
        """Return `v_a` as `(U, H)`: each column has the units of one head, and zeros."""
        kernel = ops.convert_to_tensor(self.score_kernel)
        if self.num_heads > 1:
            kernel = kernel * ops.repeat(
                ops.eye(self.num_heads, dtype=kernel.dtype), self.units // self.num_heads, axis=0
            )
        if self.normalize:
            norm = ops.sqrt(ops.sum(ops.square(ops.cast(kernel, "float32")), axis=0))
            kernel = ops.cast(kernel, "float32") * (ops.cast(self.gain, "float32") / norm)
        return kernel

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
    """Base class of additive attention that reads the weights of the previous steps.

        e_ij = v_a . tanh(W_a s_i + U_a h_j + f_ij + b)

    The features `f_ij` are computed from the weights of previous steps, so queries are taken in
    order. Subclasses implement `initial_state`, `features` and `next_state`. With several heads
    the state, and the weights that a call returns, are the mean over the heads.

    Args:
        units: Width `U` of the alignment model.
        use_bias: Whether to add the bias `b`.
        **kwargs: Passed to `BahdanauAttention`.
    """

    def __init__(self, units: int, use_bias: bool = True, **kwargs):
        super().__init__(units, use_bias=use_bias, **kwargs)

    @property
    def supports_attention_mask(self):
        """False: queries are taken in order."""
        return False

    def features(self, state):
        """Return `f_ij` for a state of `B * G` rows, `(B * G, Tx, U)`."""
        raise missing_method(self, "HistoryAttention", "features(state)")

    def next_state(self, state, weights, memory):
        """Return the state after a step with `weights` `(B * G, Tx)`."""
        raise missing_method(self, "HistoryAttention", "next_state(state, weights, memory)")

    def step(self, query, memory, state=(), training=None, t=None, return_logits=False):
        """Attend once per query and update the state; see `Attention.step`."""
        queries = self.group_queries(query, memory)  # (B, G, N)
        features = ops.cast(self.features(state), self.compute_dtype)
        shape = (*ops.shape(queries)[:2], ops.shape(features)[1], self.units)
        features = ops.reshape(features, shape)
        scores = self.scores(queries, memory, features=features)
        mask = self._score_mask(scores, memory)
        context, weights = self._average_by_scores(scores, mask, memory)
        context, weights = self.ungroup(context, weights, memory)
        state = self.next_state(state, weights, memory)
        if return_logits:
            weights = ops.reshape(mask_scores(scores, mask), ops.shape(weights))
        return context, weights, state

    _attend = Attention._attend  # in order, not all queries at once

    def _zero_weights(self, memory):
        """Return zeros `(B, Tx)`, the weights before the first step."""
        batch, steps = ops.shape(memory.keys)[:2]
        return ops.zeros((batch, steps), dtype="float32")


def additive_scores(query, keys, score_kernel, features=None):
    """Score every query against every key with a hidden layer (A.1.2).

        e_ijh = v_h . tanh(q_i + k_j [+ f_ij])

    Args:
        query: `(B, G, U)` float tensor, projected queries.
        keys: `(B, Tx, U)` float tensor, projected keys.
        score_kernel: `(U, H)` float tensor, one column `v_h` per head.
        features: `(B, G, Tx, U)` float tensor to add inside the tanh, or `None`.

    Returns:
        `(B, G, Tx, H)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = additive_scores(np.zeros((1, 2, 3)), np.zeros((1, 4, 3)), np.ones((3, 1)))
    >>> tuple(scores.shape)
    (1, 2, 4, 1)
    """
    # Query, keys and features may differ in dtype: weights have the compute dtype inside of a
    # Keras call, and their own dtype in a search.
    dtypes = [keras.backend.standardize_dtype(tensor.dtype) for tensor in (query, keys)]
    dtype = keras.backend.result_type(*dtypes)
    # Not `ops.add`, which on TensorFlow adds keys of shape (1, 1, Tx, 1) as a bias to axis 1.
    query, keys = ops.cast(query, dtype), ops.cast(keys, dtype)
    hidden = ops.expand_dims(query, 2) + ops.expand_dims(keys, 1)  # (B, G, Tx, U)
    if features is not None:
        hidden = hidden + ops.cast(features, hidden.dtype)
    *sizes, width = ops.shape(hidden)
    # Flattened before the tanh. Otherwise JAX would store the result twice for the gradient, as the
    # output of the tanh and as the input of the product.
    hidden = ops.tanh(ops.reshape(hidden, (-1, width)))
    scores = ops.matmul(ops.cast(hidden, "float32"), ops.cast(score_kernel, "float32"))
    return ops.reshape(scores, (*sizes, score_kernel.shape[-1]))


def chunked_scores(query, keys, score_kernel, chunk_size=None):
    """Compute `additive_scores` in chunks of queries.

    The hidden layer exists for `chunk_size` queries at a time and is recomputed in the backward
    pass. So memory grows with `Tq * Tx`, not with `Tq * Tx * U`.

    Args:
        query: `(B, Tq, U)` float tensor, projected queries.
        keys: `(B, Tx, U)` float tensor, projected keys.
        score_kernel: `(U, H)` float tensor, one column `v_h` per head.
        chunk_size: Number of queries in a chunk; if `None`, as many as have a hidden layer of
            about 4 MiB.

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
    # A new tensor: TensorFlow counts the gradient of a variable in a recomputed function twice.
    score_kernel = ops.reshape(score_kernel, (width, -1))
    has_sizes = all(isinstance(size, int) or ops.is_tensor(size) for size in (batch, count, steps))
    if not has_sizes or query.shape[1] == 1:
        # On JAX sizes are unknown only in a trace for output shapes.
        return additive_scores(query, keys, score_kernel)
    chunk = _chunk_size(batch, steps, width) if chunk_size is None else chunk_size
    chunks = _ceil_divide(count, chunk)
    if isinstance(chunks, int):
        if chunks <= 1:
            return additive_scores(query, keys, score_kernel)
        chunk = _ceil_divide(count, chunks)  # chunks of equal size need the least padding
    if keras.config.backend() == "torch":
        return _torch_chunked_scores(query, keys, score_kernel, chunk)
    recomputed_scores = keras.remat(additive_scores)
    padding = ops.zeros((batch, chunks * chunk - count, width), dtype=query.dtype)
    parts = ops.reshape(ops.concatenate([query, padding], 1), (batch, chunks, chunk, width))
    scores = ops.map(
        lambda part: recomputed_scores(part, keys, score_kernel),
        ops.transpose(parts, (1, 0, 2, 3)),
    )
    scores = ops.transpose(scores, (1, 0, 2, 3, 4))  # (B, chunks, chunk, Tx, H)
    scores = ops.reshape(scores, (batch, chunks * chunk, steps, score_kernel.shape[-1]))[:, :count]
    # On TensorFlow the slice loses the static number of queries. The reshape restores it.
    return ops.reshape(scores, (batch, count, steps, score_kernel.shape[-1]))


def _torch_chunked_scores(query, keys, score_kernel, chunk):
    """Compute `chunked_scores` on torch, with one tensor for the scores of all chunks.

    The forward and the backward pass each have a loop. With `keras.remat` for each chunk, small
    results would be allocated in the freed memory of a hidden layer. The next hidden layer would
    then need new memory, so the process would grow by the whole `(B, Tq, Tx, U)`.
    """
    import torch

    batch, count, _ = query.shape
    ranges = [slice(start, start + chunk) for start in range(0, count, chunk)]

    @ops.custom_gradient
    def scores_with_gradients(query, keys, score_kernel):
        scores = ops.zeros((batch, count, keys.shape[1], score_kernel.shape[1]), dtype="float32")
        for part in ranges:
            scores[:, part] = additive_scores(query[:, part], keys, score_kernel)

        def gradients(query, keys, score_kernel, upstream):
            has_second_gradient = torch.is_grad_enabled()
            sums = [ops.zeros_like(tensor) for tensor in (query, keys, score_kernel)]
            for part in ranges:
                inputs = query[:, part], keys, score_kernel
                if not has_second_gradient:
                    inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
                with torch.enable_grad():
                    scores = additive_scores(*inputs)
                of_query, *others = torch.autograd.grad(
                    scores, inputs, upstream[:, part], create_graph=has_second_gradient
                )
                sums[0][:, part] = of_query
                for total, gradient in zip(sums[1:], others, strict=True):
                    total += gradient
            return tuple(sums)

        return scores, gradients

    return scores_with_gradients(query, keys, score_kernel)


def _chunk_size(batch, steps, width):
    floats = batch * steps * width  # of the hidden layer of one query
    if isinstance(floats, int):
        return max(1, _ceil_divide(_CHUNK_FLOATS, max(1, floats)))
    return ops.maximum(1, _ceil_divide(_CHUNK_FLOATS, ops.maximum(1, floats)))


def _ceil_divide(size, divisor):
    """Return `size / divisor` of positive ints, rounded up."""
    # Not `-(-size // divisor)`: ONNX rounds negative quotients differently.
    return (size + divisor - 1) // divisor


def project(inputs, kernel):
    """Return `inputs (..., M) @ kernel (M, N)`, computed as a product of two matrices.

    On TensorFlow `ops.matmul` adds a transposition that XLA cannot remove in the backward pass of
    a loop.

    Example:

    >>> import numpy as np
    >>> float(project(np.ones((1, 1, 2)), np.ones((2, 1)))[0, 0, 0])
    2.0
    """
    inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel)
    *sizes, width = ops.shape(inputs)
    product = ops.matmul(ops.reshape(inputs, (-1, width)), kernel)
    return ops.reshape(product, (*sizes, kernel.shape[-1]))
