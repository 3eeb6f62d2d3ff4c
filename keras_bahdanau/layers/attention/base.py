"""Base classes of attention mechanisms, and the normalizers of their scores."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bahdanau.distribution import first_replica_loss
from keras_bahdanau.layers.sequences import (
    SequenceLayer,
    accepts_symbolic_tensors,
    check_dense,
    check_widths,
    checked_mask,
    flatten,
    reduce_last_axis,
    register_named_tuple,
    run_over_time,
    select_rows,
    zero_masked,
)
from keras_bahdanau_runtime.checks import check_range

# Stands for minus infinity: finite, so that `masked - masked` is 0 and never NaN.
_MASKED_SCORE = -1e30


@register_named_tuple
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


class Attention(SequenceLayer):
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
            setattr(cls, name, accepts_symbolic_tensors(vars(cls)[name]))

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
    def supports_attention_mask(self):
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
    def has_penalty(self):
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
            wanted["by_query"], value_mask = combine_masks(
                queries, value, value_mask, attention_mask, use_causal_mask
            )
        memory = self.memory(value, key, value_mask, training, steps=ops.shape(queries)[1])
        context, weights = self._attend(queries, memory, training, query_mask, **wanted)
        found = [context, weights]
        if return_attention_logits:
            if query_mask is not None:
                weights = mask_scores(weights, ops.expand_dims(query_mask, -1))
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
                after = select_rows(kept, after, state)
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
        if self.supports_attention_mask:
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
        return group_rows(query, memory.values)


def _zero_queries(found, mask):
    """Sets the contexts or weights `(B, [H,] Tq, Tx)` of queries that `mask` drops to zero."""
    if mask is None or len(found.shape) == 3:
        return zero_masked(found, mask)
    return ops.where(ops.expand_dims(ops.expand_dims(mask, 1), -1), found, 0.0)


def group_rows(rows, memory):
    """Rows `(B * G, ...)` as `(B, G, ...)`, the groups that share a row of a memory.

    Args:
        rows: `(B * G, ...)` tensor.
        memory: `(B, ...)` tensor.
    """
    batch, count = ops.shape(memory)[0], rows.shape[0]
    # A reshape cannot infer the number of groups of an empty batch.
    known = isinstance(batch, int) and count is not None
    groups = count // max(batch, 1) if known else -1
    return ops.reshape(rows, (batch, groups, *ops.shape(rows)[1:]))


def combine_masks(queries, values, mask=None, attention_mask=None, causal=False):
    """The mask of the places that each query may read, and the mask of `values` with it.

    Places that `attention_mask` keeps from all queries of a row are masked as padding is, so that
    nothing they hold reaches a result or a gradient.

    Args:
        queries: `(B, Tq, N)` tensor; one row of queries may stand for all.
        values: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        attention_mask: `(B, Tq, Tx)` or `(1, Tq, Tx)` bool, or `None`.
        causal: Whether query `i` may read only places up to `i`.

    Returns:
        `(by_query, mask)`: `(B, Tq, Tx)` or `(1, Tq, Tx)` bool, `None` if every query may read
        every place; and `(B, Tx)` bool or `None`.

    Raises:
        ValueError: If `attention_mask` is not bool or has another shape.
    """
    by_query = None
    if causal:
        rows = ops.arange(ops.shape(queries)[1], dtype="int32")
        places = ops.arange(ops.shape(values)[1], dtype="int32")
        by_query = ops.expand_dims(ops.expand_dims(places, 0) <= ops.expand_dims(rows, 1), 0)
    if attention_mask is not None:
        attention_mask = _checked_attention_mask(attention_mask, queries, values)
        read = ops.broadcast_to(ops.any(attention_mask, axis=1), ops.shape(values)[:2])
        mask = read if mask is None else ops.logical_and(mask, read)
        by_query = attention_mask if by_query is None else ops.logical_and(by_query, attention_mask)
    return by_query, mask


def _checked_attention_mask(mask, queries, values):
    """The mask as a tensor, after a look at its shape and dtype."""
    mask = ops.convert_to_tensor(mask)
    expected = (values.shape[0], queries.shape[1], values.shape[1])
    fits = len(mask.shape) == 3 and all(
        None in (size, of) or size == of or (axis == 0 and size == 1)
        for axis, (size, of) in enumerate(zip(mask.shape, expected, strict=True))
    )
    if not fits or keras.backend.standardize_dtype(mask.dtype) != "bool":
        raise ValueError(
            "Argument `attention_mask` must be bool of shape (batch, queries, places), "
            f"{expected}, True = keep. "
            f"Received: {keras.backend.standardize_dtype(mask.dtype)} of shape {tuple(mask.shape)}"
        )
    return mask


def mask_scores(scores, mask=None):
    """The scores in float32, and a finite one far below all others wherever `mask` is False.

    Args:
        scores: `(..., Tx)` float tensor; what stands at masked places, NaN included, is ignored.
        mask: `(..., Tx)` bool tensor that broadcasts against `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 tensor.

    Example:

    >>> import numpy as np
    >>> scores = mask_scores(np.array([[2.0, np.nan]]), np.array([[True, False]]))
    >>> float(scores[0, 0]), float(scores[0, 1]) < -1e29
    (2.0, True)
    """
    scores = ops.cast(scores, "float32")
    return scores if mask is None else ops.where(mask, scores, _MASKED_SCORE)


def recover_mask(scores):
    """The mask of what `mask_scores` returned: bool, shaped like the scores."""
    return scores > _MASKED_SCORE / 2


def masked_softmax(scores, mask=None):
    """Softmax over the last axis in float32, with zero weight wherever `mask` is False.

    A row whose places are all masked gets all-zero weights and zero gradients.

    Args:
        scores: `(..., Tx)` float tensor; what stands at masked places, NaN included, is ignored.
        mask: `(..., Tx)` bool tensor that broadcasts against `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 weights; each row sums to one, or to zero if it is fully masked.

    Example:

    >>> import numpy as np
    >>> weights = masked_softmax(np.zeros((1, 3)), np.array([[True, True, False]]))
    >>> [float(w) for w in weights[0]]
    [0.5, 0.5, 0.0]
    """
    weights = ops.softmax(mask_scores(scores, mask), axis=-1)
    # Masked places have no weight already, except in a row that has no others.
    return weights if mask is None else weights * ops.cast(mask, "float32")


def masked_sparsemax(scores, mask=None):
    """Sparsemax over the last axis in float32, with zero weight wherever `mask` is False.

        a = argmin over distributions p of |p - e|^2 = max(e - tau, 0)

    Most weights come out exactly zero (Martins and Astudillo 2016, arXiv 1602.02068, Eq. 2-4). A
    row whose places are all masked gets all-zero weights and zero gradients.

    Args:
        scores: `(..., Tx)` float tensor; what stands at masked places, NaN included, is ignored.
        mask: `(..., Tx)` bool tensor that broadcasts against `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 weights; each row sums to one, or to zero if it is fully masked.

    Example:

    >>> import numpy as np
    >>> [float(w) for w in masked_sparsemax(np.array([[1.0, 0.5, -1.0]]))[0]]
    [0.75, 0.25, 0.0]
    """
    scores = mask_scores(scores, mask)
    scores = scores - ops.stop_gradient(reduce_last_axis(ops.max, scores, keepdims=True))
    # The weight of a place that is 1 or more below the best is zero: clipped there, masked places
    # cannot spoil the sums.
    ranked = -ops.sort(-ops.maximum(ops.stop_gradient(scores), -2.0), axis=-1)
    rank = ops.cumsum(ops.ones_like(ranked), axis=-1)
    supported = 1.0 + rank * ranked > ops.cumsum(ranked, axis=-1)
    smallest = reduce_last_axis(ops.min, ops.where(supported, ranked, 0.0), keepdims=True)
    support = scores >= smallest
    if mask is not None:
        support = ops.logical_and(support, mask)
    size = ops.sum(ops.cast(support, "float32"), axis=-1, keepdims=True)
    total = ops.sum(ops.where(support, scores, 0.0), axis=-1, keepdims=True)
    return ops.where(support, scores - (total - 1.0) / ops.maximum(size, 1.0), 0.0)


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
    def supports_attention_mask(self):
        """True: scores are made of all queries at once."""
        return True

    def normalize_logits(self, logits):
        """The weights of logits, as `step` returns either; see `Attention.normalize_logits`."""
        return _NORMALIZERS[self.normalizer](logits, recover_mask(logits))

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
        return context, mask_scores(scores, mask) if return_logits else weights

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
