import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from search_tasks import FEW, Sentence, Task, check, find, outputs_of, random_tables

from keras_bahdanau import Sampling
from keras_bahdanau_runtime.ids import EOS, PAD

SHARES = np.array([0.1, 0.3, 0.05, 0.15, 0.4])
GRID = (np.arange(1000) + 0.5) / 1000  # evenly spaced numbers


def draw(search, numbers, shares=SHARES):
    """Return the result of one step with the noise `numbers` `(n,)`, and token frequencies."""
    table = np.broadcast_to(np.log(shares), (1, 1, len(shares), len(shares))).astype("float32")
    noise = np.reshape(numbers, (1, -1, 1)).astype("float32")
    result = find(search, Task(np.ascontiguousarray(table), noise=noise))
    counts = np.bincount(result.tokens[0, :, 0], minlength=len(shares))
    return result, counts / len(numbers)


def powered(temperature):
    shares = SHARES ** (1 / temperature)
    return shares / shares.sum()


def only(ids):
    """Return `SHARES` restricted to some ids and normalized."""
    shares = np.where(np.isin(np.arange(5), ids), SHARES, 0.0)
    return shares / shares.sum()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, SHARES),
        ({"temperature": 0.5}, powered(0.5)),
        ({"temperature": 3.0}, powered(3.0)),
        ({"top_k": 1}, only([4])),
        ({"top_k": 2}, only([1, 4])),
        ({"top_k": 99}, SHARES),
        ({"top_p": 0.01}, only([4])),
        ({"top_p": 0.6}, only([1, 4])),  # 0.4 < 0.6 <= 0.4 + 0.3
        ({"top_p": 0.75}, only([1, 3, 4])),
        ({"top_k": 3, "top_p": 0.8}, only([1, 4])),  # 0.4 + 0.3 is 82 % of the top three
        ({"temperature": 0.5, "top_p": 0.6}, powered(0.5) * [0, 1, 0, 0, 1] / 0.8772),
        ({"forbidden": (4,)}, only([0, 1, 2, 3])),
        ({"min_length": 2}, only([0, 1, 2, 4])),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_are_likely(arguments, expected):
    result, frequencies = draw(Sampling(**{"n": 1000, "forbidden": (), **arguments}), GRID)
    np.testing.assert_allclose(frequencies, expected / expected.sum(), atol=0.0021)
    # Scores use the unmodified probabilities.
    np.testing.assert_allclose(result.totals[0], np.log(SHARES)[result.tokens[0, :, 0]], rtol=1e-4)


def test_seeded_noise_draws_tokens_as_often_as_they_are_likely():
    search = Sampling(n=4000, seed=3, forbidden=())
    _, frequencies = draw(search, search.noise(1, 1).ravel())
    assert np.abs(frequencies - SHARES).max() < 4 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize(
    "number, token",
    [(0.0, 0), (0.099, 0), (0.101, 1), (0.399, 1), (0.401, 2), (0.601, 4), (1 - 2.0**-24, 4)],
)
def test_a_number_selects_a_token_by_cumulative_probability(number, token):
    result, _ = draw(Sampling(forbidden=()), [number])
    assert result.tokens[0, 0, 0] == token


@pytest.mark.parametrize("arguments", [{}, {"top_k": 4}, {"top_p": 0.999999}], ids=str)
def test_no_number_selects_an_impossible_token(arguments):
    shares, search = np.array([0.0, 0.5, 0.0, 0.5, 0.0]), Sampling(n=3, forbidden=(), **arguments)
    with np.errstate(divide="ignore"):
        result, frequencies = draw(search, [0.0, 0.5, 1 - 2.0**-24], shares)
    assert frequencies[[0, 2, 4]].sum() == 0 and np.isfinite(result.totals).all()


CONSTRAINTS = [
    {},
    {"min_length": 3},
    {"forbidden": (PAD, 2)},
    {"no_repeat_ngram": 2, "top_k": 3},
    {"repetition_penalty": 1.5, "top_p": 0.9},
    {"min_length": 2, "no_repeat_ngram": 3, "top_p": 0.7, "temperature": 2.0},
]


