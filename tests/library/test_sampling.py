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
GRID = (np.arange(1000) + 0.5) / 1000  # numbers that fall everywhere alike


def drawn(search, numbers, shares=SHARES):
    """What one step draws with each of `numbers` `(n,)`, and its frequencies."""
    table = np.broadcast_to(np.log(shares), (1, 1, len(shares), len(shares))).astype("float32")
    noise = np.reshape(numbers, (1, -1, 1)).astype("float32")
    found = find(search, Task(np.ascontiguousarray(table), noise=noise))
    counts = np.bincount(found.tokens[0, :, 0], minlength=len(shares))
    return found, counts / len(numbers)


def powered(temperature):
    shares = SHARES ** (1 / temperature)
    return shares / shares.sum()


def only(ids):
    """`SHARES` of some ids."""
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
        ({"top_p": 0.6}, only([1, 4])),  # 0.4 is too little, 0.7 is enough
        ({"top_p": 0.75}, only([1, 3, 4])),
        ({"top_k": 3, "top_p": 0.8}, only([1, 4])),  # of three: 0.4 + 0.3 is 0.82 of 0.85
        ({"temperature": 0.5, "top_p": 0.6}, powered(0.5) * [0, 1, 0, 0, 1] / 0.8772),
        ({"forbidden": (4,)}, only([0, 1, 2, 3])),
        ({"min_length": 2}, only([0, 1, 2, 4])),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_are_likely(arguments, expected):
    found, frequencies = drawn(Sampling(**{"n": 1000, "forbidden": (), **arguments}), GRID)
    np.testing.assert_allclose(frequencies, expected / expected.sum(), atol=0.0021)
    # What is drawn from is changed, what it is worth is not.
    np.testing.assert_allclose(found.totals[0], np.log(SHARES)[found.tokens[0, :, 0]], rtol=1e-4)


def test_frequencies_with_a_seed():
    search = Sampling(n=4000, seed=3, forbidden=())
    _, frequencies = drawn(search, search.noise(1, 1).ravel())
    assert np.abs(frequencies - SHARES).max() < 4 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize(
    "number, token",
    [(0.0, 0), (0.099, 0), (0.101, 1), (0.399, 1), (0.401, 2), (0.601, 4), (1 - 2.0**-24, 4)],
)
def test_a_number_falls_on_a_token(number, token):
    found, _ = drawn(Sampling(forbidden=()), [number])
    assert found.tokens[0, 0, 0] == token


@pytest.mark.parametrize("arguments", [{}, {"top_k": 4}, {"top_p": 0.999999}], ids=str)
def test_no_number_falls_on_an_impossible_token(arguments):
    shares = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    with np.errstate(divide="ignore"):
        found, frequencies = drawn(
            Sampling(n=3, forbidden=(), **arguments), [0.0, 0.5, 1 - 2.0**-24], shares
        )
    assert frequencies[[0, 2, 4]].sum() == 0 and np.isfinite(found.totals).all()


CONSTRAINTS = [
    {},
    {"min_length": 3},
    {"forbidden": (PAD, 2)},
    {"no_repeat_ngram": 2, "top_k": 3},
    {"min_length": 2, "no_repeat_ngram": 3, "top_p": 0.7, "temperature": 2.0},
]


@pytest.mark.parametrize("arguments", CONSTRAINTS, ids=str)
@FEW
@given(table=random_tables(batch=3), seed=st.integers(0, 2**32 - 1))
def test_outputs_keep_to_what_is_allowed(arguments, table, seed):
    search = Sampling(n=4, **arguments)
    rng = np.random.default_rng(seed)
    prefix = np.array([[1, 2, 1], [4, EOS, PAD], [PAD, PAD, PAD]], "int32")
    noise = rng.random((3, 4, 4), dtype="float32")
    task = Task(table, limits=np.array([4, 3, 2], "int32"), prefix=prefix, noise=noise)
    found = find(search, task)
    check(found, task, search)  # sorted, scored as the model scores
    for b in range(3):
        allowed = Sentence(search, task, b).every_output()
        assert len(outputs_of(found, b)) == 4 and set(outputs_of(found, b)) <= set(allowed)
    # A sentence does not see its batch.
    alone = find(search, task.rows([2]))
    np.testing.assert_array_equal(alone.tokens[0], found.tokens[2])


def test_where_nothing_is_allowed_nothing_is_drawn(rng):
    table = rng.normal(size=(1, 4, 4, 4)).astype("float32")
    noise = rng.random((1, 3, 4), dtype="float32")
    search = Sampling(n=3, forbidden=(PAD, 1, EOS), no_repeat_ngram=1)  # "2", and then?
    found = find(search, Task(table, noise=noise))
    assert (found.scores == -np.inf).all() and not np.isnan(found.log_probs).any()
    assert (found.lengths == 2).all()  # it ends there


def test_step_t_draws_with_the_number_t():
    table = np.zeros((2, 4, 5, 5), "float32")  # every token as likely as the others
    noise = np.random.default_rng(0).random((2, 3, 4), dtype="float32")
    found = find(Sampling(3, forbidden=(EOS,)), Task(table, noise=noise))
    # Equally likely outputs stay in the order of their numbers.
    np.testing.assert_array_equal(found.tokens, np.array([0, 1, 2, 4])[(4 * noise).astype(int)])


def test_a_seed_repeats_its_numbers():
    first = Sampling(n=2, seed=7).noise(3, 4)
    assert first.shape == (3, 2, 4) and first.dtype == np.float32
    assert (first >= 0).all() and (first < 1).all()
    np.testing.assert_array_equal(first, Sampling(n=2, seed=7).noise(3, 4))
    assert (first != Sampling(n=2, seed=8).noise(3, 4)).any()
    unseeded = Sampling(n=2)
    assert (unseeded.noise(3, 4) != unseeded.noise(3, 4)).any()


def test_draws_numbers_of_its_own_where_none_are_given(rng):
    table = rng.normal(size=(2, 4, 5, 5)).astype("float32")
    search = Sampling(n=3, seed=1)
    found = find(search, table)
    check(found, table, search)
    np.testing.assert_array_equal(found.tokens, find(search, table).tokens)


@pytest.mark.parametrize(
    "name, value",
    [
        ("n", 0),
        ("n", 1.0),
        ("temperature", 0),
        ("temperature", -1.0),
        ("top_k", 0),
        ("top_k", 2.5),
        ("top_p", 0),
        ("top_p", 0.0),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("temperature", float("nan")),
        ("seed", -1),
        ("seed", "a"),
        ("min_length", -1),
    ],
)
def test_refuses_numbers_out_of_their_range(name, value):
    with pytest.raises(ValueError, match=f"Argument `{name}` must be .*Received: "):
        Sampling(**{name: value})


@pytest.mark.parametrize("search", [Sampling(), Sampling(3, 0.5, 4, 0.9, 1, forbidden=(0,))])
def test_config_round_trip(search):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(search))
    assert again == search and hash(again) == hash(search)


def test_half_precision_logits_are_drawn_from_in_single_precision():
    def step(tokens, state):
        rows = ops.shape(tokens)[0]
        return ops.zeros((rows, 3000), dtype="float16"), state, ops.ones((rows, 1))

    noise = np.full((1, 1, 1), 0.9, "float32")
    drawn = ops.convert_to_tensor(noise)
    found = Sampling()(step, (), ops.array([2]), max_length=1, noise=drawn)
    assert int(found.tokens[0, 0, 0]) == 2699 or int(found.tokens[0, 0, 0]) == 2700
    np.testing.assert_allclose(float(found.totals[0, 0]), -np.log(3000), rtol=1e-5)
