import keras
import numpy as np
import pytest
import reference
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

from keras_bahdanau import DeepOutput

B, T, N, M, D, UNITS = 2, 4, 3, 5, 6, 7
ACTIVATIONS = {"maxout": None, "tanh": np.tanh, "linear": lambda x: x}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def random_readout(rng, activation, **options):
    readout = DeepOutput(UNITS, activation, **options)
    readout.build((B, N), (B, M), (B, D))
    return randomize(readout, rng)


def random_arguments(rng, *shape):
    """Return a random state, inputs and context."""
    return [array(rng, *shape, width) for width in (N, M, D)]


@activations
@pytest.mark.parametrize("policy", ["float32", *WIDE_POLICIES])
def test_one_step_equals_the_deep_output_of_the_paper(activation, policy, rng):
    with dtype_policy(policy):
        readout, arguments = random_readout(rng, activation), random_arguments(rng, B)
        outputs = readout(*arguments)
    assert keras.backend.standardize_dtype(outputs.dtype) == readout.compute_dtype
    weights = reference.float64(readout.get_weights())
    expected = [
        reference.deep_output(*row, weights, ACTIVATIONS[activation])
        for row in zip(*arguments, strict=True)
    ]
    atol = 1e-5 if policy == "float32" else 0.05
    assert_close(keras.ops.cast(outputs, "float32"), np.array(expected), atol)


@activations
def test_a_sequence_gives_the_outputs_of_single_steps(activation, rng):
    readout, arguments = random_readout(rng, activation), random_arguments(rng, B, T)
    outputs = numpy(readout(*arguments))
    assert outputs.shape == (B, T, UNITS)
    for i in range(T):
        assert_close(readout(*(argument[:, i] for argument in arguments)), outputs[:, i], 1e-6)


def test_without_inputs_the_output_is_the_attentional_vector_of_luong(rng):
    readout = random_readout(rng, "tanh", reads_inputs=False)
    state, inputs, context = random_arguments(rng, B, T)
    kernel, bias = reference.float64(readout.get_weights())
    concatenated = np.concatenate([state, context], axis=-1).astype("float64")
    outputs = readout(state, inputs, context)
    assert_close(outputs, np.tanh(concatenated @ kernel + bias))
    assert_close(readout(state, 2 * inputs, context), outputs, 0)
    copy = DeepOutput.from_config(readout.get_config())
    copy.build((B, N), (B, M), (B, D))
    copy.set_weights(readout.get_weights())
    assert_close(copy(state, inputs, context), outputs, 0)


def test_maxout_takes_neighboring_pairs():
    readout = DeepOutput(2)
    readout.build((1, 1), (1, 1), (1, 2))
    readout.set_weights([np.eye(4), np.zeros(4)])
    # The hidden layer is [state, inputs, context], so the pairs are (1, 5) and (7, 2).
    assert_close(readout(*(np.array([row]) for row in ([1.0], [5.0], [7.0, 2.0]))), [[5.0, 7.0]], 0)


@activations
def test_a_functional_model_takes_any_shape_and_is_saved(activation, rng, tmp_path):
    inputs = [keras.Input((None, width)) for width in (N, M, D)]
    model = keras.Model(inputs, DeepOutput(UNITS, activation=activation)(*inputs))
    assert tuple(model.output_shape) == (None, None, UNITS)
    for shape in ((1, 2), (3, 5)):
        assert model(random_arguments(rng, *shape)).shape == (*shape, UNITS)
    assert_survives_saving(model, random_arguments(rng, B, T), tmp_path)


@activations
def test_config_round_trip(activation):
    assert_config_round_trip(DeepOutput(UNITS, activation, kernel_initializer="he_normal"))


def test_widths_must_be_known():
    with pytest.raises(ValueError, match=r"`context` must have a known width.* Received: shape"):
        DeepOutput(UNITS)(keras.Input((N,)), keras.Input((M,)), keras.Input((None,)))


@pytest.mark.parametrize("units", [0, -1, 2.5, None])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(ValueError, match=f"`units` must be a positive integer. Received: {units}"):
        DeepOutput(units)


def test_outputs_have_the_mask_of_the_state(rng):
    ids = np.array([[3, 4, 0, 0], [5, 0, 0, 0]])
    state = keras.layers.Embedding(9, N, mask_zero=True)(ids)
    outputs = random_readout(rng, "tanh")(state, *random_arguments(rng, B, T)[1:])
    assert_close(outputs._keras_mask, ids != 0)
