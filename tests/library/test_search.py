import dataclasses
import sys
from collections import Counter

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops, tree
from search_tasks import (
    FEW,
    Sentence,
    Task,
    check,
    check_beam,
    constrained_task,
    coverage_task,
    find,
    log_softmax,
    outputs_of,
    random_tables,
)

from keras_bahdanau import BeamSearch, GreedySearch, Sampling
from keras_bahdanau.search.base import known_searches
from keras_bahdanau.search.history import trace_back
from keras_bahdanau.search.ranking import best_first
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

PENALTIES = [0.0, 0.6, 1.0]
SPACES = [(4, 4), (5, 3)]  # V and T; small enough to list every output there is
SEEDS = st.integers(0, 2**32 - 1)


def check_everything(search, task, max_length=None):
    """A beam as wide as the space lists all that is allowed, best first."""
    found = find(search, task, max_length)
    check(found, task, search)
    for b in range(len(found.scores)):
        sentence, outputs = Sentence(search, task, b), outputs_of(found, b)
        every = sentence.every_output()
        assert len(outputs) == len(every) and set(outputs) == set(every)
        ranked = sorted(map(sentence.score, every), reverse=True)
        np.testing.assert_allclose(found.scores[b, : len(every)], ranked, rtol=1e-4, atol=1e-4)
    return found


# Against enumeration


@pytest.mark.parametrize("vocabulary, steps", SPACES)
@pytest.mark.parametrize("exponent, normalization", [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "plain")])
@FEW
@given(data=st.data())
def test_a_beam_as_wide_as_the_space_finds_everything(
    vocabulary, steps, exponent, normalization, data
):
    table = data.draw(random_tables(1, vocabulary, steps))
    size = sum((vocabulary - 1) ** t for t in range(steps)) + (vocabulary - 1) ** steps
    check_everything(BeamSearch(size, exponent, normalization=normalization), table)


@pytest.mark.parametrize("exponent, normalization", [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "plain")])
@FEW
@given(seed=SEEDS, masked=st.booleans())
def test_coverage_is_asked_of_the_places_that_are_no_padding(exponent, normalization, seed, masked):
    task = coverage_task(seed)
    task = task if masked else task._replace(memory_mask=None)
    search = BeamSearch(85, exponent, coverage_penalty=0.3, normalization=normalization)
    check_everything(search, task)


CONSTRAINTS = {
    "min_length": {"min_length": 3},
    "forbidden": {"forbidden": (PAD, 2)},
    "unigrams": {"no_repeat_ngram": 1},
    "bigrams": {"no_repeat_ngram": 2},
    "trigrams": {"no_repeat_ngram": 3},
    "ratio": {"max_length_ratio": 0.9},
    "all": {"min_length": 2, "forbidden": (1,), "no_repeat_ngram": 2, "max_length_ratio": 1.2},
}


@pytest.mark.parametrize("arguments", [{}, *CONSTRAINTS.values()], ids=["none", *CONSTRAINTS])
@FEW
@given(seed=SEEDS)
def test_what_is_allowed_is_found_and_nothing_else(arguments, seed):
    task = constrained_task(seed)
    bare = task._replace(prefix=None, limits=None)
    check_everything(BeamSearch(121, 0.6, **arguments), bare)
    check_everything(BeamSearch(121, 0.6, **arguments), task)


# Against a beam in plain Python that never stops early


@pytest.mark.parametrize("size, exponent", [(2, 0.0), (3, 0.6), (5, 1.0), (7, 1.0)])
@FEW
@given(table=random_tables(batch=2))
def test_a_narrow_beam_keeps_the_best_of_each_step(size, exponent, table):
    check_beam(BeamSearch(size, exponent), table)


