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
    index_among_kept,
    reduce_last_axis,
    register_named_tuple,
    run_over_time,
    select_rows,
    sequence_lengths,
    without_none,
    zero_masked,
)
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error

# Score of masked positions. It is finite, so that `masked - masked` is 0 and not NaN.
_MASKED_SCORE = -1e30
# Methods of a mechanism, for messages.
MEMORY_SIGNATURE = "memory(values, key=None, mask=None, training=None, steps=1)"
STEP_SIGNATURE = "step(query, memory, state=(), training=None, t=None)"
SCORES_SIGNATURE = "scores(query, memory, chunked=False)"


@register_named_tuple
class Memory(NamedTuple):
    """Annotations of a source in the form that an attention mechanism reads.

    It is computed once per source. A mechanism that needs more fields has its own named tuple,
    which starts with these fields.

    Attributes:
        keys: Tensor that queries are scored against; for `BahdanauAttention` the projected
            annotations `U_a h`, `(B, Tx, U)`.
        values: `(B, Tx, D)` annotations, zero at masked positions; with several heads
            `(B, H, Tx, D / H)`.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        dropout: `(B, Tx)` float32 factors on the weights, drawn once per source in training, or
            `None`.
    """

    keys: Any
    values: Any
    mask: Any = None
    dropout: Any = None


