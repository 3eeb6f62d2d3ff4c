import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from layer_checks import (
    array,
    assert_close,
    assert_config_round_trip,
    numpy,
    randomize,
)
from mechanisms import MASK, TX, B, D, N, U, random_inputs

from keras_bahdanau import BahdanauAttention
from keras_bahdanau.layers.attention import additive
from keras_bahdanau.layers.attention.additive import additive_scores, chunked_scores

KEY = 5


def made(rng, key=None, **options):
    attention = BahdanauAttention(U, **options)
    attention.build((B, None, N), (B, TX, D), None if key is None else (B, TX, key))
    return randomize(attention, rng)


def by_source(attention, query, values, masks, keys=None, **options):
    """The reference for each source and its `(Tq, Tx)` masks, one query at a time."""
    weights = reference.named(attention)
    contexts, alignments = [], []
    for b, rows in enumerate(query):
        found = [
            reference.bahdanau(
                weights, row[None], values[b], mask, None if keys is None else keys[b], **options
            )
            for row, mask in zip(rows, masks[b], strict=True)
        ]
        contexts.append([context[0] for context, _ in found])
        alignments.append(np.stack([alignment[..., 0, :] for _, alignment in found], -2))
    return np.array(contexts), np.array(alignments)


# --- Keys, bias, normalisation, heads -------------------------------------------------------------


def test_keys_may_differ_from_values(rng):
    attention, (query, values), keys = made(rng, KEY), random_inputs(rng), array(rng, B, TX, KEY)
    actual = attention(query, values, keys, value_mask=MASK, return_attention_scores=True)
    masks = np.repeat(MASK[:, None], query.shape[1], 1)
    assert_close(actual, by_source(attention, query, values, masks, keys))
    keys[~MASK] = np.nan
    assert_close(attention(query, values, keys, value_mask=MASK), actual[0], 1e-6)


def test_keys_are_checked(rng):
    attention, values = made(rng, KEY), np.ones((B, TX, D))
    with pytest.raises(ValueError, match=r"`key` of [\w.]+ must be .*5\).* \(3, 5, 6\)"):
        attention.memory(values, values)
    with pytest.raises(
        ValueError, match=r"`key` must have as many steps as `values`, 5.* \(3, 4, 5\)"
    ):
        attention.memory(values, np.ones((B, TX - 1, KEY)))


def test_bias_acts_inside_the_tanh(rng):
    # With U_a = W_a = 0 every score is v . tanh(b).
    attention = made(rng, use_bias=True)
    weights = reference.named(attention)
    attention.query_kernel.assign(0 * weights["query_kernel"])
    attention.key_kernel.assign(0 * weights["key_kernel"])
    query, values = random_inputs(rng)
    scores = attention.scores(query, attention.make_keys(values))
    expected = np.tanh(weights["bias"]) @ weights["score_kernel"][:, 0]
    assert_close(scores, np.full((B, 2, TX), expected))


@pytest.mark.parametrize("heads", [1, 2])
def test_a_normalized_v_keeps_its_direction_only(heads, rng):
    attention, (query, values) = made(rng, normalize=True, num_heads=heads), random_inputs(rng)
    before = attention(query, values)
    attention.score_kernel.assign(attention.score_kernel * 7.0)
    assert_close(attention(query, values), before)
    attention.gain.assign(attention.gain * 0.0)
    uniform = attention(query, values, return_attention_scores=True)[1]
    assert_close(uniform, np.full(uniform.shape, 1 / TX))


def test_the_gain_starts_at_one_over_the_root_of_the_units():
    attention = BahdanauAttention(U, normalize=True, num_heads=2)
    attention.build((1, N), (1, TX, D))
    assert_close(attention.gain, [0.5, 0.5])  # two heads of four units
    assert not numpy(attention.bias.value).any()


