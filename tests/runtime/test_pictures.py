import io
import logging
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.pictures.figures import font_families, label
from keras_bahdanau_runtime.pictures.plots import (
    plot_alignment,
    plot_alignments,
    plot_image_alignment,
    plot_weights,
)
from keras_bahdanau_runtime.pictures.style import COLORS, DPI, GRAY, STYLE, saved_figure

SOURCE = ["a", " man", " on", " a", " bike", "</s>"]
TARGET = ["ein", " Mann", "</s>"]
HEADS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


def some_alignment(rng, targets=TARGET, sources=SOURCE):
    return rng.dirichlet(np.ones(len(sources)), size=len(targets))


def test_spaces_and_tabs_of_tokens_are_visible():
    assert [label(token) for token in (" a", "\tN", "")] == ["␣a", "⇥N", "·"]


def labels(axis):
    return [each.get_text() for each in axis.get_ticklabels()]


@pytest.mark.parametrize("suffix", [*HEADS, ""])
def test_picture_is_written_in_the_format_of_the_suffix(rng, tmp_path, suffix):
    path = tmp_path / f"alignment{suffix}"
    plot_alignment(some_alignment(rng), SOURCE, TARGET, path=path, title="a sentence")
    assert path.read_bytes().startswith(HEADS[suffix or ".png"])
    if suffix == ".svg":
        ElementTree.parse(path)
    if not suffix:
        file = io.BytesIO()
        plot_alignment(some_alignment(rng), SOURCE, TARGET, file)
        assert file.getvalue().startswith(HEADS[".png"])


