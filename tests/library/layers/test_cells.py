from functools import partial

import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from layer_checks import (
    WIDE_POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    assert_survives_saving,
    dtype_policy,
    numpy,
    randomize,
)

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, DeepOutput
from keras_bahdanau.layers import LayerNormGRUCell, LayerNormLSTMCell, ResidualCell

B, T, M, N = 3, 4, 5, 6
EPSILON = 0.1  # large enough to change the results
NORMALIZED = {
    "gru": partial(LayerNormGRUCell, N, epsilon=EPSILON),
    "gru_reset_before": partial(LayerNormGRUCell, N, epsilon=EPSILON, reset_after=False),
    "gru_without_bias": partial(LayerNormGRUCell, N, epsilon=EPSILON, use_bias=False),
    "lstm": partial(LayerNormLSTMCell, N, epsilon=EPSILON),
    "lstm_without_bias": partial(LayerNormLSTMCell, N, epsilon=EPSILON, use_bias=False),
}
CELLS = {
    **NORMALIZED,
    "residual_gru": lambda **kwargs: ResidualCell(keras.layers.GRUCell(N, **kwargs)),
    "residual_lstm": lambda **kwargs: ResidualCell(keras.layers.LSTMCell(N, **kwargs)),
    "residual_norm": lambda **kwargs: ResidualCell(LayerNormLSTMCell(N, **kwargs)),
}
WIDTHS = {name: N if name.startswith("residual") else M for name in CELLS}
normalized_cells = pytest.mark.parametrize("name", NORMALIZED)
every_cell = pytest.mark.parametrize("name", CELLS)


def step_of(cell):
    """The reference's step for a built cell: `(inputs, flat states) -> flat states`."""
    weights = reference.weights_by_name(cell)
    if isinstance(cell, LayerNormLSTMCell):
        return partial(reference.layer_norm_lstm_step, weights=weights, epsilon=cell.epsilon)
    if isinstance(cell, LayerNormGRUCell):
        return partial(
            reference.layer_norm_gru_step,
            weights=weights,
            reset_after=cell.reset_after,
            epsilon=cell.epsilon,
        )
    weights = reference.float64(cell.get_weights())
    if isinstance(cell, keras.layers.LSTMCell):
        return partial(reference.lstm_step, weights=weights)
    return partial(reference.gru_step, weights=weights, reset_after=cell.reset_after)


def expected_outputs(cell, inputs, states):
    """Outputs `(T, n)` of one sequence of inputs `(T, M)`, and the last states."""
    residual = isinstance(cell, ResidualCell)
    step = step_of(cell.cell if residual else cell)
    outputs = []
    for x in inputs:
        states = step(x, states)
        outputs.append(x + states[0] if residual else states[0])
    return np.array(outputs), states


def random_cell(name, rng, **arguments):
    cell = CELLS[name](**arguments)
    cell.build((B, WIDTHS[name]))
    return randomize_all(cell, rng)


def randomize_all(layer, rng):
    """Set the trainable weights to random values, and not the states of random generators."""
    for weight in layer.trainable_variables:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return layer


# --- Numbers --------------------------------------------------------------------------------------


@every_cell
def test_a_sequence_equals_the_reference(name, rng):
    cell, inputs = random_cell(name, rng), array(rng, B, T, WIDTHS[name])
    layer = keras.layers.RNN(cell, return_sequences=True, return_state=True)
    states = [array(rng, B, N) for _ in keras.tree.flatten(cell.state_size)]
    initial = [tensor(state) for state in states]
    outputs, *after = layer(
        inputs, initial_state=[initial] if isinstance(cell, ResidualCell) else initial
    )
    for row in range(B):
        expected, last = expected_outputs(cell, inputs[row], [state[row] for state in states])
        assert_close(outputs[row], expected)
        for state, of in zip(keras.tree.flatten(after), last, strict=True):
            assert_close(state[row], of)


def tensor(value):
    return keras.ops.convert_to_tensor(value)


@normalized_cells
def test_layer_normalization_ignores_the_scale_of_the_inputs(name, rng):
    # Layer normalization removes the mean and the scale of each product.
    cell, inputs = random_cell(name, rng), array(rng, B, M)
    cell.epsilon = 1e-9
    states = [tensor(array(rng, B, N)) for _ in keras.tree.flatten(cell.state_size)]
    assert_close(cell(tensor(100 * inputs), states)[0], numpy(cell(tensor(inputs), states)[0]))


