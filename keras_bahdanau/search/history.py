"""Record of the steps of a search, and the paths of hypotheses through it."""

import math
from typing import Any, NamedTuple

from keras import ops, tree

from keras_bahdanau_runtime.ids import PAD


class History(NamedTuple):
    """Record of `T` steps, one row per step.

    Attributes:
        tokens: `(T, ...)` int32 chosen tokens, in the shape of the hypotheses.
        log_probs: `(T, ...)` float32 log-probabilities of the tokens, in the same shape.
        weights: `(T, R, Tx)` float32 attention weights, one row per input row of the step.
        parents: `(T, N)` int32, for each of all `N` hypotheses the one that it continues; `()`
            if every hypothesis continues itself.
    """

    tokens: Any
    log_probs: Any
    weights: Any
    parents: Any = ()


def empty_history(max_length, rows, memory_length, shape, has_parents):
    """Return the `History` before the first step.

    Args:
        max_length: Number of steps `T`.
        rows: Number of input rows `R` of a step.
        memory_length: `Tx`.
        shape: Shape of the hypotheses, one or two ints or scalar tensors.
        has_parents: Whether a hypothesis can continue another one.
    """
    count = math.prod(shape)
    return History(
        tokens=ops.full((max_length, *shape), PAD, dtype="int32"),
        log_probs=ops.zeros((max_length, *shape), dtype="float32"),
        weights=ops.zeros((max_length, rows, memory_length), dtype="float32"),
        parents=ops.zeros((max_length, count), dtype="int32") if has_parents else (),
    )


def write_step(history, t, step):
    """Return `history` with `step`, a `History` without the time axis, written at step `t`."""

    def write(table, row):
        return ops.scatter_update(table, ops.reshape(t, (1, 1)), ops.expand_dims(row, 0))

    return tree.map_structure(write, history, step)


def take_flat(table, indices):
    """Return the entries of the flattened `table` at int32 `indices`, in the shape of `indices`."""
    return ops.take(ops.reshape(table, (-1,)), indices, axis=0)


def trace_back(parents, rows, stop):
    """Follow the parents of hypotheses from the last step back to the first.

    Parents are composed for spans of 2, 4, 8, ... steps, all steps at once. A loop over single
    steps would be sequential.

    Args:
        parents: `(T, R)` int32, see `History`.
        rows: `(B, n)` int32, rows of the hypotheses after the last step.
        stop: Number of steps that were run, a scalar int32 tensor.

    Returns:
        `(before, after)`: `(T, B, n)` int32, where each hypothesis was before and after each step,
        as indices into the `T * R` rows of a history.
    """
    steps, size = ops.shape(parents)
    step = ops.expand_dims(ops.arange(steps, dtype="int32"), -1)  # (T, 1)
    identity = ops.expand_dims(ops.arange(size, dtype="int32"), 0)  # (1, R)
    parents = ops.where(step < stop, parents, identity)
    # First index of each step. It is a column of all indices so that it is computed on the GPU:
    # onnxruntime computes values that depend on shapes alone on the host and copies them.
    start = ops.reshape(ops.arange(steps * size, dtype="int32"), (steps, size))[:, :1]

    # The row at the end of the `span` steps after step `t` was `ancestors[t, row]` after step `t`.
    ancestors, span = ops.concatenate([parents[1:], identity], axis=0), 1
    while span < steps - 1:
        later = ops.concatenate(
            [ancestors[span:], ops.broadcast_to(identity, (span, size))], axis=0
        )
        ancestors, span = take_flat(ancestors, start + later), 2 * span
    start = ops.expand_dims(start, -1)  # (T, 1, 1)
    after = start + take_flat(ancestors, start + rows)
    return start + take_flat(parents, after), after