def test_figure_has_the_weights_with_source_tokens_along_x(rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alignment = some_alignment(rng)
    figure = plot_alignment(alignment, SOURCE, TARGET)
    assert not list(tmp_path.iterdir())  # no path, no file
    axes = figure.axes[0]
    assert labels(axes.xaxis) == ["a", "␣man", "␣on", "␣a", "␣bike", "</s>"]
    assert labels(axes.yaxis) == ["ein", "␣Mann", "</s>"]
    (image,) = axes.images
    np.testing.assert_allclose(image.get_array(), alignment, rtol=1e-6)
    assert image.get_clim() == (0.0, 1.0)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first target token is at the top


def test_missing_library_error_has_the_pip_command(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[plot\]"'):
        plot_alignment(some_alignment(rng), SOURCE, TARGET)


@pytest.mark.parametrize("tokens", [["$x$", "$\\frac{"], ["\\$", "$$"], ["_^{", "%", "&#"]])
def test_tokens_are_not_read_as_math(rng, tmp_path, tokens):
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
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_words_of_any_script_are_drawn(rng, tmp_path, words, suffix):
    path = tmp_path / f"alignment{suffix}"
    plot_alignment(some_alignment(rng, words, words), words, words, path=path)
    assert path.read_bytes().startswith(HEADS[suffix])


@pytest.mark.parametrize("shape", [(6, 3), (3, 5), (3,), (1, 3, 6)])
def test_alignment_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"\(target tokens, source tokens\), \(3, 6\)"):
        plot_alignment(np.zeros(shape), SOURCE, TARGET)


def test_paper_style_draws_one_as_white(rng):
    figure = plot_alignment(some_alignment(rng), SOURCE, TARGET, style="paper")
    (axes,) = figure.axes  # without a color bar
    (image,) = axes.images
    assert [image.to_rgba(weight)[:3] for weight in (0.0, 1.0)] == [(0, 0, 0), (1, 1, 1)]


def test_panels_are_side_by_side_with_cells_of_one_size(rng):
    panels = [
        (some_alignment(rng, TARGET, SOURCE), SOURCE, TARGET),
        (some_alignment(rng, SOURCE, TARGET), TARGET, SOURCE),
        (some_alignment(rng), SOURCE, TARGET),
    ]
    figure = plot_alignments(panels, titles=["a $", "b", "c"], columns=2)
    *axes, _ = figure.axes
    boxes = [panel.get_window_extent() for panel in axes]
    cells = {
        (round(box.width / len(sources)), round(box.height / len(targets)))
        for box, (_, sources, targets) in zip(boxes, panels, strict=True)
    }
    assert len(cells) == 1
    first, second, third = (panel.get_tightbbox() for panel in axes)
    assert first.x1 < second.x0 and boxes[0].y1 == pytest.approx(boxes[1].y1)
    assert third.y1 < min(first.y0, second.y0)
    whole = figure.bbox
    for box in (first, second, third):
        assert whole.x0 < box.x0 and box.x1 < whole.x1
        assert whole.y0 < box.y0 and box.y1 < whole.y1
    assert [panel.get_title() for panel in axes] == [r"a \$", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(alignments=[]), "`alignments` must hold an alignment"),
        (dict(titles=["a", "b"]), "`titles` must hold a line for each alignment, 1"),
        (dict(style="dark"), r"`style` must be one of \('light', 'paper'\)\. Received: 'dark'"),
        (dict(columns=0), "`columns`"),
        (dict(path="a.pgf"), r"`path` must end in one of .*Received: 'a\.pgf'"),
        (dict(path="a.xyz"), r"`path` must end in one of .*\.png, .*Received: 'a\.xyz'"),
        (dict(alignments=[(np.zeros((0, 1)), ["a"], [])]), r"words on both sides.*alignments\[0\]"),
        (dict(alignments=([[1.0]], ["a"], ["b"])), r"`alignments` must hold \(alignment, source"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_alignments(**{"alignments": [([[1.0]], ["a"], ["b"])], **arguments})


RUNE = "\N{OLD HUNGARIAN CAPITAL LETTER A}"


@pytest.fixture
def bundled_fonts(monkeypatch):
    """Hide the fonts of the machine, so that only those of matplotlib remain."""
    from matplotlib import font_manager, get_data_path

    fonts = [font for font in font_manager.fontManager.ttflist if get_data_path() in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)


@pytest.fixture
def runes(bundled_fonts, tmp_path):
    """Install a font with one letter that the bundled fonts do not have."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib import font_manager

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((0, 500))
    pen.lineTo((500, 0))
    pen.closePath()
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", "a"])
    font.setupCharacterMap({ord(RUNE): "a"})
    font.setupGlyf({".notdef": pen.glyph(), "a": pen.glyph()})
    font.setupHorizontalMetrics({".notdef": (600, 0), "a": (600, 0)})
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Runes of a Test", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "runes.ttf")
    font_manager.fontManager.addfont(tmp_path / "runes.ttf")
    return "Runes of a Test"


def test_font_with_the_letters_is_found(runes, caplog, tmp_path):
    with caplog.at_level(logging.WARNING, "keras_bahdanau_runtime"):
        first, *others = font_families(["a", RUNE])
    assert others == [runes] and first != runes
    assert font_families(["a"]) == [first]
    assert not caplog.records
    plot_alignment([[1.0]], ["a"], [RUNE], tmp_path / "a.png")


def test_missing_font_is_named_in_a_warning(bundled_fonts, caplog, tmp_path):
    with caplog.at_level(logging.WARNING, "keras_bahdanau_runtime"):
        plot_alignment([[1.0]], ["a"], [RUNE], tmp_path / "a.png")
    (record,) = caplog.records
    assert "Install Noto Sans Old Hungarian" in record.getMessage()


def test_weights_over_time_have_few_ticks_in_a_picture_of_bounded_size(rng):
    weights, file = rng.dirichlet(np.ones(100), 10), io.BytesIO()
    hours = {"source_positions": range(-100, 0), "target_positions": np.arange(1, 11)}
    figure = plot_weights(weights, file, "a $", **hours, source_label="hour")
    axes = figure.axes[0]
    (image,) = axes.images
    np.testing.assert_allclose(image.get_array(), weights, rtol=1e-6)
    assert image.get_extent() == [-100.5, -0.5, 10.5, 0.5]  # the first target is at the top
    assert image.get_clim() == pytest.approx((0.0, weights.max()))
    assert (axes.get_title(), axes.get_xlabel()) == (r"a \$", "hour")
    for ticks in (axes.get_xticks(), axes.get_yticks()):
        assert 3 <= len(ticks) <= 12 and all(tick == round(tick) for tick in ticks)
    sides = [int.from_bytes(file.getvalue()[i : i + 4], "big") for i in (16, 20)]
    assert sides == [7 * DPI, 2 * DPI]


def test_weights_without_positions_count_from_zero_and_a_single_row_is_drawn():
    axes = plot_weights([[0.25, 0.75]]).axes[0]
    assert axes.images[0].get_extent() == [-0.5, 1.5, 0.5, -0.5]
    halves = plot_weights(np.eye(3), source_positions=[0.5, 1, 1.5]).axes[0]
    assert halves.images[0].get_extent()[:2] == [0.25, 1.75]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(weights=[0.5, 0.5]), r"`weights` .* weights\[0\] .*Received: shape \(2,\)"),
        (dict(weights=np.ones((2, 2, 2))), "`weights`"),
        (dict(weights=np.ones((2, 0))), "`weights`"),
        (dict(weights=[[0.5, np.nan]]), "`weights` must be finite"),
        (dict(source_positions=[1]), "`source_positions` must be 2 increasing numbers.*Rec"),
        (dict(source_positions=[2, 1]), "`source_positions`"),
        (dict(source_positions=["a", "b"]), "`source_positions`"),
        (dict(target_positions=[0, 1, 3]), "`target_positions` must be 3 .* equal distances"),
        (dict(path="a.xyz"), "`path` must end in one of"),
    ],
)
def test_weights_and_positions_that_do_not_match_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_weights(**{"weights": [[0.5, 0.5]] * 3, **arguments})


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 1), (6, 8, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_weights_are_drawn_over_the_image_with_one_color_scale(rng, shape, dtype):
    image = rng.random(shape).astype("float32")
    pixels = (image * 255).astype("uint8") if dtype == "uint8" else image
    weights = rng.dirichlet(np.ones(6), 2).reshape(2, 3, 2)
    figure = plot_image_alignment(weights, pixels, ["red", "</s>"], title="a scene")
    first, *others, _ = figure.axes
    assert [axes.get_title() for axes in figure.axes[:-1]] == ["a scene", "red", "</s>"]
    np.testing.assert_allclose(first.images[0].get_array(), image.squeeze(), atol=1 / 255)
    for axes, heat in zip(others, weights, strict=True):
        background, overlay = axes.images
        np.testing.assert_allclose(overlay.get_array(), heat, rtol=1e-6)
        assert background.get_extent() == overlay.get_extent() == [0, 8, 6, 0]
        assert overlay.get_clim() == pytest.approx((0.0, weights.max()))


@pytest.mark.parametrize(
    ("weights", "image", "message"),
    [
        ((2, 6), (4, 4), r"`alignment` .* with 2 target tokens\. Received: shape \(2, 6\)"),
        ((3, 2, 3), (4, 4), "`alignment`"),
        ((2, 2, 3), (4, 4, 2), r"`image` .* Received: shape \(4, 4, 2\)"),
        ((2, 2, 3), (4,), "`image`"),
    ],
)
def test_weights_and_images_of_other_shapes_are_refused(weights, image, message):
    with pytest.raises(ValueError, match=message):
        plot_image_alignment(np.zeros(weights), np.zeros(image), ["a", "b"])


@pytest.mark.parametrize("color", [*COLORS, GRAY])
def test_colors_have_enough_contrast_to_white(color):
    levels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    assert 1.05 / (luminance + 0.05) >= 4.5  # WCAG 2.2, level AA


def test_saved_figure_has_the_style_of_the_project(tmp_path):
    from matplotlib import colors, rcParams

    before = rcParams.copy()
    path = tmp_path / "a.png"
    with saved_figure(path, 3, 2) as figure:
        (line,) = figure.add_subplot().plot([1, 2])
    assert colors.same_color(line.get_color(), COLORS[0])
    assert path.read_bytes()[16:24] == b"".join(n.to_bytes(4, "big") for n in (3 * DPI, 2 * DPI))
    assert rcParams == before


def test_alignments_do_not_depend_on_the_style(rng):
    import matplotlib

    alignment = some_alignment(rng)
    pictures = []
    for style in ({}, STYLE):
        file = io.BytesIO()
        with matplotlib.rc_context(style):
            plot_alignment(alignment, SOURCE, TARGET, file)
        pictures.append(file.getvalue())
    assert pictures[0] == pictures[1]
