"""Rules that drop pairs."""

import pytest

from keras_bahdanau.data.filters import PairFilter


@pytest.mark.parametrize(
    ("rule", "pairs", "dropped"),
    [
        ("length=3", [("abc", "abc"), ("abcd", "a"), ("a", "abcd"), ("abc  ", " a")], [1, 2]),
        ("length=2:3", [("ab", "abc"), ("a", "ab"), ("ab", "a"), (" a ", "ab")], [1, 2, 3]),
        ("ratio=2", [("ab", "abcd"), ("abcd", "ab"), ("ab", "abcde"), ("abcde", "ab")], [2, 3]),
        ("ratio=1.5", [("ab", "abc"), ("ab", "abcd")], [1]),
        ("identical", [("a", "a"), ("a", " a"), ("a", "A")], [0, 1]),
        ("duplicate", [("a", "b"), ("b", "a"), ("a", "b "), ("ab", ""), ("", "ab")], [2]),
        (
            "script=latin:cyrillic",
            [
                ("cat", "\u043a\u043e\u0442"),
                ("\u043a\u043e\u0442", "\u043a\u043e\u0442"),
                ("cat", "cat"),
                ("12 %", "12 %"),
                ("ab\u043a\u043e", "\u043a\u043eab"),  # half of the letters
                ("a\u043a\u043e", "\u043a"),
            ],
            [1, 2, 5],
        ),
        (
            "script=japanese:han",
            [
                ("\u732b\u306f\u30cd\u30b3\u30fc", "\u732b"),
                ("\u732b", "\u306f"),
                ("cat", "\u732b"),
            ],
            [1, 2],
        ),
        ("script=korean:greek", [("\uace0\u6f22", "\u03b1\u1f05"), ("\uace0", "a")], [1]),
    ],
)
def test_rule_drops_pairs(rule, pairs, dropped):
    pair_filter = PairFilter([rule])
    rules = [pair_filter.broken_rule(*pair) for pair in pairs]
    assert [number for number, name in enumerate(rules) if name == rule] == dropped
    assert {name for name in rules if name != rule} <= {None}


def test_pair_counts_for_the_first_rule_that_it_breaks():
    pair_filter = PairFilter(["identical", "duplicate", "length=2"])
    pairs = [("abc", "abc"), ("abc", "abc"), ("abc", "b"), ("abc", "b"), ("a", "b")]
    rules = [pair_filter.broken_rule(*pair) for pair in pairs]
    assert rules == ["identical", "identical", "length=2", "duplicate", None]


def test_rules_compare_the_first_column_of_a_source():
    rules = ["length=4", "ratio=2", "identical", "script=cyrillic:latin", "duplicate"]
    pair_filter = PairFilter(rules, joins_columns=True)
    pairs = [("кот\tN;PL", "kot"), ("кот\tN;SG", "kot"), ("кот\tN;PL", "kot")]
    pairs += [("koty\tN;PL", "koty"), ("\tN;PL", "kot")]
    rules = [pair_filter.broken_rule(*pair) for pair in pairs]
    assert rules == [None, None, "duplicate", "identical", "ratio=2"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("identical", "must be a list of str"),
        ([3], "must be a list of str"),
        (["identical", "identical"], "must have each rule once"),
        (["short"], "must be a rule: length=MIN:MAX, .* Received: 'short'"),
        (["identical=1"], "must be a rule"),
        (["length"], "must be length=MIN:MAX"),
        (["length=5:3"], "must be length=MIN:MAX"),
        (["length=1:2:3"], "must be length=MIN:MAX"),
        (["length=-1:3"], "must be length=MIN:MAX"),
        (["ratio=0.5"], "must be ratio=LIMIT"),
        (["ratio=nan"], "must be ratio=LIMIT"),
        (["ratio=inf"], "must be ratio=LIMIT"),
        (["script=latin"], "must be script=SOURCE:TARGET with names from arabic"),
        (["script=latin:klingon"], "must be script=SOURCE:TARGET"),
    ],
)
def test_invalid_rules_are_refused(rules, message):
    with pytest.raises(ValueError, match=f"`filter` {message}"):
        PairFilter(rules)
