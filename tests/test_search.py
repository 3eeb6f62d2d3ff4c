import functools
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops, tree

from keras_bahdanau import BeamSearch, Generation, GreedySearch
from keras_bahdanau.ids import BOS, EOS, PAD

PENALTIES = [0.0, 0.6, 1.0]
SPACES = [(4, 4), (5, 3)]  # V and T; small enough to list every output there is
FEW = settings(max_examples=12, deadline=None)


def random_tables(batch=1, vocabulary=5, steps=4):
    """Logits without ties, so that there is one right order of hypotheses."""
    return st.builds(
        lambda seed, scale: (
            scale * np.random.default_rng(seed).normal(size=(batch, steps, vocabulary, vocabulary))
        ).astype("float32"),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0.3, 1.0, 4.0]),
    )


def run(search, table, max_length):
    """Searches where `table[b, t, last]` are the logits after `last` at step `t` of sentence `b`.

    The weights of a step are its history: the tokens so far read as a number in base V, the
    sentence, and the step counted from 1.
    """
    batch, steps, vocabulary, _ = table.shape

    def step(tokens, state):
        row, t, path = state
        path = path * vocabulary + tokens
        logits = ops.take(
            ops.reshape(table, (-1, vocabulary)), (row * steps + t) * vocabulary + tokens, axis=0
        )
        weights = ops.stack([path, row, t + 1], axis=-1)
        return logits, (row, t + 1, path), ops.cast(weights, "float32")

    zeros = ops.zeros((batch,), dtype="int32")
    state = (ops.arange(batch, dtype="int32"), zeros, zeros)
    start = ops.full((batch,), BOS, dtype="int32")
    return search(step, state, start, memory_length=3, max_length=max_length)


@functools.cache
def compiled(search, max_length):
    if keras.config.backend() == "jax":
        import jax

        return jax.jit(lambda table: run(search, table, max_length))
    return lambda table: run(search, ops.convert_to_tensor(table), max_length)


def find(search, table, max_length=None):
    found = compiled(search, max_length or table.shape[1])(np.asarray(table))
    return Generation(*tree.map_structure(ops.convert_to_numpy, tuple(found)))


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def penalty(length, exponent):
    return ((5 + length) / 6) ** exponent


def every_output(log_probs):
    """All outputs of a `(T, V, V)` table and their log-probabilities: ended, or `T` tokens long."""
    steps, vocabulary, _ = log_probs.shape
    live, ended = {(): 0.0}, {}
    for t in range(steps):
        grown = {
            (*tokens, v): total + log_probs[t, tokens[-1] if tokens else BOS, v]
            for tokens, total in live.items()
            for v in range(vocabulary)
        }
        ended |= {tokens: total for tokens, total in grown.items() if tokens[-1] == EOS}
        live = {tokens: total for tokens, total in grown.items() if tokens[-1] != EOS}
    return ended | live


def beam_by_hand(log_probs, size, exponent):
    """The `size` best at each step, ended ones included, in plain Python."""
    kept = [((), 0.0)]
    for t in range(len(log_probs)):
        grown = []
        for tokens, total in kept:
            if tokens[-1:] == (EOS,):
                grown.append((tokens, total))
                continue
            row = log_probs[t, tokens[-1] if tokens else BOS]
            grown += [((*tokens, v), total + row[v]) for v in range(len(row))]
        kept = sorted(grown, key=lambda h: -h[1] / penalty(len(h[0]), exponent))[:size]
    return kept


def outputs_of(found, row=0):
    """The hypotheses that exist, as tuples of tokens."""
    return [
        tuple(tokens[:length].tolist())
        for tokens, length, score in zip(
            found.tokens[row], found.lengths[row], found.scores[row], strict=True
        )
        if score > -np.inf
    ]


