import dataclasses
import sys
from collections import Counter

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from keras import ops
from search_tasks import (
    FEW,
    Sentence,
    Task,
    check,
    check_beam,
    completion_task,
    constrained_task,
    coverage_task,
    find,
    log_softmax,
    outputs_of,
    random_tables,
)

from keras_bahdanau import BeamSearch, GreedySearch, Sampling
from keras_bahdanau.search.base import search_classes
from keras_bahdanau.search.candidates import stable_top_k
from keras_bahdanau.search.history import trace_back
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

SEEDS = st.integers(0, 2**32 - 1)


def check_exhaustive(search, task):
    """Check that a beam as wide as the space returns all allowed outputs, best first."""
    result = find(search, task)
    check(result, task, search)
    for b in range(len(result.scores)):
        sentence, outputs = Sentence(search, task, b), outputs_of(result, b)
        allowed = sentence.every_output()
        assert len(outputs) == len(allowed) and set(outputs) == set(allowed)
        ranked = sorted(map(sentence.score, allowed), reverse=True)
        np.testing.assert_allclose(result.scores[b, : len(allowed)], ranked, rtol=1e-4, atol=1e-4)
    return result


# --- Against enumeration --------------------------------------------------------------------------

BY_SCORE = pytest.mark.parametrize(
    "exponent, normalization", [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "plain")]
)


@pytest.mark.parametrize("vocabulary, steps", [(4, 4), (5, 3)])
@BY_SCORE
@FEW
@given(data=st.data())
def test_a_beam_as_wide_as_the_space_finds_all_outputs(
    vocabulary, steps, exponent, normalization, data
):
    table = data.draw(random_tables(1, vocabulary, steps))
    size = sum((vocabulary - 1) ** t for t in range(steps + 1))
    check_exhaustive(BeamSearch(size, exponent, normalization=normalization), table)


@BY_SCORE
@FEW
@given(seed=SEEDS, masked=st.booleans())
def test_the_coverage_penalty_ignores_padding(exponent, normalization, seed, masked):
    task = coverage_task(seed)
    task = task if masked else task._replace(memory_mask=None)
    search = BeamSearch(85, exponent, coverage_penalty=0.3, normalization=normalization)
    check_exhaustive(search, task)


CONSTRAINTS = {
    "min_length": {"min_length": 3},
    "forbidden": {"forbidden": (PAD, 2)},
    "unigrams": {"no_repeat_ngram": 1},
    "bigrams": {"no_repeat_ngram": 2},
    "trigrams": {"no_repeat_ngram": 3},
    "ratio": {"max_length_ratio": 0.9},
    "repetition": {"repetition_penalty": 1.5},
    "all": {
        "min_length": 2,
        "forbidden": (1,),
        "no_repeat_ngram": 2,
        "repetition_penalty": 1.3,
        "max_length_ratio": 1.2,
    },
}


@pytest.mark.parametrize("arguments", [{}, *CONSTRAINTS.values()], ids=["none", *CONSTRAINTS])
@FEW
@given(seed=SEEDS)
def test_exactly_the_allowed_outputs_are_found(arguments, seed):
    task = constrained_task(seed)
    without_inputs = task._replace(prefix=None, limits=None)
    check_exhaustive(BeamSearch(121, 0.6, **arguments), without_inputs)
    check_exhaustive(BeamSearch(121, 0.6, **arguments), task)


@pytest.mark.parametrize("suppressed", [[[1, PAD]], [[1, 2], [EOS, PAD]]], ids=str)
@FEW
@given(seed=SEEDS)
def test_suppressed_tokens_are_only_in_prefixes(suppressed, seed):
    suppressed = np.array(suppressed, "int32")
    task = constrained_task(seed)._replace(suppressed=suppressed)
    for search in (BeamSearch(121, 0.6), BeamSearch(121, 0.6, repetition_penalty=1.3)):
        check_exhaustive(search, task)
        check_exhaustive(search, task._replace(prefix=None))


