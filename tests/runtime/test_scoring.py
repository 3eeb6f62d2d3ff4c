"""Scores of given targets, with a graph whose log-probability of an id is -id / 8."""

import math

import numpy as np
import onnx
import pytest
from copy_artifact import COPY_SCORE, TOKENIZER, external_score, make, make_copying

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.errors import CorruptArtifactError, RunError, UnsupportedArtifactError
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.session import read_graph

SOURCES = ["a man on a bike", "a boat", "a dog on a boat", "a"]
TARGETS = ["a dog", "a man on", "a bike", "a dog on a bike"]
SETTINGS = {"class": "GreedySearch", "max_length": 7}


def target_ids(text):
    return [*TOKENIZER.encode(text, add_special_tokens=False).ids, 3]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("score") / "artifact", score=COPY_SCORE, search=SETTINGS)


@pytest.fixture(scope="module")
def translator(artifact):
    return Translator(artifact, threads=1)


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"batch_tokens": 6}], ids=str)
def test_scores_have_tokens_and_log_probabilities_in_the_order_of_the_pairs(translator, options):
    done = []
    scores = translator.score(SOURCES, TARGETS, progress=done.append, **options)
    assert done[-1] == len(SOURCES) and done == sorted(done)
    for score, source, target in zip(scores, SOURCES, TARGETS, strict=True):
        ids = target_ids(target)
        assert score.error is None
        assert "".join(score.source_tokens) == f"{source}</s>"
        assert "".join(score.tokens) == f"{target}</s>"
        assert score.log_probs.tolist() == [-index / 8 for index in ids]
        assert score.total == -sum(ids) / 8
        shape = len(score.tokens), len(score.source_tokens)
        np.testing.assert_array_equal(score.alignment, np.eye(*shape))
        assert score.alignment.base is None and score.alignment.dtype == np.float32


def test_batches_may_run_in_parallel_and_alignments_be_left_out(artifact):
    parallel = Translator(artifact, parallel_batches=2)
    scores = parallel.score(SOURCES, TARGETS, batch_size=1, alignments=False)
    assert [score.total for score in scores] == [-sum(target_ids(text)) / 8 for text in TARGETS]
    assert all(score.alignment is None for score in scores)


def test_scores_of_a_model_that_copies_have_the_copied_share_of_each_token(tmp_path, translator):
    copying = Translator(make_copying(tmp_path / "copying"), threads=1)
    for score in copying.score(SOURCES, TARGETS):
        np.testing.assert_array_equal(score.copied, 0.5 * score.alignment)
        assert score.copied.base is None
    assert copying.score(SOURCES, TARGETS, alignments=False)[0].copied is None
    assert translator.score(SOURCES, TARGETS)[0].copied is None


def test_no_pairs_have_no_scores(translator):
    assert translator.score([], []) == [] and translator.align([], []) == []


@pytest.mark.parametrize(
    "sources, targets, message",
    [
        (["a man"], [], "`targets` must have one text for each of 1 sources. Received: 0"),
        ("a man", ["a"], "`sources` must be a list of str"),
        (["a man"], "a", "`targets` must be a list of str"),
        (["a man", "a"], ["a", b"a"], r"`targets\[1\]` must be a str"),
        (["a man", "a"], ["a", " "], r"`targets\[1\]` must not be blank. Received: ' '"),
        (["a man", ""], ["a", "a"], r"`sources\[1\]` must not be blank"),
        (["a \ud800"], ["a"], r"`sources\[0\]` must be a str without lone surrogates"),
        (["a"], ["a dog" * 9], r"`targets\[0\]` must have at most 7 tokens, including the end of"),
        (["a dog" * 40], ["a"], r"`sources\[0\]` must have at most 40 tokens"),
    ],
)
def test_invalid_texts_are_refused(translator, sources, targets, message):
    for method in (translator.score, translator.align):
        with pytest.raises(ValueError, match=message):
            method(sources, targets)


def test_a_target_of_the_maximum_length_is_scored(translator):
    [score] = translator.score(["a"], ["a a a a a a"])
    assert len(score.tokens) == SETTINGS["max_length"]


