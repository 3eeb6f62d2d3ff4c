import itertools

import keras
import numpy as np
import pytest
import reference
from gradients import differentiate
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from layer_checks import array, assert_close, assert_config_round_trip, numpy, randomize
from mechanisms import MASK, TX, B, D, N, U, random_inputs

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, FixedContext, LuongAttention
from keras_bahdanau.layers import (
    LocationSensitiveAttention,
    MonotonicAttention,
    MultiSourceAttention,
)
from keras_bahdanau.layers.attention.monotonic import _hard_weights, _soft_weights


def logit(p):
    return np.log(p) - np.log1p(-p)


def choices(choose, scores, mask, before):
    """Apply one of the two choice rules to arrays."""
    mask = None if mask is None else ops.convert_to_tensor(mask)
    scores, before = (ops.convert_to_tensor(part, "float32") for part in (scores, before))
    return numpy(choose(scores, mask, before))


def by_enumeration(choose):
    """Alignments from p_ij `(Ty, Tx)`, summed over the probabilities of all monotonic paths."""
    steps, positions = choose.shape
    alignments = np.zeros((steps, positions))
    # The index `positions` means that a step chooses no position.
    for path in itertools.combinations_with_replacement(range(positions + 1), steps):
        probability, start = 1.0, 0
        for i, position in enumerate(path):
            probability *= (1 - choose[i, start:position]).prod()
            if position < positions:
                probability *= choose[i, position]
            start = position
        for i, position in enumerate(path):
            if position < positions:
                alignments[i, position] += probability
    return alignments


def test_expected_alignments_are_sums_over_all_paths(rng):
    choose = rng.uniform(0.05, 0.95, size=(3, 4))
    expected = by_enumeration(choose)
    before = np.eye(1, 4)
    for i in range(3):
        before = choices(_soft_weights, logit(choose[i : i + 1]), None, before)
        assert_close(before[0], expected[i], 1e-6)


@given(
    positions=st.integers(1, 70), seed=st.integers(0, 1000), scale=st.sampled_from([0.1, 3.0, 60.0])
)
@settings(max_examples=20)
def test_expected_alignments_are_exact_for_any_length_and_scale(positions, seed, scale):
    # Scores of 60 give probabilities that float32 rounds to 0 and 1.
    rng = np.random.default_rng(seed)
    scores = (scale * rng.normal(size=(1, positions))).astype("float32")
    before = rng.dirichlet(np.ones(positions), 1).astype("float32")
    expected = reference.expected_choice(reference.sigmoid(scores[0].astype("float64")), before[0])
    actual = choices(_soft_weights, scores, None, before)[0]
    assert_close(actual, expected, 1e-6)
    assert actual.min() >= 0 and actual.sum() <= 1 + 1e-5


def test_small_probabilities_over_many_positions_do_not_underflow():
    # A quotient of cumulative products would underflow: (1 - p)^300 = 1e-30.
    positions, p = 300, 0.2
    scores = np.full((1, positions), logit(p), "float32")
    actual = choices(_soft_weights, scores, None, np.eye(1, positions))[0]
    np.testing.assert_allclose(actual, p * 0.8 ** np.arange(positions), rtol=1e-4, atol=1e-37)


@given(positions=st.integers(1, 20), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_choices_with_certain_probabilities_equal_hard_ones(positions, seed):
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random((1, positions)) < 0.2, 200.0, -200.0).astype("float32")
    mask = rng.random((1, positions)) < 0.8
    before = np.eye(1, positions, rng.integers(positions), dtype="float32")
    hard, soft = (choices(rule, scores, mask, before) for rule in (_hard_weights, _soft_weights))
    assert_close(hard, soft, 1e-6)


def built(rng, **options):
    attention = MonotonicAttention(BahdanauAttention(U), **options)
    attention.build((B, N), (B, TX, D))
    return randomize(attention, rng, 1.0)


def scored(scores, **options):
    """A mechanism, queries and values that give the scores `(Ty, Tx)`."""
    attention = MonotonicAttention(LuongAttention("dot"), **options)
    return attention, np.eye(len(scores))[None], np.array(scores, "float32").T[None]


