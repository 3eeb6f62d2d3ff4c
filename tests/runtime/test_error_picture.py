"""The SVG picture of errors, with positions and shares by hand."""

import re
from xml.etree import ElementTree

import pytest

from keras_bahdanau_runtime.pictures.errors import error_picture
from keras_bahdanau_runtime.text.error_rates import compare


@pytest.fixture
def draw(tmp_path):
    """Draw outputs and references; return the texts, as (x, y, text), and the framed boxes."""

    def draw(sources, outputs, references, unit="characters"):
        comparisons = compare(outputs, [[text] for text in references], unit)
        path = tmp_path / "errors.svg"
        svg = error_picture(sources, comparisons, path)
        assert path.read_text("utf-8") == svg
        root = ElementTree.fromstring(svg)
        name = "{http://www.w3.org/2000/svg}"
        texts = [
            (float(each.get("x")), float(each.get("y")), each.text)
            for each in root.iter(f"{name}text")
        ]
        boxes = [each.attrib for each in root.iter(f"{name}rect")]
        return texts, boxes[1:]  # without the background

    return draw


def rows(texts):
    """Return the texts from top to bottom, joined by spaces from left to right."""
    lines = {}
    for _, y, text in sorted(texts):
        lines.setdefault(y, []).append(text)
    return [" ".join(lines[y]) for y in sorted(lines)]


def test_bars_are_as_long_as_an_error_is_frequent(draw):
    texts, boxes = draw(["1", "2", "3"], ["oo", "a", "xa"], ["aa", "ai", "a"])
    assert rows(texts)[:3] == [
        "Errors of 3 outputs",
        "0.0% exact, 80.0% symbol errors",  # 2 wrong, 1 missing and 1 added of 2 + 2 + 1
        "Most frequent errors",
    ]
    assert rows(texts)[4:7] == [
        "a → o 2 50.0% of 4",
        "i → none 1 100.0% of 1",
        "none → x 1",
    ]
    lengths = [float(box["width"]) for box in boxes if box["class"] == "bar"]
    assert lengths[1:] == [lengths[0] / 2] * 2


def test_symbols_of_an_output_are_below_those_of_its_reference(draw):
    texts, boxes = draw(["cats"], ["k a t s"], ["k aː t"], "symbols")
    assert rows(texts)[-3:] == ["cats", "expected k aː t", "received k a t s"]
    y_of = sorted({y for _, y, _ in texts})[-2:]
    expected, received = ([x for x, y, _ in texts if y == line][1:] for line in y_of)
    assert received[:3] == expected
    frames = sorted(box["class"] for box in boxes if box["class"] != "bar")
    assert frames == ["", "", "", "empty"]  # of a changed symbol and an added one


def test_worst_outputs_are_first_and_repeated_lines_once(draw):
    outputs = ["xb", "yyy", "xb", "ab"]
    texts, _ = draw(["one", "three", "one", "none"], outputs, ["ab", "abc", "ab", "ab"])
    names = [text for _, _, text in texts if text in ("one", "three", "none")]
    assert [name for name in names if name != "none"] == ["three", "one"]


def test_long_outputs_are_drawn_in_several_rows_within_the_picture(draw):
    texts, _ = draw(["source"], ["ab" * 40], ["ab" * 39 + "ac"])
    assert sum(x >= 110 and text == "a" for x, _, text in texts) == 80
    assert max(x for x, _, _ in texts) <= 760 - 24
    assert sum(text == "received" for _, _, text in texts) > 2


def test_markup_controls_and_marks_are_shown(draw):
    texts, _ = draw(["<a>\t&"], ["\u0301\u200d<"], ["\x07 >"])
    labels = {text for _, _, text in texts}
    assert {"<a> &", "\N{REPLACEMENT CHARACTER}", "\N{OPEN BOX}", ">", "<"} <= labels
    assert {"\N{DOTTED CIRCLE}\u0301", "U+200D"} <= labels


def test_outputs_without_errors_have_a_picture(draw):
    texts, boxes = draw(["a"], ["b"], ["b"])
    assert rows(texts)[1:] == ["100.0% exact, 0.0% symbol errors", "No symbol is wrong."]
    assert not boxes


def luminance(color):
    """Return the relative luminance of WCAG 2.2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_colors_have_enough_contrast_in_both_themes(tmp_path, theme):
    svg = error_picture(["a"], compare(["a"], [["b"]]), tmp_path / "errors.svg")
    colors = dict(re.findall(r"--([a-z-]+): (#\w{6})", svg.split("@media")[theme]))
    grounds = {"text": "ground", "muted": "ground", "bar": "ground", "error": "error-ground"}
    for color, ground in grounds.items():
        dark, light = sorted(luminance(colors[name]) for name in (color, ground))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, color