@pytest.mark.parametrize("arguments", [{}, *CONSTRAINTS.values()], ids=["none", *CONSTRAINTS])
@FEW
@given(seed=SEEDS)
def test_a_prefix_may_end_with_its_completions(arguments, seed):
    task = completion_task(seed)
    check_exhaustive(BeamSearch(625, 0.6, **arguments), task)
    suppressed = np.array([[4, PAD], [1, 5]], "int32")
    check_exhaustive(BeamSearch(625, 0.6, **arguments), task._replace(suppressed=suppressed))
    for search in (BeamSearch(3, 0.6, **arguments), GreedySearch(**arguments)):
        check_beam(search, task)


def test_completions_of_one_row_apply_to_all():
    task = completion_task(0)._replace(limits=None)
    prefix, completions = np.array([[4, 4, 5]] * 2), np.array([[0, 1, 0, 0, 3, 0]])
    both = find(
        BeamSearch(3), task._replace(prefix=prefix, completion_table=np.repeat(completions, 2, 0))
    )
    one = find(BeamSearch(3), task._replace(prefix=prefix, completion_table=completions))
    np.testing.assert_array_equal(one.tokens, both.tokens)
    assert {1, 4} >= {tokens[0] for b in range(2) for tokens in outputs_of(one, b)}


# --- Against a beam in plain Python that never stops early ----------------------------------------

BEAMS = [
    (2, 0.0, {}),
    (3, 0.6, {}),
    (5, 1.0, {}),
    (7, 1.0, {}),
    (4, 0.0, {"n_best": 1}),
    (4, 0.6, {"n_best": 1}),
    (4, 0.6, {"n_best": 2}),
    (4, 1.0, {"n_best": 2, "normalization": "plain"}),
    (3, 1.0, {"early_stopping": False}),
    (4, 0.6, {"early_stopping": False, "n_best": 2}),
    (3, 1.0, {"early_stopping": "never"}),
    (3, 0.6, {"early_stopping": "never", "n_best": 1}),
    (6, 0.6, {"early_stopping": "never", "groups": 3, "diversity": 0.5, "n_best": 2}),
    (6, 0.6, {"groups": 2, "diversity": 0.7}),
    (6, 0.6, {"groups": 2, "diversity": 0.7, "n_best": 1}),
    (6, 0.6, {"groups": 3, "diversity": 2.0, "n_best": 2}),
    (6, 0.6, {"groups": 3}),
    (4, 0.6, {"early_stopping": "best", "n_best": 1}),
    (4, 1.0, {"early_stopping": "best", "n_best": 2, "length_offset": 1}),
    (6, 0.6, {"early_stopping": "best", "groups": 3, "diversity": 0.5, "n_best": 1}),
    (2, 0.6, {"groups": 1, "diversity": 5.0}),
]


@pytest.mark.parametrize("size, exponent, options", BEAMS, ids=str)
@FEW
@given(table=random_tables(batch=3, steps=5), lift=st.sampled_from([0.0, 2.0, 4.0]))
def test_a_beam_that_stops_early_finds_what_a_full_beam_does(size, exponent, options, table, lift):
    table[..., EOS] += lift
    task = Task(table, limits=np.array([5, 3, 4], "int32"))
    check_beam(BeamSearch(size, exponent, **options), task)


@FEW
@given(seed=SEEDS)
def test_a_beam_with_coverage_stops_early_without_changing_its_result(seed):
    task = coverage_task(seed, batch=2, steps=4)
    check_beam(BeamSearch(4, 0.6, coverage_penalty=0.2, n_best=1), task)


@pytest.mark.parametrize("arguments", CONSTRAINTS.values(), ids=CONSTRAINTS)
@FEW
@given(seed=SEEDS)
def test_a_narrow_beam_satisfies_the_constraints(arguments, seed):
    check_beam(BeamSearch(3, 1.0, **arguments), constrained_task(seed))