@pytest.mark.parametrize(
    "n_best, exponent, normalization",
    [(1, 0.0, "gnmt"), (1, 0.6, "gnmt"), (2, 0.6, "gnmt"), (2, 1.0, "plain")],
)
@FEW
@given(table=random_tables(batch=3, steps=5), lift=st.sampled_from([0.0, 2.0, 4.0]))
def test_stopping_early_loses_nothing(n_best, exponent, normalization, table, lift):
    table[..., EOS] += lift
    search = BeamSearch(4, exponent, n_best=n_best, normalization=normalization)
    check_beam(search, Task(table, limits=np.array([5, 3, 4], "int32")))


@FEW
@given(seed=SEEDS)
def test_stopping_early_loses_nothing_under_coverage(seed):
    task = coverage_task(seed, batch=2, steps=4)
    check_beam(BeamSearch(4, 0.6, coverage_penalty=0.2, n_best=1), task)


@pytest.mark.parametrize("groups, diversity, n_best", [(2, 0.7, None), (2, 0.7, 1), (3, 2.0, 2)])
@FEW
@given(table=random_tables(batch=2), lift=st.sampled_from([0.0, 3.0]))
def test_groups_avoid_what_earlier_groups_chose(groups, diversity, n_best, table, lift):
    table[..., EOS] += lift
    search = BeamSearch(6, 0.6, groups=groups, diversity=diversity, n_best=n_best)
    check_beam(search, table)


@FEW
@given(table=random_tables(batch=2))
def test_groups_without_diversity_are_one_smaller_beam(table):
    found, smaller = find(BeamSearch(6, 0.6, groups=3), table), find(BeamSearch(2, 0.6), table)
    for b in range(2):
        assert outputs_of(found, b) == outputs_of(smaller, b)
    np.testing.assert_array_equal(found.scores[:, 2:], -np.inf)
    one = find(BeamSearch(2, 0.6, groups=1, diversity=5.0), table)  # of whom should it differ?
    np.testing.assert_array_equal(one.tokens, smaller.tokens)


@pytest.mark.parametrize("arguments", CONSTRAINTS.values(), ids=CONSTRAINTS)
@FEW
@given(seed=SEEDS)
def test_a_narrow_beam_keeps_to_what_is_allowed(arguments, seed):
    check_beam(BeamSearch(3, 1.0, **arguments), constrained_task(seed))


@pytest.mark.parametrize("size, exponent", [(1, 0.6), (3, 0.0), (3, 0.6), (9, 0.6)])
@FEW
@given(seed=SEEDS)
def test_of_equals_the_first_is_taken(size, exponent, seed):
    # As many tokens are possible after each, so all that are as long have the very same score.
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, size=(2, 4, 1, 1))
    order = rng.permuted(np.broadcast_to(np.arange(5), (2, 4, 5, 5)), axis=-1)
    table = np.where(order < counts, 0.0, -np.inf).astype("float32")
    check_beam(BeamSearch(size, exponent), table)


@settings(max_examples=50)
@given(seed=SEEDS, levels=st.integers(1, 9), k=st.integers(1, 12))
def test_the_best_are_those_of_a_stable_sort(seed, levels, k):
    """As in bfloat16, where of thousands of logits many are equal."""
    chances = np.append(np.linspace(-1, 1, levels), -np.inf)
    values = np.random.default_rng(seed).choice(chances, size=(2, 3, 12)).astype("float32")
    found, places = map(ops.convert_to_numpy, best_first(ops.convert_to_tensor(values), k))
    expected = np.argsort(-values, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(values, expected, axis=-1))


def test_the_cheaper_rule_stops_when_enough_have_ended():
    # "3" ends at once with probability 0.4; "4 4 4 4" is better in the end, if it is waited for.
    search = {"size": 2, "length_penalty": 1.0, "n_best": 1}
    found = find(BeamSearch(**search), late_winner())
    assert outputs_of(found) == [(4, 4, 4, 4)]
    found = find(BeamSearch(**search, early_stopping=True), late_winner())
    assert outputs_of(found) == [(EOS,)]
    both = find(BeamSearch(2, 1.0, early_stopping=True), late_winner())  # waits for two
    assert outputs_of(both) == [(4, 4, 4, 4), (EOS,)]


