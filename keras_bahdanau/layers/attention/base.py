"""What every attention mechanism answers: memory, initial_state, step, and Keras's call."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.distribution import first_replica_loss
from keras_bahdanau.layers.masking import (
    checked_mask,
    masked_scores,
    masks_by_query,
    zero_masked,
)
from keras_bahdanau.layers.method_layer import named_in_configs, symbolic
from keras_bahdanau.layers.parts import CheckedCall, check_dense, check_widths, grouped
from keras_bahdanau.layers.recurrence import flatten, held, run_over_time


@named_in_configs
class Memory(NamedTuple):
    """What a decoder attends to, computed once for a source and passed on as a value.

    A mechanism that needs more has a named tuple of its own, with these fields first.

    Attributes:
        keys: What queries are scored against, in the mechanism's own form; for
            `BahdanauAttention` the projected annotations `U_a h`, `(B, Tx, U)`.
        values: `(B, Tx, D)` annotations, zero at masked places; split into heads,
            `(B, H, Tx, D / H)`, where there is more than one.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        dropout: `(B, Tx)` float32 factors on the weights, drawn once for a source in training,
            or `None`.
    """

    keys: Any
    values: Any
    mask: Any = None
    dropout: Any = None


class Attention(CheckedCall, keras.layers.Layer):
    """Base of the mechanisms: subclasses give `memory` and `step`.

    A decoder uses three calls and so need not know which mechanism it holds:

        memory = attention.memory(values, mask=mask)
        state = attention.initial_state(memory)
        context, weights, state = attention.step(query, memory, state)

    Several queries may share one row of the memory, as the hypotheses of a beam do: with
    `query` of `(B * G, N)` and a memory of `B` rows, queries `b * G ... b * G + G - 1` attend
    to row `b`, and the memory is never copied.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name in {"memory", "initial_state", "step"} & set(vars(cls)):
            setattr(cls, name, symbolic(vars(cls)[name]))

    def __call__(self, query, value=None, *args, mask=None, **kwargs):
        if isinstance(query, (list, tuple)):
            raise ValueError(
                f"Argument `query` of {type(self).__name__} must be one tensor; write "
                "attention(query, value), not a list of both as for keras.layers.Attention. "
                f"Received: a list of {len(query)}"
            )
        if mask is not None:
            kwargs |= self._named_masks(mask, kwargs)
        return super().__call__(query, value, *args, **kwargs)

    def build(self, query_shape, value_shape, key_shape=None):
        """Makes the weights for a query `(B, N)` or `(B, Tq, N)` and a value `(B, Tx, D)`."""
        check_widths(query=query_shape, value=value_shape)
        self._query_width, self._value_width = query_shape[-1], value_shape[-1]
        self._key_width = value_shape[-1] if key_shape is None else key_shape[-1]

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Prepares annotations to be attended to; do it once for a source.

        Args:
            values: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor to score instead of `values`, or `None`.
            mask: `(B, Tx)` bool, True = keep, or `None`.
            training: Whether the memory is made for training, where dropout and noise are drawn.
            steps: How many steps will be taken, for mechanisms that draw noise for each.

        Returns:
            A `Memory`, or the mechanism's own kind of it. Nothing that stood at a masked place is
            left in it.

        Raises:
            ValueError: If the layer is not built, or a rank, a width, or the shape or dtype of
                the mask is not as above.
        """
        raise NotImplementedError

    def context_width(self, value_width):
        """Width of the context made from annotations of width `value_width`, an int."""
        return value_width

    def initial_state(self, memory):
        """The state before the first step; `()` for a mechanism that keeps none."""
        return ()

    @property
    def has_logits(self):
        """Whether the weights come from scores, one for each place, that `step` can return."""
        return False

    @property
    def masks_by_query(self):
        """Whether a call takes a mask of places for each query, and so a causal one."""
        return False

    def normalize_logits(self, logits):
        """The weights of logits `(..., Tx)`, where `has_logits`."""
        raise NotImplementedError

    def step(self, query, memory, state=(), training=None, t=None):
        """Attends once: one row of weights and one context for each query.

        Where `has_logits`, it also takes `return_logits`: whether to return the scores, float32 and
        -1e30 at masked places, in the place of the weights.

        Args:
            query: `(B * G, N)` float queries, `G >= 1` of them for each row of the memory.
            memory: The `Memory` of `B` rows.
            state: What `initial_state` or the last step returned.
            training: Whether the call is part of training.
            t: Number of the step, an int32 scalar or an int, 0 at first. A mechanism with noise
                needs it in training; the others, and all outside of training, do without.

        Returns:
            `(context, weights, state)`: `(B * G, D)` in the compute dtype, `(B * G, Tx)`
            float32, and the next state.
        """
        raise NotImplementedError

    @property
    def penalized(self):
        """Whether `penalty` adds something to the loss, a bool."""
        return False

    def penalty(self, weights, query_mask=None):
        """A scalar that training adds to the loss for weights `(B, Tq, Tx)`; `None` for none."""
        return None

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        return_attention_scores=False,
        use_causal_mask=False,
        return_attention_logits=False,
        attention_mask=None,
        training=None,
    ):
        """Attends with all queries: at once, or in order where the mechanism keeps a state.

        Args:
            query: `(B, Tq, N)` float queries, or one query a row, `(B, N)`. A single row, `B` = 1,
                asks every row of `value`.
            value: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor to score instead of `value`, or `None`.
            query_mask: `(B, Tq)` bool; contexts and weights of dropped queries are zero, and they
                leave the state as it was. Not read where `query` is a single one, `(B, N)`.
            value_mask: `(B, Tx)` bool, True = keep.
            return_attention_scores: Whether to return the weights too.
            use_causal_mask: Whether query `i` sees only places up to `i` (self-attention).
            return_attention_logits: Whether to return the scores before the softmax too, for a
                loss with `from_logits`; needs one head.
            attention_mask: `(B, Tq, Tx)` bool, True where the query may read the place, such as a
                window around it, or `(1, Tq, Tx)` for the same mask in every row; `(B, 1, Tx)` for
                a single query. It is combined with `value_mask` and the causal mask.
            training: Whether the call is part of training.

        Returns:
            The context `(B, Tq, D)` or `(B, D)`; with `return_attention_scores` also the
            weights `(B, Tq, Tx)` or `(B, Tx)`, float32; with `return_attention_logits` then the
            logits, likewise, -1e30 at masked places and of dropped queries.

        Raises:
            ValueError: If a number of rows, a rank, a width, or the shape or dtype of a mask is not
                as above, `use_causal_mask` or `attention_mask` is asked of a mechanism that does
                not score all queries at once, or `return_attention_logits` of one that has none.
        """
        self._check_call(query, value, value_mask, return_attention_logits)
        self._check_masks_by_query(use_causal_mask, attention_mask)
        single = len(query.shape) == 2
        queries = ops.expand_dims(query, 1) if single else query
        queries = ops.cast(queries, self.compute_dtype)
        query_mask = checked_mask("query_mask", query_mask, queries) if not single else None
        queries = zero_masked(queries, query_mask)
        if query.shape[0] == 1:
            rows = ops.shape(flatten(value)[0])[0]
            queries = ops.broadcast_to(queries, (rows, *ops.shape(queries)[1:]))
            if query_mask is not None:
                query_mask = ops.broadcast_to(query_mask, (rows, ops.shape(query_mask)[1]))
        # Only mechanisms that have logits or masks by query know these arguments.
        wanted = {"return_logits": True} if return_attention_logits else {}
        if use_causal_mask or attention_mask is not None:
            wanted["by_query"], value_mask = masks_by_query(
                queries, value, value_mask, attention_mask, use_causal_mask
            )
        memory = self.memory(value, key, value_mask, training, steps=ops.shape(queries)[1])
        context, weights = self._attend(queries, memory, training, query_mask, **wanted)
        found = [context, weights]
        if return_attention_logits:
            if query_mask is not None:
                weights = masked_scores(weights, ops.expand_dims(query_mask, -1))
            found = [context, self.normalize_logits(weights), weights]
        found[:2] = [_zero_queries(part, query_mask) for part in found[:2]]
        penalty = self.penalty(found[1], query_mask)
        if penalty is not None:
            self.add_loss(first_replica_loss(penalty))
        if single:
            found = [ops.squeeze(part, -2) for part in found]
        if not return_attention_scores:
            del found[1]
        return tuple(found) if len(found) > 1 else found[0]

    # Traced: by the shape of the context alone Keras would not know of weights and logits.
    compute_output_spec = keras.Operation.compute_output_spec

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        """The shape of the context."""
        several = isinstance(value_shape[0], (list, tuple))
        rows = value_shape[0][0] if several else value_shape[0]
        width = [of[-1] for of in value_shape] if several else value_shape[-1]
        if query_shape[0] != 1:
            rows = query_shape[0]
        return (rows, *query_shape[1:-1], self.context_width(width))

    def compute_mask(self, query, previous_mask=None):
        """The context keeps the time axis of the query, and so its mask."""
        return previous_mask

    def _attend(self, queries, memory, training, query_mask=None, **wanted):
        """Contexts `(B, G, D)` and weights `(B, G, Tx)` of queries `(B, G, N)`, one by one."""
        self._check_width(queries)

        def step(t, query, state):
            context, weights, after = self.step(query, memory, state, training, t, **wanted)
            if query_mask is not None:
                kept = ops.take(query_mask, t, axis=1)
                after = held(kept, after, state)
            return [context, weights], after

        context, weights = run_over_time(step, queries, self.initial_state(memory), "float32")
        return ops.cast(context, self.compute_dtype), weights

    def _named_masks(self, mask, kwargs):
        """`query_mask` and `value_mask` of Keras's `mask=[query_mask, value_mask]`."""
        if not isinstance(mask, (list, tuple)) or len(mask) != 2:
            received = f"a list of {len(mask)}" if isinstance(mask, (list, tuple)) else "one mask"
            raise ValueError(
                f"Argument `mask` of {type(self).__name__} must be a list "
                "[query_mask, value_mask], as for keras.layers.AdditiveAttention; write "
                f"`value_mask` for a mask of the places alone. Received: {received}"
            )
        named = dict(zip(("query_mask", "value_mask"), mask, strict=True))
        twice = [name for name in named if kwargs.get(name) is not None]
        if twice:
            raise ValueError(
                f"Argument `mask` of {type(self).__name__} must be None with `{twice[0]}`, which "
                "it holds. Received: both"
            )
        return named

    def _check_call(self, query, value, value_mask, return_attention_logits):
        """Raises a `ValueError` unless `call` can answer with these."""
        if len(query.shape) not in (2, 3):
            raise ValueError(
                f"Argument `query` of {type(self).__name__} must be (batch, width) or "
                f"(batch, queries, width). Received: shape {tuple(query.shape)}"
            )
        parts = flatten(value)
        several = isinstance(value, (list, tuple))
        masks = [None] * len(parts) if several else [value_mask]
        if several and isinstance(value_mask, (list, tuple)) and len(value_mask) == len(parts):
            masks = value_mask  # of another number `memory` speaks
        for part, mask in zip(parts, masks, strict=True):
            if len(part.shape) != 3:
                raise ValueError(
                    f"Argument `value` of {type(self).__name__} must be (batch, time, width). "
                    f"Received: shape {tuple(part.shape)}"
                )
            checked_mask("value_mask", mask, part)
        rows = {part.shape[0] for part in parts} - {None}
        if query.shape[0] not in (None, 1) and rows - {query.shape[0]}:
            raise ValueError(
                f"Argument `query` of {type(self).__name__} must have as many rows as `value`, "
                f"{max(rows)}, or one for all of them. Received: shape {tuple(query.shape)}"
            )
        if return_attention_logits and not self.has_logits:
            raise ValueError(
                f"Argument `return_attention_logits` must be False for {type(self).__name__} here: "
                "its weights do not come from one score for each place, as those of "
                "BahdanauAttention with one head do. Received: True"
            )

    def _check_masks_by_query(self, use_causal_mask, attention_mask):
        """Raises a `ValueError` if either is given to a mechanism that cannot use it."""
        if self.masks_by_query:
            return
        why = (
            f"for {type(self).__name__}: only a mechanism that scores all queries at once, as "
            "BahdanauAttention does, has a mask for each of them"
        )
        if use_causal_mask:
            raise ValueError(f"Argument `use_causal_mask` must be False {why}. Received: True")
        if attention_mask is not None:
            raise ValueError(
                f"Argument `attention_mask` must be None {why}; pass `value_mask` (batch, time) "
                f"for all queries alike. Received: {type(attention_mask).__name__}"
            )

    def _checked_memory(self, values, key, mask):
        """Annotations, key and mask as tensors in the compute dtype, zero at masked places."""
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} is not built: call the layer once, or its "
                "`build(query_shape, value_shape)`, before `memory`."
            )
        values = self._checked_values("values", values, self._value_width)
        mask = checked_mask("mask", mask, values)
        values = zero_masked(values, mask)
        if key is None:
            return values, values, mask
        key = self._checked_values("key", key, self._key_width)
        for axis, noun in enumerate(("rows", "steps")):
            sizes = key.shape[axis], values.shape[axis]
            if None not in sizes and sizes[0] != sizes[1]:
                raise ValueError(
                    f"Argument `key` must have as many {noun} as `values`, {sizes[1]}. "
                    f"Received: shape {tuple(key.shape)}"
                )
        return values, zero_masked(key, mask), mask

    def _checked_values(self, name, values, width=None):
        """A sequence in the compute dtype, of `width` features, or of any number of them."""
        check_dense(f"{type(self).__name__}.memory", **{name: values})
        values = ops.convert_to_tensor(values)
        if len(values.shape) != 3 or width not in (None, values.shape[-1]):
            raise ValueError(
                f"Argument `{name}` of {type(self).__name__}.memory must be "
                f"(batch, time, {'width' if width is None else width}). "
                f"Received: shape {tuple(values.shape)}"
            )
        return ops.cast(values, self.compute_dtype)

    def _check_width(self, query):
        if query.shape[-1] != self._query_width:
            raise ValueError(
                f"Argument `query` of {type(self).__name__} must be {self._query_width} wide. "
                f"Received: shape {tuple(query.shape)}"
            )

    def _grouped(self, query, memory):
        """Queries `(B * G, N)` as `(B, G, N)`, the groups that share a row of the memory."""
        query = ops.cast(query, self.compute_dtype)
        if len(query.shape) != 2:
            raise ValueError(
                f"Argument `query` of {type(self).__name__}.step must be (batch, width). "
                f"Received: shape {tuple(query.shape)}"
            )
        self._check_width(query)
        rows, asked = memory.values.shape[0], query.shape[0]
        if rows and asked and asked % rows:
            raise ValueError(
                f"Argument `query` of {type(self).__name__}.step must have a multiple of the "
                f"memory's {rows} rows. Received: shape {tuple(query.shape)}"
            )
        return grouped(query, memory.values)


def _zero_queries(found, mask):
    """Sets the contexts or weights `(B, [H,] Tq, Tx)` of queries that `mask` drops to zero."""
    if mask is None or len(found.shape) == 3:
        return zero_masked(found, mask)
    return ops.where(ops.expand_dims(ops.expand_dims(mask, 1), -1), found, 0.0)
