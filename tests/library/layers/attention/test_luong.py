import keras
import numpy as np
import pytest
import reference
from layer_checks import array, assert_close, assert_config_round_trip, numpy, randomize
from mechanisms import MASK, TX, B, D, N, U

from keras_bahdanau import LuongAttention

SCALES = [None, 0.5, "learned"]


def expected(attention, query, values, score, scale):
    weights = reference.weights_by_name(attention)
    scale = scale if isinstance(scale, float) else 1.0
    rows = [
        reference.luong(weights, q, v, m, score, scale)
        for q, v, m in zip(query, values, MASK, strict=True)
    ]
    return tuple(np.array(part) for part in zip(*rows, strict=True))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("score", ["dot", "general", "concat"])
def test_every_score_and_scale_equals_the_reference(score, scale, rng):
    width = D if score == "dot" else N
    attention = LuongAttention(score, units=U if score == "concat" else None, scale=scale)
    query, values = array(rng, B, 3, width), array(rng, B, TX, D)
    attention.build(query.shape, values.shape)
    randomize(attention, rng)
    actual = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert_close(actual, expected(attention, query, values, score, scale))


def test_a_dot_product_without_a_scale_has_no_weights(rng):
    attention = LuongAttention("dot")
    attention(array(rng, B, D), array(rng, B, TX, D))
    assert attention.weights == []


def test_a_learned_scale_starts_at_one(rng):
    attention = LuongAttention("dot", scale="learned")
    query, values = array(rng, B, D), array(rng, B, TX, D)
    assert_close(attention(query, values), LuongAttention("dot")(query, values), 1e-6)
    assert [variable.shape for variable in attention.trainable_variables] == [()]


def test_keys_may_differ_from_values(rng):
    attention = LuongAttention("dot")
    query, values, keys = array(rng, B, 2, N), array(rng, B, TX, D), array(rng, B, TX, N)
    context, weights = numpy(attention(query, values, keys, return_attention_scores=True))
    for b in range(B):
        for i in range(2):
            scores = keys[b].astype("float64") @ query[b, i]
            assert_close(weights[b, i], reference.masked_softmax(scores, np.ones(TX, bool)))
    assert_close(context, weights @ values)


@pytest.mark.parametrize("scale", SCALES)
def test_config_round_trip_keeps_every_option(scale):
    attention = LuongAttention(
        "concat",
        units=3,
        scale=scale,
        chunk_size=2,
        kernel_initializer="ones",
        score_initializer="zeros",
        kernel_regularizer="l2",
        kernel_constraint="non_neg",
    )
    assert_config_round_trip(attention)
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    assert (reference.weights_by_name(attention)["query_kernel"] == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "cosine"}, r"`score` must be one of \('dot', 'general', 'concat'\).*'cosine'"),
        ({"score": "concat"}, "`units` must be a positive integer. Received: None"),
        ({"score": "concat", "units": 0}, "`units` must be a positive integer. Received: 0"),
        ({"score": "dot", "units": 4}, '`units` must be None without score="concat". Received: 4'),
        ({"scale": "big"}, "`scale` must be None, a number or \"learned\". Received: 'big'"),
        ({"scale": True}, '`scale` must be None, a number or "learned". Received: True'),
        ({"chunk_size": 0}, "`chunk_size` must be a positive integer. Received: 0"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LuongAttention(**options)


def test_a_dot_product_needs_equal_widths():
    with pytest.raises(ValueError, match=r"`query` must be as wide as the key .* 6. .* 4"):
        LuongAttention("dot")(np.ones((1, N)), np.ones((1, TX, D)))


def test_float16_scores_are_summed_in_float32(rng):
    # The sum of 4000 products of 100 overflows float16, whose largest number is 65504.
    attention = LuongAttention("dot", scale=1e-5, dtype="mixed_float16")
    query, values = np.full((1, 4000), 10.0), np.full((1, 2, 4000), 10.0)
    values[0, 1] = 0.0
    _, weights = attention(query, values, return_attention_scores=True)
    expected = reference.masked_softmax(np.array([4.0, 0.0]), np.ones(2, bool))
    assert_close(weights[0], expected, 1e-3)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
