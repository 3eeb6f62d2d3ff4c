"""Record of the steps of a search, and the paths back through it."""

import math
from typing import Any, NamedTuple

from keras import ops, tree

from keras_bahdanau_runtime.ids import PAD


class History(NamedTuple):
    """Record of the steps of a search: `T` rows, of which each step writes one.

    Attributes:
        tokens: `(T, ...)` int32 tokens chosen, in the shape of the hypotheses.
        log_probs: `(T, ...)` float32 log-probabilities of the tokens, in the same shape.
        weights: `(T, R, Tx)` float32 attention weights, in the rows that the step was given.
        parents: `(T, N)` int32, the hypothesis, of all `N`, that each continues; `()` where each
            continues its own.
    """

    tokens: Any
    log_probs: Any
    weights: Any
    parents: Any = ()


def empty_history(max_length, rows, memory_length, shape, parents):
    """Return the `History` before the first step.

    Args:
        max_length: Number of steps `T`.
        rows: Number of rows `R` that a step is given.
        memory_length: `Tx`.
        shape: Shape of the hypotheses, two ints or scalar tensors at most.
        parents: Whether hypotheses continue others.
    """
    tracked = math.prod(shape)
    return History(
        tokens=ops.full((max_length, *shape), PAD, dtype="int32"),
        log_probs=ops.zeros((max_length, *shape), dtype="float32"),
        weights=ops.zeros((max_length, rows, memory_length), dtype="float32"),
        parents=ops.zeros((max_length, tracked), dtype="int32") if parents else (),
    )


def write(history, t, step):
    """`history` with `step`, a `History` without the axis of time, written at step `t`."""

    def at(table, row):
        return ops.scatter_update(table, ops.reshape(t, (1, 1)), ops.expand_dims(row, 0))

    return tree.map_structure(at, history, step)


def entries(table, places):
    """What `table`, read as one row of numbers, holds at `places`, int32; in their shape."""
    return ops.take(ops.reshape(table, (-1,)), places, axis=0)


def trace_back(parents, rows, stop):
    """Follows the back-pointers from the last step to the first.

    The pointers of all steps are composed at once, of two, four, eight... steps at a time: a loop
    over the steps would wait for each of them.

    Args:
        parents: `(T, R)` int32, see `History`.
        rows: `(B, n)` int32, the rows that hypotheses stand in after the last step.
        stop: Number of steps that were made, a scalar int32 tensor.

    Returns:
        `(before, after)`: where they stood before and after each step, `(T, B, n)` int32 places in
        the `T * R` rows of a history.
    """
    steps, size = ops.shape(parents)
    step = ops.expand_dims(ops.arange(steps, dtype="int32"), -1)  # (T, 1)
    own = ops.expand_dims(ops.arange(size, dtype="int32"), 0)  # (1, R)
    parents = ops.where(step < stop, parents, own)
    # The first place of each step. As a column of all places it stays on the device: a GPU gets
    # what is computed of sizes alone from the host.
    begin = ops.reshape(ops.arange(steps * size, dtype="int32"), (steps, size))[:, :1]

    # Row `r` after the last of `span` steps that follow step `t` was row `back[t, r]` after it.
    back, span = ops.concatenate([parents[1:], own], axis=0), 1
    while span < steps - 1:
        later = ops.concatenate([back[span:], ops.broadcast_to(own, (span, size))], axis=0)
        back, span = entries(back, begin + later), 2 * span
    begin = ops.expand_dims(begin, -1)  # (T, 1, 1)
    after = begin + entries(back, begin + rows)
    return begin + entries(parents, after), after
