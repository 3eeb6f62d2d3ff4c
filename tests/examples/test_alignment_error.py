"""The example that measures alignments: its language, IBM models and error rate, a short run."""

import math

import numpy as np
import pytest

from examples.alignment_error import compare_aligners, ibm_models
from examples.alignment_error.synthetic_language import CLASSES, LENGTHS, Language

TEXT = [([0, 1], [0, 1]), ([0, 2], [0, 2]), ([3, 2], [3, 2]), ([2, 0, 1], [1])]


def test_the_seed_determines_the_language():
    first, same, other = (Language(seed) for seed in (1, 1, 2))
    pairs = [first.pair() for _ in range(5)]
    assert pairs == [same.pair() for _ in range(5)] != [other.pair() for _ in range(5)]
    assert len(set(first.source_words)) == len(first.translations)


def test_every_target_word_is_linked_to_the_word_it_translates():
    language = Language(3)
    fertilities = set()
    for pair in [language.pair() for _ in range(200)]:
        assert len(pair.source) in LENGTHS
        assert sorted(i for _, i in pair.links) == list(range(len(pair.target)))
        for place, word in enumerate(pair.source):
            targets = sorted(i for j, i in pair.links if j == place)
            assert [pair.target[i] for i in targets] in language.translations[word]
            fertilities.add(len(targets))
    assert fertilities == {0, 1, 2}


def kind_of(language, word):
    kinds = list(CLASSES)
    firsts = [language.first[kind] for kind in kinds]
    return kinds[np.searchsorted(firsts, word, side="right") - 1]


def test_verbs_are_last_and_adjectives_and_prepositions_follow_their_rules():
    language = Language(0)
    cases = set()
    for _ in range(100):
        words, order = language._clause()
        kinds = [kind_of(language, word) for word in words]
        assert sorted(order) == list(range(len(words)))
        assert kinds[order[-1]] == "verb"
        for place, kind in enumerate(kinds):
            # An adjective or preposition belongs to the next noun.
            if kind not in ("adjective", "preposition"):
                continue
            noun = place + kinds[place:].index("noun")
            follows = kind == "preposition" or words[place] % 3 != 0
            assert (order.index(place) > order.index(noun)) == follows
            cases.add((kind, follows))
    assert len(cases) == 3


def naive_model_1(pairs, iterations):
    """Brown et al.'s expectation maximization, one word at a time."""
    size = 1 + max(j for source, _ in pairs for j in source), 1 + max(max(t) for _, t in pairs)
    table = np.full((size[0] + 1, size[1]), 1 / size[1])
    for _ in range(iterations):
        counts = np.zeros_like(table)
        for source, target in pairs:
            words = [0, *(word + 1 for word in source)]
            for f in target:
                total = sum(table[e, f] for e in words)
                for e in words:
                    counts[e, f] += table[e, f] / total
        table = counts / counts.sum(axis=1, keepdims=True)
    return table


def test_model_1_agrees_with_its_equations():
    table = ibm_models.Aligner(diagonal=False, iterations=4).fit(TEXT).table
    np.testing.assert_allclose(table, naive_model_1(TEXT, 4), rtol=1e-12)


def test_aligners_find_the_links_of_a_small_text():
    for diagonal in (False, True):
        aligner = ibm_models.Aligner(diagonal, iterations=20).fit(TEXT[:3] * 5)
        assert aligner.align(TEXT[:3]) == [{(0, 0), (1, 1)}] * 3
        # A source word without the rest of its sentence, alone and padded in a batch.
        assert aligner.align([([0], [0])]) == aligner.align([([0], [0]), TEXT[0]])[:1] == [{(0, 0)}]


def test_the_diagonal_prior_equals_a_hand_computed_example():
    aligner = ibm_models.Aligner(diagonal=True)
    aligner.tension = 3.0
    prior = aligner.prior(ibm_models.pad_pairs([([0, 1], [0, 1, 2, 3]), ([0, 1, 2], [0])]))[0]
    # The second of four target words is on the diagonal at the first of two source words.
    near, far = 1.0, math.exp(-3.0 * 0.5)
    expected = [0.08, 0.92 * near / (near + far), 0.92 * far / (near + far), 0.0]
    np.testing.assert_allclose(prior[1], expected, rtol=1e-12)


def test_the_tension_is_higher_for_text_in_the_same_order(rng):
    words = [rng.permutation(40)[:6].tolist() for _ in range(100)]
    straight = [(sentence, sentence) for sentence in words]
    crossed = [(sentence, sentence[3:] + sentence[:3]) for sentence in words]
    tensions = [ibm_models.Aligner(diagonal=True).fit(text).tension for text in (straight, crossed)]
    assert tensions[0] > ibm_models.TENSION > tensions[1]


def test_digamma_equals_reference_values():
    expected = [-100.56088545786867, -0.5772156649015329, -1.9635100260214235, 2.2517525890667211]
    np.testing.assert_allclose(
        ibm_models._digamma(np.array([0.01, 1.0, 0.5, 10.0])), expected, rtol=1e-8
    )


def test_grow_diag_equals_a_hand_computed_example():
    forward, backward = {(0, 0), (1, 1), (3, 3)}, {(0, 0), (2, 1), (5, 3)}
    # (1, 1) touches (0, 0); then (2, 1) touches that and reaches word 2; (3, 3) touches none.
    assert ibm_models.grow_diag(forward, backward) == {(0, 0), (1, 1), (2, 1)}
    assert ibm_models.transpose_links({(0, 1), (2, 3)}) == {(1, 0), (3, 2)}


def test_alignment_errors_equal_a_hand_computed_example():
    gold = [{(0, 0), (1, 1), (2, 2)}, {(0, 0)}]
    links = [{(0, 0), (1, 1)}, {(0, 1), (0, 0)}]
    errors = compare_aligners.alignment_errors(links, gold)
    assert errors == pytest.approx((1 - 2 * 3 / (4 + 4), 3 / 4, 3 / 4))
    assert compare_aligners.alignment_errors([set()], [{(0, 0)}]) == (1.0, 0.0, 0.0)


def test_attention_to_the_end_token_is_not_a_link():
    weights = np.array([[0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])
    assert compare_aligners.attention_links([weights]) == [{(1, 0)}]


def test_token_ids_are_shifted_words_and_the_end_token():
    assert compare_aligners.token_ids([([0, 2], [1])]) == [[[4, 6, 3]], [[5, 3]]]


def test_the_example_runs(tmp_path, capsys):
    table = compare_aligners.main(["--quick", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert len(table) == 8 + len(compare_aligners.MODELS) and all(name in printed for name in table)
    assert all(0 <= share <= 1 for errors in table.values() for share in errors)
    # 128 pairs are enough for the IBM models to be better than chance.
    assert table["fast_align, source to target"].aer < 0.5
    assert (tmp_path / "alignment_error.png").stat().st_size > 10_000
