import numpy as np
import pytest
import reference
from keras import ops
from layer_checks import array, assert_close, assert_config_round_trip, numpy, randomize
from mechanisms import MASK, TX, B, D, N, U, random_inputs

from keras_bahdanau.layers import LocationSensitiveAttention


@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 7, 12])
def test_kernels_of_any_size_keep_the_positions(kernel_size, cumulative, rng):
    attention = LocationSensitiveAttention(
        U, filters=3, kernel_size=kernel_size, cumulative=cumulative
    )
    query, values = random_inputs(rng, queries=3)
    attention.build(query.shape, values.shape)
    weights = reference.weights_by_name(randomize(attention, rng))
    actual = attention(query, values, value_mask=MASK, return_attention_scores=True)
    rows = [reference.location(weights, *row) for row in zip(query, values, MASK, strict=True)]
    assert_close(actual, tuple(np.array(part) for part in zip(*rows, strict=True)))


def test_a_filter_can_move_the_attention_by_one_position():
    # The scores are e_ij = 9 tanh(9 a_i-1,j-1): the last weights, shifted by a filter [1, 0, 0].
    attention = LocationSensitiveAttention(1, filters=1, kernel_size=3, cumulative=False)
    attention.build((1, N), (1, 4, D))
    attention.set_weights([0 * w for w in attention.get_weights()])
    attention.score_kernel.assign([[9.0]])
    attention.location_filters.assign([[[1.0]], [[0.0]], [[0.0]]])
    attention.location_kernel.assign([[9.0]])
    memory = attention.memory(np.ones((1, 4, D)))
    state = (ops.convert_to_tensor(np.array([[1.0, 0.0, 0.0, 0.0]], "float32")),)
    for position in (1, 2, 3):
        _, weights, state = attention.step(np.ones((1, N)), memory, state)
        assert numpy(weights)[0, position] > 0.9


def test_the_state_has_the_last_weights_and_the_sum_of_all(rng):
    attention = LocationSensitiveAttention(U, filters=2, kernel_size=3)
    query, values = random_inputs(rng)
    attention.build(query.shape, values.shape)
    memory = attention.memory(values, mask=MASK)
    state = attention.initial_state(memory)
    assert_close(list(state), [np.zeros((B, TX))] * 2, 0)
    _, first, state = attention.step(query[:, 0], memory, state)
    _, second, state = attention.step(query[:, 1], memory, state)
    assert_close(state, (second, numpy(first) + numpy(second)), 1e-6)


def test_keys_dropout_and_normalizer_of_the_base_class_work(rng):
    attention = LocationSensitiveAttention(
        U, filters=2, kernel_size=3, dropout=0.5, seed=1, normalizer="sparsemax", normalize=True
    )
    query, values = random_inputs(rng)
    keys = array(rng, B, TX, 3)
    context, weights = attention(
        query, values, keys, value_mask=MASK, training=True, return_attention_scores=True
    )
    assert_close(numpy(weights)[:2].sum(-1), np.ones((2, 2)), 1e-5)
    assert not np.allclose(numpy(context), numpy(weights) @ values, atol=1e-3)
    assert_config_round_trip(attention)


def test_config_keeps_the_initializer_of_the_filters():
    attention = LocationSensitiveAttention(U, 2, 3, False, False, location_initializer="ones")
    assert_config_round_trip(attention)
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    weights = reference.weights_by_name(attention)
    assert weights["location_filters"].shape == (3, 1, 2) and "bias" not in weights
    assert (weights["location_filters"] == 1).all()


@pytest.mark.parametrize("name", ["filters", "kernel_size", "units"])
@pytest.mark.parametrize("value", [0, 1.5, None])
def test_sizes_must_be_positive_integers(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received"):
        LocationSensitiveAttention(**{"units": U, name: value})
