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
    randomize,
)
from mechanisms import MASK, MASK_BY_QUERY, TX, B, D, U

from keras_bahdanau import BahdanauAttention
from keras_bahdanau.layers import AttentionPooling


def pooling(rng):
    layer = AttentionPooling(U)
    layer.build((None, None, D))
    return randomize(layer, rng)


def test_one_query_gives_one_context_per_row(rng):
    """tests/conformance covers several queries."""
    layer, values = pooling(rng), array(rng, B, TX, D)
    keys, learned, score = reference.float64(layer.get_weights())
    projections = [np.eye(U), keys, score]  # a learned query needs no projection W_a
    rows = zip(values.astype("float64"), MASK, strict=True)
    pairs = [reference.additive_attention(learned[0], *row, projections) for row in rows]
    contexts, weights = (np.array(part) for part in zip(*pairs, strict=True))
    assert_close(layer(values, mask=MASK, return_attention_scores=True), [contexts, weights])
    assert_close(layer(values, mask=MASK), contexts)


def test_a_query_reads_only_the_positions_of_its_mask(rng):
    layer, values = AttentionPooling(U, queries=2), array(rng, B, TX, D)
    layer.build((None, None, D))
    keys, learned, score = reference.float64(randomize(layer, rng).get_weights())
    projections = [np.eye(U), keys, score]
    masks = MASK_BY_QUERY & MASK[:, None]
    expected = [
        [
            reference.additive_attention(query, row, keep, projections)
            for query, keep in zip(learned, keeps, strict=True)
        ]
        for row, keeps in zip(values.astype("float64"), masks, strict=True)
    ]
    contexts, weights = (
        np.array([[pair[k] for pair in row] for row in expected]) for k in range(2)
    )
    arguments = dict(attention_mask=MASK_BY_QUERY, return_attention_scores=True)
    assert_close(layer(values, mask=MASK, **arguments), [contexts, weights])
    values[~masks.any(axis=1)] = np.nan
    assert_close(layer(values, mask=MASK, **arguments), [contexts, weights])


def test_a_mask_by_query_is_combined_with_the_mask_of_an_embedding(rng):
    ids, window = np.array([[3, 4, 0, 0]]), np.array([[[False, True, True, False]]])
    embedded = keras.layers.Embedding(9, D, mask_zero=True)(ids)
    _, weights = AttentionPooling(U)(embedded, attention_mask=window, return_attention_scores=True)
    assert_close(weights, [[0.0, 1.0, 0.0, 0.0]])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integer_and_bool_values_are_cast_to_floats(rng, dtype):
    layer, values = pooling(rng), rng.integers(0, 9, (B, TX, D)).astype(dtype)
    assert_close(layer(values), layer(values.astype("float32")))


def test_padding_of_an_embedding_has_no_effect_and_the_model_is_saved(rng, tmp_path):
    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(9, D, mask_zero=True)(ids)
    pooled = AttentionPooling(U, queries=2)(embedded)
    model = keras.Model(ids, keras.layers.Dense(1)(pooled))  # Dense would warn about a mask
    short, padded = np.array([[3, 4]]), np.array([[3, 4, 0, 0]])
    assert_close(model(short), model(padded))
    assert_survives_saving(model, padded, tmp_path)


@pytest.mark.parametrize("policy", WIDE_POLICIES)
def test_contexts_have_the_compute_dtype_and_weights_are_float32(rng, policy):
    values = array(rng, B, TX, D)
    with dtype_policy(policy):
        pooled, weights = AttentionPooling(U)(values, return_attention_scores=True)
    assert keras.backend.standardize_dtype(pooled.dtype) == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"


def test_config_round_trip():
    assert_config_round_trip(AttentionPooling(U, 2, query_initializer="zeros"))


def test_bahdanau_attention_broadcasts_a_single_query_over_the_rows(rng):
    """AttentionPooling documents that it equals such an attention."""
    attention, values, query = BahdanauAttention(U), array(rng, B, TX, D), array(rng, 1, 4)
    assert_close(attention(query, values), attention(np.repeat(query, B, 0), values), 1e-6)


def test_output_shapes_are_known_before_the_call():
    assert AttentionPooling(U, 2).compute_output_shape((B, TX, D)) == (B, 2, D)
    rows = keras.layers.TimeDistributed(AttentionPooling(U))(keras.Input((TX, 6, D)))
    assert rows.shape == (None, TX, D)
    _, weights = AttentionPooling(U)(keras.Input((TX, D)), return_attention_scores=True)
    assert weights.shape == (None, TX)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(dict(units=0), "`units`"), (dict(units=2, queries=0), "`queries`")],
)
def test_units_and_queries_must_be_positive(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionPooling(**arguments)


def test_values_of_another_rank_and_masks_of_another_shape_are_refused(rng):
    with pytest.raises(ValueError, match=r"`values` .* \(batch, time, width\)\. Received: .*\(3"):
        AttentionPooling(U)(array(rng, 3, D))
    with pytest.raises(ValueError, match="`values` must have a known width"):
        AttentionPooling(U)(keras.Input((None, None)))
    with pytest.raises(ValueError, match="`mask` must be bool of shape"):
        AttentionPooling(U)(array(rng, B, TX, D), mask=MASK[:, :2])
