"""Mechanisms that score every place and normalise the scores into weights."""

import keras
from keras import ops

from keras_bahdanau.layers.attention.base import Attention, Memory
from keras_bahdanau.layers.masking import (
    kept_scores,
    masked_scores,
    masked_softmax,
    masked_sparsemax,
)
from keras_bahdanau_runtime.checks import check_range

_NORMALIZERS = {"softmax": masked_softmax, "sparsemax": masked_sparsemax}


class ScoredAttention(Attention):
    """Base of mechanisms with `a_i = normalizer(e_i)`: subclasses give `make_keys` and `scores`.

    Args:
        normalizer: "softmax" or "sparsemax".
        dropout: Share of places whose weights are dropped in training, in [0, 1). The places are
            drawn once for a source and hold for all its queries, as in variational dropout, so
            that a step and the full call agree. The weights returned are those before dropout.
        seed: Int, the randomness of `dropout`, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(self, normalizer="softmax", dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        if normalizer not in sorted(_NORMALIZERS):
            raise ValueError(
                f"Argument `normalizer` must be one of {sorted(_NORMALIZERS)}. "
                f"Received: {normalizer!r}"
            )
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        self.normalizer = normalizer
        self.dropout = dropout
        self.seed = seed
        if dropout:
            self._seeds = keras.random.SeedGenerator(seed)

    @property
    def has_logits(self):
        """Whether there are scores that the normaliser makes the weights of: with one head."""
        return getattr(self, "num_heads", 1) == 1

    @property
    def masks_by_query(self):
        """True: scores are made of all queries at once."""
        return True

    def normalize_logits(self, logits):
        """The weights of logits, as `step` returns either; see `Attention.normalize_logits`."""
        return _NORMALIZERS[self.normalizer](logits, kept_scores(logits))

    def make_keys(self, key):
        """CorpusMixer `key` `(B, Tx, D')` into what `scores` compares queries with."""
        raise NotImplementedError

    def make_values(self, values):
        """CorpusMixer annotations `(B, Tx, D)` into what the weights are taken over."""
        return values

    def scores(self, query, keys, chunked=False):
        """Scores queries against keys.

        Args:
            query: `(B, G, N)` float tensor.
            keys: What `make_keys` returned.
            chunked: Whether there may be so many queries that they are better scored in chunks.

        Returns:
            `(B, G, Tx)` float32 tensor, or `(B, H, G, Tx)` with several heads.
        """
        raise NotImplementedError

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """The projected keys and the annotations; see `Attention.memory`."""
        values, key, mask = self._checked_memory(values, key, mask)
        dropout = None
        if training and self.dropout:
            places = ops.ones(ops.shape(values)[:2], dtype="float32")
            dropout = keras.random.dropout(places, self.dropout, seed=self._seeds)
        return Memory(self.make_keys(key), self.make_values(values), mask, dropout)

    def step(self, query, memory, state=(), training=None, t=None, return_logits=False):
        """Attends with one query for each row, or with a group; see `Attention.step`."""
        scores = self.scores(self._grouped(query, memory), memory.keys)
        found = self._weigh(scores, self._mask(scores, memory), memory, return_logits)
        return (*self._ungrouped(*found, memory), state)

    def _attend(
        self, queries, memory, training, query_mask=None, return_logits=False, by_query=None
    ):
        self._check_width(queries)
        scores = self.scores(queries, memory.keys, chunked=True)
        mask = self._mask(scores, memory, by_query)
        return self._weigh(scores, mask, memory, return_logits)

    def _mask(self, scores, memory, by_query=None):
        """The mask of the memory, and that of each query `(B, G, Tx)`, in the shape of `scores`."""
        heads = len(scores.shape) == 4
        mask = memory.mask
        if mask is not None:
            mask = ops.expand_dims(mask, (1, 2) if heads else (1,))
        if by_query is None:
            return mask
        by_query = ops.expand_dims(by_query, 1) if heads else by_query
        return by_query if mask is None else ops.logical_and(mask, by_query)

    def _weigh(self, scores, mask, memory, return_logits=False):
        """Contexts `(B, G, D)` and float32 weights, or logits, like `scores`."""
        weights = _NORMALIZERS[self.normalizer](scores, mask)
        context = self.average(weights, memory)
        return context, masked_scores(scores, mask) if return_logits else weights

    def average(self, weights, memory):
        """The contexts `(B, G, D)` of weights `(B, [H,] G, Tx)`, those of heads side by side."""
        axes = (1,) if len(weights.shape) == 3 else (1, 2)
        kept = weights
        if memory.dropout is not None:
            kept = weights * ops.expand_dims(memory.dropout, axes)
        dtype = memory.values.dtype
        # Keras on torch returns float32 for two float64 tensors.
        context = ops.cast(ops.matmul(ops.cast(kept, dtype), memory.values), dtype)
        if len(weights.shape) == 3:
            return context
        context = ops.transpose(context, (0, 2, 1, 3))  # (B, G, H, D / H)
        width = context.shape[-2] * context.shape[-1]
        return ops.reshape(context, (*ops.shape(context)[:2], width))

    def _ungrouped(self, context, weights, memory):
        """Contexts `(B * G, D)` and weights `(B * G, Tx)`, the mean of those of the heads."""
        if len(weights.shape) == 4:
            weights = ops.mean(weights, axis=1)
        context = ops.reshape(context, (-1, context.shape[-1]))
        return context, ops.reshape(weights, (-1, ops.shape(memory.values)[-2]))

    def get_config(self):
        return {
            **super().get_config(),
            "normalizer": self.normalizer,
            "dropout": self.dropout,
            "seed": self.seed,
        }
