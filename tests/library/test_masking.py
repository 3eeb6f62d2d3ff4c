import re

import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops
from layer_checks import array, assert_close, numpy, right_mask, spoiled

from keras_bahdanau.layers.masking import (
    checked_mask,
    last_places,
    last_step,
    masked_softmax,
    masked_sparsemax,
    reverse_by_length,
    sequence_lengths,
    zero_masked,
)

LENGTHS = [4, 1, 0, 3]
MASK = right_mask(LENGTHS, 4)


class Normalizer(keras.layers.Layer):
    """A function of scores as a layer, for its gradients."""

    def __init__(self, function):
        super().__init__()
        self.function, self.built = function, True

    def call(self, scores):
        return self.function(scores, MASK)


NORMALIZERS = {
    "softmax": (masked_softmax, reference.masked_softmax),
    "sparsemax": (masked_sparsemax, reference.sparsemax),
}
normalizer = pytest.mark.parametrize(
    ("normalize", "expected"), NORMALIZERS.values(), ids=NORMALIZERS
)


@normalizer
def test_kept_places_share_the_weight(normalize, expected, rng):
    scores = array(rng, 4, 4)
    rows = [expected(s, m) for s, m in zip(scores, MASK, strict=True)]
    assert_close(normalize(scores, MASK), np.array(rows), 1e-6)


@normalizer
def test_without_a_mask_everything_is_kept(normalize, expected, rng):
    scores = array(rng, 2, 3, 4)
    everything = np.ones((1, 1, 4), bool)
    assert_close(normalize(scores), normalize(scores, everything), 1e-6)
    assert_close(numpy(normalize(scores)).sum(-1), np.ones((2, 3)), 1e-6)


@normalizer
def test_a_mask_may_have_holes_and_broadcasts(normalize, expected, rng):
    scores, mask = array(rng, 2, 3, 4), np.array([[[True, False, True, False]], [[False] * 4]])
    weights = numpy(normalize(scores, mask))
    assert not weights[:, :, [1, 3]].any()
    assert_close(weights.sum(-1), [[1.0] * 3, [0.0] * 3], 1e-6)


@normalizer
@pytest.mark.parametrize("shift", [-1e4, -50.0, 0.0, 50.0, 1e4])
def test_large_scores_break_nothing(normalize, expected, shift):
    weights = normalize(np.array([[shift, shift, 3.0]]), np.array([[True, True, False]]))
    assert_close(weights, [[0.5, 0.5, 0.0]], 1e-6)


@normalizer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_weights_are_float32(normalize, expected, dtype):
    weights = normalize(ops.ones((2, 3), dtype=dtype), right_mask([2, 3], 3))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(ops.sum(weights, -1), [1.0, 1.0], 1e-6)


@normalizer
def test_a_fully_masked_row_has_zero_weights_and_zero_gradients(normalize, expected, rng):
    weights, (gradient,) = differentiate(Normalizer(normalize))(array(rng, 4, 4))
    assert not weights[2].any()
    assert np.isfinite(gradient).all() and not gradient[~MASK].any() and gradient[0].any()


@normalizer
def test_garbage_at_masked_places_is_ignored(normalize, expected, rng):
    scores, run = array(rng, 4, 4), differentiate(Normalizer(normalize))
    outputs = run(scores)
    for copy in spoiled(scores, MASK):
        assert_close(run(copy), outputs, 1e-6)


@normalizer
def test_gradients_are_those_of_finite_differences(normalize, expected, rng):
    scores = array(rng, 4, 4)
    _, (gradient,) = differentiate(Normalizer(normalize))(scores)

    def loss(scores):
        rows = [expected(s, m) for s, m in zip(scores, MASK, strict=True)]
        return (np.array(rows) ** 2).sum()

    for place in np.ndindex(4, 4):
        step = np.zeros((4, 4))
        step[place] = 1e-6
        slope = (loss(scores + step) - loss(scores - step)) / 2e-6
        np.testing.assert_allclose(gradient[place], slope, rtol=1e-4, atol=1e-5)


@given(
    scores=arrays("float32", (3, 6), elements=st.floats(-8, 8, width=16)),
    mask=arrays("bool", (3, 6)),
)
@settings(max_examples=50)
def test_sparsemax_is_the_nearest_point_of_the_simplex(scores, mask):
    # Few scores of sixteen bits: ties, also at the edge of the support, come up often.
    weights = numpy(masked_sparsemax(scores, mask))
    expected = [
        reference.sparsemax(s, m) for s, m in zip(scores.astype("float64"), mask, strict=True)
    ]
    assert_close(weights, np.array(expected), 1e-5)
    assert weights.min() >= -1e-6 and not weights[~mask].any()
    assert_close(weights.sum(-1), mask.any(-1).astype("float32"), 1e-5)
    shifted = masked_sparsemax(scores + np.float32(2.0), mask)
    assert_close(shifted, weights, 1e-5)


def test_sparsemax_drops_what_is_a_whole_below_the_best():
    assert_close(masked_sparsemax(np.array([[0.0, 1.0, -5.0]])), [[0.0, 1.0, 0.0]], 0)
    assert_close(masked_sparsemax(np.array([[0.2, 1.0, 0.0]])), [[0.1, 0.9, 0.0]], 1e-6)


@pytest.mark.parametrize(
    "mask",
    [MASK.astype("float32"), MASK[:, 1:], MASK[0], MASK[..., None]],
    ids=["float", "short", "one row", "three axes"],
)
def test_masks_are_checked(mask):
    got = rf"{mask.dtype} of shape {tuple(mask.shape)}"
    message = f"Argument `kept` must be bool of shape (4, 4), True = keep. Received: {got}"
    with pytest.raises(ValueError, match=re.escape(message)):
        checked_mask("kept", mask, np.ones((4, 4, 2)))


def test_a_good_mask_comes_back_as_a_tensor():
    assert checked_mask("kept", None, np.ones((4, 4, 2))) is None
    mask = checked_mask("kept", MASK.tolist(), np.ones((4, 4, 2)))
    assert ops.is_tensor(mask)
    assert_close(mask, MASK, 0)


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


def test_the_last_place_is_found_wherever_the_padding_stands(rng):
    values, kept = array(rng, 3, 4, 2), np.array([[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    assert_close(last_places(kept), [3, 1, -1], 0)
    expected = [values[0, 3], values[1, 1], values[2, 0]]
    assert_close(last_step(values, kept), np.array(expected), 0)
