import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from keras import ops
from layer_checks import array, assert_close, numpy, right_mask, spoiled

from keras_bahdanau.masking import (
    last_step,
    masked_softmax,
    reverse_by_length,
    sequence_lengths,
    zero_masked,
)

LENGTHS = [4, 1, 0, 3]
MASK = right_mask(LENGTHS, 4)


class Softmax(keras.layers.Layer):
    """The function as a layer, for its gradients."""

    def build(self, shape):
        pass

    def call(self, scores):
        return masked_softmax(scores, MASK)


def softmax():
    layer = Softmax()
    layer.build((4, 4))
    return differentiate(layer)


def test_masked_softmax_is_the_softmax_over_kept_places(rng):
    scores = array(rng, 4, 4)
    expected = [reference.masked_softmax(s, m) for s, m in zip(scores, MASK, strict=True)]
    assert_close(masked_softmax(scores, MASK), np.array(expected), 1e-6)


def test_masked_softmax_without_a_mask_keeps_everything(rng):
    scores = array(rng, 2, 3, 4)
    everything = np.ones((1, 1, 4), bool)
    assert_close(masked_softmax(scores), masked_softmax(scores, everything), 1e-6)
    assert_close(numpy(masked_softmax(scores)).sum(-1), np.ones((2, 3)), 1e-6)


def test_a_mask_may_have_holes_and_broadcasts(rng):
    scores, mask = array(rng, 2, 3, 4), np.array([[[True, False, True, False]], [[False] * 4]])
    weights = numpy(masked_softmax(scores, mask))
    assert not weights[:, :, [1, 3]].any()
    assert_close(weights.sum(-1), [[1.0] * 3, [0.0] * 3], 1e-6)


@pytest.mark.parametrize("shift", [-1e4, -50.0, 0.0, 50.0, 1e4])
def test_masked_softmax_stands_large_scores(shift):
    weights = masked_softmax(np.array([[shift, shift, 3.0]]), np.array([[True, True, False]]))
    assert_close(weights, [[0.5, 0.5, 0.0]], 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_masked_softmax_is_float32(dtype):
    weights = masked_softmax(ops.ones((2, 3), dtype=dtype), right_mask([2, 3], 3))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(ops.sum(weights, -1), [1.0, 1.0], 1e-6)


def test_a_fully_masked_row_has_zero_weights_and_zero_gradients(rng):
    weights, (gradient,) = softmax()(array(rng, 4, 4))
    assert not weights[2].any()
    assert np.isfinite(gradient).all() and not gradient[~MASK].any() and gradient[0].any()


def test_garbage_at_masked_places_is_ignored(rng):
    scores, run = array(rng, 4, 4), softmax()
    expected = run(scores)
    for copy in spoiled(scores, MASK):
        assert_close(run(copy), expected, 1e-6)


def test_zero_masked(rng):
    values = array(rng, 4, 4, 2)
    assert zero_masked(values) is values
    for copy in spoiled(values, MASK):
        assert_close(zero_masked(copy, MASK), np.where(MASK[..., None], values, 0), 0)


def test_sequence_lengths():
    lengths = sequence_lengths(MASK)
    assert keras.backend.standardize_dtype(lengths.dtype) == "int32"
    assert numpy(lengths).tolist() == LENGTHS


def test_reverse_by_length_leaves_the_padding():
    steps = np.tile(np.arange(4.0)[None, :, None], (4, 1, 1))
    once = reverse_by_length(steps, np.array(LENGTHS, "int32"))
    assert numpy(once)[..., 0].tolist() == [
        [3, 2, 1, 0],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [2, 1, 0, 3],
    ]
    assert_close(reverse_by_length(once, np.array(LENGTHS, "int32")), steps, 0)


def test_reverse_by_length_without_lengths_reverses_all(rng):
    values = array(rng, 2, 3, 4)
    assert_close(reverse_by_length(values), values[:, ::-1], 0)


def test_last_step(rng):
    values = array(rng, 4, 4, 2)
    assert_close(last_step(values), values[:, -1], 0)
    expected = [values[0, 3], values[1, 0], values[2, 0], values[3, 2]]
    assert_close(last_step(values, MASK), np.array(expected), 0)