@every_cell
def test_gradients_equal_finite_differences(name, rng):
    cell, inputs = random_cell(name, rng), array(rng, 1, 3, WIDTHS[name])
    layer = keras.layers.RNN(cell, return_sequences=True)
    layer.build(inputs.shape)
    zero = [np.zeros(N)] * len(keras.tree.flatten(cell.state_size))
    _, gradients = differentiate(layer)(inputs)

    def loss(x):
        return (expected_outputs(cell, x, zero)[0] ** 2).sum()

    x = inputs[0].astype("float64")
    for at in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[at] = 1e-5
        difference = (loss(x + moved) - loss(x - moved)) / 2e-5
        np.testing.assert_allclose(gradients[0][0][at], difference, rtol=0, atol=1e-4)
    assert all(part.any() for part in gradients[1:])


# --- In a decoder ---------------------------------------------------------------------------------


def decoder_of(names, rng, **arguments):
    cells = [CELLS[name](**arguments) for name in names]
    decoder = AttentiveDecoder(
        cells if len(cells) > 1 else cells[0],
        BahdanauAttention(4),
        DeepOutput(3),
        query_state="current",
    )
    decoder.build((B, T, N), (B, 7, 2))
    return randomize_all(decoder, rng)


STACKS = [["gru"], ["lstm"], ["lstm", "residual_lstm"], ["gru", "residual_gru", "residual_norm"]]


@pytest.mark.parametrize("names", STACKS, ids="+".join)
def test_a_decoder_of_stacked_cells_equals_the_reference(names, rng):
    decoder = decoder_of(names, rng)
    inputs, annotations = array(rng, B, T, N), array(rng, B, 7, 2)
    states = [array(rng, B, size) for size in decoder.state_sizes]
    outputs = numpy(decoder(inputs, annotations, initial_state=[tensor(s) for s in states]))
    assert_close(outputs[0], expected_decoder_outputs(decoder, inputs[0], annotations[0], states))
    # Single steps give the same numbers.
    memory = decoder.memory(tensor(annotations))
    state = decoder.initial_state(memory, [tensor(s) for s in states])
    for i in range(T):
        output, state, _ = decoder.step(tensor(inputs[:, i]), state, memory)
        assert_close(output, outputs[:, i], 1e-6)


def expected_decoder_outputs(decoder, inputs, annotations, states):
    """The outputs of the first row of a batch. The query is the output of the top cell."""
    cells = getattr(decoder.cell, "cells", [decoder.cell])
    states, per_cell = [state[0] for state in states], []
    for cell in cells:
        count = len(keras.tree.flatten(cell.state_size))
        per_cell.append(states[:count])
        states = states[count:]
    attend = reference.float64(decoder.attention.get_weights())
    readout = reference.float64(decoder.readout.get_weights())
    outputs = []
    for x in inputs:
        top = x
        for i, cell in enumerate(cells):
            (top,), per_cell[i] = expected_outputs(cell, [top], per_cell[i])
        mask = np.ones(len(annotations), bool)
        context, _ = reference.additive_attention(top, annotations, mask, attend)
        outputs.append(reference.deep_output(top, x, context, readout))
    return np.array(outputs)


# --- Dropout: one mask for a sequence -------------------------------------------------------------

DROPPING = ["gru", "gru_reset_before", "lstm", "residual_gru", "residual_lstm", "residual_norm"]
KINDS = pytest.mark.parametrize("kind", ["dropout", "recurrent_dropout"])


@pytest.mark.parametrize("name", DROPPING)
@KINDS
def test_dropout_acts_in_training_only_and_differs_between_calls(name, kind, rng):
    cell = random_cell(name, rng, **{kind: 0.5})
    layer = keras.layers.RNN(cell, return_sequences=True)
    inputs = array(rng, B, T, WIDTHS[name])
    still = numpy(layer(inputs))
    noisy, again = (numpy(layer(inputs, training=True)) for _ in range(2))
    # Each call draws other masks, for a batch of any size, and keeps none for the next call.
    assert np.abs(noisy - still).max() > 1e-3 and np.abs(noisy - again).max() > 1e-3
    assert layer(inputs[:2], training=True).shape == (2, T, N)
    assert_close(layer(inputs), still, 1e-6)


@pytest.mark.parametrize("name", DROPPING)
def test_one_dropout_mask_of_the_inputs_holds_for_a_whole_sequence(name, rng):
    cell = random_cell(name, rng, dropout=0.5)
    inner = cell.cell if isinstance(cell, ResidualCell) else cell
    # Without a recurrent state, equal inputs under one mask give equal outputs.
    inner.recurrent_kernel.assign(np.zeros(inner.recurrent_kernel.shape))
    forget = slice(N) if inner.kernel.shape[1] == 3 * N else slice(N, 2 * N)
    bias = np.zeros(inner.bias.shape)
    bias[..., forget] = -1e4
    inner.bias.assign(bias)
    inputs = np.repeat(array(rng, B, 1, WIDTHS[name]), T, axis=1)
    outputs = numpy(keras.layers.RNN(cell, return_sequences=True)(inputs, training=True))
    assert_close(outputs, np.repeat(outputs[:, :1], T, axis=1), 1e-6)


