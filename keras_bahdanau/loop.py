"""A step function run over time by the fast, differentiable loop of each backend."""

import itertools

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
        A list of `(B, T, width)` tensors, one for each output of the step.

    Example:

    >>> import numpy as np
    >>> add = lambda x, total: ([total + x], total + x)
    >>> (sums,) = run_over_time(add, np.ones((1, 3, 1)), np.zeros((1, 1)), "float32")
    >>> [float(x) for x in sums[0, :, 0]]
    [1.0, 2.0, 3.0]
    """
    cell = _StepCell(step, state, dtype)
    loop = keras.layers.RNN(cell, return_sequences=True, dtype=dtype)
    emitted = loop.call(ops.convert_to_tensor(inputs), initial_state=tree.flatten(state))
    # The last output reaches to the end: its width may be known only when the graph runs.
    ends = [sum(cell.widths[:i]) for i in range(len(cell.widths))] + [None]
    return [emitted[..., start:end] for start, end in itertools.pairwise(ends)]


class _StepCell:
    """A step function in the form that `keras.layers.RNN` asks of a cell."""

    def __init__(self, step, state, dtype):
        self.step, self.template = step, state
        self.compute_dtype = dtype
        self.state_size = [tensor.shape[-1] for tensor in tree.flatten(state)]
        self.widths = []

    def call(self, inputs, states):
        outputs, state = self.step(inputs, tree.pack_sequence_as(self.template, list(states)))
        self.widths = [part.shape[-1] for part in outputs]
        outputs = [ops.cast(part, self.compute_dtype) for part in outputs]
        return ops.concatenate(outputs, axis=-1), tree.flatten(state)

    __call__ = call
