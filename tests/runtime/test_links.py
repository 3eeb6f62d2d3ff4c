import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau_runtime.text.alignment import (
    hard_alignment,
    phrase_spans,
    replace_unknowns,
    text_links,
    to_pharaoh,
)
from keras_bahdanau_runtime.text.corpus import read_alignments

ALIGNMENT = [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.0, 0.0, 0.0]]


def test_target_words_are_linked_to_their_best_source_word():
    assert hard_alignment(ALIGNMENT) == [(0, 0), (2, 1)]


@pytest.mark.parametrize(
    ("threshold", "links"), [(0.5, [(0, 0), (1, 0), (2, 1)]), (0.6, [(2, 1)]), (1.0, [])]
)
def test_links_have_at_least_the_threshold_weight(threshold, links):
    assert hard_alignment(ALIGNMENT, threshold) == links


# Text with two spaces, a mark of several tokens (shown at the last of them) and one-letter words.
SOURCE_TOKENS = ["a", " b", "ig", "  ", "", "é", "l", "</s>"]
TARGET_TOKENS = ["ein", "", " ", "h", "oher", " x", "</s>"]


def test_words_are_separated_by_spaces_and_have_the_weights_of_their_tokens():
    weights = np.zeros((7, 8))
    weights[0, [0, 1, 2]] = 0.4, 0.3, 0.3  # "ein": 0.6 for the second word
    weights[1, 0] = 1.0  # the empty token belongs to the word after it
    weights[2, 3] = weights[3, 4] = weights[4, 6] = 1.0  # 3 of 4 tokens of "hoher"
    weights[5, 7] = 1.0  # "x" is aligned with the end
    weights[6, 0] = 1.0  # the end has no link
    assert text_links(weights, SOURCE_TOKENS, TARGET_TOKENS) == [(1, 0), (2, 1)]
    assert text_links(weights, SOURCE_TOKENS, TARGET_TOKENS, 0.25) == [
        (0, 0),
        (1, 0),
        (0, 1),
        (2, 1),
    ]
    pieces = [(0, 0), (0, 1), (3, 2), (4, 3), (6, 4)]
    assert text_links(weights, SOURCE_TOKENS, TARGET_TOKENS, pieces=True) == pieces


@given(st.data())
def test_words_of_any_segmentation_are_those_of_the_text(data):
    texts = [" ".join(data.draw(st.lists(st.text("ab", min_size=1), min_size=1))) for _ in "st"]
    sides = []
    for text in texts:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
        bounds = list(zip([0, *cuts], [*cuts, len(text)], strict=True))
        tokens = [text[start:stop] for start, stop in bounds]
        # The first letter of each token, or the next one, and the number of words before it.
        firsts = [len(text) - len(text[start:].lstrip()) for start, _ in bounds]
        words = [len(f"{text[:first]}x".split()) - 1 for first in firsts]
        sides.append((tokens, np.minimum(words, len(text.split()) - 1)))
    (source, source_words), (target, target_words) = sides
    count = len(texts[0].split())
    partner = data.draw(
        st.lists(
            st.integers(0, count - 1),
            min_size=len(texts[1].split()),
            max_size=len(texts[1].split()),
        )
    )
    weights = np.equal.outer(np.take(partner, target_words), source_words)
    # A word that no token begins has no links.
    expected = [
        (word, i) for i, word in enumerate(partner) if i in target_words and word in source_words
    ]
    assert text_links(weights, source, target) == expected


def test_links_of_an_alignment_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(target tokens, source tokens\), \(1, 2\)"):
        text_links([[1.0]], ["a", "</s>"], ["b"])
    assert text_links(np.zeros((0, 0)), [], []) == []


def test_pharaoh_text_is_read_back(tmp_path):
    links = [(2, 0), (0, 1), (0, 1), (10, 3)]
    path = tmp_path / "links"
    path.write_text(to_pharaoh(links) + "\n")
    assert path.read_text() == "0-1 2-0 10-3\n"
    assert read_alignments(path) == [[(0, 1), (2, 0), (10, 3)]]


@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9),
    st.integers(1, 4),
)
def test_phrases_are_the_consistent_pairs_of_spans(links, max_length):
    spans = [range(a, b) for a, b in itertools.combinations(range(7), 2) if b - a <= max_length]
    expected = []
    for source, target in itertools.product(spans, spans):
        inside = {link for link in links if link[0] in source and link[1] in target}
        touching = {link for link in links if link[0] in source or link[1] in target}
        tight = inside and (
            {min(s for s, _ in inside), max(s for s, _ in inside)} == {source[0], source[-1]}
            and {min(t for _, t in inside), max(t for _, t in inside)} == {target[0], target[-1]}
        )
        if tight and inside == touching:
            expected.append((source, target))
    key = lambda pair: (*(pair[0][0], pair[0][-1]), *(pair[1][0], pair[1][-1]))  # noqa: E731
    assert phrase_spans(links, max_length) == sorted(expected, key=key)


def test_unknown_words_come_from_the_source_or_the_dictionary():
    tokens, source = ["<unk>", "und", "<unk>"], ["Rex", "and", "cat"]
    alignment = [[0.8, 0.1, 0.1], [0, 1, 0], [0, 0.4, 0.6]]
    assert replace_unknowns(tokens, source, alignment) == ["Rex", "und", "cat"]
    dictionary = {"cat": "Katze"}
    expected = ["Rex", "und", "Katze"]
    assert replace_unknowns(tokens, source, alignment, dictionary=dictionary) == expected
    assert replace_unknowns(["[?]"], ["Rex"], [[1.0]], unknown="[?]") == ["Rex"]


def test_unknown_word_without_attention_is_unchanged():
    assert replace_unknowns(["<unk>"], ["Rex"], [[0.0]]) == ["<unk>"]


def test_blank_line_has_no_links():
    assert hard_alignment(np.zeros((0, 0))) == []
    assert replace_unknowns([], [], np.zeros((0, 0))) == []


@pytest.mark.parametrize("line", ["4294967296-0", "0-99999999999999999999"])
def test_too_large_word_index_is_refused(tmp_path, line):
    path = tmp_path / "links.txt"
    path.write_text(f"0-0\n{line}\n")
    with pytest.raises(ValueError, match="line 2: expected links such as 0-0 1-2"):
        list(read_alignments(path))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hard_alignment([0.5]), "`alignment` must be"),
        (lambda: hard_alignment(ALIGNMENT, 0.0), "`threshold` must be"),
        (lambda: phrase_spans([(0, 0)], 0), "`max_length` must be"),
        (lambda: replace_unknowns(["a"], ["b"], np.ones((2, 1))), "`alignment` must be"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
