"""Which pairs are doubtful, and which sources are selected, with tables in place of a model."""

import math
from dataclasses import replace

import numpy as np
import pytest

from keras_bahdanau_runtime import Translation
from keras_bahdanau_runtime.bulk.doubtful_pairs import find_doubtful_pairs, most_doubtful
from keras_bahdanau_runtime.bulk.selection import find_candidates, select_candidates
from keras_bahdanau_runtime.bulk.text_model import TextModel
from keras_bahdanau_runtime.errors import UnsupportedArtifactError
from keras_bahdanau_runtime.scoring import TargetScore
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["read"] * 2, ["rid rɛd x"] * 2, kind="characters")
# Log-probabilities of all targets of a source, the best first.
TABLE = {
    "read": {"rid": -0.25, "rɛd": -2.0, "rad": -3.0, "xxx": -20.0},
    "rear": {"rir": -7.5, "rɛr": -8.5, "xxx": -9.0},
    "ear": {"ir": -0.125, "xi": -6.0},
}


def translate(texts, n_best=1):
    """The best targets of each source; blank sources have blank ones."""
    results = []
    for text in texts:
        if text not in TABLE:
            results.append([Translation("", math.nan, [], [], None, "no such source")])
            continue
        best = sorted(TABLE[text].items(), key=lambda item: -item[1])[:n_best]
        results.append(
            [
                Translation(target, score, [], [], None, log_probs=np.array([score / 2] * 2))
                for target, score in best
            ]
        )
    return results if n_best > 1 else [row[0] for row in results]


def score(sources, targets):
    scores = []
    for source, target in zip(sources, targets, strict=True):
        total = TABLE.get(source, {}).get(target)
        error = "no such pair" if total is None else None
        tokens = [*target, "</s>"] if error is None else []
        scores.append(TargetScore(total or math.nan, np.zeros(0), tokens, [], None, error=error))
    return scores


@pytest.fixture
def model():
    return TextModel(TOKENIZER, 3, translate, score)


def doubtful(model, *pairs):
    """Return the doubtful pairs and the messages of pairs on lines 1, 2, ..."""
    messages = []
    numbered = [(line, *pair) for line, pair in enumerate(pairs, start=1)]
    results = find_doubtful_pairs(numbered, model, lambda *message: messages.append(message))
    return list(results), messages


def test_pair_is_doubtful_if_the_answer_is_more_probable(model):
    pairs, messages = doubtful(model, ("read", "xxx"), ("rear", "rir"), ("ear", "xi"))
    assert [(pair.line, pair.answer, pair.difference) for pair in pairs] == [
        (1, "rid", 19.75),
        (3, "ir", 5.875),
    ]
    # Three letters or two, and the end.
    assert [pair.target_log_prob_per_token for pair in pairs] == [-5, -2] and not messages


def test_other_targets_of_a_source_are_no_better_answers(model):
    pairs, _ = doubtful(model, ("read", "rid"), ("read", "rɛd"))
    assert pairs == []


def test_wrong_target_of_a_source_with_an_accepted_one_is_compared_with_a_third_answer(model):
    pairs, _ = doubtful(model, ("read", "xxx"), ("ear", "ir"), ("read", "rid"))
    assert [(pair.line, pair.answer, pair.difference) for pair in pairs] == [(1, "rɛd", 18)]


def test_pair_is_not_doubtful_if_all_hypotheses_are_accepted():
    greedy = TextModel(TOKENIZER, 1, translate, score)
    pairs, _ = doubtful(greedy, ("read", "xxx"), ("read", "rid"))
    assert pairs == []


def test_most_doubtful_pairs_are_sorted_by_the_difference_and_then_by_line(model):
    rows = ("ear", "xi"), ("read", "xxx"), ("rear", "rɛr"), ("ear", "xi")
    pairs, _ = doubtful(model, *rows)
    # "rɛr" is 1 less probable than "rir". Two lines with equal targets are both listed.
    assert [pair.line for pair in most_doubtful(iter(pairs), 3)] == [2, 1, 4]
    assert [pair.line for pair in most_doubtful(iter(pairs), 9)] == [2, 1, 4, 3]


def test_pairs_without_a_score_or_an_answer_are_reported_and_skipped_lines_are_not(model):
    pairs, messages = doubtful(model, ("read", "unknown"), (None, None), ("ear", "xi"))
    assert [pair.line for pair in pairs] == [3]
    assert messages == [(1, "no such pair")]


def candidates(model, *texts):
    messages = []
    lines = list(enumerate(texts, start=1))
    results = find_candidates(lines, model, lambda *message: messages.append(message))
    return list(results), messages


def test_candidates_have_the_probability_of_their_answer_and_no_repeated_source(model):
    results, messages = candidates(model, "read", " ", "ear", "read", "err")
    assert [(item.line, item.source, item.answer) for item in results] == [
        (1, "read", "rid"),
        (3, "ear", "ir"),
    ]
    assert [item.confidence for item in results] == pytest.approx(
        [math.exp(-0.25), math.exp(-0.125)]
    )
    assert messages == [(5, "no such source")]


def test_confidence_of_a_calibrated_model_replaces_the_probability():
    def calibrated(texts, n_best=1):
        return [replace(item, confidence=0.25) for item in translate(texts)]

    [item], _ = candidates(TextModel(TOKENIZER, 1, calibrated, score), "read")
    assert item.confidence == 0.25


def test_answers_of_an_older_artifact_without_log_probabilities_are_refused():
    def older(texts, n_best=1):
        return [replace(item, log_probs=None) for item in translate(texts)]

    with pytest.raises(UnsupportedArtifactError, match="Export it again to select sources"):
        candidates(TextModel(TOKENIZER, 1, older, score), "read")


@pytest.mark.parametrize(
    ("similarity", "count", "sources"),
    [
        (0.75, 3, ["rear"]),  # one edit in four characters, to "read" and to "ear"
        (0.76, 3, ["rear", "read", "ear"]),
        (0.76, 2, ["rear", "read"]),
    ],
)
def test_selected_sources_have_low_confidence_and_are_no_near_duplicates(
    model, similarity, count, sources
):
    results, _ = candidates(model, "ear", "read", "rear")
    assert [item.source for item in select_candidates(results, count, similarity)] == sources
