import sys

import pytest

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.text.scores import MEASURES, corpus_scores


def test_identical_text_scores_100():
    texts = ["A man rides a red bike .", "Zwei Hunde spielen im Schnee ."]
    expected = {"bleu": 100.0, "chrf": 100.0, "exact": 100.0, "ser": 0.0}
    assert corpus_scores(texts, texts) == pytest.approx(expected)


def test_bleu_equals_a_hand_computed_example():
    # Precisions 5/6, 3/5, 2/4, 1/3, no brevity penalty: (5/6 * 3/5 * 2/4 * 1/3) ** (1/4).
    scores = corpus_scores(["a b c d x f"], ["a b c d e f"])
    assert scores["bleu"] == pytest.approx(100 * (1 / 12) ** 0.25)
    assert 0 < scores["chrf"] < 100


@pytest.mark.parametrize("translations, references", [(["a"], ["a", "b"]), (["a"], []), ([], [])])
def test_lists_of_different_lengths_are_refused(translations, references):
    received = f"Received: {len(references)} lists for {len(translations)} outputs"
    with pytest.raises(ValueError, match=received):
        corpus_scores(translations, references)


def test_each_output_has_its_own_number_of_references():
    outputs, references = ["a b c d", "e f g h"], [["x y z w", "a b c d"], "e f g h"]
    expected = {"bleu": 100.0, "chrf": 100.0, "exact": 100.0, "ser": 0.0}
    assert corpus_scores(outputs, references) == pytest.approx(expected)


def test_translations_of_one_source_share_their_references_for_exact_matches():
    outputs, references = ["ab", "ab", "cd"], ["ab", "xy", "cd"]
    scores = corpus_scores(outputs, references, sources=["a", "a", "c"])
    assert (scores["exact"], scores["ser"]) == (100.0, 0.0)
    assert corpus_scores(outputs, references)["exact"] == pytest.approx(200 / 3)
    assert scores["chrf"] == corpus_scores(outputs, references)["chrf"]


def test_missing_library_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[text\]"'):
        corpus_scores(["a"], ["a"])


def test_bleu_depends_on_the_tokenization():
    """13a splits both texts into `a ( b c d e`. Without it two of five words differ."""
    translations, references = ["a (b c d e"], ["a ( b c d e"]
    assert corpus_scores(translations, references)["bleu"] == pytest.approx(100)
    assert corpus_scores(translations, references, tokenize="none")["bleu"] < 60
    with pytest.raises(ValueError, match=r"`tokenize` must be one of .*Received: 'words'"):
        corpus_scores(translations, references, tokenize="words")


def test_tokenization_that_needs_a_missing_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(ValueError, match=r"`tokenize` must name an installed tok.*ja-mecab"):
        corpus_scores(["a"], ["a"], tokenize="ja-mecab")


def test_only_losses_and_error_rates_are_better_if_they_are_smaller():
    better = {name for name, measure in MEASURES.items() if measure.improvement(2.0, 1.0) == 1.0}
    assert better == {"loss", "ser"}
    assert all(MEASURES[name].improvement(1.0, 2.0) == 1.0 for name in MEASURES.keys() - better)
