import keras
import numpy as np
import pytest
from gradients import differentiate
from layer_checks import assert_close, right_mask, with_garbage

from keras_bahdanau.losses import coverage_loss


def expected_losses(weights, mask):
    """Eq. 10 and 12 of See et al. 2017, one step at a time in float64."""
    expected = np.zeros(mask.shape)
    for row in range(len(weights)):
        covered = np.zeros(weights.shape[2])
        for step in np.flatnonzero(mask[row]):
            attention = weights[row, step].astype("float64")
            expected[row, step] = sum(map(min, attention, covered))
            covered += attention
    return expected


@pytest.fixture
def weights(rng):
    return rng.dirichlet(np.full(4, 0.5), size=(3, 5)).astype("float32")


def test_the_loss_is_the_overlap_with_earlier_steps(weights):
    assert_close(coverage_loss(weights), expected_losses(weights, np.ones((3, 5), bool)), 1e-6)


def test_masked_steps_have_no_loss_and_add_no_coverage(weights):
    for mask in (right_mask([5, 2, 0], 5), np.array([[1, 0, 1, 0, 1]] * 3, bool)):
        expected = expected_losses(weights, mask)
        for copy in [weights, *with_garbage(weights, mask)]:
            assert_close(coverage_loss(copy, mask), expected, 1e-6)


def test_half_precision_weights_are_summed_in_float32(weights):
    half = weights.astype("float16")
    loss = coverage_loss(half)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert_close(loss, expected_losses(half, np.ones((3, 5), bool)), 1e-6)


class CoverageLoss(keras.layers.Layer):
    def call(self, weights):
        return coverage_loss(weights)


def test_the_gradient_equals_finite_differences(weights):
    layer = CoverageLoss()
    layer.build(weights.shape)
    _, (gradient,) = differentiate(layer)(weights)
    everything = np.ones((3, 5), bool)
    for place in [(0, 0, 1), (1, 2, 3), (2, 4, 0)]:
        step = np.zeros(weights.shape)
        step[place] = 1e-6
        up, down = (
            (expected_losses(weights.astype("float64") + sign * step, everything) ** 2).sum()
            for sign in (1, -1)
        )
        np.testing.assert_allclose(gradient[place], (up - down) / 2e-6, rtol=1e-4, atol=1e-5)


def test_the_loss_of_symbolic_weights_is_symbolic():
    inputs = keras.Input((None, None))
    assert tuple(keras.Model(inputs, coverage_loss(inputs)).output_shape) == (None, None)


def test_a_mask_of_another_length_is_refused(weights):
    with pytest.raises(ValueError, match=r"`mask` must be bool of shape .* shape \(1, 2\)"):
        coverage_loss(weights, np.ones((1, 2), bool))


def test_the_weights_of_one_step_are_refused(weights):
    with pytest.raises(ValueError, match=r"`weights` must be .*Received: shape \(5, 4\)"):
        coverage_loss(weights[0])
