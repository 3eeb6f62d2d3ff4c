import keras
import numpy as np
import pytest
import reference
from gradients import assert_slopes, differentiate
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops
from layer_checks import array, assert_close, numpy, right_mask, with_garbage

from keras_bahdanau.layers.attention.base import masked_softmax, masked_sparsemax

LENGTHS = [4, 1, 0, 3]
MASK = right_mask(LENGTHS, 4)


class Normalizer(keras.layers.Layer):
    """A normalizer as a layer, for its gradients."""

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
def test_weights_equal_the_reference(normalize, expected, rng):
    scores = array(rng, 4, 4)
    rows = [expected(s, m) for s, m in zip(scores, MASK, strict=True)]
    assert_close(normalize(scores, MASK), np.array(rows), 1e-6)


@normalizer
def test_without_a_mask_every_position_is_valid(normalize, expected, rng):
    scores = array(rng, 2, 3, 4)
    assert_close(normalize(scores), normalize(scores, np.ones((1, 1, 4), bool)), 1e-6)
    assert_close(numpy(normalize(scores)).sum(-1), np.ones((2, 3)), 1e-6)


@normalizer
def test_a_mask_may_have_holes_and_broadcasts(normalize, expected, rng):
    scores, mask = array(rng, 2, 3, 4), np.array([[[True, False, True, False]], [[False] * 4]])
    weights = numpy(normalize(scores, mask))
    assert not weights[:, :, [1, 3]].any()
    assert_close(weights.sum(-1), [[1.0] * 3, [0.0] * 3], 1e-6)


@normalizer
@pytest.mark.parametrize("shift", [-1e4, -50.0, 0.0, 50.0, 1e4])
def test_large_scores_do_not_overflow(normalize, expected, shift):
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
def test_garbage_at_masked_positions_is_ignored(normalize, expected, rng):
    scores, run = array(rng, 4, 4), differentiate(Normalizer(normalize))
    outputs = run(scores)
    for copy in with_garbage(scores, MASK):
        assert_close(run(copy), outputs, 1e-6)


@normalizer
def test_gradients_equal_finite_differences(normalize, expected, rng):
    scores = array(rng, 4, 4)
    _, gradients = differentiate(Normalizer(normalize))(scores)

    def loss(points):
        rows = [expected(s, m) for s, m in zip(points[0], MASK, strict=True)]
        return (np.array(rows) ** 2).sum()

    assert_slopes(loss, [scores.astype("float64")], gradients, rng, directions=16)


@given(
    scores=arrays("float32", (3, 6), elements=st.floats(-8, 8, width=16)),
    mask=arrays("bool", (3, 6)),
)
@settings(max_examples=50)
def test_sparsemax_is_the_nearest_point_of_the_simplex(scores, mask):
    # With 16-bit scores, ties are frequent, also at the edge of the support.
    weights = numpy(masked_sparsemax(scores, mask))
    expected = [
        reference.sparsemax(s, m) for s, m in zip(scores.astype("float64"), mask, strict=True)
    ]
    assert_close(weights, np.array(expected), 1e-5)
    assert weights.min() >= -1e-6 and not weights[~mask].any()
    assert_close(weights.sum(-1), mask.any(-1).astype("float32"), 1e-5)
    assert_close(masked_sparsemax(scores + np.float32(2.0), mask), weights, 1e-5)


def test_sparsemax_drops_scores_at_least_one_below_the_largest():
    assert_close(masked_sparsemax(np.array([[0.0, 1.0, -5.0]])), [[0.0, 1.0, 0.0]], 0)
    assert_close(masked_sparsemax(np.array([[0.2, 1.0, 0.0]])), [[0.1, 0.9, 0.0]], 1e-6)
