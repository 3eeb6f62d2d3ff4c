"""Readout: the layer between the decoder and the output layer."""

import keras
from keras import ops

from keras_bahdanau.layers.sequences import SequenceLayer, check_widths
from keras_bahdanau_runtime.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class DeepOutput(SequenceLayer):
    """Deep output with one hidden layer (arXiv 1409.0473, A.2.2).

        t~_i = U_o s + V_o E y_{i-1} + C_o c_i                  width 2l for maxout
        t_i  = [max(t~_{i,2j-1}, t~_{i,2j})]_{j=1..l}           maxout over pairs

    With another activation `t_i = activation(t~_i)` has width `l`.

    Args:
        units: Width `l` of the output.
        activation: "maxout", or any Keras activation such as "tanh".
        reads_inputs: Whether the sum has the term `V_o E y_{i-1}`. With False and "tanh", the
            output is the attentional vector `tanh(W_c [s ; c])` of Luong (arXiv 1508.04025, Eq. 5).
        kernel_initializer: Initializer of the three kernels.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        state: `(..., N)` float tensor, the state of the decoder.
        inputs: `(..., M)` float tensor, the embedded previous output.
        context: `(..., D)` float tensor.

    Output shape:
        `(..., units)` float tensor.

    Raises:
        ValueError: If `units` is not a positive int, or a width is unknown.

    Example:

    >>> import numpy as np
    >>> tuple(DeepOutput(3)(np.ones((2, 4)), np.ones((2, 5)), np.ones((2, 6))).shape)
    (2, 3)
    """

    def __init__(
        self,
        units: int,
        activation="maxout",
        reads_inputs: bool = True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        check_positive(units=units)
        self.units = units
        self.reads_inputs = reads_inputs
        self.maxout = activation == "maxout"
        self.activation = activation if self.maxout else keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, state_shape, inputs_shape, context_shape):
        check_widths(state=state_shape, inputs=inputs_shape, context=context_shape)
        width = self.units * (2 if self.maxout else 1)
        inputs = state_shape[-1] + context_shape[-1]
        if self.reads_inputs:
            inputs += inputs_shape[-1]
        self.kernel = self.add_weight(
            shape=(inputs, width), initializer=self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight(shape=(width,), initializer="zeros", name="bias")

    def call(self, state, inputs, context):
        tensors = [state, inputs, context] if self.reads_inputs else [state, context]
        hidden = ops.matmul(ops.concatenate(tensors, -1), self.kernel) + self.bias
        if not self.maxout:
            return self.activation(hidden)
        # Pairs of neighbors, like 2j - 1 and 2j in the paper. The cast is for torch, where Keras
        # returns float32 for two float64 tensors.
        return ops.cast(ops.maximum(hidden[..., 0::2], hidden[..., 1::2]), hidden.dtype)

    def compute_output_shape(self, state_shape, inputs_shape, context_shape):
        return (*state_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": (
                "maxout" if self.maxout else keras.activations.serialize(self.activation)
            ),
            "reads_inputs": self.reads_inputs,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
