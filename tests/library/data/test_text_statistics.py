"""The pieces of a text, from the text itself."""

import pytest

from keras_bahdanau.data.text_statistics import TextStatistics

LETTERS = "abcdefghijklmnopqrst"
PHONEMES = [" ".join(LETTERS[i % 20 : i % 20 + 6]) for i in range(100)]
WORDS = [f"{a}{b}{a}" for a in LETTERS for b in LETTERS]
SENTENCES = [" ".join(WORDS[i : i + 7]) for i in range(0, 390, 6)]


def test_words_and_characters_are_counted():
    assert TextStatistics.of(["a b  a", "ccc"]) == TextStatistics(2, 4, 3, 2, 9)
    with pytest.raises(ValueError, match="`texts` must hold a text"):
        TextStatistics.of([])


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (PHONEMES, "symbols"),
        (WORDS, "characters"),
        (SENTENCES, "bpe"),
        (["3 March 1994", "14 July 1989"] * 50, "symbols"),  # no word is new
        ([f"{day} March {1900 + day}" for day in range(100)], "characters"),
        ([""], "characters"),
    ],
)
def test_the_kind_of_pieces_depends_on_the_words(texts, kind):
    assert TextStatistics.of(texts).kind().value == kind


@pytest.mark.parametrize(
    ("words", "size"), [(100, 500), (79_999, 1000), (80_000, 2000), (380_000, 8000), (9**9, 32000)]
)
def test_each_piece_has_forty_words(words, size):
    assert TextStatistics(1, words, words, 0, words).vocabulary_size().value == size


def test_reasons_name_the_numbers():
    choice = TextStatistics(10, 60, 8, 0, 300).kind()
    assert choice.reason == "6.0 words in a text, only 8 different ones, of which 0.0% are new"
