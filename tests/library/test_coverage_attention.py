import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_checks import array, assert_close, assert_config_round_trip, numpy, randomize
from mechanisms import MASK, TX, B, D, N, U, random_inputs

from keras_bahdanau import CoverageAttention, MultiSourceAttention


def built(rng, **options):
    attention = CoverageAttention(U, **options)
    attention.build((B, N), (B, TX, D))
    return randomize(attention, rng)


def test_covered_places_can_be_left_alone(rng):
    # No content: e_ij = -9 tanh(c_ij), so that each step turns to what is least covered.
    attention = CoverageAttention(1)
    attention.build((1, N), (1, 3, D))
    attention.set_weights([0 * w for w in attention.get_weights()])
    attention.score_kernel.assign([[-9.0]])
    attention.coverage_kernel.assign([[9.0]])
    memory = attention.memory(np.ones((1, 3, D)))
    state = ops.convert_to_tensor(np.array([[1.0, 1.0, 0.0]], "float32"))
    _, weights, state = attention.step(np.ones((1, N)), memory, state)
    assert numpy(weights)[0, 2] > 0.99
    assert_close(state, np.array([[1.0, 1.0, 0.0]]) + numpy(weights), 1e-6)


def test_fertility_divides_what_is_added(rng):
    attention = built(rng, fertility=3.0)
    query, values = random_inputs(rng)
    memory = attention.memory(values, mask=MASK)
    kernel = reference.named(attention)["fertility_kernel"][:, 0]
    share = 3.0 * reference.sigmoid(np.where(MASK[..., None], values, 0) @ kernel)
    assert_close(memory.fertility, share)
    start = attention.initial_state(memory)
    _, weights, state = attention.step(query[:, 0], memory, start)
    assert_close(state, numpy(weights) / share)


def test_a_place_without_fertility_breaks_nothing(rng):
    attention = built(rng, fertility=1.0)
    attention.fertility_kernel.assign(np.full((D, 1), -1e4))
    query = array(rng, B, 4, N)
    assert np.isfinite(numpy(attention(query, np.ones((B, TX, D)), value_mask=MASK))).all()


def overlaps(weights, kept):
    """The mean of the coverage loss over kept steps, Eq. 12 of arXiv 1704.04368."""
    found = []
    for row, steps in zip(weights.astype("float64"), kept, strict=True):
        covered = np.zeros(weights.shape[-1])
        for step in np.flatnonzero(steps):
            found.append(np.minimum(row[step], covered).sum())
            covered += row[step]
    return np.mean(found)


KEPT = np.array([[True, True, True, False], [True, True, False, False], [True] * 4])


@pytest.mark.parametrize("kept", [None, KEPT], ids=["all", "masked"])
def test_the_loss_is_the_mean_over_real_steps(kept, rng):
    attention = built(rng, coverage_loss=0.7)
    query, values = random_inputs(rng, queries=4)
    _, weights = attention(
        query, values, query_mask=kept, value_mask=MASK, return_attention_scores=True
    )
    expected = 0.7 * overlaps(numpy(weights), np.ones_like(KEPT) if kept is None else kept)
    assert_close(attention.losses, [expected], 1e-6)
    assert_close(attention.penalty(weights, kept), expected, 1e-6)


def test_a_broadcast_query_costs_no_more_under_a_mask(rng):
    attention, (query, values) = built(rng, coverage_loss=1.0), random_inputs(rng, queries=4)
    of_all = [np.repeat(part[:1], B, axis=0) for part in (query, KEPT)]
    attention(of_all[0], values, query_mask=of_all[1], value_mask=MASK)
    (expected,) = numpy(attention.losses)
    attention(query[:1], values, query_mask=KEPT[:1], value_mask=MASK)
    assert_close(attention.losses, [expected], 1e-6)


def test_no_real_step_costs_nothing(rng):
    attention = built(rng, coverage_loss=1.0)
    assert_close(attention.penalty(np.ones((B, 2, TX)) / TX, np.zeros((B, 2), bool)), 0.0, 0)


def test_without_a_factor_there_is_no_loss(rng):
    attention = built(rng)
    query, values = random_inputs(rng)
    attention(query, values)
    assert attention.losses == [] and not attention.penalized
    assert attention.penalty(np.ones((B, 2, TX))) is None


def test_fit_lowers_the_coverage_loss(rng):
    attention = CoverageAttention(U, coverage_loss=1.0)
    query, values = keras.Input((None, N)), keras.Input((None, D))
    model = keras.Model([query, values], 0.0 * attention(query, values))
    # XLA is as slow to begin as TensorFlow without it is quick; JAX has nothing else.
    compiled = keras.config.backend() == "jax"
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=compiled)
    data = list(random_inputs(rng, queries=4))
    losses = model.fit(data, np.zeros((B, 4, D)), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fertility": 0.0}, "`fertility` must be a number above 0. Received: 0.0"),
        ({"fertility": "2"}, "`fertility` must be a number above 0. Received: '2'"),
        ({"fertility": float("nan")}, "`fertility` must be a number above 0. Received: nan"),
        ({"coverage_loss": -1.0}, "`coverage_loss` must be a number of at least 0. Received: -1.0"),
        ({"coverage_loss": None}, "`coverage_loss` must be a number of at least 0. Received: None"),
        ({"units": 0}, "`units` must be a positive integer. Received: 0"),
    ],
    ids=str,
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        CoverageAttention(**{"units": U, **options})


def test_several_sources_take_no_penalty():
    with pytest.raises(ValueError, match="`attentions` must hold no mechanism with a penalty"):
        MultiSourceAttention([CoverageAttention(U, coverage_loss=1.0)])


def test_config_keeps_everything():
    assert_config_round_trip(CoverageAttention(U, 2.0, 0.5, False, num_heads=2, dropout=0.1))


def test_several_heads_cover_together(rng):
    attention = built(rng, num_heads=2)
    query, values = random_inputs(rng)
    memory = attention.memory(values, mask=MASK)
    state = attention.initial_state(memory)
    _, weights, state = attention.step(query[:, 0], memory, state)
    assert_close(ops.sum(state, -1), [1.0, 1.0, 0.0], 1e-6)
    assert_close(state, weights, 1e-6)
