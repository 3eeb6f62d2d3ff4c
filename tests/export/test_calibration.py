"""Fitting confidences, with numbers by hand and an artifact that copies its source."""

import math

import numpy as np
import pytest
from copy_artifact import TOKENIZER, copy_graph, make

from keras_bahdanau_export.calibration import MIN_PAIRS, fit_calibration, fit_logistic, right_tokens
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.signature import SAMPLE
from keras_bahdanau_runtime.text.error_rates import compare


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    search = {"class": "BeamSearch", "size": 2, "max_length": 40}
    return Translator(make(tmp_path_factory.mktemp("calibration") / "artifact", search=search))


def texts(count):
    """Different texts of one to four letters."""
    return [format(n, "o").translate(str.maketrans("01234567", "abcdefgh")) for n in range(count)]


def test_weights_are_those_that_the_pairs_were_drawn_with():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50_000))
    is_right = rng.random(50_000) < 1 / (1 + np.exp(-(0.5 + 2 * x + y)))
    model = fit_logistic({"total": x, "mean": y}, is_right.astype(float))
    assert model.bias == pytest.approx(0.5, abs=0.1)
    assert model.weights == pytest.approx({"total": 2, "mean": 1}, abs=0.1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_feature_that_speaks_for_the_wrong_side_is_left_out(sign):
    share, margin = np.array([1.0, 1.0, 1.0, 0.0]), np.array([-1.0, -1.0, -1.0, 1.0])
    model = fit_logistic({"margin": sign * margin}, share, sign=sign)
    assert model.weights == {}
    assert model.bias == pytest.approx(math.log(3), abs=1e-4)  # three of four are right


def test_the_length_may_speak_for_both_sides():
    length, share = np.array([1.0, 1.0, 2.0, 2.0]), np.array([1.0, 1.0, 0.0, 0.0])
    assert fit_logistic({"length": length}, share).weights["length"] < 0
    assert fit_logistic({"length": -length}, share).weights["length"] > 0


@pytest.mark.parametrize(("right", "odds"), [(1.0, 9 / 1), (0.0, 1 / 9)])
def test_sets_of_one_kind_give_a_constant(right, odds):
    model = fit_logistic({"total": np.arange(8.0)}, np.full(8, right))
    assert (model.bias, model.weights) == (pytest.approx(math.log(odds)), {})


def test_rounding_is_no_feature():
    total, share = np.array([1.0, 1.0 + 1e-7, 1.0, 1.0 + 1e-7]), np.array([0.0, 1.0, 0.0, 1.0])
    assert fit_logistic({"total": total}, share).weights == {}


def test_rows_count_as_often_as_they_have_symbols():
    # 3 of 4 symbols, and 6 of 12: together 9 of 16.
    shares, counts = np.array([0.75, 0.5]), np.array([4.0, 12.0])
    model = fit_logistic({"total": np.zeros(2)}, shares, counts)
    assert model.bias == pytest.approx(math.log(9 / 7), abs=1e-4)


@pytest.mark.parametrize(
    ("tokens", "reference", "unit", "expected"),
    [
        (["k", "o", "t", "</s>"], "kat", "characters", [True, False, True, True]),
        (["ko", "t", "</s>"], "kat", "characters", [False, True, True]),
        # The reference goes on, and a letter of the output is not in the reference.
        (["k", "a", "t", "</s>"], "kats", "characters", [True, True, True, False]),
        (["k", "a", "a", "t", "</s>"], "kat", "characters", [True, True, False, True, True]),
        (["aː", " b", " c", "</s>"], "aː d c", "symbols", [True, False, True, True]),
        (["</s>"], "a", "characters", [False]),
        # An output that the length limit has cut has no end.
        (["k", "a"], "ka", "characters", [True, True]),
    ],
)
def test_tokens_are_right_if_their_symbols_are(tokens, reference, unit, expected):
    text = "".join(token for token in tokens if token != "</s>")
    [comparison] = compare([text], [[reference]], unit)
    assert right_tokens(tokens, comparison).tolist() == expected


def test_confidences_are_fitted_on_different_sources(translator):
    sources = texts(150)
    # A third of the outputs is wrong by its only symbol, or one of several. Repeated sources have
    # several right outputs.
    references = [text[:-1] + "x" if n % 3 == 0 else text for n, text in enumerate(sources)]
    calibration, reason = fit_calibration(translator, [*sources, sources[0]], [*references, "a"])
    assert reason is None and calibration.pairs == 150
    assert calibration.measured["wrong"] == pytest.approx(100 * 49 / 150)
    assert calibration.search == translator.manifest.search.document
    symbols = sum(map(len, sources))
    assert calibration.measured["symbol_errors"] == pytest.approx(100 * 49 / symbols)


def test_folds_measure_on_pairs_that_were_not_fitted(translator):
    """Each tenth output is wrong, and all have the same features."""
    sources = [text for text in texts(4000) if len(TOKENIZER.encode(text).ids) == 5][:200]
    references = ["x" if n % 10 == 0 else text for n, text in enumerate(sources)]
    calibration, _ = fit_calibration(translator, sources, references)
    # Without the 20 wrong outputs, all 180 are right: 181 / 182 by the rule of succession. Without
    # another fold, 160 of 180 are right.
    expected = 100 * (0.1 * 181 / 182 + 0.9 * (1 - 160 / 180))
    assert calibration.measured["calibration_error"] == pytest.approx(expected, abs=0.1)


def test_a_set_without_errors_gives_a_high_constant(translator):
    sources = texts(MIN_PAIRS)
    calibration, _ = fit_calibration(translator, sources, sources)
    assert calibration.confidence.weights == {}
    assert calibration.confidence.bias == pytest.approx(math.log(MIN_PAIRS + 1))


def test_too_few_pairs_give_a_reason(translator):
    sources = texts(MIN_PAIRS - 1)
    calibration, reason = fit_calibration(translator, [*sources, *sources], [*sources, *sources])
    assert calibration is None
    assert reason == f"There are {MIN_PAIRS - 1} pairs, and at least {MIN_PAIRS} are needed."


def test_a_search_that_samples_has_no_confidence(tmp_path):
    graph = copy_graph().replace("source) =>", "source, float[batch, beam, length] noise) =>")
    artifact = make(
        tmp_path / "artifact",
        graph,
        search={"class": "Sampling", "n": 2, "max_length": 4, "seed": 1},
        signatures={"model.onnx": SAMPLE.to_json()},
    )
    calibration, reason = fit_calibration(Translator(artifact), texts(200), texts(200))
    assert calibration is None and "samples" in reason
