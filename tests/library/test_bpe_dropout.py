"""Words cut anew each time."""

import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bahdanau import BPEDropout, Tokenizer
from keras_bahdanau.data.bpe_dropout import _cut
from keras_bahdanau_runtime.ids import EOS

SOURCES = ["a man on a bike rides", "the man rides a bike 12 times", "bikes"] * 3
TARGETS = ["ein Mann auf einem Fahrrad", "der Mann fährt", "Fahrräder"] * 3
TOKENIZER = Tokenizer.train(SOURCES, TARGETS, vocabulary_size=330)
SEPARATE = Tokenizer.train(SOURCES, TARGETS, vocabulary_size=290, joint=False)


TEXT = st.text(max_size=12) | st.sampled_from(["  a  man's", "don't 12's", "</s> <s>", ""])


def encoded(texts, tokenizer=TOKENIZER):
    sources = [tokenizer.encode_source(text) for text in texts]
    return sources, [tokenizer.encode_target(text) for text in texts]


@pytest.mark.parametrize("joint", [True, False])
@settings(max_examples=25)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_without_dropout_the_pieces_are_the_tokenizers(joint, texts):
    tokenizer = TOKENIZER if joint else SEPARATE
    ids = encoded(texts, tokenizer)
    assert BPEDropout(tokenizer, 0.0)(*ids, np.random.default_rng(0)) == ids


@settings(max_examples=25)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), seed=st.integers(0, 3))
def test_other_pieces_spell_the_same_text(texts, seed):
    sources, targets = BPEDropout(TOKENIZER, 0.5)(*encoded(texts), np.random.default_rng(seed))
    for side in sources, targets:
        assert [TOKENIZER.decode(ids) for ids in side] == texts
        assert all(ids[-1] == EOS and EOS not in ids[:-1] for ids in side)


def test_cuts_are_a_function_of_seed_and_generator():
    def at(seed, draw):
        return BPEDropout(TOKENIZER, 0.3, seed)(*encoded(SOURCES), np.random.default_rng(draw))

    assert at(1, 4) == at(1, 4)
    assert at(1, 4) != at(1, 5) and at(1, 4) != at(2, 4)
    # As where a dataset is given to processes that are spawned.
    cut = pickle.loads(pickle.dumps(BPEDropout(TOKENIZER, 0.3, 1)))
    assert cut(*encoded(SOURCES), np.random.default_rng(4)) == at(1, 4)


def test_a_text_cut_within_a_character_stays_as_it_is():
    [ids], _ = encoded(["é"])
    *half, _, end = ids
    assert BPEDropout(TOKENIZER, 0.5)([[*half, end]], [], np.random.default_rng(0)) == (
        [[*half, end]],
        [],
    )


def test_the_merge_of_the_lowest_rank_that_is_left_is_made():
    class Draws:
        """Says which merges are left out, pair by pair, at each step."""

        def __init__(self, *steps):
            self.steps = list(steps)

        def random(self, count):
            step = self.steps.pop(0) if self.steps else [1.0] * count
            assert len(step) == count
            return np.asarray(step)

    ranks = {("a", "b"): 1, ("b", "c"): 0, ("ab", "c"): 2}
    assert _cut("abc", ranks, 0.5, Draws()) == ["a", "bc"]  # rank 0 first, and then no pair is left
    assert _cut("abc", ranks, 0.5, Draws([1.0, 0.1])) == ["abc"]  # left out: a b, then ab c
    assert _cut("abc", ranks, 0.5, Draws([0.1, 0.1])) == ["a", "b", "c"]  # all left out: the end


def test_refuses_what_is_no_tokenizer():
    with pytest.raises(ValueError, match="`tokenizer` must be a Tokenizer"):
        BPEDropout("x")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "a": 1}, "a"))
    with pytest.raises(ValueError, match=r"`tokenizer` must be of byte pairs.*Received: one of W"):
        BPEDropout(Tokenizer(words))


@pytest.mark.parametrize("change", [{"dropout": 1.0}, {"dropout": -0.1}, {"seed": -1}])
def test_refuses_what_is_out_of_range(change):
    [name] = change
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        BPEDropout(TOKENIZER, **change)
