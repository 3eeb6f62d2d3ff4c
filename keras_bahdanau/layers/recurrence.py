"""A step function run over time, and any Keras cell or stack of them as such a step."""

import itertools
from contextlib import contextmanager

import keras
from keras import ops, tree


def run_over_time(step, inputs, state, dtype):
    """Runs `step` over the time axis of `inputs`.

    `keras.layers.RNN` has the loop that every backend runs, differentiates and compiles well,
    but no place for what a step reads besides its state. The step given here may close over
    tensors, such as a memory, so nothing is kept on a layer between calls.

    Args:
        step: `(inputs (B, M), state) -> (outputs, state)`; `outputs` is a list of `(B, width)`
            tensors, of which only the last may have a width that is unknown while tracing; `state`
            is a nest of the same structure, shapes and dtypes as the one given.
        inputs: `(B, T, M)` tensor.
        state: Nest of `(B, size)` tensors before the first step.
        dtype: Dtype of the outputs, which travel together through the loop.

    Returns:
        A list of `(B, T, width)` tensors of `dtype`, one for each output of the step.

    Example:

    >>> import numpy as np
    >>> add = lambda x, total: ([total + x], total + x)
    >>> (sums,) = run_over_time(add, np.ones((1, 3, 1)), np.zeros((1, 1)), "float32")
    >>> [float(x) for x in sums[0, :, 0]]
    [1.0, 2.0, 3.0]
    """
    state = tree.map_structure(ops.convert_to_tensor, state)
    # Keras carries all of the state in one dtype: the widest, so that none of it is rounded.
    carried = keras.backend.result_type(dtype, *[part.dtype for part in flatten(state)])
    cell = _StepCell(step, state, dtype, carried)
    # A loop on torch is one of Python; what Keras does not unroll takes its first step twice.
    unroll = keras.config.backend() == "torch"
    loop = keras.layers.RNN(cell, return_sequences=True, unroll=unroll, dtype=carried)
    emitted = loop.call(ops.convert_to_tensor(inputs), initial_state=flatten(state))
    emitted = ops.cast(emitted, dtype)
    # The last output reaches to the end: its width may be known only when the graph runs.
    ends = [sum(cell.widths[:i]) for i in range(len(cell.widths))] + [None]
    parts = [emitted[..., start:end] for start, end in itertools.pairwise(ends)]
    return [_with_width(part, width) for part, width in zip(parts, cell.widths, strict=True)]


def _with_width(part, width):
    # A slice of an axis of unknown length has an unknown length itself on TensorFlow.
    return part if part.shape[-1] == width else ops.reshape(part, (*ops.shape(part)[:-1], width))


class _StepCell:
    """A step function in the form that `keras.layers.RNN` asks of a cell."""

    def __init__(self, step, state, dtype, carried):
        self.step, self.state, self.dtype = step, state, dtype
        self.compute_dtype = carried
        self.dtypes = [part.dtype for part in flatten(state)]
        self.mixed = any(keras.backend.standardize_dtype(part) != carried for part in self.dtypes)
        self.state_size = [part.shape[-1] for part in flatten(state)]
        self.widths = []

    def call(self, inputs, states):
        if self.mixed:
            states = [ops.cast(part, of) for part, of in zip(states, self.dtypes, strict=True)]
        outputs, state = self.step(inputs, pack(self.state, states))
        state = flatten(state)
        if self.mixed:
            state = [ops.cast(part, self.compute_dtype) for part in state]
        self.widths = [part.shape[-1] for part in outputs]
        outputs = [ops.cast(part, self.dtype) for part in outputs]
        return ops.concatenate(outputs, axis=-1), state

    __call__ = call


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


def checked_cell(name, cell):
    """One cell out of a cell or a list of them, whose output is its state."""
    listed = isinstance(cell, (list, tuple))
    cells = list(cell) if listed else [cell]
    if not cells or not all(hasattr(part, "state_size") for part in cells):
        raise ValueError(
            f"Argument `{name}` must be a Keras RNN cell (with `state_size`) or a list of them. "
            f"Received: {cell!r}"
        )
    cell = keras.layers.StackedRNNCells(cells) if listed else cell
    state = flatten(parts_of(cell)[-1].state_size)[0]
    if getattr(cell, "output_size", state) != state:
        raise ValueError(
            f"Argument `{name}` must have an output as wide as its first state, {state}. "
            f"Received: an output of width {cell.output_size}"
        )
    return cell


def move(cell, inputs, state, training):
    """One step of a cell from a flat tuple of states to a flat tuple of states."""
    sizes = cell.state_size
    nested = isinstance(sizes, (tuple, list))
    output, after = cell(inputs, pack(sizes if nested else [sizes], state), training=training)
    after = tuple(flatten(after))
    if [part.shape[-1] for part in after] != [part.shape[-1] for part in state]:
        raise ValueError(
            f"Argument `cell` must return states of its `state_size`, {sizes}. "
            f"Received: states of shapes {[tuple(part.shape) for part in after]}"
        )
    return output, after


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


def parts_of(cell):
    """The cells inside stacks, from the bottom to the top."""
    return [part for inner in getattr(cell, "cells", ()) for part in parts_of(inner)] or [cell]


def _forget(parts):
    for part in parts:
        part.reset_dropout_mask()
        part.reset_recurrent_dropout_mask()