@pytest.mark.parametrize("size, exponent", [(1, 0.6), (3, 0.0), (3, 0.6), (9, 0.6)])
@FEW
@given(seed=SEEDS)
def test_the_first_of_equal_hypotheses_is_taken(size, exponent, seed):
    # Each step allows equally many tokens, so all outputs of a length have the same score.
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, size=(2, 4, 1, 1))
    order = rng.permuted(np.broadcast_to(np.arange(5), (2, 4, 5, 5)), axis=-1)
    table = np.where(order < counts, 0.0, -np.inf).astype("float32")
    check_beam(BeamSearch(size, exponent), table)


@settings(max_examples=50)
@given(seed=SEEDS, levels=st.integers(1, 9), k=st.integers(1, 12))
def test_ranking_with_ties_is_a_stable_sort(seed, levels, k):
    """Many of thousands of bfloat16 logits are equal."""
    chances = np.append(np.linspace(-1, 1, levels), -np.inf)
    values = np.random.default_rng(seed).choice(chances, size=(2, 3, 12)).astype("float32")
    best, places = map(ops.convert_to_numpy, stable_top_k(ops.convert_to_tensor(values), k))
    expected = np.argsort(-values, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(best, np.take_along_axis(values, expected, axis=-1))
    finite = best > -np.inf  # the order of the others is open
    np.testing.assert_array_equal(places[finite], expected[finite])


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_live_hypotheses_do_not_displace_a_better_ended_one(exponent):
    """After "b" and "b d" all hypotheses are likelier than "a END", and all end with less."""
    a, b, d, e, f, *rest = range(4, 13)
    probabilities = np.full((1, 5, 13, 13), 1e-9)
    probabilities[0, 0, BOS, [a, b]] = 0.3, 0.7
    probabilities[0, 1, a, [EOS, b]] = 0.9, 0.1
    probabilities[0, 1, b, d] = 1.0
    probabilities[0, 2, b, EOS] = 1.0
    probabilities[0, 2, d, [e, f]] = 0.5
    probabilities[0, 3, e, rest] = probabilities[0, 3, f, rest] = 0.25
    probabilities[0, 4, rest, EOS] = 1.0
    result = find(BeamSearch(2, exponent, n_best=1), np.log(probabilities).astype("float32"))
    assert outputs_of(result) == [(a, EOS)]
    np.testing.assert_allclose(np.exp(result.totals), [[0.3 * 0.9]], rtol=1e-5)


def late_winner():
    """Logits where "3" ends first with 0.4, and "4 4 4 4" keeps most of the rest at each step."""
    probabilities = np.full((1, 4, 5, 5), 1e-9)
    probabilities[0, 0, BOS, [EOS, 4]] = 0.4, 0.6
    probabilities[0, 1:, 4, [1, 4]] = np.array([0.2, 0.8])[:, None]
    return np.log(probabilities).astype("float32")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"n_best": 1}, [(4, 4, 4, 4)]),
        ({"n_best": 1, "early_stopping": False}, [(4, 4, 4, 4)]),
        ({"n_best": 1, "early_stopping": True}, [(EOS,)]),
        ({"early_stopping": True}, [(4, 4, 4, 4), (EOS,)]),
        ({"early_stopping": "never", "n_best": 1}, [(4, 4, 4, 4)]),
        # "3" is never the best candidate, so the search does not stop before the last step.
        ({"early_stopping": "best", "n_best": 1}, [(4, 4, 4, 4)]),
    ],
    ids=str,
)
def test_early_stopping_stops_when_n_best_hypotheses_have_ended(options, expected):
    assert outputs_of(find(BeamSearch(2, 1.0, **options), late_winner())) == expected


