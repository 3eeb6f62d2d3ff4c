"""The bidirectional encoder: annotations that see the whole source from each place."""

import logging

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.sequences import (
    SequenceLayer,
    check_widths,
    checked_mask,
    gather_steps,
    index_among_kept,
    order_kept_first,
    reverse_by_length,
    sequence_lengths,
    zero_masked,
)
from keras_bahdanau.layers.sublayers import apply_settings, pop_settings, record_settings
from keras_bahdanau_runtime.checks import check_positive, check_range

logger = logging.getLogger("keras_bahdanau")

_CELLS = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class BidirectionalEncoder(SequenceLayer):
    """Reads a sequence in both directions (arXiv 1409.0473, section 3.2 and A.2.1).

        h_j = [forward h_j ; backward h_j]

    The annotations equal those of masked Keras layers for any mask: padding at the right or at the
    left, and holes. Both directions run without a mask, because backends run recurrent layers fast
    only then: the kept steps are moved to the front, the backward direction runs forward over each
    sequence reversed by its length, and the annotations are moved back to their places.

    Args:
        units: Width `n` of each direction.
        cell: "gru" or "lstm".
        num_layers: How many bidirectional layers stand on each other.
        dropout: Share of a layer's inputs dropped between layers, in [0, 1). A single layer has
            none before it, and the log says so.
        residual: Whether layers after the first add their input to their output.
        reset_after: For "gru": whether the reset gate acts after the recurrent product (what
            fast kernels want) or before it (what the paper writes).
        kernel_initializer: Initialiser of the input kernels.
        recurrent_initializer: Initialiser of the recurrent kernels.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(B, Tx, M)` float tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        right_padded: Whether the mask is False only at the right of each row. Then no step is
            moved: `Seq2Seq.generate` and exported searches, which refuse other padding, compute so.
            The annotations are undefined if the mask is of another kind.

    Returns:
        Annotations `(B, Tx, 2 * units)`, zero at masked places.

    Raises:
        ValueError: If `units` or `num_layers` is not positive, `dropout` is out of range, `cell` is
            unknown, or the mask has another shape or dtype.

    Example:

    >>> import numpy as np
    >>> tuple(BidirectionalEncoder(4)(np.ones((2, 5, 3))).shape)
    (2, 5, 8)
    """

    def __init__(
        self,
        units: int,
        cell: str = "gru",
        num_layers: int = 1,
        dropout: float = 0.0,
        residual: bool = False,
        reset_after: bool = True,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(units=units, num_layers=num_layers)
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        if cell not in sorted(_CELLS):
            raise ValueError(f"Argument `cell` must be one of {sorted(_CELLS)}. Received: {cell!r}")
        if dropout and num_layers == 1:
            logger.warning(
                "The encoder drops nothing: a dropout of %g acts between its layers, and it has "
                "one.",
                dropout,
            )
        self.units = units
        self.cell = cell
        self.num_layers = num_layers
        self.dropout = dropout
        self.residual = residual
        self.reset_after = reset_after
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.recurrent_initializer = keras.initializers.get(recurrent_initializer)
        self.supports_masking = True
        self.forward_layers = [self._layer(f"forward_{i}") for i in range(num_layers)]
        self.backward_layers = [self._layer(f"backward_{i}") for i in range(num_layers)]
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def _layer(self, name):
        arguments = {"reset_after": self.reset_after} if self.cell == "gru" else {}
        return _CELLS[self.cell](
            self.units,
            return_sequences=True,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            recurrent_initializer=clone_initializer(self.recurrent_initializer),
            dtype=self.dtype_policy,
            trainable=self.trainable,  # of a saved encoder, or as it was told
            name=name,
            **arguments,
        )

    def recurrent_layers(self):
        """The recurrent layers, of both directions."""
        return [*self.forward_layers, *self.backward_layers]

    def build(self, inputs_shape):
        check_widths(inputs=inputs_shape)
        shape = tuple(inputs_shape)
        for forward, backward in zip(self.forward_layers, self.backward_layers, strict=True):
            forward.build(shape)
            backward.build(shape)
            shape = (*shape[:-1], 2 * self.units)

    def call(self, inputs, mask=None, training=None, right_padded=False):
        mask = checked_mask("mask", mask, inputs)
        lengths = None if mask is None else sequence_lengths(mask)
        outputs = zero_masked(ops.cast(inputs, self.compute_dtype), mask)
        moved = not (mask is None or right_padded)
        if moved:
            outputs = gather_steps(outputs, order_kept_first(mask))
        for i, (forward, backward) in enumerate(
            zip(self.forward_layers, self.backward_layers, strict=True)
        ):
            inputs = outputs if i == 0 else self.dropout_layer(outputs, training=training)
            layer = self.read_both_ways(forward, backward, inputs, lengths, training=training)
            outputs = outputs + layer if self.residual and i else layer
        if moved:
            outputs = gather_steps(outputs, ops.maximum(index_among_kept(mask), 0))
        return zero_masked(outputs, mask)

    def read_both_ways(self, forward, backward, inputs, lengths, training=None):
        """Both directions of sequences padded at the right, `(B, Tx, 2 * units)`.

        The outputs after the length of a row are undefined.

        Args:
            forward: The layer that reads from left to right.
            backward: The layer that reads from right to left.
            inputs: `(B, Tx, M)` float tensor.
            lengths: `(B,)` int tensor, or `None` if every place counts.
            training: Whether to drop out.
        """
        ahead = forward(inputs, training=training)
        back = backward(reverse_by_length(inputs, lengths), training=training)
        return ops.concatenate([ahead, reverse_by_length(back, lengths)], axis=-1)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], 2 * self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "cell": self.cell,
            "num_layers": self.num_layers,
            "dropout": self.dropout,
            "residual": self.residual,
            "reset_after": self.reset_after,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "recurrent_initializer": keras.initializers.serialize(self.recurrent_initializer),
            "layer_settings": record_settings(self.recurrent_layers()),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        settings = pop_settings(config)
        encoder = cls(**config)
        apply_settings(encoder.recurrent_layers(), settings)
        return encoder
