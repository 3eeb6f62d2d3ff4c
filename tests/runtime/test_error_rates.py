"""Error rates of short outputs, with numbers by hand."""

import sys

import pytest

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.text.error_rates import (
    Edit,
    compare,
    confusions,
    error_intervals,
    error_rates,
    shared_references,
)


def test_rates_are_those_of_the_edits():
    comparisons = compare(["kat", "bok", "tee"], [["kat"], ["boek"], ["to"]])
    # One of three is exact; a deletion, and a substitution with an insertion, in 3 + 4 + 2 symbols.
    assert error_rates(comparisons) == pytest.approx({"exact": 100 / 3, "ser": 100 * 3 / 9})
    assert confusions(comparisons)[Edit("e", "")] == 1


def test_symbols_between_spaces_are_the_units():
    [comparison] = compare(["t͡ɕ a aː"], [["t͡ɕ aː aː"]], unit="symbols")
    assert comparison.edits == [Edit("aː", "a")] and comparison.length == 3
    assert comparison.alignment == (Edit("t͡ɕ", "t͡ɕ"), Edit("aː", "a"), Edit("aː", "aː"))


def test_the_nearest_reference_counts():
    comparisons = compare(["ab", "abcd"], [["xy", "ab"], ["a", "abcdeeee", "abcx"]])
    assert [comparison.reference for comparison in comparisons] == ["ab", "abcx"]
    assert error_rates(comparisons) == pytest.approx({"exact": 50.0, "ser": 100 / 6})


def test_spaces_between_symbols_count_for_exact_matches_only():
    assert error_rates(compare(["a  b"], [["a b"]], "symbols")) == {"exact": 0.0, "ser": 0.0}


def test_intervals_contain_the_rates_and_shrink_with_the_number_of_outputs():
    small = compare(["a", "b"] * 10, [["a"]] * 20)
    large = compare(["a", "b"] * 1000, [["a"]] * 2000)
    # The standard deviation of a share of 0.5 of n is sqrt(0.25 / n): 11.2 and 1.12 percent.
    for comparisons, deviation in ((small, 11.18), (large, 1.118)):
        for low, high in error_intervals(comparisons).values():
            assert low == pytest.approx(50 - 1.96 * deviation, abs=0.3 * deviation)
            assert high == pytest.approx(50 + 1.96 * deviation, abs=0.3 * deviation)


def test_lines_of_one_source_share_their_references():
    shared = shared_references(["b", "a", "b"], [["1"], ["2", "4"], ["3"]])
    assert shared == [["1", "3"], ["2", "4"], ["1", "3"]]


@pytest.mark.parametrize(
    "outputs, references", [([], []), (["a"], []), (["a"], [[]]), (["a"], [["a"], ["b"]])]
)
def test_outputs_without_references_are_refused(outputs, references):
    with pytest.raises(ValueError, match="`references` must have one or several texts"):
        compare(outputs, references)


def test_unknown_units_are_refused():
    with pytest.raises(ValueError, match=r"`unit` must be one of characters, symbols. .*'words'"):
        compare(["a"], [["a"]], unit="words")


def test_missing_rapidfuzz_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[text\]"'):
        compare(["a"], [["a"]])