@pytest.mark.parametrize(
    ("early_stopping", "expected"), [("leading", (4, 4, 4, EOS)), (False, (EOS,))]
)
def test_outputs_that_are_cut_short_do_not_end_the_search_of_a_better_one(early_stopping, expected):
    """Each step, an end of probability 0.1 fills the beam of two; the right output has 0.9^3."""
    probabilities = np.full((1, 4, 5, 5), 1e-9)
    probabilities[0, 0, BOS, [4, EOS]] = 0.9, 0.1
    probabilities[0, 1:3, 4, [4, EOS]] = np.array([0.9, 0.1])[:, None]
    probabilities[0, 3, 4, [4, EOS]] = 1e-9, 1.0
    task = Task(np.log(probabilities).astype("float32"))
    result = find(BeamSearch(2, 0.0, early_stopping=early_stopping), task)
    assert outputs_of(result)[0] == expected


@pytest.mark.parametrize(("offset", "expected"), [(0, [(6, 4, EOS)]), (1, [(5, EOS)])], ids=str)
def test_the_length_offset_counts_in_the_length_penalty(offset, expected):
    """exp(-1) for "5 END", exp(-1.4) for "6 4 END": -1/2 < -1.4/3, but -1/3 > -1.4/4."""
    probabilities = np.full((1, 3, 7, 7), 1e-9)
    probabilities[0, 0, BOS, [5, 6]] = np.exp([-1.0, -1.4])
    probabilities[0, 0, BOS, 1] = 1 - np.exp([-1.0, -1.4]).sum()
    probabilities[0, 1, [5, 6], [EOS, 4]] = probabilities[0, 2, 4, EOS] = 1.0
    search = BeamSearch(3, 1.0, normalization="plain", n_best=1, length_offset=offset)
    result = find(search, Task(np.log(probabilities).astype("float32")))
    assert outputs_of(result) == expected


def test_a_search_that_stops_at_the_best_candidate_ignores_a_later_better_output():
    """ "5 END" is the best candidate of step 2; "6 6 END" has the better score per token."""
    probabilities = np.full((1, 3, 7, 7), 1e-9)
    probabilities[0, 0, BOS, [5, 6]] = 0.6, 0.4
    probabilities[0, 1, 5, EOS] = probabilities[0, 1, 6, 6] = probabilities[0, 2, 6, EOS] = 1.0
    task = Task(np.log(probabilities).astype("float32"))
    search = BeamSearch(2, 2.0, normalization="plain", n_best=1)
    assert outputs_of(find(search, task)) == [(6, 6, EOS)]  # log(0.4) / 9 > log(0.6) / 4
    search = dataclasses.replace(search, early_stopping="best")
    assert outputs_of(find(search, task)) == [(5, EOS)]


@pytest.mark.parametrize("n_best", [1, 2, 3])
@FEW
@given(table=random_tables(batch=2))
def test_early_stopping_returns_n_best_distinct_hypotheses(n_best, table):
    search = BeamSearch(3, 0.6, n_best=n_best, early_stopping=True)
    result = find(search, table)
    check(result, table, search)
    for b in range(2):
        assert len(set(outputs_of(result, b))) == n_best


# --- Greedy search and batches --------------------------------------------------------------------


@pytest.mark.parametrize("normalization", ["gnmt", "plain"])
@FEW
@given(table=random_tables(batch=2))
def test_a_beam_of_one_is_greedy(normalization, table):
    greedy = find(GreedySearch(), table)
    for exponent in (0.0, 0.6, 1.0):
        beam = check_beam(BeamSearch(1, exponent, normalization=normalization), table)
        np.testing.assert_array_equal(beam.tokens, greedy.tokens)
        np.testing.assert_array_equal(beam.alignments, greedy.alignments)


@FEW
@given(seed=SEEDS)
@example(seed=96)  # by default, the search would continue to an output with a better score
def test_a_beam_of_one_is_greedy_under_coverage(seed):
    task = coverage_task(seed, batch=2)
    beam = find(BeamSearch(1, 0.6, coverage_penalty=0.5, early_stopping=True), task)
    np.testing.assert_array_equal(beam.tokens, find(GreedySearch(), task).tokens)


