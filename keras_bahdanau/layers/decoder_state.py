"""What an attentive decoder carries from one step to the next."""

from typing import Any, NamedTuple

from keras import ops

from keras_bahdanau.layers.method_layer import named_in_configs
from keras_bahdanau.layers.recurrence import flatten


@named_in_configs
class DecoderState(NamedTuple):
    """What a decoder carries from one step to the next.

    Attributes:
        cell: Tuple of the cell's state tensors, `(B, size)` each, in the cell's own order.
        attention: The attention mechanism's state; `()` if it keeps none.
        output: The last output `(B, R)`, where the next step reads it; else `()`.
    """

    cell: tuple
    attention: Any = ()
    output: Any = ()


def first_states(cell, batch, dtype):
    """The states that a cell begins with, a flat list: its own, or zeros where it says none."""
    if hasattr(cell, "get_initial_state"):
        return flatten(cell.get_initial_state(batch_size=batch))
    return [ops.zeros((batch, size), dtype) for size in flatten(cell.state_size)]
