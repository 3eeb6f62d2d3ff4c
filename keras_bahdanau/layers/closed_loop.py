"""Closed loop: a decoder on its own outputs, as one layer."""

import keras
from keras import ops

from keras_bahdanau.layers.sequences import SequenceLayer, check_widths
from keras_bahdanau.layers.sublayers import (
    build_sublayer,
    call_rows,
    deserialized,
    output_width,
    serialized,
)
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class ClosedLoop(SequenceLayer):
    """Decoder whose inputs are its own outputs. `AttentiveDecoder.unroll` creates and calls it.

        x_1 = [first ; known_1]        x_{i+1} = [next_input(o_i) ; known_{i+1}]

    Gradients flow through all steps. The decoder is shared: it can also be trained on true inputs,
    in the same model or before. `next_input` runs inside of a traced loop, so it must not draw
    random numbers or have a state. On JAX this holds for the readout, too. To copy a model with
    this layer, save and load it: `keras.models.clone_model` would not share the copied decoder.

    Args:
        decoder: An `AttentiveDecoder`.
        steps: Number of steps.
        next_input: Keras layer from an output `(B, R)` to the next input `(B, M)`, such as
            `keras.layers.Dense(M)`; if `None`, the output is the next input.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        first: `(B, M)` float tensor, the input of the first step.
        annotations: `(B, Tx, D)` float tensor, or a list of them for `MultiSourceAttention`.
        annotations_mask: `(B, Tx)` bool, True = keep, or `None`; a list for
            `MultiSourceAttention`.
        initial_state: First states of the cell, as in a call of the decoder.
        known_inputs: `(B, steps, K)` float tensor of values that are known in advance for each
            step, such as its hour and its weekday, or `None`.

    Output shape:
        `(outputs, weights)`: `(B, steps, R)`, and `(B, steps, Tx)` float32.

    Raises:
        ValueError: If `decoder` is not an `AttentiveDecoder`, `steps` is not a positive int,
            `next_input` is not a layer, or its output is not as wide as `first`, which is checked
            when the layer is built, or `known_inputs` has another shape.

    Example:

    >>> import keras, numpy as np
    >>> decoder = AttentiveDecoder(keras.layers.GRUCell(4), BahdanauAttention(3))
    >>> forecast = ClosedLoop(decoder, steps=5, next_input=keras.layers.Dense(2))
    >>> outputs, weights = forecast(np.ones((3, 2)), np.ones((3, 7, 6)))
    >>> tuple(outputs.shape), tuple(weights.shape)
    ((3, 5, 4), (3, 5, 7))
    """

    def __init__(self, decoder, steps: int, next_input=None, **kwargs):
        super().__init__(**kwargs)
        if not (
            isinstance(decoder, keras.layers.Layer)
            and callable(getattr(decoder, "unroll", None))  # a bool in `keras.layers.RNN`
        ):
            raise argument_error("decoder", "be an AttentiveDecoder", decoder)
        check_positive(steps=steps)
        if not (next_input is None or isinstance(next_input, keras.layers.Layer)):
            raise argument_error(
                "next_input",
                "be None or a Keras layer; write keras.layers.Dense(M) for inputs of width M",
                next_input,
            )
        self.decoder = decoder
        self.steps = steps
        self.next_input = next_input
        self.supports_masking = True

    def build(self, first_shape, annotations_shape, known_inputs_shape=None):
        check_shape("first", tuple(first_shape), "batch width", note=", the input of one step")
        check_widths(first=first_shape)
        batch, width = first_shape
        inputs = (batch, self.steps, width + self._known_width(known_inputs_shape))
        build_sublayer(self.decoder, inputs, annotations_shape)
        output = self.decoder.compute_output_shape(inputs, annotations_shape)[-1]
        next_width = output
        if self.next_input is not None:
            build_sublayer(self.next_input, (batch, output))
            row = keras.KerasTensor((batch, output), dtype=self.compute_dtype)
            next_width = output_width(self.next_input, row)
        if next_width != width:
            raise argument_error(
                "next_input",
                f"map an output of width {output} to an input of width {width}, like `first`; "
                f"write next_input=keras.layers.Dense({width})",
                received=f"{self.next_input!r}, which returns width {next_width}",
            )

    def _known_width(self, shape):
        """Return the width of `known_inputs`, 0 if it is `None`, after a check of its shape."""
        if shape is None:
            return 0
        check_shape("known_inputs", tuple(shape), "batch steps width", steps=self.steps)
        check_widths(known_inputs=shape)
        return shape[-1]

    def call(
        self,
        first,
        annotations,
        annotations_mask=None,
        initial_state=None,
        known_inputs=None,
        training=None,
    ):
        width = first.shape[-1]
        inputs = ops.repeat(ops.expand_dims(first, 1), self.steps, axis=1)
        if known_inputs is not None:
            self._known_width(known_inputs.shape)
            inputs = ops.concatenate([inputs, ops.cast(known_inputs, inputs.dtype)], axis=-1)

        def feedback(t, x, output):
            has_output = t > 0
            # Some layers have no finite gradient at the zero output before the first step.
            output = ops.where(has_output, output, ops.ones_like(output))
            next_x = output if self.next_input is None else call_rows(self.next_input, output)
            next_x = ops.where(has_output, ops.cast(next_x, x.dtype), x[:, :width])
            if known_inputs is None:
                return next_x
            return ops.concatenate([next_x, x[:, width:]], axis=-1)

        outputs, weights = self.decoder(
            inputs,
            annotations,
            annotations_mask=annotations_mask,
            initial_state=initial_state,
            feedback=feedback,
            return_attention_scores=True,
            training=training,
        )
        return ops.cast(outputs, self.compute_dtype), weights

    def compute_mask(self, first, annotations, *args, **kwargs):
        """Return `None`: no step is masked."""
        return None

    def compute_output_spec(
        self,
        first,
        annotations,
        annotations_mask=None,
        initial_state=None,
        known_inputs=None,
        training=None,
    ):
        known_shape = None if known_inputs is None else known_inputs.shape
        width = first.shape[-1] + self._known_width(known_shape)
        inputs = keras.KerasTensor((first.shape[0], self.steps, width), first.dtype)
        outputs, weights = self.decoder.compute_output_spec(
            inputs, annotations, initial_state=initial_state, return_attention_scores=True
        )
        return keras.KerasTensor(outputs.shape, dtype=self.compute_dtype), weights

    def get_config(self):
        sublayers = serialized(self, "decoder", "next_input")
        return {**super().get_config(), **sublayers, "steps": self.steps}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "decoder", "next_input"))
