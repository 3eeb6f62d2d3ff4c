"""Required phrases: every output contains them, and the beam keeps hypotheses at each stage."""

import numpy as np
import pytest
from hypothesis import given
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
    outputs_of,
    random_tables,
)

from keras_bahdanau import BeamSearch, GreedySearch, Sampling
from keras_bahdanau.search.required import (
    count_missing,
    extend,
    progress_of,
    rank_by_turns,
    rank_next_tokens_first,
)
from keras_bahdanau_runtime.ids import EOS, PAD

SEEDS = st.integers(0, 2**32 - 1)


def phrases(*rows):
    """The argument `required` `(B, P, L)` for lists of phrases, one for each sentence."""
    count, length = max(map(len, rows)), max(len(phrase) for row in rows for phrase in row)
    array = np.full((len(rows), count, length), PAD, "int32")
    for b, row in enumerate(rows):
        for p, phrase in enumerate(row):
            array[b, p, : len(phrase)] = phrase
    return array


def random_phrases(seed, rows, vocabulary, count=2, longest=2):
    """Phrases of ids without the special ones, which may overlap, repeat or be empty."""
    rng = np.random.default_rng(seed)
    ids = [token for token in range(1, vocabulary) if token not in (2, EOS)]
    return phrases(
        *(
            [rng.choice(ids, size=rng.integers(1, longest + 1)) for _ in range(count)]
            if rng.random() < 0.8
            else [[PAD]]
            for _ in range(rows)
        )
    )


PHRASES = {
    "one token": [[4]],
    "one phrase": [[4, 5]],
    "two": [[4, 5], [1]],
    "equal starts": [[4, 4, 5], [4, 5]],
    "overlap": [[4, 5], [5, 4]],
    "contained": [[4], [4, 5, 4]],
    "twice": [[5], [5]],
}


@pytest.mark.parametrize("required", PHRASES.values(), ids=PHRASES)
@pytest.mark.parametrize("exponent", [0.0, 0.6])
@FEW
@given(table=random_tables(1, 6, 4))
def test_a_beam_as_wide_as_the_space_finds_the_outputs_with_all_phrases(required, exponent, table):
    task = Task(table, required=phrases(required))
    search = BeamSearch(130, exponent)
    result = find(search, task)
    check(result, task, search)
    allowed = Sentence(search, task).every_output()
    assert set(outputs_of(result)) == set(allowed) and len(allowed) == len(outputs_of(result))


BEAMS = [
    (4, 0.0, {}),
    (6, 0.6, {}),
    (5, 1.0, {"n_best": 1}),
    (6, 0.6, {"early_stopping": "never", "n_best": 2}),
    (5, 0.6, {"min_length": 3}),
    (5, 0.6, {"no_repeat_ngram": 2}),
    (5, 0.6, {"repetition_penalty": 1.5}),
]


@pytest.mark.parametrize("size, exponent, options", BEAMS, ids=str)
@FEW
@given(table=random_tables(3, 7, 6), seed=SEEDS)
def test_a_beam_is_divided_as_in_plain_python(size, exponent, options, table, seed):
    task = Task(table, required=random_phrases(seed, 3, 7))
    search = BeamSearch(size, exponent, **options)
    check_beam(search, task)


@FEW
@given(seed=SEEDS)
def test_limits_prefixes_and_coverage_apply_too(seed):
    task = constrained_task(seed, vocabulary=6)
    search, required = BeamSearch(6, 0.6), phrases([[4], [5]], [[5]])
    check_beam(search, task._replace(required=required))
    check_beam(search, task._replace(required=required, suppressed=np.array([[4, 1]], "int32")))
    check_beam(
        BeamSearch(5, coverage_penalty=0.3),
        coverage_task(seed, 2)._replace(required=phrases([[4]])),
    )


@FEW
@given(seed=SEEDS, with_penalty=st.booleans())
def test_completions_of_a_prefix_apply_too(seed, with_penalty):
    options = {"repetition_penalty": 1.3, "no_repeat_ngram": 2} if with_penalty else {}
    task = completion_task(seed)._replace(required=phrases([[4, 5], [1]], [[5]]))
    check_beam(BeamSearch(5, 0.6, **options), task)
    search = BeamSearch(130, 0.6, **options)
    for b in range(2):
        outputs = outputs_of(find(search, task), b)
        assert set(outputs) == set(Sentence(search, task, b).every_output())


def test_tokens_of_a_prefix_need_not_fit():
    table = np.zeros((1, 4, 6, 6), "float32")
    prefix = np.array([[4, 4, 5]], "int32")
    task = Task(table, prefix=prefix, required=phrases([[4, 5], [5, 1], [4]]))  # 5 tokens in all
    result = check_beam(BeamSearch(4), task)
    assert outputs_of(result) == [(4, 4, 5, 1)]


@FEW
@given(table=random_tables(2, 6, 5))
def test_a_sentence_without_phrases_is_searched_as_usual(table):
    search = BeamSearch(4, 0.6)
    free, required = find(search, table), phrases([[PAD]], [[4, 5]])
    mixed = find(search, Task(table, required=required))
    for expected, received in zip(free, mixed, strict=True):
        np.testing.assert_allclose(received[0], expected[0], rtol=1e-6)


