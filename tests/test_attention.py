import keras
import numpy as np
import pytest
import reference
from layer_checks import (
    POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    assert_garbage_is_ignored,
    assert_survives_saving,
    dtype_policy,
    numpy,
    randomize,
    right_mask,
)

from keras_bahdanau import Attention, BahdanauAttention, FixedContext, Memory

# Widths all differ, so that no axis can stand for another.
B, TQ, TX, N, D, U, KEY = 3, 2, 5, 4, 6, 7, 8
LENGTHS = [5, 2, 0]
MASK = right_mask(LENGTHS, TX)
MECHANISMS = {
    "bahdanau": lambda: BahdanauAttention(U),
    "bahdanau_bias": lambda: BahdanauAttention(U, use_bias=True),
    "fixed": lambda: FixedContext(),
    "fixed_narrow": lambda: FixedContext(width=2),
}
mechanism = pytest.mark.parametrize("name", MECHANISMS)


def made(name, rng):
    attention = MECHANISMS[name]()
    attention.build((B, TQ, N), (B, TX, D))
    return randomize(attention, rng)


def reference_attention(attention, query, values, mask, key=None):
    """One query over one source, for whichever mechanism."""
    if isinstance(attention, FixedContext):
        return reference.fixed_context(values, mask, attention.width)
    weights = reference.float64(attention.get_weights())
    return reference.additive_attention(query, values, mask, weights, key)


def reference_call(attention, queries, values, mask, key=None):
    """Contexts `(B, Tq, D)` and weights `(B, Tq, Tx)`."""
    found = [
        [
            reference_attention(attention, q, values[b], mask[b], None if key is None else key[b])
            for q in queries[b]
        ]
        for b in range(len(queries))
    ]
    return tuple(np.array([[pair[i] for pair in row] for row in found]) for i in range(2))


# --- Numbers --------------------------------------------------------------------------------------


@mechanism
@pytest.mark.parametrize("masked", [True, False])
def test_many_queries_give_the_papers_numbers(name, masked, rng):
    attention, query, values = made(name, rng), array(rng, B, TQ, N), array(rng, B, TX, D)
    mask = MASK if masked else np.ones_like(MASK)
    actual = attention(
        query, values, value_mask=mask if masked else None, return_attention_scores=True
    )
    assert_close(actual, reference_call(attention, query, values, mask))
    assert_close(attention(query, values, value_mask=mask), actual[0], 1e-6)


@mechanism
def test_one_query_gives_the_papers_numbers(name, rng):
    attention, query, values = made(name, rng), array(rng, B, N), array(rng, B, TX, D)
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    expected = reference_call(attention, query[:, None], values, MASK)
    assert_close((context, weights), [part[:, 0] for part in expected])


def test_keys_may_differ_from_values(rng):
    attention = BahdanauAttention(U)
    query, values, key = array(rng, B, TQ, N), array(rng, B, TX, D), array(rng, B, TX, KEY)
    attention(query, values, key=key)
    randomize(attention, rng)
    actual = attention(query, values, key=key, value_mask=MASK, return_attention_scores=True)
    assert_close(actual, reference_call(attention, query, values, MASK, key))


def test_bias_acts_inside_the_tanh(rng):
    # With U_a = W_a = 0 every score is v . tanh(b); equal scores, equal weights, whatever b.
    attention = made("bahdanau_bias", rng)
    w_a, u_a, v_a, bias = attention.get_weights()
    attention.set_weights([w_a * 0, u_a * 0, v_a, bias])
    scores = numpy(attention.score(array(rng, 1, 1, N), attention.make_keys(array(rng, 1, TX, D))))
    np.testing.assert_allclose(scores[0, 0], [(np.tanh(bias) @ v_a)[0]] * TX, atol=1e-5)


# --- Steps ----------------------------------------------------------------------------------------


@mechanism
def test_step_by_step_equals_the_call(name, rng):
    attention, query, values = made(name, rng), array(rng, B, TQ, N), array(rng, B, TX, D)
    expected = attention(query, values, value_mask=MASK, return_attention_scores=True)
    memory = attention.memory(values, mask=MASK)
    state = attention.initial_state(memory)
    for i in range(TQ):
        context, weights, state = attention.step(query[:, i], memory, state)
        assert_close((context, weights), (expected[0][:, i], expected[1][:, i]), 1e-6)
    assert state == ()