def test_a_head_uses_its_own_units_and_values(rng):
    attention, (query, values) = made(rng, num_heads=2), random_inputs(rng)
    context, weights = numpy(attention(query, values, return_attention_scores=True))
    kernel = numpy(attention.value_kernel.value)
    for h, half in enumerate((slice(0, D // 2), slice(D // 2, D))):
        assert_close(context[..., half], weights[:, h] @ (values @ kernel[:, half]), 1e-5)
    attention.score_kernel.assign(
        np.where(np.arange(U)[:, None] < U // 2, 0.0, numpy(attention.score_kernel.value))
    )
    changed = attention(query, values, return_attention_scores=True)[1]
    assert_close(changed[:, 0], np.full((B, 2, TX), 1 / TX), 1e-6)
    assert_close(changed[:, 1], weights[:, 1], 1e-6)


# --- Causal masks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"num_heads": 2}], ids=str)
def test_a_query_sees_no_place_after_its_own(options, rng):
    attention = made(rng, **options)
    query, values = array(rng, B, TX, N), array(rng, B, TX, D)
    masks = MASK[:, None] & np.tril(np.ones((TX, TX), bool))
    arguments = dict(use_causal_mask=True, return_attention_scores=True)
    actual = attention(query, values, value_mask=MASK, **arguments)
    heads = options.get("num_heads", 1)
    assert_close(actual, by_source(attention, query, values, masks, heads=heads))
    masks = np.broadcast_to(np.tril(np.ones((TX, TX), bool)), masks.shape)
    actual = attention(query, values, **arguments)
    assert_close(actual, by_source(attention, query, values, masks, heads=heads))


# --- Chunks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_heads": 2, "normalize": True}], ids=str)
def test_chunks_change_no_number_and_no_gradient(options, rng):
    query, values, found = array(rng, B, 5, N), array(rng, B, TX, D), []
    weights = made(rng, **options).get_weights()
    for chunk_size in range(1, 7):
        attention = made(rng, chunk_size=chunk_size, **options)
        attention.set_weights(weights)
        run = differentiate(attention, value_mask=MASK, return_attention_scores=True)
        found.append(run(query, values))
    for outputs, gradients in found[:-1]:
        assert_close(outputs, found[-1][0], 1e-6)
        assert_close(gradients, found[-1][1], 1e-5)


@given(data=st.data())
@settings(max_examples=15)
def test_chunks_of_any_size_hold_every_query(data):
    batch, queries, steps, units, heads, chunk = (
        data.draw(st.integers(1, most)) for most in (3, 9, 4, 4, 2, 10)
    )
    rng = np.random.default_rng(0)
    of = array(rng, batch, queries, units), array(rng, batch, steps, units)
    vectors = array(rng, units, heads)
    actual = chunked_scores(*of, vectors, chunk)
    assert_close(actual, additive_scores(*of, vectors), 1e-5)
    assert tuple(actual.shape) == (batch, queries, steps, heads)


def test_the_hidden_layer_is_never_larger_than_its_bound(rng, monkeypatch):
    seen = []
    tanh = ops.tanh
    monkeypatch.setattr(additive.ops, "tanh", lambda x: seen.append(tuple(x.shape)) or tanh(x))
    places = 11  # as nowhere else: what was traced before is not traced again
    monkeypatch.setattr(additive, "_CHUNK_FLOATS", 2 * places * U * B)  # room for two queries
    assert made(rng)(array(rng, B, 7, N), array(rng, B, places, D)).shape[1] == 7
    assert max(rows for rows, _ in seen) == 2 * places * B


# --- Dropout --------------------------------------------------------------------------------------


def test_dropout_takes_the_same_places_from_all_queries(rng):
    # The values are unit vectors, so that the context shows the weights after dropout.
    places = 50
    attention = BahdanauAttention(U, dropout=0.4, seed=1)
    query, values = array(rng, 4, 3, N), np.repeat(np.eye(places)[None], 4, 0)
    context, weights = numpy(attention(query, values, training=True, return_attention_scores=True))
    factors = context / weights
    assert_close(factors, np.repeat(factors[:, :1], 3, 1), 1e-5)
    kept = factors > 0.5
    assert_close(factors, kept / 0.6, 1e-4)
    assert 0.5 < kept[:, 0].mean() < 0.7  # 200 places: three standard deviations are 0.1
    assert_close(weights.sum(-1), np.ones((4, 3)), 1e-5)
    again = numpy(attention(query, values, training=True))
    assert not np.allclose(again, context)
    for training in (False, None):
        assert_close(attention(query, values, training=training), weights, 1e-6)


def test_dropout_keeps_the_mean(rng):
    attention = BahdanauAttention(U, dropout=0.5, seed=1)
    query, values = random_inputs(rng)
    query, values = (np.repeat(part[:1], 2000, 0) for part in (query, values))
    context, expected = attention(query, values, training=True), attention(query[:1], values[:1])
    assert_close(ops.mean(context, axis=0), expected[0], 0.1)


def test_steps_share_the_dropout_of_their_memory(rng):
    attention = made(rng, dropout=0.5, seed=3)
    query, values = random_inputs(rng)
    memory = attention.memory(values, mask=MASK, training=True)
    first, again = (attention.step(query[:, 0], memory, training=True)[0] for _ in range(2))
    assert_close(first, again, 0)


# --- Configuration --------------------------------------------------------------------------------


def test_config_keeps_everything():
    attention = BahdanauAttention(
        U,
        num_heads=2,
        chunk_size=3,
        normalizer="sparsemax",
        dropout=0.1,
        seed=5,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.001),
        score_initializer="ones",
        kernel_regularizer="l2",
        score_regularizer="l1",
        bias_regularizer="l2",
        kernel_constraint="non_neg",
        score_constraint="unit_norm",
        bias_constraint="non_neg",
    )
    assert_config_round_trip(attention)
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    weights = reference.named(attention)
    assert weights["query_kernel"].std() < 0.01 and weights["key_kernel"].std() < 0.01
    assert (weights["score_kernel"] == 1).all()


def test_regularizers_add_to_the_loss():
    attention = BahdanauAttention(
        U,
        use_bias=True,
        score_initializer="ones",
        bias_initializer="ones",
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L1(1.0),
        score_regularizer=keras.regularizers.L1(10.0),
        bias_regularizer=keras.regularizers.L1(100.0),
    )
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    losses = sorted(float(ops.convert_to_numpy(loss)) for loss in attention.losses)
    assert losses == [N * U, D * U, 10 * U, 100 * U]


def test_one_initializer_makes_different_kernels():
    # Keras initialisers that hold a seed answer every call with the same numbers.
    attention = BahdanauAttention(U, kernel_initializer=keras.initializers.RandomNormal())
    attention(np.ones((1, D)), np.ones((1, TX, D)))
    weights = reference.named(attention)
    assert not np.allclose(weights["query_kernel"], weights["key_kernel"])


@pytest.mark.parametrize("name", ["units", "num_heads", "chunk_size"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "4", True])
def test_sizes_must_be_positive_integers(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received"):
        BahdanauAttention(**{"units": U, name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "`num_heads` must divide `units`, 8. Received: 3"),
        ({"normalizer": "hardmax"}, r"`normalizer` must be one of .*'hardmax'"),
        ({"normalizer": ["softmax"]}, r"`normalizer` must be one of .*\['softmax'\]"),
        ({"dropout": 1.0}, "`dropout` must be a number of at least 0 and below 1. Received: 1.0"),
        ({"dropout": -0.1}, "`dropout` must be a number of at least 0 and below 1. Rec.*: -0.1"),
        ({"dropout": "0.1"}, "`dropout` must be a number of at least 0 and below 1. Rec.*'0.1'"),
        ({"normalize": True, "score_initializer": "zeros"}, "`score_initializer` must not be zer"),
    ],
    ids=str,
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        BahdanauAttention(U, **options)


def test_heads_must_divide_the_values():
    with pytest.raises(ValueError, match="`num_heads` must divide the width of the values, 6"):
        BahdanauAttention(U, num_heads=4)(np.ones((1, N)), np.ones((1, TX, D)))


@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax"])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_weights_sum_to_one_in_any_precision(normalizer, policy, rng):
    attention = BahdanauAttention(U, normalizer=normalizer, dtype=policy)
    query, values = random_inputs(rng)
    _, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert_close(numpy(weights).sum(-1), np.repeat([[1.0], [1.0], [0.0]], 2, 1), 1e-6)
    assert_close(numpy(weights)[1, :, 2:], np.zeros((2, TX - 2)), 0)