def check(found, table, exponent):
    """What holds for every search: exact scores, order, no duplicates, padding, alignments."""
    batch, steps, vocabulary, _ = table.shape
    size = found.scores.shape[1]
    assert found.tokens.shape == (batch, size, steps) and found.tokens.dtype == np.int32
    assert found.lengths.shape == (batch, size) and found.lengths.dtype == np.int32
    assert found.scores.dtype == np.float32
    assert found.alignments.shape == (batch, size, steps, 3)
    assert not np.isnan(found.scores).any() and not np.isnan(found.alignments).any()
    for b in range(batch):
        totals = every_output(log_softmax(table[b]))
        outputs = outputs_of(found, b)
        assert len(outputs) == len(set(outputs)) >= 1
        # All before the first that is missing.
        assert (found.scores[b, : len(outputs)] > -np.inf).all()
        assert (np.diff(found.scores[b, : len(outputs)]) <= 0).all()
        for k, tokens in enumerate(outputs):
            expected = totals[tokens] / penalty(len(tokens), exponent)
            np.testing.assert_allclose(found.scores[b, k], expected, rtol=1e-4, atol=1e-4)
            assert (found.tokens[b, k, len(tokens) :] == PAD).all()
            history = itertools.accumulate(
                (BOS, *tokens[:-1]), lambda path, token: path * vocabulary + token
            )
            rows = [(path, b, i + 1) for i, path in enumerate(history)]
            assert found.alignments[b, k, : len(tokens)].tolist() == [
                list(map(float, row)) for row in rows
            ]
            assert not found.alignments[b, k, len(tokens) :].any()


