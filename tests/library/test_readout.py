import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from layer_checks import (
    POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    assert_survives_saving,
    dtype_policy,
    numpy,
    randomize,
)

from keras_bahdanau import DeepOutput

B, T, N, M, D, UNITS = 2, 4, 3, 5, 6, 7
ACTIVATIONS = {"maxout": None, "tanh": np.tanh, "linear": lambda x: x}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def made(activation, rng):
    readout = DeepOutput(UNITS, activation=activation)
    readout.build((B, N), (B, M), (B, D))
    return randomize(readout, rng)


def parts(rng, *shape):
    return [array(rng, *shape, width) for width in (N, M, D)]


def reference_readout(readout, state, inputs, context, activation):
    weights = reference.float64(readout.get_weights())
    return reference.deep_output(state, inputs, context, weights, ACTIVATIONS[activation])


@activations
def test_one_step_gives_the_papers_numbers(activation, rng):
    readout, read = made(activation, rng), parts(rng, B)
    expected = [
        reference_readout(readout, *row, activation=activation) for row in zip(*read, strict=True)
    ]
    assert_close(readout(*read), np.array(expected))


@activations
def test_all_steps_at_once_equal_one_by_one(activation, rng):
    readout, read = made(activation, rng), parts(rng, B, T)
    outputs = numpy(readout(*read))
    assert outputs.shape == (B, T, UNITS)
    for i in range(T):
        assert_close(readout(*(part[:, i] for part in read)), outputs[:, i], 1e-6)


def test_without_inputs_it_is_luongs_attentional_vector(rng):
    readout = DeepOutput(UNITS, "tanh", reads_inputs=False)
    readout.build((B, N), (B, M), (B, D))
    randomize(readout, rng)
    state, inputs, context = parts(rng, B, T)
    kernel, bias = reference.float64(readout.get_weights())
    read = np.concatenate([state, context], axis=-1).astype("float64")
    outputs = readout(state, inputs, context)
    assert_close(outputs, np.tanh(read @ kernel + bias))
    assert_close(readout(state, 2 * inputs, context), outputs, 0)
    again = DeepOutput.from_config(readout.get_config())
    again.build((B, N), (B, M), (B, D))
    again.set_weights(readout.get_weights())
    assert_close(again(state, inputs, context), outputs, 0)


def test_maxout_takes_neighbouring_pairs():
    readout = DeepOutput(2)
    readout.build((1, 1), (1, 1), (1, 2))
    readout.set_weights([np.eye(4), np.zeros(4)])
    # The hidden layer is then [state, inputs, context]: pairs (1, 5) and (7, 2).
    assert_close(readout(*(np.array([row]) for row in ([1.0], [5.0], [7.0, 2.0]))), [[5.0, 7.0]], 0)


@activations
def test_gradients_are_finite_and_reach_every_weight(activation, rng):
    _, gradients = differentiate(made(activation, rng))(*parts(rng, B, T))
    for gradient in gradients:
        assert np.isfinite(gradient).all() and gradient.any()


def functional(activation):
    read = [keras.Input((None, width)) for width in (N, M, D)]
    return keras.Model(read, DeepOutput(UNITS, activation=activation)(*read))


@activations
def test_dynamic_shapes(activation, rng):
    model = functional(activation)
    assert tuple(model.output_shape) == (None, None, UNITS)
    for shape in ((1, 2), (3, 5)):
        assert model(parts(rng, *shape)).shape == (*shape, UNITS)


@activations
def test_config_round_trip(activation):
    assert_config_round_trip(DeepOutput(UNITS, activation, kernel_initializer="he_normal"))


@activations
def test_saving(activation, tmp_path, rng):
    assert_survives_saving(functional(activation), parts(rng, B, T), tmp_path)


@activations
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(activation, policy, rng):
    with dtype_policy(policy):
        readout = DeepOutput(UNITS, activation=activation)
        read = parts(rng, B)
        outputs = readout(*read)
    assert keras.backend.standardize_dtype(outputs.dtype) == readout.compute_dtype
    expected = [
        reference_readout(readout, *row, activation=activation) for row in zip(*read, strict=True)
    ]
    assert_close(keras.ops.cast(outputs, "float32"), np.array(expected), 0.05)


def test_widths_must_be_known():
    with pytest.raises(ValueError, match=r"`context` must have a known width.* Received: shape"):
        DeepOutput(UNITS)(keras.Input((N,)), keras.Input((M,)), keras.Input((None,)))


@pytest.mark.parametrize("units", [0, -1, 2.5, None])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(ValueError, match=f"`units` must be a positive integer. Received: {units}"):
        DeepOutput(units)


def test_the_mask_of_the_state_goes_on(rng):
    ids = np.array([[3, 4, 0, 0], [5, 0, 0, 0]])
    state = keras.layers.Embedding(9, N, mask_zero=True)(ids)
    outputs = made("tanh", rng)(state, *parts(rng, B, T)[1:])
    assert_close(outputs._keras_mask, ids != 0)
