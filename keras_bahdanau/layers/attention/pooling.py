"""Pooling of sequences by attention with learned queries."""

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.bahdanau import additive_scores, project
from keras_bahdanau.layers.attention.base import combine_masks, masked_softmax
from keras_bahdanau.layers.sequences import SequenceLayer, check_widths, checked_mask, zero_masked
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class AttentionPooling(SequenceLayer):
    """Additive attention pooling with learned queries, the same for every row.

        e_gj = v_a . tanh(q_g + U_a h_j)      a_gj = softmax_j(e_gj)      c_g = sum_j a_gj h_j

    It can replace `keras.layers.GlobalAveragePooling1D`, for example in front of a classifier, and
    its weights show which positions were important. To explain a result by words, pool embeddings
    or a narrow convolution: a recurrent state summarizes many words, so a large weight may be next
    to the important word.

    For a computed query use `BahdanauAttention`. In its call a query `(1, N)` broadcasts over the
    rows of the value. In `step`, and so in a decoder, it does not; write
    `keras.ops.broadcast_to(query, (batch, N))` there.

    Args:
        units: Width `U` of the alignment model.
        queries: Number of independent queries `G`.
        kernel_initializer: Initializer of `U_a`.
        query_initializer: Initializer of the queries. Equal queries would learn the same.
        score_initializer: Initializer of `v_a`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        values: `(B, Tx, D)` float tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`. Keras passes the mask of an
            `Embedding(mask_zero=True)`.
        return_attention_scores: Whether to also return the weights.
        attention_mask: `(B, queries, Tx)` bool, True where a query may attend to a position, or
            `(1, queries, Tx)` for the same mask in every row. It is combined with `mask`.
        values_mask: Same as `mask`. Keras passes the mask of `values` under this name if the call
            has an `attention_mask`.

    Output shape:
        `(B, D)`, or `(B, queries, D)` with several queries; with `return_attention_scores` also
        float32 weights `(B, Tx)` or `(B, queries, Tx)`. Fully masked rows have zeros.

    Raises:
        ValueError: If a number is not a positive int, `values` has another rank or width, or a
            mask has another shape or dtype.

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
        check_shape("values", tuple(values_shape), "batch time width", of="AttentionPooling")
        check_widths(values=values_shape)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: values_shape[-1]})
        weights = {
            "key_kernel": ((values_shape[-1], self.units), self.kernel_initializer),
            "query": ((self.queries, self.units), self.query_initializer),
            "score_kernel": ((self.units, 1), self.score_initializer),
        }
        for name, (shape, initializer) in weights.items():
            initializer = clone_initializer(initializer)
            setattr(self, name, self.add_weight(shape=shape, initializer=initializer, name=name))

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
        attention_mask, mask = combine_masks(query, values, mask, attention_mask)
        # The cast is for ints, which Keras does not autocast.
        values = zero_masked(ops.cast(values, self.compute_dtype), mask)
        keys = project(values, self.key_kernel)
        scores = ops.squeeze(additive_scores(query, keys, self.score_kernel), -1)  # (B, G, Tx)
        if mask is not None:
            mask = ops.expand_dims(mask, 1)
            attention_mask = (
                mask if attention_mask is None else ops.logical_and(mask, attention_mask)
            )
        weights = masked_softmax(scores, attention_mask)
        # Keras on torch returns float32 for two float64 tensors.
        pooled = ops.cast(ops.matmul(ops.cast(weights, values.dtype), values), values.dtype)
        if self.queries == 1:
            pooled, weights = ops.squeeze(pooled, 1), ops.squeeze(weights, 1)
        return (pooled, weights) if return_attention_scores else pooled

    # Traces `call`: from `compute_output_shape` alone Keras would expect only the context.
    compute_output_spec = keras.Operation.compute_output_spec

    def compute_output_shape(self, values_shape):
        """Return the shape of the context."""
        groups = () if self.queries == 1 else (self.queries,)
        return (values_shape[0], *groups, values_shape[-1])

    def compute_mask(self, values, mask=None):
        """Return `None`: the context has no time axis."""
        return None

    def get_config(self):
        config = {**super().get_config(), "units": self.units, "queries": self.queries}
        for name in ("kernel", "query", "score"):
            value = getattr(self, f"{name}_initializer")
            config[f"{name}_initializer"] = keras.initializers.serialize(value)
        return config