@pytest.mark.parametrize("arguments", CONSTRAINTS, ids=str)
@FEW
@given(table=random_tables(batch=3), seed=st.integers(0, 2**32 - 1))
def test_outputs_satisfy_the_constraints_and_do_not_depend_on_the_batch(arguments, table, seed):
    search = Sampling(n=4, **arguments)
    rng = np.random.default_rng(seed)
    prefix = np.array([[1, 2, 1], [4, EOS, PAD], [PAD, PAD, PAD]], "int32")
    noise = rng.random((3, 4, 4), dtype="float32")
    limits, suppressed = np.array([4, 3, 2], "int32"), np.array([[PAD], [4], [3]], "int32")
    task = Task(table, None, limits, prefix, suppressed, noise=noise)
    result = find(search, task)
    check(result, task, search)
    for b in range(3):
        allowed = Sentence(search, task, b).every_output()
        assert len(outputs_of(result, b)) == 4 and set(outputs_of(result, b)) <= set(allowed)
    completions = np.array([[0, 0, 0, 1, 2], [0, 1, 0, 0, 0], [0] * 5], "int32")
    task = task._replace(completion_table=completions)
    result = find(search, task)
    check(result, task, search)
    for b in range(3):
        allowed = Sentence(search, task, b).every_output()
        assert set(outputs_of(result, b)) <= set(allowed)
    alone = find(search, task.rows([2]))
    np.testing.assert_array_equal(alone.tokens[0], result.tokens[2])


def test_a_likely_end_is_drawn_as_soon_as_the_minimal_length_allows_it():
    table = np.zeros((1, 5, 5, 5), "float32")
    table[..., EOS] = 50
    result = find(Sampling(4, seed=1, min_length=3), table)
    assert result.lengths.tolist() == [[3, 3, 3, 3]]
    assert (result.tokens[0, :, 2] == EOS).all()


def test_an_output_without_allowed_tokens_ends_with_score_minus_infinity(rng):
    table = rng.normal(size=(1, 4, 4, 4)).astype("float32")
    noise = rng.random((1, 3, 4), dtype="float32")
    # Only token 2 is allowed, and only once.
    search = Sampling(n=3, forbidden=(PAD, 1, EOS), no_repeat_ngram=1)
    result = find(search, Task(table, noise=noise))
    assert (result.scores == -np.inf).all() and not np.isnan(result.log_probs).any()
    assert not result.lengths.any() and not result.tokens.any()


def test_step_t_uses_column_t_of_the_noise():
    table = np.zeros((2, 4, 5, 5), "float32")  # all tokens are equally likely
    noise = np.random.default_rng(0).random((2, 3, 4), dtype="float32")
    result = find(Sampling(3, forbidden=(EOS,)), Task(table, noise=noise))
    # Equally likely outputs stay in the order of their noise.
    np.testing.assert_array_equal(result.tokens, np.array([0, 1, 2, 4])[(4 * noise).astype(int)])


def test_a_seed_reproduces_its_noise():
    first = Sampling(n=2, seed=7).noise(3, 4)
    assert first.shape == (3, 2, 4) and first.dtype == np.float32
    assert (first >= 0).all() and (first < 1).all()
    np.testing.assert_array_equal(first, Sampling(n=2, seed=7).noise(3, 4))
    assert (first != Sampling(n=2, seed=8).noise(3, 4)).any()
    unseeded = Sampling(n=2)
    assert (unseeded.noise(3, 4) != unseeded.noise(3, 4)).any()


def test_a_search_without_noise_draws_its_own(rng):
    table = rng.normal(size=(2, 4, 5, 5)).astype("float32")
    search = Sampling(n=3, seed=1)
    result = find(search, table)
    check(result, table, search)
    np.testing.assert_array_equal(result.tokens, find(search, table).tokens)


OUT_OF_RANGE = {
    "n": (0, 1.0),
    "temperature": (0, -1.0, float("nan")),
    "top_k": (0, 2.5),
    "top_p": (0, -0.1, 1.1, float("nan")),
    "seed": (-1, "a"),
    "min_length": (-1,),
}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"Argument `{name}` must be .*Received: "):
        Sampling(**{name: value})


@pytest.mark.parametrize("search", [Sampling(), Sampling(3, 0.5, 4, 0.9, 1, forbidden=(0,))])
def test_config_round_trip(search):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(search))
    assert copy == search and hash(copy) == hash(search)


def test_half_precision_logits_are_sampled_in_float32():
    def step(tokens, state):
        rows = ops.shape(tokens)[0]
        return ops.zeros((rows, 3000), dtype="float16"), state, ops.ones((rows, 1))

    noise = ops.full((1, 1, 1), 0.9)
    result = Sampling()(step, (), ops.array([2]), max_length=1, noise=noise)
    assert int(result.tokens[0, 0, 0]) in (2699, 2700)
    np.testing.assert_allclose(float(result.totals[0, 0]), -np.log(3000), rtol=1e-5)