@pytest.mark.parametrize("n_best", [1, 2, 3])
@FEW
@given(table=random_tables(batch=2))
def test_the_cheaper_rule_waits_for_n_best(n_best, table):
    search = BeamSearch(3, 0.6, n_best=n_best, early_stopping=True)
    found = find(search, table)
    check(found, table, search)
    for b in range(2):
        assert len(set(outputs_of(found, b))) == n_best


# What a search does not depend on


@pytest.mark.parametrize("normalization", ["gnmt", "plain"])
@FEW
@given(table=random_tables(batch=2))
def test_a_beam_of_one_is_greedy(normalization, table):
    greedy = find(GreedySearch(), table)
    for exponent in PENALTIES:
        search = BeamSearch(1, exponent, normalization=normalization)
        found = check_beam(search, table)
        np.testing.assert_array_equal(found.tokens, greedy.tokens)
        np.testing.assert_array_equal(found.alignments, greedy.alignments)
    for b in range(2):
        tokens = [BOS]
        while tokens[-1] != EOS and len(tokens) <= table.shape[1]:
            row = table[b, len(tokens) - 1, tokens[-1]].copy()
            row[[PAD, BOS]] = -np.inf  # which no output holds
            tokens.append(int(row.argmax()))
        assert outputs_of(greedy, b) == [tuple(tokens[1:])]


@FEW
@given(seed=SEEDS)
def test_a_beam_of_one_is_greedy_under_coverage(seed):
    task = coverage_task(seed, batch=2)
    found = find(BeamSearch(1, 0.6, coverage_penalty=0.5), task)
    np.testing.assert_array_equal(found.tokens, find(GreedySearch(), task).tokens)


@FEW
@given(
    table=random_tables(batch=3),
    eager=st.integers(0, 2),
    reluctant=st.integers(0, 2),
    order=st.permutations(range(3)),
)
def test_a_sentence_does_not_see_its_batch(table, eager, reluctant, order):
    table[reluctant, ..., EOS] -= 20.0  # runs to the end ...
    table[eager, ..., EOS] += 40.0  # ... while this one waits for it
    search, limits = BeamSearch(3, 0.6, n_best=2), np.array([4, 2, 3], "int32")
    together = find(search, Task(table, limits=limits))
    shuffled = find(search, Task(table, limits=limits).rows(order))
    np.testing.assert_array_equal(together.tokens[order], shuffled.tokens)
    # Vectorised kernels round by where in the tensor a row stands.
    np.testing.assert_allclose(together.scores[order], shuffled.scores, rtol=1e-5, atol=1e-5)
    for b in range(3):
        alone = find(search, Task(table, limits=limits).rows([b]))
        np.testing.assert_array_equal(together.tokens[b], alone.tokens[0])
        np.testing.assert_array_equal(together.lengths[b], alone.lengths[0])
        np.testing.assert_allclose(together.scores[b], alone.scores[0], rtol=1e-5, atol=1e-5)
        # The second column names the sentence.
        np.testing.assert_array_equal(
            together.alignments[b][..., [0, 2]], alone.alignments[0][..., [0, 2]]
        )


# At the edges


@FEW
@given(table=random_tables(vocabulary=4, steps=3), seed=SEEDS)
def test_an_impossible_token_is_never_taken(table, seed):
    barred = np.random.default_rng(seed).random(table.shape) < 0.5
    barred[..., 1] = False  # something must be possible
    table = np.where(barred, -np.inf, table).astype("float32")
    check_everything(BeamSearch(50, 1.0), table)


def test_what_cannot_be_found_is_marked_missing(rng):
    table = rng.normal(size=(2, 2, 4, 4)).astype("float32")
    found = check_everything(BeamSearch(30, 1.0, forbidden=()), table)
    # 1 + 3 * 4 outputs of at most two tokens exist.
    assert ((found.scores > -np.inf).sum(axis=1) == 13).all()
    assert (found.scores[:, 13:] == -np.inf).all()