class Attention(SequenceLayer):
    """Base class of attention mechanisms. Subclasses implement `memory` and `step`.

    A decoder uses every mechanism through the same three methods:

        memory = attention.memory(values, mask=mask)
        state = attention.initial_state(memory)
        context, weights, state = attention.step(query, memory, state)

    Several queries can share one row of the memory, for example the hypotheses of a beam. With
    `query` of `(B * G, N)` and a memory of `B` rows, queries `b * G` to `b * G + G - 1` attend to
    row `b`, and the memory is not copied.

    Subclasses handle such rows and masks with `prepare_memory`, `group_queries`, `average`,
    `ungroup`, `source_lengths` and `source_positions`, and `check_attention` tests the result.

    Example:

    >>> import numpy as np
    >>> class NearestAttention(Attention):
    ...     def memory(self, values, key=None, mask=None, training=None, steps=1):
    ...         values, key, mask = self.prepare_memory(values, key, mask)
    ...         return Memory(key, values, mask)
    ...
    ...     def step(self, query, memory, state=(), training=None, t=None):
    ...         queries = self.group_queries(query, memory)  # (B, G, N)
    ...         difference = ops.expand_dims(queries, 2) - ops.expand_dims(memory.keys, 1)
    ...         scores = -ops.sum(ops.square(difference), -1)  # (B, G, Tx)
    ...         mask = None if memory.mask is None else ops.expand_dims(memory.mask, 1)
    ...         weights = masked_softmax(scores, mask)
    ...         return (*self.ungroup(self.average(weights, memory), weights, memory), state)
    >>> values = np.array([[[0.0], [100.0]]])
    >>> float(NearestAttention()(np.array([[99.0]]), values)[0, 0])
    100.0
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name in {"memory", "initial_state", "step"} & set(vars(cls)):
            setattr(cls, name, accepts_symbolic_tensors(vars(cls)[name]))

    def __call__(self, query, value=None, *args, mask=None, **kwargs):
        if isinstance(query, (list, tuple)):
            raise argument_error(
                "query",
                "be one tensor; write attention(query, value) instead of a list of both",
                received=f"a list of {len(query)}",
                of=type(self).__name__,
            )
        if mask is not None:
            kwargs |= self._split_masks(mask, kwargs)
        return super().__call__(query, value, *args, **kwargs)

    def build(self, query_shape, value_shape, key_shape=None):
        """Create the weights for queries `(B, N)` or `(B, Tq, N)` and values `(B, Tx, D)`."""
        check_widths(query=query_shape, value=value_shape)
        self._query_width, self._value_width = query_shape[-1], value_shape[-1]
        self._key_width = value_shape[-1] if key_shape is None else key_shape[-1]

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Return the memory of annotations, to be computed once per source.

        Args:
            values: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor that is scored instead of `values`, or `None`.
            mask: `(B, Tx)` bool, True = keep, or `None`.
            training: Whether to draw dropout and noise.
            steps: Number of steps that will be run, for mechanisms with noise per step.

        Returns:
            A `Memory`, or the named tuple of the mechanism. It does not depend on the values at
            masked positions.

        Raises:
            ValueError: If the layer is not built, or a rank, a width, or the shape or dtype of
                the mask is not as above.
        """
        raise missing_method(self, "Attention", MEMORY_SIGNATURE)

    def context_width(self, value_width):
        """Return the width of the context for annotations of width `value_width`, an int."""
        return value_width

    def initial_state(self, memory):
        """Return the state before the first step; `()` for a mechanism without a state."""
        return ()

    @property
    def has_logits(self):
        """Whether the weights are normalized scores, one per position, that `step` can return."""
        return False

    @property
    def supports_attention_mask(self):
        """Whether a call accepts a mask per query, and so `use_causal_mask`."""
        return False

    def normalize_logits(self, logits):
        """Return the weights for logits `(..., Tx)`, if `has_logits`."""
        raise missing_method(self, "Attention", "normalize_logits(logits)")

    def step(self, query, memory, state=(), training=None, t=None):
        """Attend once per query.

        If `has_logits`, the method has a further argument `return_logits`: whether to return the
        scores, float32 and -1e30 at masked positions, instead of the weights.

        Args:
            query: `(B * G, N)` float queries, `G >= 1` per row of the memory.
            memory: The `Memory` of `B` rows.
            state: State returned by `initial_state` or by the last step.
            training: Whether the call is part of training.
            t: Number of the step, an int32 scalar or an int, 0 in the first step. Only mechanisms
                with noise need it, in training.

        Returns:
            `(context, weights, state)`: `(B * G, D)` in the compute dtype, `(B * G, Tx)`
            float32, and the next state.
        """
        raise missing_method(self, "Attention", STEP_SIGNATURE)

    @property
    def has_penalty(self):
        """Whether `penalty` adds a term to the loss."""
        return False

    def penalty(self, weights, query_mask=None):
        """Return the scalar that is added to the loss for weights `(B, Tq, Tx)`, or `None`."""
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
        """Attend with all queries, in order if the mechanism has a state.

        Args:
            query: `(B, Tq, N)` float queries, or `(B, N)` for one query per row. A single row,
                `B` = 1, is used for every row of `value`.
            value: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor that is scored instead of `value`, or `None`.
            query_mask: `(B, Tq)` bool, True = keep. Masked queries have zero contexts and weights
                and leave the state unchanged. Ignored for a query `(B, N)`.
            value_mask: `(B, Tx)` bool, True = keep.
            return_attention_scores: Whether to also return the weights.
            use_causal_mask: Whether query `i` attends to positions up to `i` only
                (self-attention).
            return_attention_logits: Whether to also return the scores before the softmax, for a
                loss with `from_logits=True`; requires a single head.
            attention_mask: `(B, Tq, Tx)` bool, True where a query may attend to a position;
                `(1, Tq, Tx)` for the same mask in every row; `(B, 1, Tx)` for a query `(B, N)`.
                It is combined with `value_mask` and the causal mask.
            training: Whether the call is part of training.

        Returns:
            The context `(B, Tq, D)` or `(B, D)`; with `return_attention_scores` also the
            weights `(B, Tq, Tx)` or `(B, Tx)`, float32; with `return_attention_logits` also the
            logits, in the shape of the weights, -1e30 at masked positions and for masked queries.

        Raises:
            ValueError: If a number of rows, a rank, a width, or the shape or dtype of a mask is not
                as above; if `use_causal_mask` or `attention_mask` is passed to a mechanism that
                takes queries in order; or if `return_attention_logits` is passed to a mechanism
                without logits.
        """
        self._check_call(query, value, value_mask, return_attention_logits)
        self._check_attention_mask(use_causal_mask, attention_mask)
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
        # Mechanisms without logits or attention masks do not have these arguments.
        options = {"return_logits": True} if return_attention_logits else {}
        if use_causal_mask or attention_mask is not None:
            options["attention_mask"], value_mask = combine_masks(
                queries, value, value_mask, attention_mask, use_causal_mask
            )
        memory = self.memory(value, key, value_mask, training, steps=ops.shape(queries)[1])
        context, weights = self._attend(queries, memory, training, query_mask, **options)
        logits = None
        if return_attention_logits:  # `_attend` returned logits instead of weights
            logits = weights
            if query_mask is not None:
                logits = mask_scores(logits, ops.expand_dims(query_mask, -1))
            weights = self.normalize_logits(logits)
        context, weights = (_zero_masked_queries(part, query_mask) for part in (context, weights))
        penalty = self.penalty(weights, query_mask)
        if penalty is not None:
            self.add_loss(first_replica_loss(penalty))
        outputs = context, weights if return_attention_scores else None, logits
        if single:
            outputs = [None if part is None else ops.squeeze(part, -2) for part in outputs]
        return without_none(*outputs)

    # Traces `call`: from `compute_output_shape` alone Keras would expect only the context.
    compute_output_spec = keras.Operation.compute_output_spec

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        """Return the shape of the context."""
        is_list = isinstance(value_shape[0], (list, tuple))
        rows = value_shape[0][0] if is_list else value_shape[0]
        width = [shape[-1] for shape in value_shape] if is_list else value_shape[-1]
        if query_shape[0] != 1:
            rows = query_shape[0]
        return (rows, *query_shape[1:-1], self.context_width(width))

    def compute_mask(self, query, previous_mask=None):
        """Return the mask of the query: the context has the same time axis."""
        return previous_mask

    def _attend(self, queries, memory, training, query_mask=None, **options):
        """Attend with queries `(B, G, N)` in order.

        Returns:
            Contexts `(B, G, D)` and weights `(B, G, Tx)`.
        """
        self._check_width(queries)

        def step(t, query, state):
            context, weights, after = self.step(query, memory, state, training, t, **options)
            if query_mask is not None:
                keep = ops.take(query_mask, t, axis=1)
                after = select_rows(keep, after, state)
            return [context, weights], after

        context, weights = run_over_time(step, queries, self.initial_state(memory), "float32")
        return ops.cast(context, self.compute_dtype), weights

    # --- For subclasses ---------------------------------------------------------------------------

    def prepare_memory(self, values, key=None, mask=None):
        """Check the arguments of `memory`, and set masked positions to zero.

        Args:
            values: `(B, Tx, D)` float annotations.
            key: `(B, Tx, D')` float tensor that is scored instead of `values`, or `None`.
            mask: `(B, Tx)` bool, True = keep, or `None`.

        Returns:
            `(values, key, mask)`: annotations and key in the compute dtype, the key equal to the
            annotations if there is none, and the mask as a tensor or `None`.

        Raises:
            ValueError: As `memory`.
        """
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
        batch, time, _ = values.shape
        key = self._checked_values("key", key, self._key_width, batch=batch, time=time)
        return values, zero_masked(key, mask), mask

    def group_queries(self, query, memory):
        """Return the queries of a step, grouped by the row of the memory that they share.

        Args:
            query: `(B * G, N)` float queries.
            memory: The memory of `B` rows.

        Returns:
            `(B, G, N)` tensor in the compute dtype.

        Raises:
            ValueError: If the query has another rank or width, or its number of rows is not a
                multiple of `B`.
        """
        query = ops.cast(query, self.compute_dtype)
        owner = f"{type(self).__name__}.step"
        check_shape("query", query, "batch width", of=owner, width=self._query_width)
        rows, count = memory.values.shape[0], query.shape[0]
        if rows and count and count % rows:
            raise argument_error(
                "query",
                f"have a multiple of the memory's {rows} rows",
                received=f"shape {tuple(query.shape)}",
                of=owner,
            )
        return group_rows(query, memory.values)

    def average(self, weights, memory):
        """Return the annotations of a memory, averaged by weights.

        Args:
            weights: `(B, G, Tx)` float32 tensor, or `(B, H, G, Tx)` with several heads.
            memory: The `Memory` of `B` rows.

        Returns:
            The contexts `(B, G, D)` in the dtype of the annotations, heads concatenated.
        """
        axes = (1,) if len(weights.shape) == 3 else (1, 2)
        if memory.dropout is not None:
            weights = weights * ops.expand_dims(memory.dropout, axes)
        dtype = memory.values.dtype
        # The cast after the product: Keras on torch returns float32 for two float64 tensors.
        context = ops.cast(ops.matmul(ops.cast(weights, dtype), memory.values), dtype)
        if len(weights.shape) == 3:
            return context
        context = ops.transpose(context, (0, 2, 1, 3))  # (B, G, H, D / H)
        width = context.shape[-2] * context.shape[-1]
        return ops.reshape(context, (*ops.shape(context)[:2], width))

    def ungroup(self, context, weights, memory):
        """Return grouped results in the shapes that `step` returns, averaged over heads.

        Args:
            context: `(B, G, D)` tensor.
            weights: `(B, G, Tx)` tensor, or `(B, H, G, Tx)` with several heads.
            memory: The memory of `B` rows.

        Returns:
            `(context, weights)`: `(B * G, D)` and `(B * G, Tx)`.
        """
        if len(weights.shape) == 4:
            weights = ops.mean(weights, axis=1)
        context = ops.reshape(context, (-1, context.shape[-1]))
        return context, ops.reshape(weights, (-1, ops.shape(memory.values)[-2]))

    def source_lengths(self, memory):
        """Return the number of real positions of each source, which padding does not change.

        Args:
            memory: The `Memory` of `B` rows.

        Returns:
            `(B,)` float32 tensor, 0 for a fully masked source.
        """
        if memory.mask is not None:
            return ops.cast(sequence_lengths(memory.mask), "float32")
        rows, steps = _memory_sizes(memory)
        return ops.cast(ops.full((rows,), steps, dtype="int32"), "float32")

    def source_positions(self, memory):
        """Return the index of each position among the real positions of its source.

        Args:
            memory: The `Memory` of `B` rows.

        Returns:
            `(B, Tx)` float32 tensor, 0 at the first real position. A masked position has the index
            of the real position before it.
        """
        if memory.mask is not None:
            return ops.cast(index_among_kept(memory.mask), "float32")
        rows, steps = _memory_sizes(memory)
        positions = ops.cast(ops.arange(steps, dtype="int32"), "float32")
        return ops.broadcast_to(ops.expand_dims(positions, 0), (rows, steps))

    # --- Checks of arguments ----------------------------------------------------------------------

    def _split_masks(self, mask, kwargs):
        """Return Keras's `mask=[query_mask, value_mask]` as two keyword arguments."""
        if not isinstance(mask, (list, tuple)) or len(mask) != 2:
            received = f"a list of {len(mask)}" if isinstance(mask, (list, tuple)) else "one mask"
            raise argument_error(
                "mask",
                "be a list [query_mask, value_mask], as for keras.layers.AdditiveAttention; "
                "write `value_mask` to mask positions only",
                received=f"{received}",
                of=type(self).__name__,
            )
        masks = dict(zip(("query_mask", "value_mask"), mask, strict=True))
        duplicates = [name for name in masks if kwargs.get(name) is not None]
        if duplicates:
            raise argument_error(
                "mask",
                f"be None with `{duplicates[0]}`, which it contains",
                received="both",
                of=type(self).__name__,
            )
        return masks

    def _check_call(self, query, value, value_mask, return_attention_logits):
        """Raise a `ValueError` unless these arguments of `call` are valid."""
        if len(query.shape) not in (2, 3):
            raise argument_error(
                "query",
                "be (batch, width) or (batch, queries, width)",
                received=f"shape {tuple(query.shape)}",
                of=type(self).__name__,
            )
        values = flatten(value)
        is_list = isinstance(value, (list, tuple))
        masks = [None] * len(values) if is_list else [value_mask]
        # `memory` reports a list of masks with another length.
        if is_list and isinstance(value_mask, (list, tuple)) and len(value_mask) == len(values):
            masks = value_mask
        for source, mask in zip(values, masks, strict=True):
            check_shape("value", source, "batch time width", of=type(self).__name__)
            checked_mask("value_mask", mask, source)
        rows = {source.shape[0] for source in values} - {None}
        if query.shape[0] not in (None, 1) and rows - {query.shape[0]}:
            raise argument_error(
                "query",
                f"have as many rows as `value`, {max(rows)}, or one row for all of them",
                received=f"shape {tuple(query.shape)}",
                of=type(self).__name__,
            )
        if return_attention_logits and not self.has_logits:
            raise argument_error(
                "return_attention_logits",
                f"be False for this {type(self).__name__}, which does not have one score per "
                "position; use BahdanauAttention with one head for logits",
                received="True",
            )

    def _check_attention_mask(self, use_causal_mask, attention_mask):
        """Raise a `ValueError` if a mask per query is passed to a mechanism without support."""
        if self.supports_attention_mask:
            return
        reason = (
            f"for {type(self).__name__}: only a mechanism that scores all queries at once, such as "
            "BahdanauAttention, has a mask per query"
        )
        if use_causal_mask:
            raise argument_error("use_causal_mask", f"be False {reason}", received="True")
        if attention_mask is not None:
            raise argument_error(
                "attention_mask",
                f"be None {reason}; pass `value_mask` (batch, time) for all queries",
                received=str(type(attention_mask).__name__),
            )

    def _checked_values(self, name, values, width=None, **sizes):
        """Return a sequence in the compute dtype, after a check of its rank and sizes."""
        check_dense(f"{type(self).__name__}.memory", **{name: values})
        values = ops.convert_to_tensor(values)
        owner = f"{type(self).__name__}.memory"
        check_shape(name, values, "batch time width", of=owner, width=width, **sizes)
        return ops.cast(values, self.compute_dtype)

    def _check_width(self, queries):
        """Raise a `ValueError` unless queries `(B, G, N)` have the width of the built layer."""
        owner, width = type(self).__name__, self._query_width
        check_shape("query", queries, "batch queries width", of=owner, width=width)