@mechanism
def test_hypotheses_share_a_row_of_the_memory(name, rng):
    attention, beam = made(name, rng), 4
    query, values = array(rng, B * beam, N), array(rng, B, TX, D)
    shared = attention.step(query, attention.memory(values, mask=MASK))
    copied = attention.memory(np.repeat(values, beam, 0), mask=np.repeat(MASK, beam, 0))
    assert_close(shared[:2], attention.step(query, copied)[:2], 1e-6)
    expected = reference_call(attention, query.reshape(B, beam, N), values, MASK)
    assert_close(shared[:2], [part.reshape(B * beam, -1) for part in expected])


def test_memory_is_a_value_without_masked_places(rng):
    attention, values = made("bahdanau", rng), array(rng, B, TX, D)
    values[~MASK] = np.nan
    memory = attention.memory(values, mask=MASK)
    assert isinstance(memory, Memory)
    assert memory.keys.shape == (B, TX, U)
    assert np.isfinite(numpy(memory.keys)).all()
    assert_close(memory.values, np.where(MASK[..., None], values, 0), 0)
    assert_close(memory.mask, MASK, 0)


def test_fixed_context_keeps_one_annotation_a_source(rng):
    memory = FixedContext(width=2).memory(array(rng, B, TX, D), mask=MASK)
    assert tuple(memory.values.shape) == (B, 1, 2)


# --- Masks ----------------------------------------------------------------------------------------


@mechanism
def test_longer_padding_changes_nothing(name, rng):
    attention, query, values = made(name, rng), array(rng, B, TQ, N), array(rng, B, TX, D)
    longer = np.concatenate([values, array(rng, B, 3, D)], axis=1)
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    mask = right_mask(LENGTHS, TX + 3)
    actual = attention(query, longer, value_mask=mask, return_attention_scores=True)
    assert_close(actual, (context, np.pad(numpy(weights), ((0, 0), (0, 0), (0, 3)))), 1e-6)


@mechanism
def test_garbage_at_masked_places_is_ignored(name, rng):
    attention, query, values = made(name, rng), array(rng, B, TQ, N), array(rng, B, TX, D)
    assert_garbage_is_ignored(
        attention, [query, values], 1, MASK, value_mask=MASK, return_attention_scores=True
    )


@mechanism
def test_a_fully_masked_row_gets_zeros(name, rng):
    attention, query, values = made(name, rng), array(rng, B, TQ, N), array(rng, B, TX, D)
    values[2] = np.nan
    context, weights = attention(query, values, value_mask=MASK, return_attention_scores=True)
    assert not numpy(context)[2].any() and not numpy(weights)[2].any()
    assert_close(numpy(weights)[:2].sum(-1), np.ones((2, TQ)), 1e-6)


@mechanism
def test_query_mask_zeroes_dropped_queries(name, rng):
    attention, query, values = made(name, rng), array(rng, B, TQ, N), array(rng, B, TX, D)
    query_mask = np.array([[True, False], [True, True], [False, False]])
    expected = attention(query, values, value_mask=MASK, return_attention_scores=True)
    arguments = dict(query_mask=query_mask, value_mask=MASK, return_attention_scores=True)
    actual = attention(query, values, **arguments)
    assert_close(actual, [np.where(query_mask[..., None], numpy(e), 0) for e in expected], 1e-6)
    assert_garbage_is_ignored(attention, [query, values], 0, query_mask, **arguments)


def embedding(mask_zero=True):
    return keras.layers.Embedding(9, D, mask_zero=mask_zero)


def masked_model(attention):
    """Ids of a source and of queries; both masks travel with the tensors."""
    source, asked = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    context, weights = attention(
        embedding()(asked), embedding()(source), return_attention_scores=True
    )
    return keras.Model([source, asked], [context, weights])


SOURCE_IDS = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
QUERY_IDS = np.array([[7, 8, 1], [2, 0, 0]])


@mechanism
def test_implicit_masks(name):
    attention = MECHANISMS[name]()
    model = masked_model(attention)
    _, weights = numpy(model([SOURCE_IDS, QUERY_IDS]))
    assert weights.shape == (2, 3, 4)
    asked, source = QUERY_IDS != 0, SOURCE_IDS != 0
    assert not weights[~(asked[:, :, None] & source[:, None, :])].any()
    assert_close(weights.sum(-1), asked.astype("float32"), 1e-6)


def test_the_context_carries_the_mask_of_the_query(rng):
    attention = BahdanauAttention(U)
    query = embedding()(QUERY_IDS)
    context = attention(query, array(rng, 2, TX, D))
    assert_close(context._keras_mask, QUERY_IDS != 0, 0)


# --- As a Keras layer -----------------------------------------------------------------------------