@FEW
@given(
    table=random_tables(batch=3),
    short=st.integers(0, 2),
    long=st.integers(0, 2),
    order=st.permutations(range(3)),
)
def test_a_result_does_not_depend_on_the_batch(table, short, long, order):
    table[long, ..., EOS] -= 20.0
    table[short, ..., EOS] += 40.0
    search, limits = BeamSearch(3, 0.6, n_best=2), np.array([4, 2, 3], "int32")
    together = find(search, Task(table, limits=limits))
    shuffled = find(search, Task(table, limits=limits).rows(order))
    np.testing.assert_array_equal(together.tokens[order], shuffled.tokens)
    # The rounding of vectorized kernels depends on the position of a row.
    np.testing.assert_allclose(together.scores[order], shuffled.scores, rtol=1e-5, atol=1e-5)
    for b in range(3):
        alone = find(search, Task(table, limits=limits).rows([b]))
        np.testing.assert_array_equal(together.tokens[b], alone.tokens[0])
        np.testing.assert_array_equal(together.lengths[b], alone.lengths[0])
        np.testing.assert_allclose(together.scores[b], alone.scores[0], rtol=1e-5, atol=1e-5)
        # The second column is the number of the row.
        np.testing.assert_array_equal(
            together.alignments[b][..., [0, 2]], alone.alignments[0][..., [0, 2]]
        )


# --- Edge cases -----------------------------------------------------------------------------------


@FEW
@given(table=random_tables(vocabulary=4, steps=3), seed=SEEDS)
def test_an_impossible_token_is_never_taken(table, seed):
    impossible = np.random.default_rng(seed).random(table.shape) < 0.5
    impossible[..., 1] = False  # at least one token must be possible
    table = np.where(impossible, -np.inf, table).astype("float32")
    check_exhaustive(BeamSearch(50, 1.0), table)


def test_hypotheses_that_do_not_exist_have_score_minus_infinity(rng):
    table = rng.normal(size=(2, 2, 4, 4)).astype("float32")
    result = check_exhaustive(BeamSearch(30, 1.0, forbidden=()), table)
    # 1 + 3 * 4 outputs of at most two tokens exist.
    assert ((result.scores > -np.inf).sum(axis=1) == 13).all()
    assert (result.scores[:, 13:] == -np.inf).all()
    assert not result.lengths[:, 13:].any() and not result.tokens[:, 13:].any()


def test_a_search_without_allowed_outputs_returns_minus_infinity(rng):
    table = rng.normal(size=(1, 4, 4, 4)).astype("float32")
    # Only token 2 is allowed, and only once.
    arguments = {"forbidden": (PAD, 1, EOS), "no_repeat_ngram": 1}
    for search in (GreedySearch(**arguments), BeamSearch(3, **arguments)):
        result = find(search, table)
        assert (result.scores == -np.inf).all() and (result.totals == -np.inf).all()
        assert not np.isnan(result.log_probs).any()


def test_an_ended_hypothesis_keeps_its_score():
    result = find(BeamSearch(2, 0.0), late_winner())
    assert outputs_of(result) == [(EOS,), (4, 4, 4, 4)]
    np.testing.assert_allclose(np.exp(result.scores[0]), [0.4, 0.6 * 0.8**3], rtol=1e-4)
    assert result.tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD]
    # A length penalty puts the longer one first: log 0.307 / (9 / 6) > log 0.4.
    result = find(BeamSearch(2, 1.0), late_winner())
    assert outputs_of(result) == [(4, 4, 4, 4), (EOS,)]
    expected = [np.log(0.6 * 0.8**3) / 1.5, np.log(0.4)]
    np.testing.assert_allclose(result.scores[0], expected, rtol=1e-4)


