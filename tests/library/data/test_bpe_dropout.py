"""Random segmentation of words by BPE dropout."""

import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bahdanau import Tokenizer
from keras_bahdanau.data import BPEDropout
from keras_bahdanau.data.bpe_dropout import _merge_pieces
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
def test_without_dropout_the_ids_do_not_change(joint, texts):
    tokenizer = TOKENIZER if joint else SEPARATE
    ids = encoded(texts, tokenizer)
    assert BPEDropout(tokenizer, 0.0)(*ids, np.random.default_rng(0)) == ids


@settings(max_examples=25)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), seed=st.integers(0, 3))
def test_with_dropout_the_ids_decode_to_the_same_text(texts, seed):
    sources, targets = BPEDropout(TOKENIZER, 0.5)(*encoded(texts), np.random.default_rng(seed))
    for side in sources, targets:
        assert [TOKENIZER.decode(ids) for ids in side] == texts
        assert all(ids[-1] == EOS and EOS not in ids[:-1] for ids in side)


@pytest.mark.parametrize("joint", [True, False])
def test_symbols_of_columns_are_not_segmented(joint):
    tokenizer = Tokenizer.train(
        ["bikes\tN;PL bikes"] * 2, ["bikes"] * 2, 280, joint, has_columns=True
    )
    columns = "bikes\tN;XYZ;PL bikes"
    ids = tokenizer.encode_source(columns)
    assert len(ids) == 1 + 4 + 1
    [resampled], _ = BPEDropout(tokenizer, 0.99)([ids], [], np.random.default_rng(0))
    assert resampled[-5:] == ids[-5:]
    tokens = tokenizer.source_decoder().tokens(resampled[:-5])
    assert "".join(tokens) == "bikes" and len(tokens) > 1


def test_pieces_depend_only_on_seed_and_generator():
    def pieces(seed, state):
        return BPEDropout(TOKENIZER, 0.3, seed)(*encoded(SOURCES), np.random.default_rng(state))

    assert pieces(1, 4) == pieces(1, 4)
    assert pieces(1, 4) != pieces(1, 5) and pieces(1, 4) != pieces(2, 4)
    # Spawned processes receive their dataset by pickle.
    unpickled = pickle.loads(pickle.dumps(BPEDropout(TOKENIZER, 0.3, 1)))
    assert unpickled(*encoded(SOURCES), np.random.default_rng(4)) == pieces(1, 4)


def test_a_text_that_ends_within_a_character_does_not_change():
    [[*ids, _, end]], _ = encoded(["é"])
    sources = [[*ids, end]]
    assert BPEDropout(TOKENIZER, 0.5)(sources, [], np.random.default_rng(0)) == (sources, [])


def test_the_remaining_merge_of_the_lowest_rank_is_applied():
    class Draws:
        """A random generator that drops the merges with a number below the rate, pair by pair."""

        def __init__(self, *steps):
            self.steps = list(steps)

        def random(self, count):
            step = self.steps.pop(0) if self.steps else [1.0] * count
            assert len(step) == count
            return np.asarray(step)

    ranks = {("a", "b"): 1, ("b", "c"): 0, ("ab", "c"): 2}
    assert _merge_pieces("abc", ranks, 0.5, Draws()) == ["a", "bc"]  # b c has rank 0
    assert _merge_pieces("abc", ranks, 0.5, Draws([1.0, 0.1])) == ["abc"]  # b c is dropped
    assert _merge_pieces("abc", ranks, 0.5, Draws([0.1, 0.1])) == ["a", "b", "c"]  # all are dropped


def test_the_tokenizer_must_be_a_byte_pair_tokenizer():
    with pytest.raises(ValueError, match="`tokenizer` must be a Tokenizer"):
        BPEDropout("x")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "a": 1}, "a"))
    with pytest.raises(ValueError, match=r"`tokenizer` must be of byte pairs.*Received: one of W"):
        BPEDropout(Tokenizer(words))


@pytest.mark.parametrize("change", [{"dropout": 1.0}, {"dropout": -0.1}, {"seed": -1}])
def test_options_out_of_range_are_refused(change):
    [name] = change
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        BPEDropout(TOKENIZER, **change)