PATHS = {
    "stays": ([[1, -1, 1], [1, 1, 1]], [[1, 0, 0], [1, 0, 0]]),
    "moves on": ([[-1, 1, 1], [1, -1, 1]], [[0, 1, 0], [0, 0, 1]]),
    "runs off": ([[-1, 1, -1], [1, -1, -1], [1, 1, 1]], [[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
}


@pytest.mark.parametrize(("scores", "expected"), PATHS.values(), ids=PATHS)
def test_hard_alignments_choose_the_first_position_from_the_last_choice_on(scores, expected):
    attention, query, values = scored(scores)
    context, weights = attention(query, values, return_attention_scores=True)
    assert_close(weights[0], expected, 0)
    assert_close(context[0], np.array(expected) @ values[0], 0)


def test_a_hard_choice_skips_masked_positions():
    attention, query, values = scored([[1, 1, 1]])
    mask = np.array([[False, False, True]])
    _, weights = attention(query, values, value_mask=mask, return_attention_scores=True)
    assert_close(weights[0], [[0, 0, 1]], 0)


def test_training_is_soft_and_inference_uses_the_mode(rng):
    query, values = random_inputs(rng)
    hard, soft = (built(np.random.default_rng(1), mode=mode) for mode in ("hard", "soft"))
    expected = numpy(soft(query, values))
    for training in (False, None):
        assert_close(soft(query, values, training=training), expected, 0)
        _, weights = hard(query, values, training=training, return_attention_scores=True)
        assert set(np.unique(numpy(weights))) <= {0.0, 1.0}
    assert_close(hard(query, values, training=True), expected, 0)


def test_training_in_hard_mode_has_gradients(rng):
    attention = built(rng)
    query, values = random_inputs(rng)
    _, gradients = differentiate(attention, value_mask=MASK, training=True)(query, values)
    assert all(np.isfinite(part).all() and part.any() for part in gradients)


def test_the_score_bias_has_its_initial_value_and_is_trainable():
    attention, query, values = scored([[0.0, 0.0, 0.0]], score_bias=-2.0, mode="soft")
    _, weights = attention(query, values, return_attention_scores=True)
    p = reference.sigmoid(-2.0)
    assert_close(weights[0], [[p, p * (1 - p), p * (1 - p) ** 2]], 1e-6)
    assert [v.path.split("/")[-1] for v in attention.trainable_variables] == ["score_bias"]


# --- Noise ----------------------------------------------------------------------------------------


def test_noise_is_drawn_per_step_in_training_only(rng):
    attention = built(rng, sigmoid_noise=2.0, seed=1, mode="soft")
    values = np.ones((200, TX, D), "float32")
    memory = attention.memory(values, training=True, steps=6)
    noise = numpy(memory.noise)
    assert noise.shape == (200, 6, TX)
    assert abs(noise.std() - 2.0) < 0.1 and abs(noise.mean()) < 0.1  # 6000 numbers
    assert attention.memory(values).noise is None
    assert built(rng).memory(values, training=True).noise is None
    assert not np.allclose(noise, numpy(attention.memory(values, training=True, steps=6).noise))


def test_each_step_adds_its_own_row_of_the_noise(rng):
    attention = built(rng, sigmoid_noise=2.0, seed=1)
    query, values = random_inputs(rng, queries=3)
    memory = attention.memory(values, mask=MASK, training=True, steps=3)
    noise, weights_by_name = (
        numpy(memory.noise).astype("float64"),
        reference.weights_by_name(attention),
    )
    state, alignment = attention.initial_state(memory), np.eye(1, TX).repeat(B, 0)
    for i in range(3):
        _, weights, state = attention.step(query[:, i], memory, state, training=True, t=i)
        for b in range(B):
            scores = reference.head_scores(query[b, i], values[b], MASK[b], weights_by_name)[0]
            scores = scores + weights_by_name["score_bias"] + noise[b, i]
            choose = reference.sigmoid(scores) * MASK[b]
            alignment[b] = reference.expected_choice(choose, alignment[b])
        assert_close(weights, alignment)


def test_grouped_queries_share_the_noise_of_their_row(rng):
    attention = built(rng, sigmoid_noise=2.0, seed=1)
    query, values = random_inputs(rng)
    memory = attention.memory(values, training=True, steps=2)
    state = attention.initial_state(memory)
    _, once, _ = attention.step(query[:, 0], memory, state, training=True, t=1)
    query, state = np.repeat(query[:, 0], 2, 0), ops.repeat(state, 2, axis=0)
    _, twice, _ = attention.step(query, memory, state, training=True, t=1)
    assert_close(twice, np.repeat(numpy(once), 2, 0), 1e-6)


class FixedNoise(MonotonicAttention):
    """A mechanism with the noise of its attribute `noise`."""

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        memory = super().memory(values, key, mask, training, steps)
        return memory._replace(noise=ops.convert_to_tensor(self.noise)) if training else memory


@pytest.mark.parametrize("inside", ["alone", "decoder", "second_source"])
def test_a_call_equals_steps_with_the_same_noise(inside, rng):
    attention = FixedNoise(LuongAttention(), sigmoid_noise=1.0)
    attention.noise = 2.0 * array(rng, B, 4, TX)
    query, values = random_inputs(rng, queries=4)
    layer = attention
    if inside != "alone":
        if inside == "second_source":
            attention = MultiSourceAttention([FixedContext(), attention])
            values = [array(rng, B, 2, 1), values]
        layer = AttentiveDecoder(keras.layers.GRUCell(3), attention)
    _, weights = layer(query, values, return_attention_scores=True, training=True)
    memory = layer.memory(values, training=True, steps=4)
    state = layer.initial_state(memory)
    for i in range(4):
        if inside == "alone":
            _, actual, state = layer.step(query[:, i], memory, state, training=True, t=i)
        else:
            _, state, actual = layer.step(query[:, i], state, memory, training=True, t=i)
        assert_close(actual, weights[:, i], 1e-6)


def test_a_step_with_noise_needs_its_number(rng):
    attention = built(rng, sigmoid_noise=2.0)
    query, values = random_inputs(rng)
    memory = attention.memory(values, training=True, steps=2)
    with pytest.raises(ValueError, match=r"`t` of MonotonicAttention.step must be .* Received: No"):
        attention.step(query[:, 0], memory, attention.initial_state(memory), training=True)


def test_a_call_and_a_decoder_draw_noise_for_all_their_steps(rng):
    query, values = random_inputs(rng, queries=3)
    attention = built(rng, sigmoid_noise=3.0, seed=1)
    first, again = (numpy(attention(query, values, training=True)) for _ in range(2))
    assert first.shape == (B, 3, D) and not np.allclose(first, again)
    decoder = AttentiveDecoder(
        keras.layers.GRUCell(5), MonotonicAttention(BahdanauAttention(U), sigmoid_noise=1.0)
    )
    model_in = keras.Input((None, N)), keras.Input((None, D))
    model = keras.Model(model_in, decoder(*model_in))
    model.compile("sgd", "mse", jit_compile=keras.config.backend() != "torch")
    before = decoder.get_weights()
    model.train_on_batch([query, values], np.ones((B, 3, 5)))
    pairs = zip(before, decoder.get_weights(), strict=True)
    assert any(not np.array_equal(old, new) for old, new in pairs)


# --- Configuration --------------------------------------------------------------------------------


def test_config_round_trip_keeps_every_option():
    assert_config_round_trip(MonotonicAttention(LuongAttention("dot"), 1.5, -3.0, "soft", 7))


def test_dropout_of_the_inner_mechanism_acts_on_the_context(rng):
    attention = MonotonicAttention(BahdanauAttention(U, dropout=0.5, seed=1))
    query, values = array(rng, B, 2, N), array(rng, B, TX, D)
    context, weights = numpy(attention(query, values, training=True, return_attention_scores=True))
    assert not np.allclose(context, weights @ values, atol=1e-3)


@pytest.mark.parametrize(
    "attention",
    [
        None,
        "bahdanau",
        FixedContext(),
        BahdanauAttention(U, num_heads=2),
        LocationSensitiveAttention(U),
    ],
    ids=["none", "name", "fixed", "heads", "location"],
)
def test_the_inner_mechanism_must_have_scores_of_one_head(attention):
    with pytest.raises(ValueError, match="`attention` must be a ScoredAttention with one head and"):
        MonotonicAttention(attention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "medium"}, '`mode` must be "hard" or "soft". Received: \'medium\''),
        ({"sigmoid_noise": -1.0}, "`sigmoid_noise` must be a number of at least 0. Received: -1.0"),
        ({"sigmoid_noise": None}, "`sigmoid_noise` must be a number of at least 0. Received: None"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MonotonicAttention(LuongAttention(), **options)