NOISE = np.random.default_rng(5).random((2, 2, 4), dtype="float32")


@pytest.mark.parametrize(
    ("search", "noise"), [(BeamSearch(3), None), (Sampling(2), NOISE)], ids=["beam", "sampling"]
)
def test_a_step_may_return_log_probabilities_instead_of_logits(search, noise, rng):
    table = 2 * rng.normal(size=(2, 4, 5, 5)).astype("float32")
    by_logits = find(search, Task(table, noise=noise))
    by_log_probs = find(search, Task(log_softmax(table).astype("float32"), noise=noise))
    np.testing.assert_array_equal(by_log_probs.tokens, by_logits.tokens)
    np.testing.assert_allclose(by_log_probs.totals, by_logits.totals, rtol=1e-5)


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


@pytest.mark.skipif(keras.config.backend() == "jax", reason="JAX traces a step once")
def test_a_search_stops_when_all_hypotheses_have_ended():
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
    ("outputs", "message"),
    [
        ((LOGITS, ()), r"return \(logits, state, weights\).*ops.zeros.*Received: tuple of 2"),
        (LOGITS, r"return \(logits, state, weights\).*Received: "),
        ((LOGITS, (), None), "logits .* and weights .*Received: shapes .* and None"),
        ((LOGITS[None], (), WEIGHTS), r"Received: shapes \(1, 2, 5\) and \(2, 3\)"),
    ],
    ids=["two values", "logits", "no weights", "rank"],
)
@pytest.mark.parametrize("memory_length", [None, 3])
def test_a_step_with_other_outputs_is_refused(outputs, message, memory_length):
    start = ops.full((2,), BOS, dtype="int32")
    arguments = {"max_length": 4, "memory_length": memory_length}
    with pytest.raises(ValueError, match=f"Argument `step` must .*{message}"):
        GreedySearch()(lambda tokens, state: outputs, (), start, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, state, weights: (logits[:1], state, weights), r"with 2 rows, .*Rec"),
        (lambda logits, state, weights: (logits, state, weights[:1]), r"with 2 rows, .*Rec"),
        (
            lambda logits, state, weights: (logits, (state,), weights),
            "state with the structure",
        ),
        (lambda logits, state, weights: (logits, None, weights), "structure.* Received: None"),
        (lambda logits, state, weights: (logits, state[:, :1], weights), r"Rec.*: float32 \(2, "),
        (lambda logits, state, weights: (logits, ops.cast(state, "int32"), weights), "int32"),
    ],
)
def test_a_step_that_changes_rows_or_state_is_refused(change, message):
    start, state = ops.full((2,), BOS, dtype="int32"), ops.zeros((2, 4))

    def step(tokens, state):
        return change(LOGITS, state, WEIGHTS)

    with pytest.raises(ValueError, match=f"Argument `step` must return .*{message}"):
        GreedySearch()(step, state, start, max_length=4)


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (BeamSearch(2), {"start": [[2], [2]]}, r"`start` must be ints of shape \(batch,\)"),
        (BeamSearch(2), {"start": [2.0, 2.0]}, r"`start` must be ints .*float32 of shape \(2,\)"),
        (BeamSearch(2), {"state": np.zeros((3, 4), "float32")}, "`state` must .* 2 rows"),
        (BeamSearch(2), {"state": None}, "`state` must contain tensors of 2 rows.*None"),
        (BeamSearch(2), {"memory_length": 5}, r"`step` must .* `memory_length`, 5\. .*\(4, 3\)"),
        (BeamSearch(2), {"memory_mask": np.ones((2, 3))}, "`memory_mask` must be bool"),
        (BeamSearch(2), {"memory_mask": [[True] * 3] * 2}, r"`memory_mask` must .*\[\[True"),
        (BeamSearch(2), {"memory_mask": np.ones((1, 3), bool)}, r"bool of shape \(2, memory le"),
        (
            BeamSearch(2),
            {"prefix": np.array([[4]] * 3)},
            r"`prefix` must .* \(2, positions\).* axis `batch` is 3$",
        ),
        (BeamSearch(2), {"prefix": np.array([4, 4])}, r"`prefix` must be .*int64 of shape \(2,\)"),
        (
            BeamSearch(2),
            {"completion_table": np.array([[0, 4]])},
            "`completion_table` must be used with a",
        ),
        (
            BeamSearch(2),
            {"prefix": np.array([[4]] * 2), "completion_table": np.array([0, 4] * 2)},
            r"`completion_table` must be ints of shape \(2, vocabulary\)",
        ),
        (
            BeamSearch(2),
            {"suppressed": np.array([4])},
            r"`suppressed` must .* \(2, tokens\)\. .*64",
        ),
        (
            BeamSearch(2),
            {"suppressed": np.array([[4]] * 3)},
            r"`suppressed` .*int64 of shape \(3, 1\)",
        ),
        (BeamSearch(2), {"suppressed": np.array([[4.0]])}, r"`suppressed` must be ints .*float64"),
        (BeamSearch(2), {"limits": np.array([3])}, r"`limits` must be ints of shape \(2,\)"),
        (BeamSearch(2), {"limits": np.array([3.0, 3.0])}, r"`limits` must be ints .*float"),
        (Sampling(3), {"noise": np.zeros((2, 2, 4), "float32")}, r"`noise` must be \(2, 3, 4\)"),
        (BeamSearch(2, forbidden=(0, 5)), {}, r"`search` must forbid ids in \[0, 5\).* 5"),
        (Sampling(1, forbidden=(0, 5)), {}, r"`search` must forbid ids in \[0, 5\).* 5"),
    ],
)
def test_search_arguments_of_another_shape_or_dtype_are_refused(search, options, message):
    def step(tokens, state):
        rows = ops.shape(tokens)[0]
        return ops.zeros((rows, 5)), state, ops.zeros((rows, 3))

    arguments = {"state": (), "start": [BOS, BOS], "max_length": 4, **options}
    with pytest.raises(ValueError, match=message):
        search(step, **arguments)


