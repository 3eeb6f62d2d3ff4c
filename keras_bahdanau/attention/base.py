"""What every attention mechanism answers: memory, initial_state, step, and Keras's call."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.masking import masked_softmax, zero_masked


class Memory(NamedTuple):
    """What a decoder attends to, computed once for a source and passed on as a value.

    Attributes:
        keys: What queries are scored against, in the mechanism's own form; for
            `BahdanauAttention` the projected annotations `U_a h`, `(B, Tx, U)`.
        values: `(B, Tx, D)` annotations, zero at masked places.
        mask: `(B, Tx)` bool, True = keep, or `None`.
    """

    keys: Any
    values: Any
    mask: Any = None


class Attention(keras.layers.Layer):
    """Base of the mechanisms: subclasses give `make_keys` and `score`.

    A decoder uses three calls and so need not know which mechanism it holds:

        memory = attention.memory(values, mask=mask)
        state = attention.initial_state(memory)
        context, weights, state = attention.step(query, memory, state)

    Several queries may share one row of the memory, as the hypotheses of a beam do: with
    `query` of `(B * G, N)` and a memory of `B` rows, queries `b * G ... b * G + G - 1` attend
    to row `b`, and the memory is never copied.
    """

    def make_keys(self, key, mask=None):
        """Turns `key` `(B, Tx, D)` into what `score` compares queries with."""
        raise NotImplementedError

    def score(self, query, keys):
        """Scores queries `(B, G, N)` against `keys`; returns `(B, G, Tx)`."""
        raise NotImplementedError

    def memory(self, values, key=None, mask=None):
        """Prepares annotations to be attended to; do it once for a source.

        Args:
            values: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor to score instead of `values`, or `None`.
            mask: `(B, Tx)` bool, True = keep, or `None`.

        Returns:
            A `Memory`. Nothing that stood at a masked place is left in it.
        """
        values, mask = self._checked(values, mask)
        values = zero_masked(ops.cast(values, self.compute_dtype), mask)
        key = values if key is None else zero_masked(ops.cast(key, self.compute_dtype), mask)
        return Memory(keys=self.make_keys(key, mask), values=values, mask=mask)

    def context_width(self, value_width):
        """Width of the context made from annotations of width `value_width`, an int."""
        return value_width

    def initial_state(self, memory):
        """The state before the first step; `()` for a mechanism that keeps none."""
        return ()

    def step(self, query, memory, state=(), training=None):
        """Attends once: one row of weights and one context for each query.

        Args:
            query: `(B * G, N)` float queries, `G >= 1` of them for each row of the memory.
            memory: The `Memory` of `B` rows.
            state: What `initial_state` or the last step returned.
            training: Whether the call is part of training.

        Returns:
            `(context, weights, state)`: `(B * G, D)` in the compute dtype, `(B * G, Tx)`
            float32, and the next state.
        """
        width = memory.values.shape[-1]
        grouped = ops.reshape(query, (ops.shape(memory.values)[0], -1, query.shape[-1]))
        context, weights = self._attend(grouped, memory)
        weights = ops.reshape(weights, (ops.shape(query)[0], ops.shape(memory.values)[1]))
        return ops.reshape(context, (-1, width)), weights, state

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        """Attends with all queries at once.

        Args:
            query: `(B, Tq, N)` float queries, or one query a row, `(B, N)`.
            value: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor to score instead of `value`, or `None`.
            query_mask: `(B, Tq)` bool; contexts and weights of dropped queries are zero.
            value_mask: `(B, Tx)` bool, True = keep.
            return_attention_scores: Whether to return the weights too.
            training: Whether the call is part of training.

        Returns:
            The context `(B, Tq, D)` or `(B, D)`; with `return_attention_scores` also the
            weights `(B, Tq, Tx)` or `(B, Tx)`, float32.
        """
        if len(query.shape) not in (2, 3):
            raise ValueError(
                f"Argument `query` of {type(self).__name__} is expected to be (batch, width) or "
                f"(batch, queries, width). Received: shape {tuple(query.shape)}"
            )
        single = len(query.shape) == 2
        queries = ops.expand_dims(query, 1) if single else query
        if query_mask is not None and not single:
            queries = zero_masked(queries, ops.cast(query_mask, "bool"))
        context, weights = self._attend(queries, self.memory(value, key, value_mask))
        if query_mask is not None and not single:
            context = zero_masked(context, ops.cast(query_mask, "bool"))
            weights = zero_masked(weights, ops.cast(query_mask, "bool"))
        if single:
            context, weights = ops.squeeze(context, 1), ops.squeeze(weights, 1)
        return (context, weights) if return_attention_scores else context

    def compute_mask(self, query, previous_mask=None):
        """The context keeps the time axis of the query, and so its mask."""
        return previous_mask

    def _checked(self, values, mask):
        """Annotations and mask as tensors, after a look at their shapes."""
        values = ops.convert_to_tensor(values)
        if len(values.shape) != 3:
            raise ValueError(
                f"Argument `values` of {type(self).__name__}.memory is expected to be "
                f"(batch, time, width). Received: shape {tuple(values.shape)}"
            )
        if mask is None:
            return values, None
        mask = ops.cast(mask, "bool")
        if len(mask.shape) != 2:
            raise ValueError(
                "Argument `mask` is expected to be (batch, time). "
                f"Received: shape {tuple(mask.shape)}"
            )
        return values, mask

    def _attend(self, queries, memory):
        """Contexts `(B, G, D)` and float32 weights `(B, G, Tx)` of queries `(B, G, N)`."""
        mask = None if memory.mask is None else ops.expand_dims(memory.mask, 1)
        weights = masked_softmax(self.score(queries, memory.keys), mask)
        return ops.matmul(ops.cast(weights, memory.values.dtype), memory.values), weights
