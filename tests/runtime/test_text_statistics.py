"""The pieces of texts, chosen from the texts."""

import pytest

from keras_bahdanau.data.choices import apply_choices, choose_tokenizer
from keras_bahdanau.data.options import TokenizerOptions
from keras_bahdanau.data.text_statistics import PairStatistics, TextStatistics
from keras_bahdanau_runtime.text.parallel import TextFormat

LETTERS = "abcdefghijklmnopqrst"
PHONEMES = [" ".join(LETTERS[i % 20 : i % 20 + 6]) for i in range(100)]
WORDS = [f"{a}{b}{a}" for a in LETTERS for b in LETTERS]
SENTENCES = [" ".join(WORDS[i : i + 7]) for i in range(0, 390, 6)]
HANGUL = [chr(0xAC00 + 28 * i) for i in range(200)]  # syllables of 11 first letters, 21 vowels


def test_words_and_characters_are_counted():
    statistics = TextStatistics.of(["a b  a", "ccc", "\u00e1" * 5])
    # In NFD the letters are a, b, c and the accent, and the last text is the longest.
    assert statistics == TextStatistics(3, 5, 4, 3, 14, 4, 4, 3, 10)


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
    ("words", "size"), [(100, 500), (59_999, 1000), (60_000, 2000), (322_383, 8000), (9**9, 32000)]
)
def test_each_piece_has_thirty_words(words, size):
    assert TextStatistics(1, words, words, 0, words, 9, 9, 7, 9).vocabulary_size().value == size


def test_reasons_name_the_numbers():
    choice = TextStatistics(10, 60, 8, 0, 300, 9, 9, 7, 40).kind()
    assert choice.reason == (
        "6.0 words in a text, only 8 different ones, and 0.0% of further words are new"
    )


def test_only_the_first_pairs_are_counted():
    pairs = [("a", "b"), ("b", "c d"), ("e", "f")]
    statistics = PairStatistics.of(pairs, limit=2)
    assert (statistics.pairs, statistics.target.words, statistics.is_complete) == (2, 3, False)
    assert PairStatistics.of(pairs, limit=3).is_complete


def chosen(sources, targets, **values):
    options = TokenizerOptions(**values)
    return apply_choices(
        options, choose_tokenizer(options, PairStatistics.of(zip(sources, targets, strict=False)))
    )


@pytest.mark.parametrize(
    ("sources", "targets", "values", "expected"),
    [
        (
            SENTENCES,
            SENTENCES,
            {},
            {"tokenizer": "bpe", "vocabulary_size": 500, "joint": True, "normalization": "none"},
        ),
        (
            WORDS,
            PHONEMES,
            {},
            {
                "source_tokenizer": "characters",
                "target_tokenizer": "symbols",
                "joint": False,
                "normalization": "none",
            },
        ),
        (
            HANGUL,
            PHONEMES,
            {"target_tokenizer": "symbols"},
            {
                "source_tokenizer": "characters",
                "target_tokenizer": "symbols",
                "joint": False,
                "normalization": "nfd",
            },
        ),
        (
            HANGUL,
            HANGUL,
            {"normalization": "none", "joint": True},
            {"tokenizer": "characters", "joint": True, "normalization": "none"},
        ),
        (
            SENTENCES,
            WORDS,
            {"target_tokenizer": "a.model", "vocabulary_size": 300},
            {
                "source_tokenizer": "bpe",
                "target_tokenizer": "a.model",
                "vocabulary_size": 300,
                "normalization": "none",
            },
        ),
    ],
    ids=["sentences", "pronunciations", "Hangul", "given", "file"],
)
def test_open_options_are_chosen_and_others_stay(sources, targets, values, expected):
    assert chosen(sources, targets, **values) == TokenizerOptions(**expected)


def test_each_choice_says_which_flag_changes_it():
    statistics = PairStatistics.of(zip(SENTENCES, SENTENCES, strict=True))
    choices = choose_tokenizer(TokenizerOptions(joint=False), statistics)
    joint = next(choice for choice in choices if choice.option == "joint")
    assert (joint.text, joint.reason, joint.flag) == ("no", "given", "--joint/--separate")


def test_texts_without_a_pair_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("a\t\nb\n")
    with pytest.raises(ValueError, match=r"must contain a pair .* blank side, and 1 bad lines"):
        PairStatistics.read([tmp_path / "a.tsv"], None, TextFormat(on_bad_line="skip"))


def test_only_the_first_column_of_a_source_counts(tmp_path):
    (tmp_path / "a.tsv").write_text("talo\ttalot\tN PL NOM\ntalo\ttalon\tN SG GEN\n")
    columns = TextFormat(source_column=("1", "3"), target_column="2")
    source = PairStatistics.read([tmp_path / "a.tsv"], None, columns).source
    assert (source.words, source.distinct_words, source.characters) == (2, 1, 8)


def test_copied_characters_are_counted_as_often_as_in_the_source():
    pairs = [("aab", "aaac"), ("x y", "yxz"), ("", "")]  # 2 of 4, and 2 of 3
    assert PairStatistics.of(pairs).copied == pytest.approx(4 / 7)
