"""The smoke forms of the examples that take a layer into a model of their own."""

import importlib

import keras
import numpy as np
import pytest

from examples.common import require_margin
from examples.hindi.phrases import FIXED, grammar
from examples.speech.audio import edits
from examples.speech.log_mel import LogMel

EXAMPLES = {
    "pointer_network": ("sort", "pointer.png"),
    "forecasting": ("forecast", "forecast.png"),
    "captioning": ("caption", "caption.png"),
    "hindi": ("translate", "hindi.png"),
    "speech": ("recognise", "speech.png"),
}

# Each runs on every backend; here two do, to spare minutes, and all of them on one.
EVERYWHERE = ("pointer_network", "forecasting")


def module(name, part):
    return importlib.import_module(f"examples.{name}.{part}")


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")  # there may be no font for Devanagari
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in EVERYWHERE else pytest.mark.once) for n in EXAMPLES],
)
def test_its_quick_form_measures_draws_and_saves(name, tmp_path):
    script, picture = EXAMPLES[name]
    figures = module(name, script).main(["--quick", "--output", str(tmp_path)])
    assert len(figures) >= 2 and np.isfinite(list(figures.values())).all()
    assert (tmp_path / picture).stat().st_size > 1000
    assert keras.saving.load_model(tmp_path / "model.keras", compile=False).built
    assert not (tmp_path / "artifact").exists()


@pytest.mark.tracing
def test_the_exported_graph_gives_the_same_numbers(tmp_path):
    module("speech", "recognise").main(["--quick", "--export", "--output", str(tmp_path)])
    assert (tmp_path / "artifact" / "model.onnx").exists()


@pytest.mark.once
@pytest.mark.parametrize("reached, margin", [(0.75, 0.5), (0.25, -0.5)])
def test_a_missed_margin_ends_the_script(reached, margin):
    require_margin("figure", reached, 0.5, margin / 2)
    with pytest.raises(SystemExit, match="figure"):
        require_margin("figure", reached, 0.5, margin)
    with pytest.raises(SystemExit, match="figure"):
        require_margin("figure", 1 - reached, 0.5, margin)


@pytest.mark.once
def test_the_log_mel_layer_finds_a_tone_in_its_band():
    time = np.arange(800) / 4000
    found = keras.ops.convert_to_numpy(LogMel()(np.sin(2 * np.pi * 500 * time)[None]))
    assert found.shape == LogMel().compute_output_shape((1, 800))
    mel = 2595 * np.log10(1 + np.array([500, 2000]) / 700)
    band = 21 * mel[0] / mel[1] - 1  # 20 bands, whose middles divide the mel scale into 21
    assert abs(found[0, 2:-2].mean(axis=0).argmax() - band) <= 0.5


@pytest.mark.once
@pytest.mark.parametrize(
    "found, said, count", [("", "abc", 3), ("abc", "abc", 0), ("axc", "abc", 1), ("bca", "abc", 2)]
)
def test_edits_are_counted(found, said, count):
    assert edits(found, said) == count


@pytest.mark.once
def test_hindi_agrees_with_its_noun():
    phrases = dict(grammar())
    assert len(phrases) + len(FIXED) in range(150, 201)
    assert phrases["Turn off the lights"] == "बत्तियाँ बंद करो"
    assert phrases["Turn on the fan in the hall"] == "हॉल का पंखा चालू करो"
    assert phrases["Open the big window"] == "बड़ी खिड़की खोलो"
