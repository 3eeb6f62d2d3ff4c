"""Attention with a learned query: a sequence becomes one vector, or a few."""

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.bahdanau import additive_scores, project
from keras_bahdanau.layers.attention.base import combine_masks, masked_softmax
from keras_bahdanau.layers.sequences import SequenceLayer, check_widths, checked_mask, zero_masked
from keras_bahdanau_runtime.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentionPooling(SequenceLayer):
    """Pools a sequence by additive attention whose query is learned, the same for every row.

        e_gj = v_a . tanh(q_g + U_a h_j)      a_gj = softmax_j(e_gj)      c_g = sum_j a_gj h_j

    It stands where `GlobalAveragePooling1D` would, before a classifier, for example, and its
    weights tell which places counted. They tell of words only where `h_j` does: a recurrent state
    holds what was read before it, and weights over recurrent states may point beside the word;
    those over a convolution point as near as its kernel is wide. Pool embeddings or a narrow
    convolution where weights are to be shown.

    A query that is computed goes into `BahdanauAttention` instead. When that is called, a query
    `(1, N)` broadcasts over the rows of the value. It does not in `step`, and so in no decoder:
    there each row needs its own, `keras.ops.broadcast_to(query, (batch, N))`.

    Args:
        units: Width `U` of the alignment model.
        queries: Number of queries `G`, each of which attends by itself.
        kernel_initializer: Initialiser of `U_a`.
        query_initializer: Initialiser of the queries, which must differ to learn different things.
        score_initializer: Initialiser of `v_a`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        values: `(B, Tx, D)` float tensor.
        mask: `(B, Tx)` bool, True = keep; Keras passes on that of an `Embedding(mask_zero=True)`.
        return_attention_scores: Whether to return the weights, too.
        attention_mask: `(B, queries, Tx)` bool, True where a query may read the place, or
            `(1, queries, Tx)` for the same mask in every row. It is combined with `mask`.
        values_mask: The name under which Keras passes on the mask of `values` when there is an
            `attention_mask`; the same as `mask`.

    Output: `(B, D)`, or `(B, queries, D)` where `queries` is above 1; with
        `return_attention_scores` also the float32 weights `(B, Tx)` or `(B, queries, Tx)`. A row
        that is masked as a whole gets zeros.

    Raises:
        ValueError: If a number is not an int of at least 1, `values` is of another rank or width,
            or the mask of another shape or dtype.

    Example:

    >>> import numpy as np
    >>> pooled, weights = AttentionPooling(8)(np.ones((2, 5, 6)), return_attention_scores=True)
    >>> tuple(pooled.shape), tuple(weights.shape)
    ((2, 6), (2, 5))
    """

    def __init__(
        self,
        units: int,
        queries: int = 1,
        kernel_initializer="glorot_uniform",
        query_initializer="glorot_uniform",
        score_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(units=units, queries=queries)
        self.units = units
        self.queries = queries
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.query_initializer = keras.initializers.get(query_initializer)
        self.score_initializer = keras.initializers.get(score_initializer)
        self.supports_masking = True

    def build(self, values_shape):
        if len(values_shape) != 3:
            raise ValueError(
                "Argument `values` of AttentionPooling must be (batch, time, width). "
                f"Received: shape {tuple(values_shape)}"
            )
        check_widths(values=values_shape)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: values_shape[-1]})
        weights = {
            "key_kernel": ((values_shape[-1], self.units), self.kernel_initializer),
            "query": ((self.queries, self.units), self.query_initializer),
            "score_kernel": ((self.units, 1), self.score_initializer),
        }
        for name, (shape, initializer) in weights.items():
            made = self.add_weight(
                shape=shape, initializer=clone_initializer(initializer), name=name
            )
            setattr(self, name, made)

    def call(
        self,
        values,
        mask=None,
        return_attention_scores=False,
        attention_mask=None,
        values_mask=None,
    ):
        query = ops.expand_dims(ops.convert_to_tensor(self.query), 0)  # (1, G, U)
        mask = checked_mask("mask", values_mask if mask is None else mask, values)
        by_query, mask = combine_masks(query, values, mask, attention_mask)
        values = zero_masked(ops.cast(values, self.compute_dtype), mask)  # Keras leaves ints
        keys = project(values, self.key_kernel)
        scores = ops.squeeze(additive_scores(query, keys, self.score_kernel), -1)  # (B, G, Tx)
        if mask is not None:
            mask = ops.expand_dims(mask, 1)
            by_query = mask if by_query is None else ops.logical_and(mask, by_query)
        weights = masked_softmax(scores, by_query)
        # Keras on torch returns float32 for two float64 tensors.
        pooled = ops.cast(ops.matmul(ops.cast(weights, values.dtype), values), values.dtype)
        if self.queries == 1:
            pooled, weights = ops.squeeze(pooled, 1), ops.squeeze(weights, 1)
        return (pooled, weights) if return_attention_scores else pooled

    # Traced: by the shape of what is pooled alone Keras would not know of the weights.
    compute_output_spec = keras.Operation.compute_output_spec

    def compute_output_shape(self, values_shape):
        """The shape of what is pooled."""
        groups = () if self.queries == 1 else (self.queries,)
        return (values_shape[0], *groups, values_shape[-1])

    def compute_mask(self, values, mask=None):
        """What is pooled has no time axis, and so no mask."""
        return None

    def get_config(self):
        config = {**super().get_config(), "units": self.units, "queries": self.queries}
        for name in ("kernel", "query", "score"):
            value = getattr(self, f"{name}_initializer")
            config[f"{name}_initializer"] = keras.initializers.serialize(value)
        return config
