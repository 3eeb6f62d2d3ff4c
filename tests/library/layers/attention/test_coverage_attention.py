import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_checks import array, assert_close, assert_config_round_trip, numpy, randomize
from mechanisms import MASK, TX, B, D, N, U, random_inputs

from keras_bahdanau.layers import CoverageAttention, MultiSourceAttention


def built(rng, **options):
    attention = CoverageAttention(U, **options)
    attention.build((B, N), (B, TX, D))
    return randomize(attention, rng)


def test_covered_positions_can_get_no_weight():
    # Without content e_ij = -9 tanh(9 c_ij), so each step attends to the least covered position.
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


def test_coverage_grows_by_the_weights_over_the_fertility(rng):
    attention = built(rng, fertility=3.0)
    query, values = random_inputs(rng)
    memory = attention.memory(values, mask=MASK)
    kernel = reference.weights_by_name(attention)["fertility_kernel"][:, 0]
    fertility = 3.0 * reference.sigmoid(np.where(MASK[..., None], values, 0) @ kernel)
    assert_close(memory.fertility, fertility)
    _, weights, state = attention.step(query[:, 0], memory, attention.initial_state(memory))
    assert_close(state, numpy(weights) / fertility)


def test_a_fertility_of_zero_gives_finite_contexts(rng):
    attention = built(rng, fertility=1.0)
    attention.fertility_kernel.assign(np.full((D, 1), -1e4))
    query = array(rng, B, 4, N)
    assert np.isfinite(numpy(attention(query, np.ones((B, TX, D)), value_mask=MASK))).all()


def mean_overlap(weights, query_mask):
    """The mean of the coverage loss over unmasked steps, Eq. 12 of arXiv 1704.04368."""
    losses = []
    for row, mask in zip(weights.astype("float64"), query_mask, strict=True):
        covered = np.zeros(weights.shape[-1])
        for step in np.flatnonzero(mask):
            losses.append(np.minimum(row[step], covered).sum())
            covered += row[step]
    return np.mean(losses)


QUERY_MASK = np.arange(4) < np.array([[3], [2], [4]])


@pytest.mark.parametrize("query_mask", [None, QUERY_MASK], ids=["all", "masked"])
def test_the_loss_is_the_mean_over_unmasked_steps(query_mask, rng):
    attention = built(rng, coverage_loss_weight=0.7)
    query, values = random_inputs(rng, queries=4)
    _, weights = attention(
        query, values, query_mask=query_mask, value_mask=MASK, return_attention_scores=True
    )
    mask = np.ones_like(QUERY_MASK) if query_mask is None else query_mask
    expected = 0.7 * mean_overlap(numpy(weights), mask)
    assert_close(attention.losses, [expected], 1e-6)
    assert_close(attention.penalty(weights, query_mask), expected, 1e-6)


def test_a_broadcast_query_and_mask_have_the_loss_of_repeated_ones(rng):
    attention, (query, values) = built(rng, coverage_loss_weight=1.0), random_inputs(rng, queries=4)
    repeated, mask = (np.repeat(part[:1], B, axis=0) for part in (query, QUERY_MASK))
    attention(repeated, values, query_mask=mask, value_mask=MASK)
    expected = numpy(attention.losses)
    attention(query[:1], values, query_mask=QUERY_MASK[:1], value_mask=MASK)
    assert_close(attention.losses, expected, 1e-6)


def test_the_penalty_is_zero_if_every_step_is_masked(rng):
    attention = built(rng, coverage_loss_weight=1.0)
    assert_close(attention.penalty(np.ones((B, 2, TX)) / TX, np.zeros((B, 2), bool)), 0.0, 0)


def test_without_a_coverage_loss_there_is_no_penalty(rng):
    attention = built(rng)
    attention(*random_inputs(rng))
    assert attention.losses == [] and not attention.has_penalty
    assert attention.penalty(np.ones((B, 2, TX))) is None


def test_fit_lowers_the_coverage_loss(rng):
    attention = CoverageAttention(U, coverage_loss_weight=1.0)
    query, values = keras.Input((None, N)), keras.Input((None, D))
    model = keras.Model([query, values], 0.0 * attention(query, values))
    # XLA takes longer to compile this than TensorFlow takes without it. JAX always uses XLA.
    jit_compile = keras.config.backend() == "jax"
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=jit_compile)
    data = list(random_inputs(rng, queries=4))
    losses = model.fit(data, np.zeros((B, 4, D)), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fertility": 0.0}, "`fertility` must be a number above 0. Received: 0.0"),
        ({"fertility": "2"}, "`fertility` must be a number above 0. Received: '2'"),
        ({"fertility": float("nan")}, "`fertility` must be a number above 0. Received: nan"),
        (
            {"coverage_loss_weight": -1.0},
            "`coverage_loss_weight` must be a number of at least 0. Received: -1.0",
        ),
        (
            {"coverage_loss_weight": None},
            "`coverage_loss_weight` must be a number of at least 0. Received: None",
        ),
        ({"units": 0}, "`units` must be a positive integer. Received: 0"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CoverageAttention(**{"units": U, **options})


def test_multi_source_attention_refuses_a_penalty():
    with pytest.raises(
        ValueError, match="`attentions` must not contain a mechanism with a penalty"
    ):
        MultiSourceAttention([CoverageAttention(U, coverage_loss_weight=1.0)])


def test_config_round_trip_keeps_every_option():
    assert_config_round_trip(CoverageAttention(U, 2.0, 0.5, False, num_heads=2, dropout=0.1))


def test_a_config_of_earlier_versions_has_another_name_for_the_weight():
    config = CoverageAttention(U, coverage_loss_weight=0.5).get_config()
    config["coverage_loss"] = config.pop("coverage_loss_weight")
    assert CoverageAttention.from_config(config).coverage_loss_weight == 0.5


def test_the_coverage_of_several_heads_is_their_mean(rng):
    attention, (query, values) = built(rng, num_heads=2), random_inputs(rng)
    memory = attention.memory(values, mask=MASK)
    _, weights, state = attention.step(query[:, 0], memory, attention.initial_state(memory))
    assert_close(ops.sum(state, -1), [1.0, 1.0, 0.0], 1e-6)
    assert_close(state, weights, 1e-6)