def test_where_nothing_is_allowed_nothing_is_found(rng):
    table = rng.normal(size=(1, 4, 4, 4)).astype("float32")
    search = {"forbidden": (PAD, 1, EOS), "no_repeat_ngram": 1}  # "2", and then?
    for beam in (GreedySearch(**search), BeamSearch(3, **search)):
        found = find(beam, table)
        assert (found.scores == -np.inf).all() and (found.totals == -np.inf).all()
        assert not np.isnan(found.log_probs).any()


def late_winner():
    """ "3" ends at once with 0.4; "4 4 4 4" gets all the rest, a bit less each step."""
    probabilities = np.full((1, 4, 5, 5), 1e-9)
    probabilities[0, 0, BOS, [EOS, 4]] = 0.4, 0.6
    probabilities[0, 1:, 4, [1, 4]] = np.array([0.2, 0.8])[:, None]
    return np.log(probabilities).astype("float32")


def test_an_ended_hypothesis_keeps_its_score():
    found = find(BeamSearch(2, 0.0), late_winner())
    assert outputs_of(found) == [(EOS,), (4, 4, 4, 4)]
    np.testing.assert_allclose(np.exp(found.scores[0]), [0.4, 0.6 * 0.8**3], rtol=1e-4)
    assert found.tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD]
    # With |Y| counted, the longer one is ahead: log 0.307 / (9 / 6) > log 0.4.
    found = find(BeamSearch(2, 1.0), late_winner())
    assert outputs_of(found) == [(4, 4, 4, 4), (EOS,)]
    np.testing.assert_allclose(
        found.scores[0], [np.log(0.6 * 0.8**3) / 1.5, np.log(0.4)], rtol=1e-4
    )


LETTERS = "\0\1\2\3abcdefghijklmnopqrstuvwxyz"
WORDS = ["cat", "a", "zebra", "attention"]


def spell(tokens, state):
    """Spells the word of each row, `(B, 12)` ids, and looks at the letter it writes."""
    words, position = state
    wanted = ops.squeeze(ops.take_along_axis(words, position[:, None], axis=1), -1)
    weights = ops.one_hot(position, 12)
    return 20.0 * ops.one_hot(wanted, len(LETTERS)), (words, position + 1), weights


@pytest.mark.parametrize("search, max_length", [(GreedySearch(), 4), (BeamSearch(3), 12)])
def test_spells_words(search, max_length):
    words = np.array(
        [[LETTERS.index(letter) for letter in word] + [EOS] * (12 - len(word)) for word in WORDS],
        "int32",
    )
    state = (ops.convert_to_tensor(words), ops.zeros((4,), dtype="int32"))
    found = search(spell, state, ops.full((4,), BOS, dtype="int32"), max_length=max_length)
    tokens, _, lengths, alignments, *_ = tree.map_structure(ops.convert_to_numpy, tuple(found))
    for b, word in enumerate(WORDS):
        expected = (word + "\3")[:max_length]
        assert "".join(LETTERS[t] for t in tokens[b, 0]) == expected.ljust(max_length, "\0")
        assert lengths[b, 0] == len(expected)
        diagonal = np.eye(max_length, 12) * (np.arange(max_length) < len(expected))[:, None]
        np.testing.assert_array_equal(alignments[b, 0], diagonal)


NUMBERS = np.random.default_rng(5).random((2, 2, 4), dtype="float32")


