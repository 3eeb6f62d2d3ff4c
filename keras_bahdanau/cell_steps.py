"""Any Keras cell, or a stack of them, taken one step at a time: flat states, dropout masks."""

from contextlib import contextmanager

import keras
from keras import ops

from keras_bahdanau.loop import flatten, pack


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