@pytest.mark.parametrize("vocabulary, steps", SPACES)
@pytest.mark.parametrize("exponent", PENALTIES)
@FEW
@given(data=st.data())
def test_a_beam_as_wide_as_the_space_finds_everything(vocabulary, steps, exponent, data):
    logits = st.floats(-6, 6, width=32)
    table = data.draw(arrays("float32", (1, steps, vocabulary, vocabulary), elements=logits))
    totals = every_output(log_softmax(table[0]))
    found = find(BeamSearch(len(totals), exponent), table)
    check(found, table, exponent)
    assert set(outputs_of(found)) == set(totals)
    best = max(total / penalty(len(tokens), exponent) for tokens, total in totals.items())
    np.testing.assert_allclose(found.scores[0, 0], best, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size, exponent", [(2, 0.0), (3, 0.6), (5, 1.0), (7, 1.0)])
@FEW
@given(table=random_tables(batch=2))
def test_a_narrow_beam_keeps_the_best_of_each_step(size, exponent, table):
    found = find(BeamSearch(size, exponent), table)
    check(found, table, exponent)
    for b in range(2):
        expected = beam_by_hand(log_softmax(table[b]), size, exponent)
        assert outputs_of(found, b) == [tokens for tokens, _ in expected]


@FEW
@given(table=random_tables(batch=2))
def test_a_beam_of_one_is_greedy(table):
    greedy = find(GreedySearch(), table)
    for exponent in PENALTIES:
        found = find(BeamSearch(1, exponent), table)
        check(found, table, exponent)
        np.testing.assert_array_equal(found.tokens, greedy.tokens)
        np.testing.assert_array_equal(found.alignments, greedy.alignments)
    for b in range(2):
        tokens = [BOS]
        while tokens[-1] != EOS and len(tokens) <= table.shape[1]:
            tokens.append(int(table[b, len(tokens) - 1, tokens[-1]].argmax()))
        assert outputs_of(greedy, b) == [tuple(tokens[1:])]


@FEW
@given(table=random_tables(batch=3), eager=st.integers(0, 2), reluctant=st.integers(0, 2))
def test_a_sentence_does_not_see_its_batch(table, eager, reluctant):
    table[reluctant, ..., EOS] -= 20.0  # runs to the end ...
    table[eager, ..., EOS] += 40.0  # ... while this one waits for it
    search = BeamSearch(3, 0.6)
    together = find(search, table)
    for b in range(3):
        alone = find(search, table[b : b + 1])
        np.testing.assert_array_equal(together.tokens[b], alone.tokens[0])
        np.testing.assert_array_equal(together.lengths[b], alone.lengths[0])
        np.testing.assert_allclose(together.scores[b], alone.scores[0], rtol=1e-5, atol=1e-5)
        # The second column names the sentence.
        np.testing.assert_array_equal(
            together.alignments[b][..., [0, 2]], alone.alignments[0][..., [0, 2]]
        )


@FEW
@given(table=random_tables(vocabulary=4, steps=3), data=st.data())
def test_an_impossible_token_is_never_taken(table, data):
    forbidden = data.draw(arrays("bool", table.shape, elements=st.booleans()))
    forbidden[..., 1] = False  # something must be possible
    table = np.where(forbidden, -np.inf, table).astype("float32")
    with np.errstate(invalid="ignore"):
        totals = every_output(log_softmax(table[0]))
    possible = {tokens for tokens, total in totals.items() if total > -np.inf}
    found = find(BeamSearch(50, 1.0), table)
    check(found, table, 1.0)
    assert set(outputs_of(found)) == possible


def test_what_cannot_be_found_is_marked_missing(rng):
    table = rng.normal(size=(2, 2, 4, 4)).astype("float32")
    found = find(BeamSearch(30, 1.0), table)  # 1 + 3 * 4 outputs of at most two tokens exist
    check(found, table, 1.0)
    assert ((found.scores > -np.inf).sum(axis=1) == 13).all()
    assert (found.scores[:, 13:] == -np.inf).all()


def test_half_precision_logits_are_ranked_in_single_precision(rng):
    table = rng.normal(size=(1, 4, 5, 5)).astype("float16")
    check(find(BeamSearch(4, 0.6), table), table, 0.6)


def test_an_ended_hypothesis_keeps_its_score():
    # "3" ends at once with probability 0.4; "4 4 4 4" gets all the rest, a bit less each step.
    probabilities = np.full((1, 4, 5, 5), 1e-9)
    probabilities[0, 0, BOS, [EOS, 4]] = 0.4, 0.6
    probabilities[0, 1:, 4, [1, 4]] = np.array([0.2, 0.8])[:, None]
    table = np.log(probabilities).astype("float32")
    found = find(BeamSearch(2, 0.0), table)
    assert outputs_of(found) == [(EOS,), (4, 4, 4, 4)]
    np.testing.assert_allclose(np.exp(found.scores[0]), [0.4, 0.6 * 0.8**3], rtol=1e-4)
    assert found.tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD]
    # With |Y| counted, the longer one is ahead: log 0.307 / (9 / 6) > log 0.4.
    found = find(BeamSearch(2, 1.0), table)
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


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(3)])
@pytest.mark.parametrize("max_length", [4, 12])
def test_spells_words(search, max_length):
    words = np.array(
        [[LETTERS.index(letter) for letter in word] + [EOS] * (12 - len(word)) for word in WORDS],
        "int32",
    )
    state = (ops.convert_to_tensor(words), ops.zeros((4,), dtype="int32"))
    found = search(spell, state, ops.full((4,), BOS, dtype="int32"), 12, max_length)
    tokens, _, lengths, alignments, *_ = tree.map_structure(ops.convert_to_numpy, tuple(found))
    for b, word in enumerate(WORDS):
        expected = (word + "\3")[:max_length]
        assert "".join(LETTERS[t] for t in tokens[b, 0]) == expected.ljust(max_length, "\0")
        assert lengths[b, 0] == len(expected)
        diagonal = np.eye(max_length, 12) * (np.arange(max_length) < len(expected))[:, None]
        np.testing.assert_array_equal(alignments[b, 0], diagonal)


def test_stops_when_all_have_ended():
    if keras.config.backend() == "jax":
        pytest.skip("JAX traces the step once, so calls cannot be counted.")
    calls = []

    def step(tokens, state):
        calls.append(1)
        return ops.tile([[0.0, 0.0, 0.0, 9.0]], (ops.shape(tokens)[0], 1)), state, tokens[:, None]

    BeamSearch(2)(step, (), ops.full((3,), BOS, dtype="int32"), 1, 50)
    # "3" and "v 3" fill the beam.
    assert len(calls) == 2


@pytest.mark.parametrize("size", [0, -1, 2.0, "3", None])
def test_refuses_a_beam_of_no_size(size):
    with pytest.raises(ValueError, match="`size` must be an int of at least 1"):
        BeamSearch(size)


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(), BeamSearch(3, 0.6)], ids=str)
def test_config_round_trip(search):
    config = keras.saving.serialize_keras_object(search)
    again = keras.saving.deserialize_keras_object(config)
    assert again == search and type(again) is type(search) and hash(again) == hash(search)


def test_searches_are_told_apart():
    assert len({GreedySearch(), BeamSearch(1, 0.0), BeamSearch(1), BeamSearch(2)}) == 4