def missing_method(layer, base, signature):
    """Return the error for a method that a subclass must define.

    Args:
        layer: The layer without the method.
        base: Name of the base class whose documentation describes the method.
        signature: Name and arguments of the method, without `self`.
    """
    name = signature.partition("(")[0]
    return NotImplementedError(
        f"{type(layer).__name__} has no method `{name}`. Define `{signature}`, as described for "
        f"{base}.{name}."
    )


def _memory_sizes(memory):
    """Return the number of rows and positions of a memory."""
    shape = ops.shape(memory.values)
    return shape[0], shape[-2]


def _zero_masked_queries(outputs, mask):
    """Set the contexts or weights `(B, [H,] Tq, Tx)` of masked queries to zero."""
    if mask is None or len(outputs.shape) == 3:
        return zero_masked(outputs, mask)
    return ops.where(ops.expand_dims(ops.expand_dims(mask, 1), -1), outputs, 0.0)


class ScoredAttention(Attention):
    """Base class of mechanisms with `a_i = normalizer(e_i)`.

    Subclasses implement `scores`, and `make_keys` to project the keys once per source.

    Args:
        normalizer: "softmax" or "sparsemax".
        dropout: Fraction of positions whose weights are dropped in training, in [0, 1). The
            positions are drawn once per source and hold for all its queries, as in variational
            dropout, so that steps and a full call agree. Returned weights are those before
            dropout.
        seed: Int seed of `dropout`, or `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Example:

    >>> import numpy as np
    >>> class NearestAttention(ScoredAttention):
    ...     def scores(self, query, memory, chunked=False):
    ...         difference = ops.expand_dims(query, 2) - ops.expand_dims(memory.keys, 1)
    ...         return -ops.sum(ops.square(difference), -1)  # (B, G, Tx)
    >>> values = np.array([[[0.0], [100.0]]])
    >>> float(NearestAttention()(np.array([[99.0]]), values)[0, 0])
    100.0
    """

    def __init__(self, normalizer="softmax", dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        if normalizer not in sorted(_NORMALIZERS):
            raise argument_error("normalizer", f"be one of {sorted(_NORMALIZERS)}", normalizer)
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        self.normalizer = normalizer
        self.dropout = dropout
        self.seed = seed
        if dropout:
            self._seeds = keras.random.SeedGenerator(seed)

    @property
    def has_logits(self):
        """Whether there is one score per position, which needs a single head."""
        return getattr(self, "num_heads", 1) == 1

    @property
    def supports_attention_mask(self):
        """True: all queries are scored at once."""
        return True

    def normalize_logits(self, logits):
        """Return the weights for logits of `step`; see `Attention.normalize_logits`."""
        return _NORMALIZERS[self.normalizer](logits, recover_mask(logits))

    def make_keys(self, key):
        """Return the keys of the memory for `key` `(B, Tx, D')`, a float tensor `(B, Tx, ...)`."""
        return key

    def make_values(self, values):
        """Return the tensor that is averaged by the weights, for annotations `(B, Tx, D)`."""
        return values

    def scores(self, query, memory, chunked=False):
        """Return the scores of queries against a memory, which are masked afterwards.

        The scores of real positions must not depend on the number of masked positions. Use
        `source_lengths` and `source_positions` instead of the padded length.

        Args:
            query: `(B, G, N)` float tensor; `G` queries share a row of the memory.
            memory: The `Memory` of `B` rows; `memory.keys` is the tensor returned by `make_keys`.
            chunked: Whether to score many queries in chunks, to save memory. It may be ignored.

        Returns:
            `(B, G, Tx)` float32 tensor, or `(B, H, G, Tx)` with several heads.
        """
        raise missing_method(self, "ScoredAttention", SCORES_SIGNATURE)

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Return projected keys and annotations; see `Attention.memory`."""
        values, key, mask = self.prepare_memory(values, key, mask)
        dropout = None
        if training and self.dropout:
            ones = ops.ones(ops.shape(values)[:2], dtype="float32")
            dropout = keras.random.dropout(ones, self.dropout, seed=self._seeds)
        return Memory(self.make_keys(key), self.make_values(values), mask, dropout)

    def step(self, query, memory, state=(), training=None, t=None, return_logits=False):
        """Attend once per query; see `Attention.step`."""
        scores = self.scores(self.group_queries(query, memory), memory)
        mask = self._score_mask(scores, memory)
        context, weights = self._average_by_scores(scores, mask, memory, return_logits)
        return (*self.ungroup(context, weights, memory), state)

    def _attend(
        self, queries, memory, training, query_mask=None, return_logits=False, attention_mask=None
    ):
        self._check_width(queries)
        scores = self.scores(queries, memory, chunked=True)
        mask = self._score_mask(scores, memory, attention_mask)
        return self._average_by_scores(scores, mask, memory, return_logits)

    def _score_mask(self, scores, memory, attention_mask=None):
        """Return the memory's mask and `attention_mask` `(B, G, Tx)`, broadcastable to `scores`."""
        has_heads = len(scores.shape) == 4
        mask = memory.mask
        if mask is not None:
            mask = ops.expand_dims(mask, (1, 2) if has_heads else (1,))
        if attention_mask is None:
            return mask
        attention_mask = ops.expand_dims(attention_mask, 1) if has_heads else attention_mask
        return attention_mask if mask is None else ops.logical_and(mask, attention_mask)

    def _average_by_scores(self, scores, mask, memory, return_logits=False):
        """Return contexts `(B, G, D)`, and float32 weights or logits shaped like `scores`."""
        weights = _NORMALIZERS[self.normalizer](scores, mask)
        context = self.average(weights, memory)
        return context, mask_scores(scores, mask) if return_logits else weights

    def get_config(self):
        return {
            **super().get_config(),
            "normalizer": self.normalizer,
            "dropout": self.dropout,
            "seed": self.seed,
        }


def group_rows(rows, memory):
    """Return rows `(B * G, ...)` as `(B, G, ...)`, grouped by the row of the memory.

    Args:
        rows: `(B * G, ...)` tensor, such as the state of a mechanism in `step`.
        memory: `(B, ...)` tensor of the memory, such as `memory.values`.

    Example:

    >>> import numpy as np
    >>> tuple(group_rows(np.ones((6, 4)), np.ones((2, 7, 5))).shape)
    (2, 3, 4)
    """
    batch, count = ops.shape(memory)[0], rows.shape[0]
    # `reshape` cannot infer the number of groups of an empty batch.
    is_static = isinstance(batch, int) and count is not None
    groups = count // max(batch, 1) if is_static else -1
    return ops.reshape(rows, (batch, groups, *ops.shape(rows)[1:]))


def combine_masks(queries, values, mask=None, attention_mask=None, causal=False):
    """Combine the masks of a call into a mask per query and a mask of the values.

    Positions that `attention_mask` hides from all queries of a row are masked like padding, so
    that their values reach neither results nor gradients.

    Args:
        queries: `(B, Tq, N)` tensor, or `(1, Tq, N)` for the same queries in every row.
        values: `(B, Tx, D)` tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        attention_mask: `(B, Tq, Tx)` or `(1, Tq, Tx)` bool, or `None`.
        causal: Whether query `i` attends to positions up to `i` only.

    Returns:
        `(attention_mask, mask)`: `(B, Tq, Tx)` or `(1, Tq, Tx)` bool, or `None` if every query may
        attend to every position; and `(B, Tx)` bool or `None`.

    Raises:
        ValueError: If `attention_mask` is not bool or has another shape.
    """
    combined = None
    if causal:
        rows = ops.arange(ops.shape(queries)[1], dtype="int32")
        columns = ops.arange(ops.shape(values)[1], dtype="int32")
        combined = ops.expand_dims(ops.expand_dims(columns, 0) <= ops.expand_dims(rows, 1), 0)
    if attention_mask is not None:
        attention_mask = _checked_attention_mask(attention_mask, queries, values)
        visible = ops.broadcast_to(ops.any(attention_mask, axis=1), ops.shape(values)[:2])
        mask = visible if mask is None else ops.logical_and(mask, visible)
        combined = attention_mask if combined is None else ops.logical_and(combined, attention_mask)
    return combined, mask


def _checked_attention_mask(mask, queries, values):
    """Return the mask as a tensor, after a check of its shape and dtype."""
    mask = ops.convert_to_tensor(mask)
    sizes = {"batch": values.shape[0], "queries": queries.shape[1], "positions": values.shape[1]}
    pattern = "batch|1 queries positions"
    check_shape("attention_mask", mask, pattern, "bool", ", True = keep", **sizes)
    return mask


def mask_scores(scores, mask=None):
    """Return the scores in float32, -1e30 at masked positions.

    Args:
        scores: `(..., Tx)` float tensor; may be NaN at masked positions.
        mask: `(..., Tx)` bool tensor that broadcasts to `scores`, or `None`.

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
    """Return the mask of scores from `mask_scores`, a bool tensor in the same shape."""
    return scores > _MASKED_SCORE / 2


def masked_softmax(scores, mask=None):
    """Softmax over the last axis in float32, with zero weight at masked positions.

    A fully masked row has zero weights and zero gradients.

    Args:
        scores: `(..., Tx)` float tensor; may be NaN at masked positions.
        mask: `(..., Tx)` bool tensor that broadcasts to `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 weights; each row sums to one, or to zero if it is fully masked.

    Example:

    >>> import numpy as np
    >>> weights = masked_softmax(np.zeros((1, 3)), np.array([[True, True, False]]))
    >>> [float(w) for w in weights[0]]
    [0.5, 0.5, 0.0]
    """
    weights = ops.softmax(mask_scores(scores, mask), axis=-1)
    # The product with the mask changes fully masked rows only.
    return weights if mask is None else weights * ops.cast(mask, "float32")


def masked_sparsemax(scores, mask=None):
    """Sparsemax over the last axis in float32, with zero weight at masked positions.

        a = argmin over distributions p of |p - e|^2 = max(e - tau, 0)

    Most weights are exactly zero (Martins and Astudillo 2016, arXiv 1602.02068, Eq. 2-4). A fully
    masked row has zero weights and zero gradients.

    Args:
        scores: `(..., Tx)` float tensor; may be NaN at masked positions.
        mask: `(..., Tx)` bool tensor that broadcasts to `scores`, or `None`.

    Returns:
        `(..., Tx)` float32 weights; each row sums to one, or to zero if it is fully masked.

    Example:

    >>> import numpy as np
    >>> [float(w) for w in masked_sparsemax(np.array([[1.0, 0.5, -1.0]]))[0]]
    [0.75, 0.25, 0.0]
    """
    scores = mask_scores(scores, mask)
    scores = scores - ops.stop_gradient(reduce_last_axis(ops.max, scores, keepdims=True))
    # Scores of 1 or more below the maximum have zero weight. They are clipped, so that masked
    # positions do not swamp the cumulative sums.
    ranked = -ops.sort(-ops.maximum(ops.stop_gradient(scores), -2.0), axis=-1)
    rank = ops.cumsum(ops.ones_like(ranked), axis=-1)
    in_support = 1.0 + rank * ranked > ops.cumsum(ranked, axis=-1)
    smallest = reduce_last_axis(ops.min, ops.where(in_support, ranked, 0.0), keepdims=True)
    support = scores >= smallest
    if mask is not None:
        support = ops.logical_and(support, mask)
    size = ops.sum(ops.cast(support, "float32"), axis=-1, keepdims=True)
    total = ops.sum(ops.where(support, scores, 0.0), axis=-1, keepdims=True)
    return ops.where(support, scores - (total - 1.0) / ops.maximum(size, 1.0), 0.0)


_NORMALIZERS = {"softmax": masked_softmax, "sparsemax": masked_sparsemax}