@mechanism
def test_dynamic_shapes(name, rng):
    attention = MECHANISMS[name]()
    query, values = keras.Input((None, N)), keras.Input((None, D))
    mask = keras.Input((None,), dtype="bool")
    outputs = attention(query, values, value_mask=mask, return_attention_scores=True)
    width = 2 if name == "fixed_narrow" else D
    assert [tuple(part.shape) for part in outputs] == [(None, None, width), (None, None, None)]
    model = keras.Model([query, values, mask], outputs)
    for batch, queries, steps in ((2, 1, 3), (1, 4, 6)):
        q, v = array(rng, batch, queries, N), array(rng, batch, steps, D)
        keep = right_mask([steps - 1] * batch, steps)
        expected = reference_call(attention, q, v, keep)
        assert_close(model([q, v, keep]), expected)
        assert_close(model.predict([q, v, keep], verbose=0), expected)


@mechanism
def test_config_round_trip(name):
    assert_config_round_trip(MECHANISMS[name]())


def test_config_keeps_initializers():
    attention = BahdanauAttention(
        U,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.001),
        score_initializer="zeros",
    )
    assert_config_round_trip(attention)
    attention(np.ones((1, N)), np.ones((1, TX, D)))
    w_a, u_a, v_a = attention.get_weights()
    assert w_a.std() < 0.01 and u_a.std() < 0.01 and not v_a.any()


def test_one_initializer_makes_two_different_kernels():
    # Keras initialisers that hold a seed answer every call with the same numbers.
    attention = BahdanauAttention(U, kernel_initializer=keras.initializers.RandomNormal())
    attention(np.ones((1, D)), np.ones((1, TX, D)))
    w_a, u_a, _ = attention.get_weights()
    assert not np.allclose(w_a, u_a)


@mechanism
def test_saving(name, tmp_path):
    assert_survives_saving(masked_model(MECHANISMS[name]()), [SOURCE_IDS, QUERY_IDS], tmp_path)


@mechanism
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(name, policy, rng):
    query, values = array(rng, B, TQ, N), array(rng, B, TX, D)
    with dtype_policy(policy):
        attention = MECHANISMS[name]()
        arguments = dict(value_mask=MASK, return_attention_scores=True)
        context, weights = attention(query, values, **arguments)
    assert keras.backend.standardize_dtype(context.dtype) == attention.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert_close(numpy(weights).sum(-1), np.repeat([[1.0], [1.0], [0.0]], TQ, 1), 1e-6)
    expected = reference_call(attention, query, values, MASK)
    assert_close(weights, expected[1], 0.03)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [0, -1, 2.0, "4", None])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(ValueError, match=r"`units` must be a positive integer. Received"):
        BahdanauAttention(units)


@pytest.mark.parametrize("width", [0, -1, 1.5])
def test_width_must_be_a_positive_integer(width):
    with pytest.raises(ValueError, match=r"`width` must be a positive integer. Received"):
        FixedContext(width)


def test_width_must_fit_the_annotations():
    with pytest.raises(ValueError, match=f"`width` must be at most .* {D}. Received: {D + 1}"):
        FixedContext(D + 1)(np.ones((1, N)), np.ones((1, TX, D)))


@mechanism
def test_shapes_are_checked(name, rng):
    attention = made(name, rng)
    with pytest.raises(ValueError, match=r"`query` of \w+ is expected .* shape \(3, 2, 4, 1\)"):
        attention(np.ones((B, TQ, N, 1)), np.ones((B, TX, D)))
    with pytest.raises(ValueError, match=r"`values` of [\w.]+ is expected .* shape \(3, 6\)"):
        attention.memory(np.ones((B, D)))
    with pytest.raises(ValueError, match=r"`mask` is expected .* shape \(3, 5, 1\)"):
        attention.memory(np.ones((B, TX, D)), mask=MASK[..., None])


def test_the_base_leaves_keys_and_scores_to_its_subclasses():
    class Dot(Attention):
        def make_keys(self, key, mask=None):
            return key

        def score(self, query, keys):
            return keras.ops.matmul(query, keras.ops.swapaxes(keys, 1, 2))

    context, weights = Dot()(
        np.array([[1.0, 0.0]]), np.array([[[9.0, 0.0], [-9.0, 1.0]]]), return_attention_scores=True
    )
    assert_close((context, weights), ([[9.0, 0.0]], [[1.0, 0.0]]), 1e-4)
    with pytest.raises(NotImplementedError):
        Attention().memory(np.ones((1, 2, 3)))
