"""Attention to several sources at once."""

import keras
from keras import ops

from keras_bahdanau.layers.attention.base import Attention
from keras_bahdanau.layers.sublayers import deserialized, serialized


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class MultiSourceAttention(Attention):
    """Attends to each of several sources with a mechanism of its own (arXiv 1601.00710, 3.2).

        c_i = [c_i^1 ; c_i^2 ; ...]

    Weights stand side by side along the places, those of each source summing to one; with several
    heads they are the mean over the heads. Memory, state and mask are tuples or lists with an
    entry for each source.

    Args:
        attentions: List of `Attention` mechanisms, one for each source, without a penalty.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`, with lists for `value`, `key` and `value_mask` (a mask or
        `None` for each); there is no `use_causal_mask` and no `attention_mask`.

    Returns:
        The context `(B, Tq, D1 + D2 + ...)`; the weights are `(B, Tq, Tx1 + Tx2 + ...)`.

    Raises:
        ValueError: If `attentions` is not as above, not as many values, keys or masks come, or
            the values differ in their number of rows.

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
        listed = isinstance(attentions, (list, tuple)) and len(attentions) > 0
        if not listed or not all(isinstance(part, Attention) for part in attentions):
            raise ValueError(
                "Argument `attentions` must be a list of Attention layers. "
                f"Received: {attentions!r}"
            )
        if any(part.has_penalty for part in attentions):
            raise ValueError(
                "Argument `attentions` must hold no mechanism with a penalty, because the weights "
                f"of the sources are not told apart there. Received: {attentions!r}"
            )
        self.attentions = list(attentions)

    def build(self, query_shape, value_shape, key_shape=None):
        shapes = zip(
            self._listed("value", value_shape), self._listed("key", key_shape), strict=True
        )
        for part, of in zip(self.attentions, shapes, strict=True):
            if not part.built:
                part.build(query_shape, *of)

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """A tuple of memories.

        Args:
            values: List of `(B, Tx, D)` float annotations.
            key: List of `(B, Tx, D')` float tensors or `None`, or `None`.
            mask: List of `(B, Tx)` bool tensors or `None`, or `None`.
            training: Whether the memory is made for training.
            steps: How many steps will be taken.
        """
        values = [ops.convert_to_tensor(of) for of in self._listed("values", values)]
        if len({of.shape[0] for of in values} - {None}) > 1:
            raise ValueError(
                "Argument `values` of MultiSourceAttention must have as many rows for each source. "
                f"Received: shapes {[tuple(of.shape) for of in values]}"
            )
        given = zip(
            self.attentions,
            values,
            self._listed("key", key),
            self._listed("mask", mask),
            strict=True,
        )
        return tuple(part.memory(*of, training=training, steps=steps) for part, *of in given)

    def context_width(self, value_width):
        """The sum of the widths of the contexts, for a list of widths."""
        widths = self._listed("value_width", value_width)
        return sum(p.context_width(w) for p, w in zip(self.attentions, widths, strict=True))

    def initial_state(self, memory):
        """A tuple of the states before the first step."""
        parts = zip(self.attentions, memory, strict=True)
        return tuple(part.initial_state(of) for part, of in parts)

    def step(self, query, memory, state=(), training=None, t=None):
        """Attends to every source; see `Attention.step`."""
        contexts, weights, states = zip(
            *[
                part.step(query, of, before, training, t)
                for part, of, before in zip(self.attentions, memory, state, strict=True)
            ],
            strict=True,
        )
        return self._joined(contexts), ops.concatenate(weights, -1), states

    def _joined(self, contexts):
        """The contexts side by side; the mechanisms may have other dtype policies."""
        return ops.cast(ops.concatenate(contexts, -1), self.compute_dtype)

    def _attend(self, queries, memory, training, query_mask=None):
        contexts, weights = zip(
            *[
                part._attend(queries, of, training, query_mask)
                for part, of in zip(self.attentions, memory, strict=True)
            ],
            strict=True,
        )
        weights = [ops.mean(w, axis=1) if len(w.shape) == 4 else w for w in weights]
        return self._joined(contexts), ops.concatenate(weights, -1)

    def _listed(self, name, given):
        """One entry for each source; `None` is a `None` for each."""
        count = len(self.attentions)
        if given is None and name in ("key", "mask"):
            return [None] * count
        if not isinstance(given, (list, tuple)) or len(given) != count:
            raise ValueError(
                f"Argument `{name}` of MultiSourceAttention must be a list with an entry for each "
                f"of {count} sources. Received: {type(given).__name__}"
                + (f" of {len(given)}" if isinstance(given, (list, tuple)) else "")
            )
        return given

    def get_config(self):
        return {**super().get_config(), **serialized(self, "attentions")}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "attentions"))
