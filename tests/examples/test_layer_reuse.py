"""Quick runs of the examples that use one layer in their own models, and their data."""

import importlib
from datetime import datetime, timedelta
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from recordings import write_recordings

from examples.classification import classify, messages
from examples.common import parse_options, require_margin
from examples.forecasting import lstm
from examples.forecasting.series import QUICK, Ridge, day_before, errors, read_series, windows
from examples.hindi import translate
from examples.hindi.phrases import FIXED, Phrase, grammar

EXAMPLES = [
    ("classification", "classify", "classification.png"),
    ("pointer_network", "sort", "pointer.png"),
    ("forecasting", "forecast", "forecast.png"),
    ("handwriting", "read_digits", "handwriting.png"),
    ("hindi", "translate", "hindi.png"),
    ("speech", "recognize", "speech.png"),
    ("speech", "stream", "stream.png"),
]


def hourly_file(path, hours=20 * QUICK.month + QUICK.horizon):
    """A CSV file of five variables with the same daily cycle, at other levels and heights."""
    begin = datetime(2016, 7, 1)
    cycle = np.sin(2 * np.pi * np.arange(hours) / 24)
    rows = [",".join(f"{n * x + n:.4f}" for n in range(1, 6)) for x in cycle]
    lines = [f"{begin + timedelta(hours=n)},{row}" for n, row in enumerate(rows)]
    path.write_text("\n".join(["date,HUFL,HULL,MUFL,MULL,OT", *lines]), "utf-8")
    return path


def module(name, part):
    return importlib.import_module(f"examples.{name}.{part}")


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")  # a font for Devanagari may be missing
@pytest.mark.parametrize("name, script, picture", EXAMPLES)
def test_quick_run_measures_draws_and_saves(name, script, picture, tmp_path):
    data = []
    if name == "forecasting":
        data = [str(hourly_file(tmp_path / "data.csv"))]
    elif name == "speech":
        data = [str(write_recordings(tmp_path / "recordings"))]
    figures = module(name, script).main([*data, "--quick", "--output", str(tmp_path)])
    assert len(figures) >= 2 and np.isfinite(list(figures.values())).all()
    assert (tmp_path / picture).stat().st_size > 1000
    assert keras.saving.load_model(tmp_path / "model.keras", compile=False).built
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize("reached, margin", [(0.75, 0.5), (0.25, -0.5)])
def test_a_missed_margin_ends_the_script(reached, margin):
    require_margin("figure", reached, 0.5, margin / 2)
    with pytest.raises(SystemExit, match="figure"):
        require_margin("figure", reached, 0.5, margin)
    with pytest.raises(SystemExit, match="figure"):
        require_margin("figure", 1 - reached, 0.5, margin)


def test_hindi_agrees_with_its_noun():
    phrases = {phrase.english: phrase for phrase in grammar()}
    assert len(phrases) == len(grammar())
    assert phrases["Turn off the lights"].hindi == "बत्तियाँ बंद करो"
    assert phrases["Turn on the fan in the hall"].hindi == "हॉल का पंखा चालू करो"
    assert phrases["Open the big window"].hindi == "बड़ी खिड़की खोलो"
    assert phrases["Where is the old key?"].hindi == "पुरानी चाबी कहाँ है?"


def test_hindi_words_have_the_english_words_they_translate():
    for english, hindi, origins in grammar():
        assert len(origins) == len(hindi.replace("?", " ?").split())
        assert set().union(*origins) <= set(english.replace("?", " ?").split())
    [phrase] = [phrase for phrase in grammar() if phrase.english == "Give me the old key"]
    assert phrase.origins == [{"me"}, {"old", "key"}, {"key"}, {"Give"}]


def test_hindi_training_validation_and_test_phrases_are_disjoint():
    (pairs, test), (same, validation) = translate.split(), translate.split(validation=True)
    assert pairs == same and test[0].english == translate.EXAMPLE
    phrases = [english for english, _ in pairs]
    phrases += [phrase.english for phrase in (*test, *validation)]
    assert len(set(phrases)) == len(phrases) == len(grammar()) + len(FIXED)