@normalized_cells
def test_steps_with_dropout_equal_the_reference(name, rng):
    cell, inputs = random_cell(name, rng, dropout=0.4, recurrent_dropout=0.4), array(rng, B, T, M)
    input_mask = numpy(cell.get_dropout_mask(tensor(np.ones((B, M), "float32"))))
    mask = numpy(cell.get_recurrent_dropout_mask(tensor(np.ones((B, N), "float32"))))
    for part in (input_mask, mask):
        assert set(np.unique(part)) == {np.float32(0), np.float32(1 / (1 - 0.4))}
    states = [array(rng, B, N) for _ in keras.tree.flatten(cell.state_size)]
    after, expected = [tensor(state) for state in states], list(zip(*states, strict=True))
    step = step_of(cell)
    for i in range(T):
        outputs, after = cell(tensor(inputs[:, i]), after, training=True)
        expected = [
            step(inputs[row, i] * input_mask[row], state, mask=mask[row])
            for row, state in enumerate(expected)
        ]
        assert_close(outputs, [state[0] for state in expected])


@pytest.mark.parametrize("names", STACKS, ids="+".join)
def test_dropout_in_a_decoder_acts_in_training_only(names, rng):
    decoder = decoder_of(names, rng, dropout=0.3, recurrent_dropout=0.3)
    inputs, annotations = array(rng, B, T, N), array(rng, B, 7, 2)
    still = numpy(decoder(inputs, annotations))
    noisy, gradients = differentiate(decoder, training=True)(inputs, annotations)
    assert np.abs(noisy - still).max() > 1e-3
    assert all(np.isfinite(part).all() for part in gradients)
    assert_close(decoder(inputs, annotations), still, 1e-6)


# --- As Keras layers ------------------------------------------------------------------------------


@every_cell
def test_config_round_trip(name):
    assert_config_round_trip(CELLS[name](dropout=0.1, recurrent_dropout=0.2))


@pytest.mark.parametrize("name", CELLS)
def test_a_model_survives_saving(name, rng, tmp_path):
    model = keras.Sequential(
        [
            keras.Input((None, WIDTHS[name])),
            keras.layers.RNN([CELLS[name](), CELLS["residual_lstm"]()], return_sequences=True),
        ]
    )
    randomize(model, rng)
    assert_survives_saving(model, array(rng, B, T, WIDTHS[name]), tmp_path)


@every_cell
@pytest.mark.parametrize("policy", WIDE_POLICIES)
def test_mixed_precision_stays_close_to_the_reference(name, policy, rng):
    inputs = array(rng, B, T, WIDTHS[name])
    with dtype_policy(policy):
        cell = random_cell(name, rng)
        outputs = keras.layers.RNN(cell, return_sequences=True)(inputs)
        assert keras.backend.standardize_dtype(outputs.dtype) == cell.compute_dtype
    zero = [np.zeros(N)] * len(keras.tree.flatten(cell.state_size))
    expected = [expected_outputs(cell, row, zero)[0] for row in inputs]
    assert_close(keras.ops.cast(outputs, "float32"), expected, 0.1)


@normalized_cells
def test_a_gru_cell_accepts_a_state_without_a_list(name, rng):
    cell, inputs = random_cell(name, rng), tensor(array(rng, B, M))
    states = cell.get_initial_state(batch_size=B)
    assert [tuple(state.shape) for state in states] == [(B, N)] * len(states)
    if "gru" in name:  # as Keras's GRU cell accepts it
        bare, state = cell(inputs, states[0])
        assert_close([bare, state], [numpy(cell(inputs, states)[0])] * 2, 1e-6)


def test_a_residual_cell_has_its_inner_cell_and_output_size():
    inner = keras.layers.GRUCell(N)
    cell = ResidualCell(inner)
    assert cell.cell is inner and cell.output_size == N


@pytest.mark.parametrize("count", [1, 2])
def test_a_residual_cell_returns_states_in_the_structure_of_its_input(count, rng):
    inner = keras.layers.GRUCell(N) if count == 1 else keras.layers.LSTMCell(N)
    states = [[tensor(array(rng, B, N)) for _ in range(count)]]
    _, after = ResidualCell(inner)(tensor(array(rng, B, N)), states)
    keras.tree.assert_same_structure(after, states)


def test_a_residual_cell_refuses_layers_and_other_widths():
    with pytest.raises(
        ValueError, match=r"`cell` must be a cell, not a recurrent layer; write LSTMCell"
    ):
        ResidualCell(keras.layers.LSTM(3))
    with pytest.raises(ValueError, match=r"`cell` must be a Keras RNN cell .* Received: <Dense"):
        ResidualCell(keras.layers.Dense(3))
    with pytest.raises(ValueError, match=r"`cell` must have an output as wide .* 5\. .* width 6"):
        ResidualCell(keras.layers.GRUCell(N)).build((B, M))
