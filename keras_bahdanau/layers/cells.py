"""Recurrent cells with residual connections or layer normalization.

Variational dropout needs no special cell: `dropout` and `recurrent_dropout` of Keras's cells, and
of these, use one mask for a whole sequence (Gal and Ghahramani, arXiv 1512.05287).
"""

import keras
from keras import ops, tree

from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau_runtime.errors import argument_error


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class ResidualCell(keras.layers.StackedRNNCells):
    """Cell that adds its input to its output (Wu et al. 2016, arXiv 1609.08144, Eq. 6).

        o_i = x_i + cell(x_i, s_{i-1})

    The sum is the output only. The state is that of the inner cell. It is nested in a list of one,
    as in `keras.layers.StackedRNNCells`. As part of a larger stack in `keras.layers.RNN`, this
    works on JAX only without a mask; `AttentiveDecoder` has no such limit.

    Args:
        cell: Keras RNN cell whose output is as wide as its input.
        **kwargs: Passed to `keras.layers.Layer`.

    Attributes:
        cell: The inner cell.

    Call arguments:
        inputs: `(B, N)` float tensor.
        states: List with one item, the states of `cell`.
        training: Whether the call is part of training.

    Output shape:
        `(output, states)`: `(B, N)`, and the next states.

    Raises:
        ValueError: If `cell` has no `state_size`, or its output is not as wide as its input, which
            is checked when it is built.

    Example:

    >>> import numpy as np
    >>> cells = [keras.layers.GRUCell(4), ResidualCell(keras.layers.GRUCell(4))]
    >>> tuple(keras.layers.RNN(cells)(np.ones((2, 5, 3))).shape)
    (2, 4)
    """

    def __init__(self, cell, **kwargs):
        check_cell("cell", cell)
        super().__init__([cell], **kwargs)

    @property
    def cell(self):
        return self.cells[0]

    def build(self, input_shape):
        if input_shape[-1] != self.output_size:
            raise argument_error(
                "cell",
                f"have an output as wide as its input, of width {input_shape[-1]}",
                received=f"an output of width {self.output_size}",
            )
        super().build(input_shape)

    def call(self, inputs, states, training=False):
        output, after = super().call(inputs, states, training=training)
        # A loop must keep the dtype of its states, even if the cell has another dtype policy.
        pairs = zip(tree.flatten(after), tree.flatten(states), strict=True)
        after = [ops.cast(new, old.dtype) for new, old in pairs]
        # Keras returns the states of a single cell without the list around them.
        return inputs + ops.cast(output, inputs.dtype), tree.pack_sequence_as(states, after)

    def get_config(self):
        config = {**super().get_config(), **serialized(self, "cell")}
        del config["cells"]
        return config

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "cell"))


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class LayerNormGRUCell(keras.layers.GRUCell):
    """Gated recurrent unit with layer normalization (arXiv 1607.06450, Eq. 22-24).

        LN(a; gain, b) = gain * (a - mean(a)) / sqrt(var(a) + epsilon) + b
        (z, r) = sigma(LN([W_z ; W_r] x) + LN([U_z ; U_r] h))
        g      = tanh(LN(W x) + r * LN(U h))                    or LN(U (r * h)), reset_after=False
        h'     = z * h + (1 - z) * g                            z is the factor of the old state

    The two gates are normalized together, and the candidate state separately. The biases of the
    cell are those of `LN`. Under mixed precision means and variances are float32.

    Args:
        units: Width `n` of the state.
        epsilon: Small float added to the variance.
        **kwargs: Passed to `keras.layers.GRUCell`. `dropout` and `recurrent_dropout` use one mask
            each per sequence, which all gates share.

    Call arguments:
        inputs: `(B, M)` float tensor.
        states: List of the state, `(B, n)`.
        training: Whether the call is part of training.

    Output shape:
        `(output, states)`: `(B, n)`, and a list of it.

    Raises:
        ValueError: If `units` is not positive.

    Example:

    >>> import numpy as np
    >>> layer = keras.layers.RNN(LayerNormGRUCell(4, recurrent_dropout=0.1))
    >>> tuple(layer(np.ones((2, 5, 3))).shape)
    (2, 4)
    """

    def __init__(self, units: int, epsilon: float = 1e-5, **kwargs):
        super().__init__(units, **kwargs)
        self.epsilon = epsilon
        self.dropout_mask_count = None  # one mask for all gates

    def build(self, input_shape):
        super().build(input_shape)
        self.input_gain = _add_gain(self, "input_gain", 3 * self.units)
        self.recurrent_gain = _add_gain(self, "recurrent_gain", 3 * self.units)

    def call(self, inputs, states, training=False):
        h = states[0] if tree.is_nested(states) else states
        inputs, dropped = _apply_dropout(self, inputs, h, training)
        input_bias, recurrent_bias = self.bias, None
        if self.use_bias and self.reset_after:
            input_bias, recurrent_bias = self.bias[0], self.bias[1]
        gates, new = slice(2 * self.units), slice(2 * self.units, None)
        kernel, product = self.recurrent_kernel, ops.matmul(inputs, self.kernel)
        x_gates = self._norm(product[:, gates], self.input_gain, input_bias, gates)
        x_new = self._norm(product[:, new], self.input_gain, input_bias, new)
        if self.reset_after:
            product = ops.matmul(dropped, kernel)
            h_gates = self._norm(product[:, gates], self.recurrent_gain, recurrent_bias, gates)
            h_new = self._norm(product[:, new], self.recurrent_gain, recurrent_bias, new)
            z, r = ops.split(self.recurrent_activation(x_gates + h_gates), 2, axis=-1)
            h_new = r * h_new
        else:
            product = ops.matmul(dropped, kernel[:, gates])
            h_gates = self._norm(product, self.recurrent_gain, recurrent_bias, gates)
            z, r = ops.split(self.recurrent_activation(x_gates + h_gates), 2, axis=-1)
            product = ops.matmul(r * dropped, kernel[:, new])
            h_new = self._norm(product, self.recurrent_gain, recurrent_bias, new)
        h = z * h + (1 - z) * self.activation(x_new + h_new)
        return h, [h] if tree.is_nested(states) else h

    def _norm(self, product, gain, bias, part):
        """Normalize the columns `part` of a product."""
        bias = None if bias is None else bias[part]
        return _normalize(product, gain[part], bias, self.epsilon)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class LayerNormLSTMCell(keras.layers.LSTMCell):
    """Long short-term memory with layer normalization (arXiv 1607.06450, Eq. 20-22).

        LN(a; gain, b) = gain * (a - mean(a)) / sqrt(var(a) + epsilon) + b
        (i, f, g, o) = LN(W x) + LN(U h) + b
        c' = sigma(f) * c + sigma(i) * tanh(g)
        h' = sigma(o) * tanh(LN(c'))

    The four gates are normalized together. The cell state `c'` in the next step is not normalized.
    Under mixed precision means and variances are float32.

    Args:
        units: Width `n` of the state.
        epsilon: Small float added to the variance.
        **kwargs: Passed to `keras.layers.LSTMCell`. `dropout` and `recurrent_dropout` use one mask
            each per sequence, which all gates share.

    Call arguments:
        inputs: `(B, M)` float tensor.
        states: List of `h` and `c`, `(B, n)` each.
        training: Whether the call is part of training.

    Output shape:
        `(output, states)`: `(B, n)`, and the list of the next `h` and `c`.

    Raises:
        ValueError: If `units` is not positive.

    Example:

    >>> import numpy as np
    >>> layer = keras.layers.RNN(LayerNormLSTMCell(4, recurrent_dropout=0.1))
    >>> tuple(layer(np.ones((2, 5, 3))).shape)
    (2, 4)
    """

    def __init__(self, units: int, epsilon: float = 1e-5, **kwargs):
        super().__init__(units, **kwargs)
        self.epsilon = epsilon
        self.dropout_mask_count = None  # one mask for all gates

    def build(self, input_shape):
        super().build(input_shape)
        self.input_gain = _add_gain(self, "input_gain", 4 * self.units)
        self.recurrent_gain = _add_gain(self, "recurrent_gain", 4 * self.units)
        self.cell_gain = _add_gain(self, "cell_gain", self.units)
        self.cell_bias = None
        if self.use_bias:
            self.cell_bias = self.add_weight(
                shape=(self.units,), initializer="zeros", name="cell_bias"
            )

    def call(self, inputs, states, training=False):
        h, c = states
        inputs, h = _apply_dropout(self, inputs, h, training)
        gates = _normalize(
            ops.matmul(inputs, self.kernel), self.input_gain, self.bias, self.epsilon
        ) + _normalize(
            ops.matmul(h, self.recurrent_kernel), self.recurrent_gain, None, self.epsilon
        )
        i, f, g, o = ops.split(gates, 4, axis=-1)
        forget, write = self.recurrent_activation(f), self.recurrent_activation(i)
        c = forget * c + write * self.activation(g)
        normalized = _normalize(c, self.cell_gain, self.cell_bias, self.epsilon)
        h = self.recurrent_activation(o) * self.activation(normalized)
        return h, [h, c]

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


def _add_gain(cell, name, width):
    return cell.add_weight(shape=(width,), initializer="ones", name=name)


def _apply_dropout(cell, inputs, state, training):
    """Apply the dropout masks of the sequence, which the cell stores, to inputs and state."""
    if training and cell.dropout:
        inputs = inputs * cell.get_dropout_mask(inputs)
    if training and cell.recurrent_dropout:
        state = state * cell.get_recurrent_dropout_mask(state)
    return inputs, state


def _normalize(x, gain, bias, epsilon):
    return ops.layer_normalization(x, gain, bias, axis=-1, epsilon=epsilon)


def check_cell(name, cell):
    """Raise a `ValueError` unless `cell` is a recurrent cell."""
    if isinstance(cell, keras.layers.RNN):
        raise argument_error(
            name,
            f"be a cell, not a recurrent layer; write {type(cell.cell).__name__} instead of "
            f"{type(cell).__name__}",
            cell,
        )
    if not hasattr(cell, "state_size"):
        raise argument_error(
            name, "be a Keras RNN cell (with `state_size`), such as keras.layers.GRUCell(64)", cell
        )
