"""Multiplicative attention of Luong, Pham and Manning (2015)."""

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.bahdanau import additive_scores, chunked_scores, project
from keras_bahdanau.layers.attention.base import ScoredAttention
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error

_SCORES = ("dot", "general", "concat")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class LuongAttention(ScoredAttention):
    """Attention with one of the three scores of Luong et al. (arXiv 1508.04025, section 3.1).

        dot:      e_ij = s_i . h_j
        general:  e_ij = s_i . W h_j
        concat:   e_ij = v . tanh(W_s s_i + W_h h_j)        with W = [W_s ; W_h]

    Args:
        score: "dot" (query and key of equal width), "general" or "concat".
        units: Width of the hidden layer of "concat"; `None` for the other scores.
        scale: Factor of the scores: a float, "learned" for a weight that starts at 1, or `None`
            for 1.
        chunk_size: Number of queries that "concat" scores in a chunk; chosen by memory if `None`.
        kernel_initializer: Initializer of the kernels.
        score_initializer: Initializer of `v`.
        kernel_regularizer: Regularizer of the kernels.
        kernel_constraint: Constraint on the kernels.
        normalizer: "softmax" or "sparsemax".
        dropout: Fraction of positions dropped in training, the same for all queries of a source.
        seed: Int seed of `dropout`, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`.

    Raises:
        ValueError: If `score` is unknown, `units` is passed without "concat" or missing with it,
            or query and key differ in width with "dot".

    Example:

    >>> import numpy as np
    >>> attention = LuongAttention(score="dot")
    >>> values = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> context, weights = attention(np.zeros((1, 2)), values, return_attention_scores=True)
    >>> [float(w) for w in weights[0]]
    [0.5, 0.5]
    """

    def __init__(
        self,
        score: str = "general",
        units: int | None = None,
        scale=None,
        chunk_size: int | None = None,
        kernel_initializer="glorot_uniform",
        score_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if score not in _SCORES:
            raise argument_error("score", f"be one of {_SCORES}", score)
        if score == "concat":
            check_positive(units=units)
        elif units is not None:
            raise argument_error(
                "units",
                'be None without score="concat"',
                received=f"{units!r} with score={score!r}",
            )
        if chunk_size is not None:
            check_positive(chunk_size=chunk_size)
        is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
        if not (scale is None or scale == "learned" or is_number):
            raise argument_error("scale", 'be None, a number or "learned"', scale)
        self.score = score
        self.units = units
        self.scale = scale
        self.chunk_size = chunk_size
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.score_initializer = keras.initializers.get(score_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        if self.score == "dot" and self._query_width != self._key_width:
            raise argument_error(
                "query",
                f'be as wide as the key with score="dot", {self._key_width}',
                received=f"a query of width {self._query_width}",
            )
        if self.score == "general":
            self.key_kernel = self._add_kernel("key_kernel", self._key_width, self._query_width)
        if self.score == "concat":
            self.query_kernel = self._add_kernel("query_kernel", self._query_width, self.units)
            self.key_kernel = self._add_kernel("key_kernel", self._key_width, self.units)
            self.score_kernel = self.add_weight(
                shape=(self.units, 1), initializer=self.score_initializer, name="score_kernel"
            )
        if self.scale == "learned":
            self.scale_weight = self.add_weight(shape=(), initializer="ones", name="scale")

    def _add_kernel(self, name, width, units):
        return self.add_weight(
            shape=(width, units),
            initializer=clone_initializer(self.kernel_initializer),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name=name,
        )

    def make_keys(self, key):
        """Return `h_j` for "dot", `W h_j` for "general", `W_h h_j` for "concat"."""
        return key if self.score == "dot" else ops.matmul(key, self.key_kernel)

    def scores(self, query, memory, chunked=False):
        """Return `e_ij` for queries `(B, G, N)`, `(B, G, Tx)` float32."""
        keys = memory.keys
        if self.score == "concat":
            query = project(query, self.query_kernel)
            if chunked:
                scores = chunked_scores(query, keys, self.score_kernel, self.chunk_size)
            else:
                scores = additive_scores(query, keys, self.score_kernel)
            scores = ops.squeeze(scores, -1)
        else:
            keys = ops.transpose(ops.cast(keys, "float32"), (0, 2, 1))
            scores = ops.matmul(ops.cast(query, "float32"), keys)
        if self.scale is None:
            return scores
        scale = self.scale_weight if self.scale == "learned" else self.scale
        return scores * ops.cast(scale, "float32")

    def get_config(self):
        return {
            **super().get_config(),
            "score": self.score,
            "units": self.units,
            "scale": self.scale,
            "chunk_size": self.chunk_size,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "score_initializer": keras.initializers.serialize(self.score_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
        }