@FEW
@given(table=random_tables(2, 40, 8), seed=SEEDS)
def test_every_output_of_a_narrow_beam_contains_the_phrases(table, seed):
    rng = np.random.default_rng(seed)
    required = rng.integers(4, 40, size=(2, 4, 2)).astype("int32")  # 8 tokens, all 8 steps
    task = Task(table, required=required)
    for size in (2, 3, 8):
        result = find(BeamSearch(size), task)
        for b in range(2):
            sentence, outputs = Sentence(BeamSearch(size), task, b), outputs_of(result, b)
            assert outputs and not any(map(sentence.missing, outputs))


def progress_after(tokens, required, length=8):
    """The progress of one hypothesis with these tokens."""
    row = np.array([tokens + [PAD] * (length - len(tokens))], "int32")
    return progress_of(ops.array(row), len(tokens), ops.array(required))


def test_the_progress_in_a_phrase_is_the_longest_match():
    required, tokens = phrases([[4, 4, 5], [5, 6], [7]]), [4, 4, 4, 5, 6, 4, 7]
    steps = [progress_after(tokens[:t], required) for t in range(8)]
    missing = [int(count_missing(progress, ops.array(required))[0]) for progress in steps]
    # 6 tokens in all. The third 4 keeps two matching ones; 5 completes the first phrase and starts
    # the second.
    assert missing == [6, 5, 4, 4, 2, 1, 1, 0]
    assert ops.convert_to_numpy(steps[-1].is_complete).all()


def test_the_progress_after_alternative_tokens_is_that_of_longer_hypotheses():
    required, tokens = phrases([[4, 4, 5], [5, 6], [PAD]]), [4, 4, 5, 4]
    for t in range(5):
        before = progress_after(tokens[:t], required)
        after = extend(before, ops.array(required), ops.array([[4, 5, 6]]))
        for n, token in enumerate((4, 5, 6)):
            expected = progress_after([*tokens[:t], token], required)
            for part, whole in zip(after, expected, strict=True):
                received = ops.convert_to_numpy(part)[:, n]
                np.testing.assert_array_equal(received, ops.convert_to_numpy(whole))


def test_next_tokens_of_all_phrases_rank_first():
    required = phrases([[4, 5], [6], [4, 7]])
    logits = ops.cast(ops.array([[9.0, 1, 2, 8, 0, 5, 3, 7]]), "float32")

    def ranked(tokens):
        progress = progress_after(tokens, required)
        favored = rank_next_tokens_first(logits, progress, ops.array(required), 1)
        return np.argsort(-ops.convert_to_numpy(favored)[0], kind="stable").tolist()

    assert ranked([]) == [4, 6, 0, 3, 7, 5, 2, 1]
    assert ranked([4]) == [5, 7, 6, 0, 3, 2, 1, 4]


def test_banks_take_turns_and_leave_what_they_do_not_fill():
    scores = np.array([[[9.0, 8, 7, 6], [5, 4, -np.inf, 2]], [[1, 1, 3, 0], [1, 2, 1, 1]]])
    missing = np.array([[[2, 2, 2, 2], [1, 0, 0, 1]], [[0, 0, 0, 0], [1, 1, 1, 0]]], "int32")
    ranks = rank_by_turns(ops.cast(ops.array(scores), "float32"), ops.array(missing), 2, 4)
    ranks = ops.convert_to_numpy(ranks)
    order = np.argsort(-ranks.reshape(2, -1), axis=1, kind="stable").tolist()
    # Equal scores of a bank keep their order.
    assert order == [[5, 4, 0, 7, 1, 2, 3, 6], [2, 5, 0, 4, 1, 6, 7, 3]]
    assert (ranks == -np.inf).sum() == 1


@pytest.mark.parametrize(
    "search", [GreedySearch(), BeamSearch(1), BeamSearch(4, groups=2), Sampling(2)], ids=repr
)
def test_searches_that_do_not_divide_a_beam_are_refused(search):
    table = np.zeros((1, 2, 5, 5), "float32")
    with pytest.raises(ValueError, match=r"`required` needs a BeamSearch .* at least 2\. Received"):
        find(search, Task(table, required=phrases([[4]])))


@pytest.mark.parametrize("required", [np.array([[4]]), np.array([[[4]]] * 3), np.array([[[4.0]]])])
def test_required_must_be_ints_of_three_axes(required):
    table = np.zeros((2, 2, 5, 5), "float32")
    with pytest.raises(ValueError, match=r"`required` must be ints of shape .* Received"):
        find(BeamSearch(2), Task(table, required=required))


def test_phrases_that_do_not_fit_or_are_forbidden_leave_no_output():
    table = np.zeros((2, 3, 6, 6), "float32")
    result = find(BeamSearch(3), Task(table, required=phrases([[4, 4, 4, 4]], [[2]])))
    assert (result.scores == -np.inf).all() and not result.lengths.any()
