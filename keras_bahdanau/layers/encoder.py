"""Bidirectional recurrent encoder."""

import logging

import keras
from keras import ops

from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.sequences import (
    SequenceLayer,
    as_list,
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
from keras_bahdanau_runtime.errors import argument_error

logger = logging.getLogger("keras_bahdanau")

_CELLS = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class BidirectionalEncoder(SequenceLayer):
    """Encoder that reads a sequence in both directions (arXiv 1409.0473, section 3.2 and A.2.1).

        h_j = [forward h_j ; backward h_j]

    The annotations equal those of masked Keras layers for any mask: padding at the right or left,
    and gaps. Both directions run without a mask, because only then do backends use their fast
    recurrent kernels. The kept steps are moved to the front, the backward direction reads each
    sequence reversed by its length, and the annotations are moved back.

    Args:
        units: Width `n` of each direction.
        cell: "gru" or "lstm".
        num_layers: Number of stacked bidirectional layers.
        dropout: Fraction of a layer's inputs dropped between layers, in [0, 1). It has no effect
            with a single layer, which is logged as a warning.
        residual: Whether layers after the first add their input to their output.
        reset_after: For "gru": whether the reset gate is applied after the recurrent product
            (required by fast kernels) or before it (as in the paper).
        kernel_initializer: Initializer of the input kernels.
        recurrent_initializer: Initializer of the recurrent kernels.
        return_state: Whether to also return the final states of all layers, for a `StateBridge`.
            The recurrent layers then get a mask, which is slower on torch and JAX. Exported graphs
            use the same operators in both cases.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        inputs: `(B, Tx, M)` float tensor.
        mask: `(B, Tx)` bool, True = keep, or `None`.
        right_padded: Whether only the right of each row is masked. Then no step is moved. This is
            the mode of `Seq2Seq.generate` and of exported searches, which reject other padding.
            With any other mask the annotations are undefined.

    Output shape:
        Annotations `(B, Tx, 2 * units)`, zero at masked positions. With `return_state` a tuple of
        the annotations and of states `(B, 2 * units)`, in the order of a stack of decoder cells:
        h (and c for "lstm") of the first layer, then of the next. Each is the final state of the
        forward direction followed by that of the backward direction.

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
        return_state: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(units=units, num_layers=num_layers)
        check_range("dropout", dropout, float, 0, 1, open_high=True)
        if cell not in sorted(_CELLS):
            raise argument_error("cell", f"be one of {sorted(_CELLS)}", cell)
        if dropout and num_layers == 1:
            logger.warning(
                "The dropout of %g has no effect: it acts between the layers of the encoder, which "
                "has only one.",
                dropout,
            )
        self.units = units
        self.cell = cell
        self.num_layers = num_layers
        self.dropout = dropout
        self.residual = residual
        self.reset_after = reset_after
        self.return_state = return_state
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
            return_state=self.return_state,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            recurrent_initializer=clone_initializer(self.recurrent_initializer),
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name=name,
            **arguments,
        )

    def recurrent_layers(self):
        """Return the recurrent layers of both directions."""
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
        must_move = not (mask is None or right_padded)
        if must_move:
            outputs = gather_steps(outputs, order_kept_first(mask))
        states = []
        for i, (forward, backward) in enumerate(
            zip(self.forward_layers, self.backward_layers, strict=True)
        ):
            inputs = outputs if i == 0 else self.dropout_layer(outputs, training=training)
            layer, layer_states = self.read_both_ways(
                forward, backward, inputs, lengths, training=training
            )
            outputs = outputs + layer if self.residual and i else layer
            states += layer_states
        if must_move:
            outputs = gather_steps(outputs, ops.maximum(index_among_kept(mask), 0))
        outputs = zero_masked(outputs, mask)
        return (outputs, *states) if self.return_state else outputs

    def read_both_ways(self, forward, backward, inputs, lengths, training=None):
        """Run two recurrent layers over right-padded sequences, in opposite directions.

        Args:
            forward: Layer that reads from left to right.
            backward: Layer that reads from right to left.
            inputs: `(B, Tx, M)` float tensor.
            lengths: `(B,)` int tensor, or `None` if no step is masked.
            training: Whether the call is part of training.

        Returns:
            `(outputs, states)`: a `(B, Tx, 2 * units)` float tensor, undefined after the length of
            a row; and the list of final states, `(B, 2 * units)` each, without `return_state` an
            empty list.
        """
        mask = None
        if self.return_state and lengths is not None:
            mask = ops.arange(ops.shape(inputs)[1], dtype="int32") < ops.expand_dims(lengths, 1)
        (left_to_right, *forward_states), (reversed_, *backward_states) = (
            as_list(layer(sequences, mask=mask, training=training))
            for layer, sequences in (
                (forward, inputs),
                (backward, reverse_by_length(inputs, lengths)),
            )
        )
        outputs = ops.concatenate([left_to_right, reverse_by_length(reversed_, lengths)], axis=-1)
        states = zip(forward_states, backward_states, strict=True)
        return outputs, [ops.concatenate(pair, axis=-1) for pair in states]

    def compute_output_shape(self, inputs_shape):
        annotations = (*inputs_shape[:-1], 2 * self.units)
        if not self.return_state:
            return annotations
        count = self.num_layers * (2 if self.cell == "lstm" else 1)
        return (annotations, *[(inputs_shape[0], 2 * self.units)] * count)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "cell": self.cell,
            "num_layers": self.num_layers,
            "dropout": self.dropout,
            "residual": self.residual,
            "reset_after": self.reset_after,
            "return_state": self.return_state,
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
