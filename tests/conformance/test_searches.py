"""Searches over tables of logits, compiled where the backend compiles, against plain Python."""

import keras
import numpy as np
import pytest
from keras import ops, tree
from search_tasks import (
    Sentence,
    Task,
    check,
    check_beam,
    constrained_task,
    coverage_task,
    find,
    outputs_of,
    run,
)

from keras_bahdanau import BeamSearch, GreedySearch, Sampling
from keras_bahdanau.search import score_targets
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

ALL_CONSTRAINTS = dict(
    min_length=2,
    forbidden=(1,),
    no_repeat_ngram=2,
    repetition_penalty=1.3,
    max_length_ratio=1.2,
)


def plain_task(seed, batch=2, vocabulary=5, steps=4):
    table = 2 * np.random.default_rng(seed).normal(size=(batch, steps, vocabulary, vocabulary))
    return Task(table.astype("float32"))


BEAMS = {
    "narrow": (BeamSearch(3, 0.6), plain_task),
    "plain_normalization": (BeamSearch(4, 1.0, normalization="plain"), plain_task),
    "stop_at_the_best_candidate": (
        BeamSearch(4, 1.0, n_best=2, early_stopping="best", length_offset=1),
        plain_task,
    ),
    "diverse_groups": (BeamSearch(6, 1.0, groups=3, diversity=0.7, n_best=2), plain_task),
    "coverage": (BeamSearch(4, 0.6, coverage_penalty=0.3), coverage_task),
    "constraints": (
        BeamSearch(3, 0.6),
        lambda seed: constrained_task(seed)._replace(suppressed=np.array([[1, PAD]], "int32")),
    ),
    "required_phrases": (
        BeamSearch(5, 0.6, repetition_penalty=1.3, no_repeat_ngram=2),
        lambda seed: plain_task(seed, vocabulary=7, steps=6)._replace(
            required=np.array([[[4, 5], [1, PAD]], [[5, 4], [5, 6]]], "int32")
        ),
    ),
    "all_constraints": (BeamSearch(3, 0.6, **ALL_CONSTRAINTS), constrained_task),
}


@pytest.mark.parametrize("name", BEAMS)
def test_a_beam_returns_what_a_beam_in_plain_python_does(name):
    search, task = BEAMS[name]
    for seed in range(4):
        check_beam(search, task(seed))


def test_greedy_takes_the_likeliest_token_of_each_step():
    task = plain_task(0)
    result = find(GreedySearch(), task)
    check(result, task, GreedySearch())
    for b, table in enumerate(task.table):
        (tokens,) = outputs_of(result, b)
        for t, (previous, token) in enumerate(zip((BOS, *tokens), tokens, strict=False)):
            allowed = np.delete(table[t, previous], [PAD, BOS])
            assert table[t, previous, token] == allowed.max()


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.8, "temperature": 0.7}], ids=str)
def test_samples_are_allowed_and_follow_their_noise(options):
    search = Sampling(2, **options)
    noise = np.random.default_rng(5).uniform(size=(2, 2, 4)).astype("float32")
    noise[:, 1] = noise[:, 0]
    task = plain_task(0)._replace(noise=noise)
    result = find(search, task)
    check(result, task, search)
    for b in range(2):
        first, second = outputs_of(result, b)
        assert first == second


def test_half_precision_logits_are_ranked_in_float32(rng):
    check_beam(BeamSearch(4, 0.6), rng.normal(size=(1, 4, 5, 5)).astype("float16"))


def test_given_targets_have_the_log_probabilities_of_the_table():
    task, targets = plain_task(1, batch=3, vocabulary=6, steps=5), [[4, 1, 5, EOS], [EOS], [2] * 5]
    padded = ops.array([target + [PAD] * (5 - len(target)) for target in targets], dtype="int32")

    def score(target):
        def forced(step, state, start, memory_length, max_length):
            return score_targets(step, state, start, target, memory_length)

        return run(forced, task, None)

    if keras.config.backend() == "jax":
        import jax

        score = jax.jit(score)
    result = tree.map_structure(ops.convert_to_numpy, score(padded))
    assert result.log_probs.dtype == result.totals.dtype == np.float32
    assert result.lengths.tolist() == [4, 1, 5]
    for b, target in enumerate(targets):
        length, expected = len(target), Sentence(GreedySearch(), task, b).token_log_probs(target)
        np.testing.assert_allclose(result.log_probs[b, :length], expected, rtol=1e-5)
        np.testing.assert_allclose(result.totals[b], expected.sum(), rtol=1e-5)
        assert not result.log_probs[b, length:].any() and not result.alignments[b, length:].any()
        path = 0  # the weights of a step encode the tokens before it
        for t, token in enumerate((BOS, *target[:-1])):
            path = path * 6 + token
            assert result.alignments[b, t].tolist() == [path, b, t + 1]
