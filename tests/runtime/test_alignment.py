import sys
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.text.alignment import plot_alignment

pytestmark = pytest.mark.once

SOURCE = ["a", " man", " on", " a", " bike", "</s>"]
TARGET = ["ein", " Mann", "</s>"]
HEADS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


def some_alignment(rng, targets=TARGET, sources=SOURCE):
    return rng.dirichlet(np.ones(len(sources)), size=len(targets))


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("ending", HEADS)
def test_writes_a_picture(rng, tmp_path, ending):
    path = tmp_path / f"alignment{ending}"
    plot_alignment(some_alignment(rng), SOURCE, TARGET, path=path, title="one sentence")
    assert path.read_bytes().startswith(HEADS[ending])
    if ending == ".svg":
        ElementTree.parse(path)


def test_source_runs_along_x_and_weights_are_what_is_drawn(rng):
    alignment = some_alignment(rng)
    figure = plot_alignment(alignment, SOURCE, TARGET)
    axes = figure.axes[0]
    assert labels(axes.xaxis) == ["a", "␣man", "␣on", "␣a", "␣bike", "</s>"]
    assert labels(axes.yaxis) == ["ein", "␣Mann", "</s>"]
    (image,) = axes.images
    np.testing.assert_allclose(image.get_array(), alignment, rtol=1e-6)
    assert image.get_clim() == (0.0, 1.0)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first word stands at the top


def test_missing_library_names_the_command(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[plot\]"'):
        plot_alignment(some_alignment(rng), SOURCE, TARGET)


def test_writes_nothing_without_a_path(rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plot_alignment(some_alignment(rng), SOURCE, TARGET)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tokens", [["$x$", "$\\frac{"], ["\\$", "$$"], ["_^{", "%", "&#"]])
def test_no_token_starts_mathematics(rng, tmp_path, tokens):
    plot_alignment(np.eye(2, len(tokens)), tokens, ["a", "b"], path=tmp_path / "a.png")


@pytest.mark.parametrize(
    "words",
    [
        ["слово", "λόγος", "žluťoučký"],  # in DejaVu, the font of matplotlib
        ["東京", "に", "行く"],
        ["नमस्ते", "दुनिया", "।"],
        ["مرحبا", "שלום", "สวัสดี"],
        ["😀", "👩\u200d👧", ""],
    ],
    ids=["european", "japanese", "hindi", "abjads", "emoji"],
)
@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_draws_words_of_any_script(rng, tmp_path, words, ending):
    path = tmp_path / f"alignment{ending}"
    with warnings.catch_warnings():
        # What no installed font holds becomes a box, and matplotlib says so.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        plot_alignment(some_alignment(rng, words, words), words, words, path=path)
    assert path.read_bytes().startswith(HEADS[ending])


@pytest.mark.parametrize("shape", [(6, 3), (3, 5), (3,), (1, 3, 6)])
def test_refuses_a_shape_that_does_not_fit_the_tokens(shape):
    with pytest.raises(ValueError, match=r"\(target tokens, source tokens\), \(3, 6\)"):
        plot_alignment(np.zeros(shape), SOURCE, TARGET)