@pytest.mark.parametrize(
    ("search", "noise"), [(BeamSearch(3), None), (Sampling(2), NUMBERS)], ids=["beam", "sampling"]
)
def test_log_probabilities_will_do_for_logits(search, noise, rng):
    table = 2 * rng.normal(size=(2, 4, 5, 5)).astype("float32")
    found = find(search, Task(table, noise=noise))
    again = find(search, Task(log_softmax(table).astype("float32"), noise=noise))
    np.testing.assert_array_equal(again.tokens, found.tokens)
    np.testing.assert_allclose(again.totals, found.totals, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_back_pointers_are_followed_to_the_first_step(steps, rng):
    parents = rng.integers(0, 6, size=(steps, 6)).astype("int32")
    rows = np.array([[0, 2], [5, 3]], "int32")
    for stop in {1, steps - 1, steps} - {0}:
        traced = trace_back(ops.array(parents), ops.array(rows), stop)
        before, after = map(ops.convert_to_numpy, traced)
        for place in np.ndindex(2, 2):
            row = rows[place]
            for t in reversed(range(steps)):
                assert after[t][place] == 6 * t + row
                row = parents[t, row] if t < stop else row  # no step was made after `stop`
                assert before[t][place] == 6 * t + row


def test_stops_when_all_have_ended():
    if keras.config.backend() == "jax":
        pytest.skip("JAX traces the step once, so calls cannot be counted.")
    calls = []

    def step(tokens, state):
        calls.append(1)
        return ops.tile([[0.0, 0.0, 0.0, 9.0]], (ops.shape(tokens)[0], 1)), state, tokens[:, None]

    start = ops.full((3,), BOS, dtype="int32")
    BeamSearch(2)(step, (), start, max_length=50, memory_length=1)
    # "3" and "v 3" fill the beam.
    assert len(calls) == 2


LOGITS, WEIGHTS = np.zeros((2, 5), "float32"), np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((LOGITS, ()), r"return \(logits, state, weights\).*ops.zeros.*Received: tuple of 2"),
        (LOGITS, r"return \(logits, state, weights\).*Received: "),
        ((LOGITS, (), None), "logits .* and weights .*Received: shapes .* and None"),
        ((LOGITS[None], (), WEIGHTS), r"Received: shapes \(1, 2, 5\) and \(2, 3\)"),
    ],
    ids=["two values", "logits", "no weights", "rank"],
)
@pytest.mark.parametrize("memory_length", [None, 3])
def test_a_step_that_returns_something_else_is_told_what_is_meant(found, message, memory_length):
    start = ops.full((2,), BOS, dtype="int32")
    arguments = {"max_length": 4, "memory_length": memory_length}
    with pytest.raises(ValueError, match=f"Argument `step` must .*{message}"):
        GreedySearch()(lambda tokens, state: found, (), start, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, state, weights: (logits[:1], state, weights), r"rows as tokens, 2\. Rec"),
        (lambda logits, state, weights: (logits, state, weights[:1]), r"rows as tokens, 2\. Rec"),
        (lambda logits, state, weights: (logits, (state,), weights), "the state in the structure"),
        (lambda logits, state, weights: (logits, None, weights), "structure.* Received: None"),
        (
            lambda logits, state, weights: (logits, state[:, :1], weights),
            r"Received: float32 \(2, ",
        ),
        (lambda logits, state, weights: (logits, ops.cast(state, "int32"), weights), "int32"),
    ],
)
def test_a_step_keeps_rows_and_state(change, message):
    start, state = ops.full((2,), BOS, dtype="int32"), ops.zeros((2, 4))
    with pytest.raises(ValueError, match=f"Argument `step` must return .*{message}"):
        GreedySearch()(
            lambda tokens, state: change(LOGITS, state, WEIGHTS), state, start, max_length=4
        )


