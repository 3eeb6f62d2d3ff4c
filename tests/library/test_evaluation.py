import numpy as np
import pytest

from keras_bahdanau import BeamSearch, Generation, GreedySearch
from keras_bahdanau.models.translation import translate
from keras_bahdanau_runtime.ids import EOS, PAD
from keras_bahdanau_runtime.text.scores import corpus_scores

pytestmark = pytest.mark.once


class Letters:
    """A tokenizer of single letters."""

    def encode_source(self, text):
        return [ord(letter) for letter in text] + [EOS]

    def decode(self, ids):
        assert PAD not in ids
        return "".join(chr(i) for i in ids if i != EOS)


class Copier:
    """A model whose best translation is the source and whose second best is nonsense."""

    def __init__(self):
        self.calls = []

    def generate(self, source, search, max_length):
        self.calls.append((source.shape, search, max_length))
        tokens = np.stack([source, np.full_like(source, 88)], axis=1)[:, :, :max_length]
        lengths = (tokens != PAD).sum(axis=-1)
        nothing = np.zeros(tokens.shape[:2])
        return Generation(tokens, nothing, lengths, None, nothing, None)


TEXTS = ["short", "", "the longest of them all", "x", "   ", "twin a", "twin b", "\t", "last"]


@pytest.mark.parametrize("batch_size", [1, 2, 4, 64])
def test_translations_keep_the_order(batch_size):
    model = Copier()
    expected = [text if text.strip() else "" for text in TEXTS]
    assert translate(model, Letters(), TEXTS, batch_size=batch_size) == expected
    # Every batch is as large as the first, or there is one that holds all.
    assert {shape[0] for shape, *_ in model.calls} == {min(batch_size, 6)}


def test_passes_on_how_to_search():
    model = Copier()
    assert translate(model, Letters(), ["abcdef"], search=BeamSearch(2), max_length=3) == ["abc"]
    translate(model, Letters(), ["a"])
    assert model.calls == [((1, 7), BeamSearch(2), 3), ((1, 2), GreedySearch(), 100)]


@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_nothing_to_translate(texts):
    model = Copier()
    assert translate(model, Letters(), texts) == [""] * len(texts)
    assert not model.calls


def test_identical_text_scores_100():
    texts = ["A man rides a red bike .", "Zwei Hunde spielen im Schnee ."]
    assert corpus_scores(texts, texts) == pytest.approx({"bleu": 100.0, "chrf": 100.0})


def test_bleu_by_hand():
    # Precisions 5/6, 3/5, 2/4, 1/3, no brevity penalty: (5/6 * 3/5 * 2/4 * 1/3) ** (1/4).
    scores = corpus_scores(["a b c d x f"], ["a b c d e f"])
    assert scores["bleu"] == pytest.approx(100 * (1 / 12) ** 0.25)
    assert 0 < scores["chrf"] < 100


@pytest.mark.parametrize("translations, references", [(["a"], ["a", "b"]), (["a"], []), ([], [])])
def test_refuses_lists_that_do_not_match(translations, references):
    received = f"Received: {len(translations)} and {len(references)}"
    with pytest.raises(ValueError, match=received):
        corpus_scores(translations, references)
