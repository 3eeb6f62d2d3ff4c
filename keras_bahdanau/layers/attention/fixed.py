"""Fixed context of the RNN encoder-decoder, in the form of an attention mechanism."""

import keras
from keras import ops

from keras_bahdanau.layers.attention.base import Attention, Memory, group_rows
from keras_bahdanau.layers.sequences import (
    checked_mask,
    last_kept_index,
    last_kept_step,
    zero_masked,
)
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class FixedContext(Attention):
    """The last annotation as the context of every step (arXiv 1409.0473, section 2.1).

        c_i = first `width` features of h_Tx

    With `width` equal to the units of a bidirectional encoder, `c_i` is the last forward state, and
    RNNsearch becomes RNNencdec. Queries are ignored and may have any width.

    Args:
        width: Number of leading features of the annotation in the context; all if `None`.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments: see `Attention.call`.

    Raises:
        ValueError: If `width` is neither `None` nor a positive int, or is larger than the width of
            the annotations.

    Example:

    >>> import numpy as np
    >>> values = np.array([[[1.0], [2.0], [9.0]]])
    >>> context = FixedContext()(np.ones((1, 4)), values, value_mask=[[True, True, False]])
    >>> float(context[0, 0])
    2.0
    """

    def __init__(self, width: int | None = None, **kwargs):
        super().__init__(**kwargs)
        if width is not None:
            check_positive(width=width)
        self.width = width

    def context_width(self, value_width):
        """Return `width`, or the width of the annotations if it is `None`."""
        return value_width if self.width is None else self.width

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        """Return a memory with one annotation per source.

        Its values are `(B, 1, width)`, and its keys are the one-hot weights `(B, Tx)`.

        Args:
            values: `(B, Tx, D)` float annotations.
            key: Ignored.
            mask: `(B, Tx)` bool, True = keep, or `None`.
            training: Ignored.
            steps: Ignored.
        """
        values = self._checked_values("values", values)
        if self.width is not None and values.shape[-1] < self.width:
            raise argument_error(
                "width",
                f"be at most the width of the annotations, {values.shape[-1]}",
                received=str(self.width),
            )
        mask = checked_mask("mask", mask, values)
        values = zero_masked(values, mask)
        context = last_kept_step(values, mask)[:, : self.width]
        steps = ops.shape(values)[1]
        if mask is None:
            last = ops.full((ops.shape(values)[0],), steps - 1, dtype="int32")
        else:
            last = last_kept_index(mask)  # -1 for a fully masked row
            context = ops.where(ops.expand_dims(last >= 0, -1), context, ops.zeros_like(context))
        indices = ops.expand_dims(ops.arange(steps, dtype="int32"), 0)
        weights = ops.cast(ops.equal(indices, ops.expand_dims(last, -1)), "float32")
        return Memory(keys=weights, values=ops.expand_dims(context, 1), mask=mask)

    def step(self, query, memory, state=(), training=None, t=None):
        """Return the context and the one-hot weights; see `Attention.step`."""
        groups = ops.shape(group_rows(query, memory.keys))[1]
        context = ops.repeat(ops.squeeze(memory.values, 1), groups, axis=0)
        return context, ops.repeat(memory.keys, groups, axis=0), state

    def _attend(self, queries, memory, training, query_mask=None):
        count = ops.shape(queries)[1]
        weights = ops.repeat(ops.expand_dims(memory.keys, 1), count, axis=1)
        return ops.repeat(memory.values, count, axis=1), weights

    def get_config(self):
        return {**super().get_config(), "width": self.width}
