"""Recurrence: a step function run over time, and any Keras cell or stack of them as a step."""

import itertools
from contextlib import contextmanager

import keras
from keras import ops, tree


def run_over_time(step, inputs, state, dtype):
    """Runs `step` over the time axis of `inputs`.

    `keras.layers.RNN` has the loop that TensorFlow and JAX run, differentiate and compile well,
    but no place for what a step reads besides its state; torch has Python's.
    The step given here may close over tensors, such as a memory, so nothing is kept on a layer
    between calls; and it is told its number `t`, by which it takes its row of what was drawn for
    all steps beforehand.

    Args:
        step: `(t, inputs (B, M), state) -> (outputs, state)`; `t` is an int32 scalar tensor, 0 at
            first; `outputs` is a list of `(B, width)` tensors, of which only the last may have a
            width that is unknown while tracing; `state` is a nest of the same structure, shapes
            and dtypes as the one given.
        inputs: `(B, T, M)` tensor.
        state: Nest of `(B, size)` tensors before the first step, each of any dtype.
        dtype: Dtype of the outputs, which leave the loop together.

    Returns:
        A list of `(B, T, width)` tensors of `dtype`, one for each output of the step.

    Example:

    >>> drawn, inputs = ops.ones((1, 3, 1)), ops.ones((1, 3, 1))
    >>> def step(t, x, total):
    ...     total = total + x + ops.take(drawn, t, axis=1)
    ...     return [total], total
    >>> (sums,) = run_over_time(step, inputs, ops.zeros((1, 1)), "float32")
    >>> [float(x) for x in sums[0, :, 0]]
    [2.0, 4.0, 6.0]
    """
    state = ops.convert_to_tensor(0, "int32"), tree.map_structure(ops.convert_to_tensor, state)
    if keras.config.backend() == "torch":
        return _run_in_python(step, inputs, state, dtype)
    cell = _StepCell(step, state, dtype)
    loop = keras.layers.RNN(cell, return_sequences=True, dtype=dtype)
    emitted = loop.call(ops.convert_to_tensor(inputs), initial_state=flatten(state))
    # The last output reaches to the end: its width may be known only when the graph runs.
    ends = [sum(cell.widths[:i]) for i in range(len(cell.widths))] + [None]
    parts = [emitted[..., start:end] for start, end in itertools.pairwise(ends)]
    return [_with_width(part, width) for part, width in zip(parts, cell.widths, strict=True)]


def _run_in_python(step, inputs, state, dtype):
    """The loop on torch, where any is one of Python.

    That of Keras takes the first step twice or, unrolled, joins the outputs of each step and makes
    a layer at every call, which `torch.compile` refuses.
    """
    (t, state), emitted = state, []
    for x in ops.unstack(ops.convert_to_tensor(inputs), axis=1):
        outputs, state = step(t, x, state)
        emitted.append(outputs)
        t = t + 1
    return [ops.cast(ops.stack(parts, axis=1), dtype) for parts in zip(*emitted, strict=True)]


def _with_width(part, width):
    # A slice of an axis of unknown length has an unknown length itself on TensorFlow.
    return part if part.shape[-1] == width else ops.reshape(part, (*ops.shape(part)[:-1], width))


class _StepCell:
    """A step function, with its number as one more state, as the cell of a `keras.layers.RNN`."""

    # Keras casts states to the dtype of the cell. Without one each keeps its own, so that under
    # half precision no number of a step and no weight of an attention is rounded.
    compute_dtype = None
    # Keras makes no first states here: they are given.
    state_size = ()

    def __init__(self, step, state, dtype):
        self.step, self.state, self.dtype = step, state, dtype
        self.widths = []

    def call(self, inputs, states):
        t, state = pack(self.state, states)
        outputs, state = self.step(t, inputs, state)
        self.widths = [part.shape[-1] for part in outputs]
        outputs = [ops.cast(part, self.dtype) for part in outputs]
        return ops.concatenate(outputs, axis=-1), [t + 1, *flatten(state)]

    __call__ = call


