"""What an attentive decoder carries from one step to the next."""

from typing import Any, NamedTuple


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