@pytest.mark.parametrize(
    ("search", "asked", "message"),
    [
        (BeamSearch(2), {"start": [[2], [2]]}, r"`start` must be ints of shape \(batch,\)"),
        (BeamSearch(2), {"start": [2.0, 2.0]}, r"`start` must be ints .*float32 \(2,\)"),
        (BeamSearch(2), {"state": np.zeros((3, 4), "float32")}, "`state` must .* 2 rows"),
        (BeamSearch(2), {"state": None}, "`state` must hold tensors of 2 rows.*None"),
        (BeamSearch(2), {"memory_length": 5}, r"`step` must .* `memory_length`, 5\. .*\(4, 3\)"),
        (BeamSearch(2), {"memory_mask": np.ones((2, 3))}, "`memory_mask` must be bool"),
        (BeamSearch(2), {"memory_mask": [[True] * 3] * 2}, r"`memory_mask` must .*\[\[True"),
        (BeamSearch(2), {"memory_mask": np.ones((1, 3), bool)}, r"bool of shape \(2, memory le"),
        (BeamSearch(2), {"prefix": np.array([[4]])}, r"`prefix` must be ints of shape \(2, None\)"),
        (BeamSearch(2), {"prefix": np.array([4, 4])}, r"`prefix` must be .*int64 \(2,\)"),
        (BeamSearch(2), {"limits": np.array([3])}, r"`limits` must be ints of shape \(2,\)"),
        (BeamSearch(2), {"limits": np.array([3.0, 3.0])}, r"`limits` must be ints .*float"),
        (Sampling(3), {"noise": np.zeros((2, 2, 4), "float32")}, r"`noise` must be .* \(2, 3, 4\)"),
        (BeamSearch(2, forbidden=(0, 5)), {}, r"`search` must forbid ids in \[0, 5\).* 5"),
        (Sampling(1, forbidden=(0, 5)), {}, r"`search` must forbid ids in \[0, 5\).* 5"),
    ],
)
def test_what_comes_with_a_step_has_its_shape(search, asked, message):
    def step(tokens, state):
        rows = ops.shape(tokens)[0]
        return ops.zeros((rows, 5)), state, ops.zeros((rows, 3))

    arguments = {"state": (), "start": [BOS, BOS], "max_length": 4, **asked}
    with pytest.raises(ValueError, match=message):
        search(step, **arguments)


@pytest.mark.parametrize("search", [BeamSearch(3), GreedySearch(forbidden=(0,)), Sampling(2)])
def test_a_search_may_be_replaced_by_one_of_other_settings(search):
    other = dataclasses.replace(search, min_length=3)
    assert other == type(search)(**{**search.get_config(), "min_length": 3})
    assert dataclasses.replace(other, min_length=0) == search != other


def test_searches_of_others_are_known_by_their_name():
    class Patient(BeamSearch):
        pass

    known = known_searches()
    assert known["Patient"] is Patient
    assert [known[kind.__name__] for kind in (BeamSearch, GreedySearch, Sampling)] == [
        BeamSearch, GreedySearch, Sampling,
    ]  # fmt: skip


@pytest.mark.parametrize("length", [0, -1, 2.0, True])
def test_the_longest_length_is_a_positive_int(length):
    with pytest.raises(ValueError, match="`max_length` must be"):
        GreedySearch()(len, (), ops.full((2,), BOS, dtype="int32"), max_length=length)


def calls_of(search, vocabulary):
    """How many functions are called to find three tokens, once everything is imported."""
    logits = np.random.default_rng(0).normal(size=(1, vocabulary)).astype("float32")
    logits[:, EOS] = -50.0
    logits = ops.convert_to_tensor(logits)

    def step(tokens, state):
        repeated = ops.repeat(logits, tokens.shape[0], axis=0)
        return repeated, state, ops.zeros((tokens.shape[0], 1))

    def run():
        start = ops.full((1,), BOS, dtype="int32")
        return search(step, (), start, max_length=3, memory_length=1)

    run()
    counted = Counter()
    sys.setprofile(lambda frame, event, argument: counted.update([event]))
    try:
        run()
    finally:
        sys.setprofile(None)
    return counted["call"]