def test_hindi_words_are_aligned_by_their_largest_weight():
    phrase = Phrase("Bring the tea", "चाय लाओ", [{"tea"}, {"Bring"}])
    tokens = ["चाय", " लाओ", "</s>"], ["Bring", " the", " tea", "</s>"]
    weights = np.array([[0.1, 0.6, 0.3, 0.0], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 1.0]])
    right = SimpleNamespace(
        text=phrase.hindi, tokens=tokens[0], source_tokens=tokens[1], alignment=weights
    )
    wrong = SimpleNamespace(text="चाय दो")
    assert translate.alignment_accuracy([right, wrong], [phrase, phrase]) == 0.5
    assert translate.exact_match_rate([right, wrong], [phrase, phrase]) == 0.5
    assert translate.alignment_accuracy([wrong], [phrase]) == 0.0


def test_spans_of_messages_contain_a_request():
    ids, intents, spans = messages.generate(50, seed=1)
    for row, intent, (first, last) in zip(ids, intents, spans, strict=True):
        words = messages.decode(row)
        assert " ".join(words[first:last]) in messages.REQUESTS
        assert words[last] in list(messages.INTENTS.values())[intent]


def test_largest_weights_on_requests_are_counted():
    weights = np.eye(5)[[1, 3, 0]]  # before a request, its last word, its only one
    assert classify.request_focus(weights, [(2, 3), (2, 3), (0, 0)]) == pytest.approx(2 / 3)


def test_training_validation_and_test_data_have_different_seeds(tmp_path):
    output = ["--output", str(tmp_path)]
    test, validation, other = (
        parse_options("name", "doc", [*output, *more])
        for more in ([], ["--validation"], ["--seed", "2", "--quick"])
    )
    seeds = [test.training, test.unseen, validation.unseen, other.training, other.unseen]
    assert len({np.random.default_rng(seed).integers(1 << 60) for seed in seeds}) == 5
    assert validation.training == test.training
    assert test.export and not other.export


def test_quick_comparison_of_lstms_measures_every_model_and_draws_weights(tmp_path):
    data = hourly_file(tmp_path / "data.csv")
    figures = lstm.main([str(data), "--quick", "--output", str(tmp_path)])
    assert len(figures) == 3 + 2 * len(lstm.MODELS) and np.isfinite(list(figures.values())).all()
    assert (tmp_path / "weights.png").stat().st_size > 1000


def test_windows_of_the_parts_do_not_read_ahead_and_are_measured_inside_of_their_part(tmp_path):
    series = read_series(hourly_file(tmp_path / "data.csv"), QUICK)
    training = series.values[: 12 * QUICK.month]
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(training.std(axis=0), 1, atol=1e-4)
    hours = {part: windows(series, part, QUICK) for part in ("training", "validation", "test")}
    counts = [len(part.past) for part in hours.values()]
    # 12, 4 and 4 months of 48 hours. A window has 48 hours of past and a future of 12, in the test
    # of at least 6.
    assert counts == [12 * 48 - 48 - 12 + 1, 4 * 48 - 12 + 1, 4 * 48 - 6 + 1]
    missing = 5 * (6 + 5 + 4 + 3 + 2 + 1)  # of five variables
    assert [np.isnan(part.future).sum() for part in hours.values()] == [0, 0, missing]
    first = hours["test"]
    np.testing.assert_array_equal(first.past[0], series.values[15 * 48 : 16 * 48])
    np.testing.assert_array_equal(first.future[0], series.values[16 * 48 : 16 * 48 + 12])
    # 2016-07-01 was a Friday, and the test months begin 32 days later.
    assert np.flatnonzero(first.future_calendar[0, 0]).tolist() == [0, 24 + (4 + 32) % 7]


def test_forecasts_without_a_network_repeat_a_daily_cycle(tmp_path):
    series = read_series(hourly_file(tmp_path / "data.csv"), QUICK)
    training, unseen = (windows(series, part, QUICK) for part in ("training", "test"))
    for forecast in (day_before(unseen.past, 12), Ridge(training, 1e-3, True).predict(unseen)):
        assert max(errors(forecast, unseen.future, 6)) < 1e-3
    shifted = day_before(unseen.past, 12) + 3
    np.testing.assert_allclose(errors(shifted, unseen.future, 12), [9, 3], rtol=1e-3)
    lines = (tmp_path / "data.csv").read_text("utf-8").splitlines()
    (tmp_path / "short.csv").write_text("\n".join(lines[:-1]), "utf-8")
    with pytest.raises(SystemExit, match=r"short\.csv must have 972 hours\. It has 971\."):
        read_series(tmp_path / "short.csv", QUICK)