@pytest.mark.parametrize("search", [BeamSearch(3), GreedySearch(forbidden=(0,)), Sampling(2)])
def test_dataclasses_replace_changes_an_option_of_a_search(search):
    other = dataclasses.replace(search, min_length=3)
    assert other == type(search)(**{**search.get_config(), "min_length": 3})
    assert dataclasses.replace(other, min_length=0) == search != other


def test_known_searches_include_subclasses_by_name():
    class CustomSearch(BeamSearch):
        pass

    searches = search_classes()
    for search in (CustomSearch, BeamSearch, GreedySearch, Sampling):
        assert searches[search.__name__] is search


@pytest.mark.parametrize("length", [0, -1, 2.0, True])
def test_max_length_must_be_a_positive_int(length):
    with pytest.raises(ValueError, match="`max_length` must be"):
        GreedySearch()(len, (), ops.full((2,), BOS, dtype="int32"), max_length=length)


def count_calls(search, vocabulary):
    """Count the Python calls of a search for three tokens, after a first search for imports."""
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
    events = Counter()
    sys.setprofile(lambda frame, event, argument: events.update([event]))
    try:
        run()
    finally:
        sys.setprofile(None)
    return events["call"]


on_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="others trace a step once")


@on_torch
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
def test_the_number_of_python_calls_does_not_grow_with_the_vocabulary(search):
    # Only the ranking makes a few more calls, because it ranks a fixed number of tokens at a time.
    assert count_calls(search, 4096) < 1.1 * count_calls(search, 512)


@pytest.mark.parametrize("size", [0, -1, 2.0, "3", None])
def test_a_beam_size_must_be_a_positive_int(size):
    with pytest.raises(ValueError, match="`beam_size` must be an int of at least 1"):
        BeamSearch(size)