@pytest.mark.parametrize("name, value", [("batch_size", 0), ("batch_tokens", 0), ("on_error", "x")])
def test_invalid_options_are_refused(translator, name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        translator.score(["a"], ["a"], **{name: value})
    with pytest.raises(ValueError, match="`threshold` must be a number above 0"):
        translator.align(["a"], ["a"], threshold=0.0)


def test_errors_are_kept_in_the_place_of_their_pair(translator):
    sources, targets = ["a man", "a \ud800", "a", "a boat"], ["a dog", "a", "\n", "a dog" * 9]
    scores = translator.score(sources, targets, on_error="keep")
    assert scores[0].total == -sum(target_ids("a dog")) / 8 and scores[0].error is None
    for score, message in zip(
        scores[1:], ["lone surrogates", "not be blank", "at most 7 tokens"], strict=True
    ):
        assert math.isnan(score.total) and message in score.error
        assert score.tokens == score.source_tokens == [] and score.log_probs.shape == (0,)
        assert score.alignment is None


def test_a_pair_whose_run_fails_does_not_lose_its_batch(artifact, monkeypatch):
    translator = Translator(artifact, threads=1)
    scorer = translator.open_scorer()
    score = scorer.score

    def fail_for_long_targets(source, target, alignments):
        if target.shape[1] > 5:
            raise RunError("no memory")
        return score(source, target, alignments)

    monkeypatch.setattr(scorer, "score", fail_for_long_targets)
    scores = translator.score(SOURCES, TARGETS, on_error="keep")
    assert [score.error for score in scores] == [None, None, None, "RunError: no memory"]
    with pytest.raises(RunError, match="no memory"):
        translator.score(SOURCES, TARGETS)


def test_ids_are_scored_without_a_tokenizer(tmp_path):
    path = make(tmp_path / "a", score=COPY_SCORE, document=None)
    outputs = Translator(path).score_ids([[5, 6, 3], [5, 3, 0]], [[8, 3], [3, 0]])
    assert outputs["log_probs"].tolist() == [[-1.0, -0.375], [-0.375, 0.0]]
    assert outputs["totals"].tolist() == [-1.375, -0.375]
    assert outputs["lengths"].tolist() == [2, 1]
    assert outputs["alignments"].shape == (2, 2, 3)
    with pytest.raises(ValueError, match="`texts` needs a tokenizer"):
        Translator(path).score(["a"], ["a"])


@pytest.mark.parametrize(
    "target, message",
    [
        ([[5, 3]], "`target` must have one row for each of 2 sources. Received: 1"),
        ([[5, 3, 5], [5, 3, 0]], r"`target` must hold nothing after the end of a sentence.* row 0"),
        ([[5, 3], [0, 0]], "`target` must hold a token in every row"),
        ([[5, 3], [290, 3]], "`target` must hold ids from 0 to 289"),
        ([[5] * 8, [5] * 8], "`target` must hold at most 7 tokens a row"),
        (
            [[0.5], [0.5]],
            r"`target` must be a non-empty integer array of shape \(batch, target_len",
        ),
    ],
)
def test_invalid_ids_are_refused(translator, target, message):
    with pytest.raises(ValueError, match=message):
        translator.score_ids([[5, 3], [6, 3]], target)


def test_the_graph_is_opened_once_by_the_first_call(artifact):
    translator = Translator(artifact, threads=1)
    assert translator._scorer is None
    scorer = translator.open_scorer()
    assert translator.open_scorer() is scorer
    assert translator.with_threads(2).open_scorer() is not scorer


def test_an_older_artifact_must_be_exported_again(tmp_path):
    translator = Translator(make(tmp_path / "old"))
    for method in (translator.score, translator.align):
        with pytest.raises(UnsupportedArtifactError, match=r"no score\.onnx.*Export it again"):
            method(["a"], ["a"])


def test_a_graph_that_scores_nothing_is_refused(tmp_path):
    graph = COPY_SCORE.replace("totals", "sums")
    with pytest.raises(CorruptArtifactError, match=r"score\.onnx: expected the outputs"):
        Translator(make(tmp_path / "a", score=graph)).score(["a"], ["a"])


def test_scores_of_another_shape_are_refused(tmp_path):
    twice = "twice = Concat <axis = 1> (ids, ids)\n    log_probs = Mul (twice, eighth)"
    graph = COPY_SCORE.replace("log_probs = Mul (ids, eighth)", twice)
    with pytest.raises(RunError, match="must return scores for targets of shape"):
        Translator(make(tmp_path / "a", score=graph)).score(["a"], ["a"])


def test_an_artifact_that_was_replaced_is_not_mixed(tmp_path):
    path = make(tmp_path / "a", score=COPY_SCORE)
    translator = Translator(path)
    make(path, score=COPY_SCORE.replace("-0.125", "-0.25"), overwrite=True)
    with pytest.raises(CorruptArtifactError, match="It was replaced since"):
        translator.score(["a"], ["a"])


def test_a_weight_may_be_in_the_graph_of_the_search(tmp_path):
    # The name of a node in model.onnx, read as a number.
    contents = make(tmp_path / "plain").joinpath("model.onnx").read_bytes()
    offset = contents.index(b"lengths")
    factor = float(np.frombuffer(contents, "<f4", 1, offset)[0])
    path = make(tmp_path / "a", score=external_score("model.onnx", offset))
    outputs = Translator(path, threads=1).score_ids([[5, 3]], [[8, 3]])
    np.testing.assert_allclose(outputs["log_probs"], [[8 * factor, 3 * factor]], rtol=1e-6)
    contents, files = read_graph(read_manifest(path), "score.onnx")
    assert files == {} and onnx.load_from_string(contents).graph.initializer


@pytest.mark.parametrize("location", ["tokenizer.json", "manifest.json", "/etc/hostname", "../a"])
def test_a_weight_in_any_other_file_is_refused(tmp_path, location):
    translator = Translator(make(tmp_path / "a", score=external_score(location)))
    with pytest.raises(CorruptArtifactError, match="expected data in files of the artifact"):
        translator.score(["a"], ["a"])


def test_a_weight_past_the_end_of_the_search_is_refused(tmp_path):
    translator = Translator(make(tmp_path / "a", score=external_score("model.onnx", 10**7)))
    with pytest.raises(CorruptArtifactError, match="expected data in files of the artifact"):
        translator.score(["a"], ["a"])