def move(cell, inputs, state, training):
    """One step of a Keras cell, or of a stack, from a flat tuple of states to a flat tuple.

    Args:
        cell: The cell.
        inputs: `(B, M)` tensor.
        state: Tuple of `(B, size)` tensors, in the cell's own order.
        training: Whether the call is part of training.

    Returns:
        `(output, state)`: `(B, N)`, and the tuple of the next states.

    Raises:
        ValueError: If the cell returns states of other widths than its `state_size` tells.
    """
    sizes = cell.state_size
    nested = isinstance(sizes, (tuple, list))
    output, after = cell(inputs, pack(sizes if nested else [sizes], state), training=training)
    after = tuple(flatten(after))
    if [part.shape[-1] for part in after] != [part.shape[-1] for part in state]:
        raise ValueError(
            f"Argument `cell` must return states of its `state_size`, {sizes}. "
            f"Received: states of shapes {[tuple(part.shape) for part in after]}"
        )
    # What a loop carries must keep its dtype, even by a cell of another policy.
    after = tuple(ops.cast(new, old.dtype) for new, old in zip(after, state, strict=True))
    return ops.cast(output, after[0].dtype), after


@contextmanager
def dropout_masks(cells, inputs, training):
    """Draws the dropout masks of Keras cells before a training loop, as `keras.layers.RNN` does.

    A cell draws its masks at its first step and keeps them; inside a traced loop they would
    belong to the trace.
    """
    parts = [
        part
        for cell in cells
        for part in parts_of(cell)
        if training and hasattr(part, "get_dropout_mask")
    ]
    batch = ops.shape(inputs)[0]
    _forget(parts)
    for part in parts:
        units = flatten(part.state_size)[0]
        part.get_dropout_mask(ops.ones((batch, part.kernel.shape[0]), dtype=part.compute_dtype))
        part.get_recurrent_dropout_mask(ops.ones((batch, units), dtype=part.compute_dtype))
    try:
        yield
    finally:
        _forget(parts)


def held(kept, after, before):
    """The state after a step, and the one before it in rows whose step is masked.

    Args:
        kept: `(B,)` bool tensor, False for a row whose step is masked.
        after: Nest of `(B, ...)` tensors.
        before: Nest of the same structure, shapes and dtypes.

    Returns:
        A nest of the same structure.
    """
    pairs = zip(flatten(after), flatten(before), strict=True)
    return pack(before, [_where_row(kept, *pair) for pair in pairs])


def _where_row(kept, new, old):
    return ops.where(ops.reshape(kept, (-1, *[1] * (len(new.shape) - 1))), new, old)


def _forget(parts):
    for part in parts:
        part.reset_dropout_mask()
        part.reset_recurrent_dropout_mask()


def parts_of(cell):
    """The cells inside stacks, from the bottom to the top."""
    return [part for inner in getattr(cell, "cells", ()) for part in parts_of(inner)] or [cell]


def flatten(state):
    """The tensors of a nest of tuples and lists, in order.

    `keras.tree` takes any structure, and in a loop on torch more time than the products of a step.

    Example:

    >>> flatten((1, [2, ()], 3))
    [1, 2, 3]
    """
    if not isinstance(state, (tuple, list)):
        return [state]
    return [tensor for part in state for tensor in flatten(part)]


def pack(template, tensors):
    """The nest `template`, of tuples and lists, with one of `tensors` in each of its places.

    Example:

    >>> pack((0, [0, ()], 0), [1, 2, 3])
    (1, [2, ()], 3)
    """
    return _pack(template, iter(tensors))


def _pack(template, tensors):
    if not isinstance(template, (tuple, list)):
        return next(tensors)
    parts = [_pack(part, tensors) for part in template]
    return type(template)(*parts) if hasattr(template, "_fields") else type(template)(parts)
