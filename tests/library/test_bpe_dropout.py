"""Words cut anew each epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_bahdanau import BPEDropout, Tokenizer, TranslationDataset
from keras_bahdanau.data.bpe_dropout import _cut
from keras_bahdanau_runtime.ids import EOS

pytestmark = pytest.mark.once

SOURCES = ["a man on a bike rides", "the man rides a bike 12 times", "bikes"] * 3
TARGETS = ["ein Mann auf einem Fahrrad", "der Mann fährt", "Fahrräder"] * 3
TOKENIZER = Tokenizer.train(SOURCES, TARGETS, vocabulary_size=330)


def read(ids):
    return TOKENIZER.decode(ids)


@settings(deadline=None, max_examples=25)
@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=4), epoch=st.integers(0, 3))
def test_without_dropout_the_pieces_are_the_tokenizers(texts, epoch):
    cut = BPEDropout(TOKENIZER, texts, texts[::-1], dropout=0.0)
    assert cut(epoch) == (
        [TOKENIZER.encode_source(text) for text in texts],
        [TOKENIZER.encode_target(text) for text in texts[::-1]],
    )


@settings(deadline=None, max_examples=25)
@given(texts=st.lists(st.text(max_size=12), min_size=1, max_size=4), epoch=st.integers(0, 3))
def test_other_pieces_spell_the_same_text(texts, epoch):
    sources, targets = BPEDropout(TOKENIZER, texts, texts, dropout=0.5)(epoch)
    assert [read(ids) for ids in sources] == [read(ids) for ids in targets] == texts
    assert all(ids[-1] == EOS and EOS not in ids[:-1] for ids in sources + targets)


def test_cuts_are_a_function_of_seed_and_epoch():
    def at(seed, epoch):
        return BPEDropout(TOKENIZER, SOURCES, TARGETS, dropout=0.3, seed=seed)(epoch)

    assert at(1, 4) == at(1, 4)
    assert at(1, 4) != at(1, 5) and at(1, 4) != at(2, 4)


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


@pytest.mark.parametrize("change", [{"dropout": 1.0}, {"dropout": -0.1}, {"seed": -1}])
def test_refuses_what_is_out_of_range(change):
    [name] = change
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        BPEDropout(TOKENIZER, SOURCES, TARGETS, **change)


def test_a_dataset_has_the_cuts_of_its_epoch():
    def ids(encode, texts):
        return [encode(text) for text in texts]

    cut = BPEDropout(TOKENIZER, SOURCES, TARGETS, dropout=0.5)
    plain = ids(TOKENIZER.encode_source, SOURCES), ids(TOKENIZER.encode_target, TARGETS)
    data = TranslationDataset(*plain, batch_size=len(SOURCES), shuffle=False, resample=cut)
    for epoch in (0, 1):
        data.epoch = epoch
        sources, targets = cut(epoch)
        (inputs, labels), expected = data[0], sorted(zip(sources, targets, strict=True))
        found = [
            ([n for n in source.tolist() if n], [n for n in label.tolist() if n])
            for source, label in zip(inputs["source"], labels, strict=True)
        ]
        assert sorted(found) == expected
        assert data.tokens == sum(map(len, targets))
    with pytest.raises(ValueError, match="`alignments` must be left out beside `resample`"):
        TranslationDataset(*plain, resample=cut, alignments=[[]] * len(SOURCES))
