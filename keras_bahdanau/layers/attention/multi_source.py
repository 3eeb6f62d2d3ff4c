"""Attention to several sources."""

import keras
from keras import ops

from keras_bahdanau.layers.attention.base import Attention
from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau_runtime.errors import argument_error


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class MultiSourceAttention(Attention):
    """Attention to several sources with one mechanism per source (arXiv 1601.00710, 3.2).

        c_i = [c_i^1 ; c_i^2 ; ...]

    Weights are concatenated along the positions; those of each source sum to one. With several
    heads they are the mean over the heads. Memory, state and mask have one entry per source.

    Args:
        attentions: List of `Attention` mechanisms without a penalty, one per source.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`. `value`, `key` and `value_mask` are lists; a key or a
        mask may be `None`. `use_causal_mask` and `attention_mask` are not supported.

    Output shape:
        Context `(B, Tq, D1 + D2 + ...)` and weights `(B, Tq, Tx1 + Tx2 + ...)`.

    Raises:
        ValueError: If `attentions` is not as above, the number of values, keys or masks differs
            from it, or the values differ in their number of rows.

    Example:

    >>> import numpy as np
    >>> attention = MultiSourceAttention([BahdanauAttention(8), LuongAttention()])
    >>> sources = [np.ones((2, 7, 6)), np.ones((2, 4, 3))]
    >>> context, weights = attention(np.ones((2, 5)), sources, return_attention_scores=True)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 9), (2, 11))
    """

    def __init__(self, attentions, **kwargs):
        super().__init__(**kwargs)
        is_list = isinstance(attentions, (list, tuple)) and len(attentions) > 0
        if not is_list or not all(isinstance(item, Attention) for item in attentions):
            raise argument_error("attentions", "be a list of Attention layers", attentions)
        if any(attention.has_penalty for attention in attentions):
            raise argument_error(
                "attentions",
                "not contain a mechanism with a penalty, because the penalty would be "
                "computed from the weights of all sources",
                attentions,
            )
        self.attentions = list(attentions)

    def build(self, query_shape, value_shape, key_shape=None):
        shapes = zip(
            self._per_source("value", value_shape),
            self._per_source("key", key_shape),
            strict=True,
        )
        for attention, source_shapes in zip(self.attentions, shapes, strict=True):
            if not attention.built:
                attention.build(query_shape, *source_shapes)

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Return a tuple of memories, one per source; see `Attention.memory`.

        Args:
            values: List of `(B, Tx, D)` float annotations.
            key: List of `(B, Tx, D')` float tensors or `None`, or `None`.
            mask: List of `(B, Tx)` bool tensors or `None`, or `None`.
            training: Whether to draw dropout and noise.
            steps: Number of steps that will be run.
        """
        values = [ops.convert_to_tensor(value) for value in self._per_source("values", values)]
        if len({value.shape[0] for value in values} - {None}) > 1:
            raise argument_error(
                "values",
                "have the same number of rows for each source",
                received=f"shapes {[tuple(value.shape) for value in values]}",
                of="MultiSourceAttention",
            )
        sources = zip(
            self.attentions,
            values,
            self._per_source("key", key),
            self._per_source("mask", mask),
            strict=True,
        )
        return tuple(
            attention.memory(*source, training=training, steps=steps)
            for attention, *source in sources
        )

    def context_width(self, value_width):
        """Return the sum of the context widths, for a list of annotation widths."""
        widths = self._per_source("value_width", value_width)
        return sum(a.context_width(w) for a, w in zip(self.attentions, widths, strict=True))

    def initial_state(self, memory):
        """Return a tuple with the initial state of each mechanism."""
        pairs = zip(self.attentions, memory, strict=True)
        return tuple(attention.initial_state(source) for attention, source in pairs)

    def step(self, query, memory, state=(), training=None, t=None):
        """Attend to every source; see `Attention.step`."""
        contexts, weights, states = zip(
            *[
                attention.step(query, source, source_state, training, t)
                for attention, source, source_state in zip(
                    self.attentions, memory, state, strict=True
                )
            ],
            strict=True,
        )
        return self._concatenate(contexts), ops.concatenate(weights, -1), states

    def _concatenate(self, contexts):
        """Concatenate contexts. The cast is for mechanisms with another dtype policy."""
        return ops.cast(ops.concatenate(contexts, -1), self.compute_dtype)

    def _attend(self, queries, memory, training, query_mask=None):
        contexts, weights = zip(
            *[
                attention._attend(queries, source, training, query_mask)
                for attention, source in zip(self.attentions, memory, strict=True)
            ],
            strict=True,
        )
        weights = [ops.mean(w, axis=1) if len(w.shape) == 4 else w for w in weights]
        return self._concatenate(contexts), ops.concatenate(weights, -1)

    def _per_source(self, name, values):
        """Return a list with one entry per source, after a check of its length."""
        count = len(self.attentions)
        if values is None and name in ("key", "mask"):
            return [None] * count
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise ValueError(
                f"Argument `{name}` of MultiSourceAttention must be a list with an entry for each "
                f"of {count} sources. Received: {type(values).__name__}"
                + (f" of {len(values)}" if isinstance(values, (list, tuple)) else "")
            )
        return values

    def get_config(self):
        return {**super().get_config(), **serialized(self, "attentions")}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "attentions"))
