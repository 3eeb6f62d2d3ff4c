"""Confidences of outputs, with numbers by hand and an artifact that copies its source."""

import json
import math

import numpy as np
import onnx.parser
import pytest
from copy_artifact import TOKENIZER, calibration, copy_graph, make, make_with_options

from keras_bahdanau_runtime import CorruptArtifactError, RunError, Translator
from keras_bahdanau_runtime.calibration import (
    OUTPUT_FEATURES,
    Calibration,
    LogisticModel,
    output_features,
)
from keras_bahdanau_runtime.signature import TRANSLATE

SEARCH = {"class": "BeamSearch", "size": 2, "max_length": 40}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "artifact"
    return Translator(make_with_options(path, calibration=calibration()))


def features_of(log_probs, scores, lengths):
    """The features of one text, by name."""
    outputs = {"log_probs": log_probs, "scores": scores, "lengths": lengths}
    outputs = {name: np.array(value)[None] for name, value in outputs.items()}
    return {name: value.item() for name, value in output_features(outputs).items()}


def test_features_are_those_of_the_best_of_all_hypotheses():
    log_probs = np.log([[0.5, 0.8], [0.2, 1.0]]).astype("float32")
    features = features_of(log_probs, [-1.0, -2.0], [2, 2])
    expected = {
        "total": math.log(0.4 / 0.6),
        "mean": math.log(0.4) / 2,
        "smallest": 0.0,  # the logit of 0.5
        "margin": math.log(0.4 / 0.2),
        "share": math.log(0.4 / 0.2),  # 0.4 of 0.6
        "length": math.log(2),
    }
    assert features == pytest.approx(expected, abs=1e-5)
    assert tuple(features) == OUTPUT_FEATURES


def test_a_hypothesis_that_does_not_exist_has_no_share():
    log_probs = np.array([[-1.0], [0.0]], "float32")
    features = features_of(log_probs, [-1.0, -np.inf], [1, 0])
    assert features["margin"] == features["share"] == 20


def test_features_of_certain_outputs_are_finite():
    features = features_of(np.zeros((1, 3), "float32"), [0.0], [3])
    assert (
        features["total"] == features["smallest"] == features["margin"] == features["share"] == 20
    )


def test_best_translation_has_its_confidence(translator):
    [[best, *others]] = translator.translate(["a man"], n_best=2)[:1] or [[]]
    count = len(TOKENIZER.encode("a man").ids)  # each token has the log-probability -1
    assert best.confidence == pytest.approx(math.exp(-count), rel=1e-5)
    assert best.expected_errors == pytest.approx(0.2)
    np.testing.assert_allclose(best.token_confidences, [math.exp(-1)] * count, rtol=1e-6)
    np.testing.assert_array_equal(best.log_probs, [-1.0] * count)
    assert best.uncalibrated is None
    assert all(each.confidence is None and each.uncalibrated is None for each in others)


def test_a_blank_text_has_no_confidence(translator):
    [blank] = translator.translate([" "])
    assert blank.confidence is blank.uncalibrated is blank.log_probs is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"beam_size": 1}, "The confidence holds for beam_size=2. Received: 1."),
        ({"length_penalty": 0.5}, "The confidence holds for length_penalty=None. Received: 0.5."),
        ({"prefixes": ["a"]}, "The confidence holds for outputs without a prefix"),
        ({"suppressed": [9]}, "The confidence holds for outputs without a prefix"),
    ],
    ids=str,
)
def test_another_search_has_a_reason_instead_of_a_confidence(translator, options, reason):
    [translation] = translator.translate(["a man"], **options)
    assert translation.confidence is translation.token_confidences is None
    assert translation.uncalibrated.startswith(reason)


def test_the_same_settings_and_no_prefix_keep_the_confidence(translator):
    first, second = translator.translate(
        ["a man", "a dog"], prefixes=[None, "a"], beam_size=2, max_length=40
    )
    assert first.confidence is not None and second.confidence is None


def test_a_calibration_of_another_search_does_not_hold(tmp_path):
    other = calibration(search={**SEARCH, "size": 5})
    artifact = make(tmp_path / "artifact", search=SEARCH, calibration=other)
    [translation] = Translator(artifact).translate(["a man"])
    assert translation.uncalibrated == "The confidence holds for beam_size=5. Received: 2."


@pytest.mark.parametrize("extra", [{}, {"calibration": {"reason": "There are 5 pairs."}}])
def test_an_artifact_without_a_calibration_has_neither(tmp_path, extra):
    [translation] = Translator(make(tmp_path / "artifact", **extra)).translate(["a man"])
    assert translation.confidence is translation.uncalibrated is None


@pytest.fixture
def old_artifact(tmp_path):
    """Write an artifact whose graph has no log-probabilities, as those of earlier versions."""
    model = onnx.parser.parse_model(copy_graph())
    [output] = [value for value in model.graph.output if value.name == "log_probs"]
    model.graph.output.remove(output)
    signature = TRANSLATE.to_json()
    signature["outputs"] = signature["outputs"][:-1]

    def write(**contents):
        signatures = {"model.onnx": signature}
        return make(tmp_path / "artifact", model, signatures=signatures, **contents)

    return write


def test_an_artifact_without_log_probabilities_still_translates(old_artifact):
    [translation] = Translator(old_artifact()).translate(["a man"])
    assert translation.text == "a man" and translation.log_probs is None


def test_a_calibration_needs_the_log_probabilities(old_artifact):
    with pytest.raises(CorruptArtifactError, match="expected no 'calibration' without 'log_probs'"):
        Translator(old_artifact(calibration=calibration()))


def test_log_probabilities_that_are_not_finite_are_refused(tmp_path):
    graph = copy_graph().replace("first_log_probs = Neg (signs)", "first_log_probs = Log (empty)")
    graph = graph.replace("signs = Sign", "empty = Mul (float_row, zero)\n    signs = Sign")
    graph = graph.replace("<int32 pad", "<float zero = {0.0}, int32 pad")
    artifact = make(tmp_path / "artifact", graph, search=SEARCH, calibration=calibration())
    with pytest.raises(RunError, match="must return finite log-probabilities"):
        Translator(artifact).translate(["a man"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": 0}, "'pairs' to be a positive int"),
        ({"search": 5}, "'search' to be an object"),
        ({"measured": {"wrong": "1"}}, "'measured' to be an object of finite numbers"),
        ({"more": 1}, "the keys"),
        ({"confidence": 1}, "'confidence' with a bias and weights"),
        ({"tokens": {"bias": 0, "weights": {"total": 1}}}, "'tokens' with weights of"),
        ({"confidence": {"bias": True, "weights": {}}}, "'confidence' with numbers of at most"),
        ({"confidence": {"bias": 1e7, "weights": {}}}, "'confidence' with numbers of at most"),
        (
            {"expected_errors": {"bias": 0, "weights": {"mean": "1"}}},
            "'expected_errors' with numbers of at most",
        ),
    ],
    ids=str,
)
def test_damaged_calibrations_are_refused(tmp_path, changes, message):
    artifact = make(tmp_path / "artifact", calibration=calibration(**changes))
    with pytest.raises(CorruptArtifactError, match=f"in 'calibration', {message}"):
        Translator(artifact)


def test_a_calibration_is_its_json(tmp_path):
    parsed = Calibration.from_json(tmp_path, calibration())
    assert json.loads(json.dumps(parsed.to_json())) == calibration()
    assert parsed.tokens == LogisticModel(0.0, {"token": 1.0})
