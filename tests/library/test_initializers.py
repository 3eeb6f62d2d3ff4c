import keras
import numpy as np
import pytest
from layer_checks import numpy

from keras_bahdanau.initializers import PerGate, clone_initializer

N, GATES = 6, 3


def matrices(initializer, shape=(N, GATES * N)):
    return np.split(numpy(initializer(shape)), GATES, axis=-1)


@pytest.mark.parametrize("seed", [None, 5, keras.random.SeedGenerator(5)], ids=type)
def test_each_gate_has_a_different_orthogonal_matrix(seed):
    blocks = matrices(PerGate(keras.initializers.Orthogonal(seed=seed), GATES))
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(N), atol=1e-5)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(blocks[a] - blocks[b]).max() > 0.1


def test_every_gate_gets_the_matrix_of_a_deterministic_initializer():
    for initializer, block in (("ones", np.ones((2, 2))), ("identity", np.eye(2))):
        np.testing.assert_array_equal(matrices(PerGate(initializer, GATES), (2, 6)), [block] * 3)


def test_the_scale_is_that_of_the_matrix_of_one_gate():
    # Glorot's limit is sqrt(6 / (rows + columns)) with the 100 columns of a gate, not all 300.
    kernel = numpy(PerGate("glorot_uniform", GATES)((200, 300)))
    np.testing.assert_allclose(np.abs(kernel).max(), np.sqrt(6 / (200 + 100)), rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_dtype_is_the_requested_one(dtype):
    kernel = PerGate("random_normal", GATES)((N, 3 * N), dtype=dtype)
    assert keras.backend.standardize_dtype(kernel.dtype) == dtype


def test_equal_seeds_repeat_and_adjacent_seeds_share_no_numbers():
    first, repeated, adjacent = (
        matrices(PerGate(keras.initializers.RandomNormal(seed=seed), GATES)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, repeated)
    assert not np.isin(np.ravel(first), np.ravel(adjacent)).any()


def test_cloned_initializers_draw_different_values():
    initializer = PerGate("orthogonal", GATES)
    first, second = matrices(initializer), matrices(clone_initializer(initializer))
    assert np.abs(np.subtract(first, second)).max() > 0.1
    assert clone_initializer("zeros") == "zeros"


def test_copies_share_the_seed_generator_and_still_differ():
    normal = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(1))
    for initializer in (normal, PerGate(normal, GATES)):
        first, second = (numpy(clone_initializer(initializer)((N, GATES * N))) for _ in range(2))
        assert np.abs(first - second).max() > 0


@pytest.mark.parametrize("inner", ["zeros", "orthogonal", keras.initializers.RandomNormal(seed=3)])
def test_config_round_trip(inner):
    initializer = PerGate(inner, GATES)
    again = keras.initializers.get(keras.initializers.serialize(initializer))
    assert type(again) is PerGate and again.get_config() == initializer.get_config()


def test_a_layer_with_an_initializer_per_gate_is_saved(tmp_path):
    layer = keras.layers.GRU(N, recurrent_initializer=PerGate("orthogonal", GATES))
    model = keras.Sequential([keras.Input((None, 2)), layer])
    for block in np.split(numpy(layer.cell.recurrent_kernel), GATES, axis=-1):
        np.testing.assert_allclose(block.T @ block, np.eye(N), atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    assert loaded.cell.recurrent_initializer.get_config()["gates"] == GATES
    np.testing.assert_array_equal(loaded.get_weights()[1], layer.get_weights()[1])


def test_gates_must_be_positive_and_divide_the_width():
    with pytest.raises(ValueError, match=r"`gates` must be a positive integer\. Received: 0"):
        PerGate("zeros", 0)
    with pytest.raises(ValueError, match=r"`shape` .* multiple of `gates`, 3. Received: \(4, 8\)"):
        PerGate("zeros", GATES)((4, 8))