OUT_OF_RANGE = {
    "n_best": (6, 0),
    "length_penalty": (-0.1, float("inf")),
    "coverage_penalty": (-1,),
    "diversity": ("much",),
    "groups": (0, 2, 6),
    "normalization": ("none",),
    "early_stopping": ("always", 1, None),
    "length_offset": (-1, 0.5),
    "min_length": (-1,),
    "no_repeat_ngram": (1.5,),
    "repetition_penalty": (0.9, float("nan"), "much"),
    "forbidden": ((3, -1), 5, None),
    "max_length_ratio": (0, True),
}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"Argument `{name}` must .*Received: "):
        BeamSearch(**{name: value})


SEARCHES = [
    GreedySearch(),
    GreedySearch(min_length=2, forbidden=[0, 1], max_length_ratio=1.5),
    BeamSearch(),
    BeamSearch(4, 0.6, 0.2, 3, True, "plain", 2, 0.5, 1, forbidden=(0,), no_repeat_ngram=3),
    BeamSearch(repetition_penalty=1.3),
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_config_round_trip(search):
    config = keras.saving.serialize_keras_object(search)
    copy = keras.saving.deserialize_keras_object(config)
    assert copy == search and type(copy) is type(search) and hash(copy) == hash(search)


def test_searches_with_other_options_are_not_equal():
    assert len({GreedySearch(), BeamSearch(1, 0.0), BeamSearch(1), BeamSearch(2)}) == 4


@on_torch
def test_a_search_stops_when_no_better_hypothesis_is_possible():
    steps = []

    def step(tokens, state):  # a hypothesis ends with its first token or never
        steps.append(1)
        first = ops.expand_dims(tokens == BOS, 1)
        logits = ops.where(first, [0.0, 0, 0, 9, 0, 0], [0.0, 0, 0, -50, 0, 9])
        return logits, state, ops.zeros((tokens.shape[0], 1))

    start = ops.full((2,), BOS, dtype="int32")
    result = BeamSearch(3, n_best=1)(step, (), start, max_length=50, memory_length=1)
    assert ops.convert_to_numpy(result.tokens)[:, 0, 0].tolist() == [EOS, EOS] and len(steps) < 5


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # JAX has no float64
@pytest.mark.parametrize("floatx", ["float16", "float64"])
@pytest.mark.parametrize(
    "search",
    [BeamSearch(2, coverage_penalty=0.1), GreedySearch(), Sampling(2, seed=1), Sampling(2)],
)
def test_scores_are_float32_for_any_floatx(search, floatx):
    def step(tokens, state):
        rows = ops.shape(tokens)[0]
        return ops.ones((rows, 8), "float32"), state, ops.ones((rows, 2), "float32")

    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        result = search(step, (), ops.full((2,), BOS, dtype="int32"), max_length=3, memory_length=2)
    finally:
        keras.config.set_floatx(before)
    for tensor in (result.scores, result.totals):
        assert keras.backend.standardize_dtype(tensor.dtype) == "float32"


@pytest.mark.parametrize(
    "search, name, value",
    [(BeamSearch(2), "length_penalty", 6.0), (Sampling(2), "temperature", 1e-7)],
)
def test_a_saved_setting_outside_of_its_range_is_loaded_with_a_warning(search, name, value, caplog):
    loaded = type(search).from_config(search.get_config() | {name: value})
    assert getattr(loaded, name) == value
    assert f"`{name}`" in caplog.text
    with pytest.raises(ValueError, match=name):
        type(search)(2, **{name: value})


def test_a_config_of_a_former_version_with_size_is_loaded():
    config = BeamSearch(3, 0.5).get_config()
    config["size"] = config.pop("beam_size")
    assert BeamSearch.from_config(config) == BeamSearch(3, 0.5)