@pytest.mark.skipif(keras.config.backend() != "torch", reason="The others trace a search once.")
@pytest.mark.parametrize(
    "search",
    [
        GreedySearch(min_length=2, no_repeat_ngram=2),
        BeamSearch(3),
        BeamSearch(4, groups=2, diversity=0.5, coverage_penalty=0.2, forbidden=(PAD, BOS, 7)),
        Sampling(top_k=5, top_p=0.9),
    ],
    ids=["greedy", "beam", "groups", "sampling"],
)
def test_the_python_of_a_step_does_not_grow_with_the_vocabulary(search):
    # But for the ranking, which goes over so many tokens at a time.
    assert calls_of(search, 4096) < 1.1 * calls_of(search, 512)


@pytest.mark.parametrize("size", [0, -1, 2.0, "3", None])
def test_refuses_a_beam_of_no_size(size):
    with pytest.raises(ValueError, match="`size` must be an int of at least 1"):
        BeamSearch(size)


BAD_ARGUMENTS = [
    {"n_best": 6},
    {"n_best": 0},
    {"length_penalty": -0.1},
    {"coverage_penalty": -1},
    {"diversity": "much"},
    {"groups": 0},
    {"groups": 2},
    {"groups": 6},
    {"normalization": "none"},
    {"min_length": -1},
    {"no_repeat_ngram": 1.5},
    {"forbidden": (3, -1)},
    {"forbidden": 5},
    {"forbidden": None},
    {"length_penalty": float("inf")},
    {"max_length_ratio": 0},
    {"max_length_ratio": True},
]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=str)
def test_refuses_numbers_out_of_their_range(arguments):
    with pytest.raises(ValueError, match=f"Argument `{next(iter(arguments))}` must .*Received: "):
        BeamSearch(**arguments)


SEARCHES = [
    GreedySearch(),
    GreedySearch(min_length=2, forbidden=[0, 1], max_length_ratio=1.5),
    BeamSearch(),
    BeamSearch(4, 0.6, 0.2, 3, True, "plain", 2, 0.5, forbidden=(0,), no_repeat_ngram=3),
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_config_round_trip(search):
    config = keras.saving.serialize_keras_object(search)
    again = keras.saving.deserialize_keras_object(config)
    assert again == search and type(again) is type(search) and hash(again) == hash(search)


def test_searches_are_told_apart():
    assert len({GreedySearch(), BeamSearch(1, 0.0), BeamSearch(1), BeamSearch(2)}) == 4


@pytest.mark.skipif(keras.config.backend() != "torch", reason="The others trace a search once.")
def test_a_search_stops_when_nothing_better_can_come():
    steps = []

    def step(tokens, state):  # ends at once, or never
        steps.append(1)
        first = ops.expand_dims(tokens == BOS, 1)
        logits = ops.where(first, [0.0, 0, 0, 9, 0, 0], [0.0, 0, 0, -50, 0, 9])
        return logits, state, ops.zeros((tokens.shape[0], 1))

    start = ops.full((2,), BOS, dtype="int32")
    found = BeamSearch(3, n_best=1)(step, (), start, max_length=50, memory_length=1)
    assert ops.convert_to_numpy(found.tokens)[:, 0, 0].tolist() == [EOS, EOS] and len(steps) < 5


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # JAX has no float64
@pytest.mark.parametrize("floatx", ["float16", "float64"])
@pytest.mark.parametrize(
    "search",
    [BeamSearch(2, coverage_penalty=0.1), GreedySearch(), Sampling(2, seed=1), Sampling(2)],
)
def test_scores_are_float32_whatever_keras_takes_for_a_float(search, floatx):
    def step(tokens, state):
        rows = ops.shape(tokens)[0]
        return ops.ones((rows, 8), "float32"), state, ops.ones((rows, 2), "float32")

    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        found = search(step, (), ops.full((2,), BOS, dtype="int32"), max_length=3, memory_length=2)
    finally:
        keras.config.set_floatx(before)
    for part in (found.scores, found.totals):
        assert keras.backend.standardize_dtype(part.dtype) == "float32"
