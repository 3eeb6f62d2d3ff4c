"""The command `align` with an artifact that copies its source."""

import re

import pytest
import typer.testing
from copy_artifact import make

from keras_bahdanau_export.commands.app import app


def align(*arguments):
    return typer.testing.CliRunner().invoke(app, ["align", *map(str, arguments)])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A function that aligns two sentences, checks the output, and returns the written text."""
    folder = tmp_path_factory.mktemp("align")
    artifact = make(folder / "artifact")

    def draw(name, *options):
        result = align(artifact, "a man on a bike", "a man", "-o", folder / name, *options)
        assert result.exit_code == 0, result.output
        assert result.stdout == "a man on a bike\na man\n"
        return (folder / name).read_text("utf-8")

    return draw


def test_draws_words_or_subword_pieces(drawn):
    words, pieces = drawn("words.svg"), drawn("pieces.svg", "--pieces")
    # The SVG has a comment for each text that it draws.
    assert "<!-- bike -->" in words and "␣" not in words
    assert "␣" in pieces
    assert words.count("<!-- man -->") == 4  # two sentences, each with two sides


def test_draws_in_the_style_of_the_paper(drawn):
    assert "<!-- attention weight -->" in drawn("light.svg")
    assert "<!-- attention weight -->" not in drawn("paper.svg", "--style", "paper")


def test_one_column_is_narrower_and_higher_than_two(drawn):
    sizes = []
    for columns in ("1", "2"):
        picture = drawn("a.svg", "--columns", columns)
        box = picture.partition('viewBox="')[2].partition('"')[0]
        sizes.append([float(number) for number in box.split()[2:]])
    (narrow, high), (wide, low) = sizes
    assert narrow < wide and high > low


def test_writes_a_web_page(drawn):
    page = drawn("a.html")
    assert page.startswith("<!doctype html>") and '"title": "a man on a bike"' in page


@pytest.mark.parametrize("options", [("--style", "none"), ("--columns", "0"), ("--pieces",)])
def test_refuses_options_of_pictures_for_a_web_page(tmp_path, options):
    error = align(make(tmp_path / "a"), "a man", "-o", tmp_path / "a.html", *options).exception
    assert isinstance(error, ValueError)
    assert f"`{options[0].removeprefix('--')}`" in str(error)


def test_refuses_an_unknown_file_ending(tmp_path):
    error = align(tmp_path / "none", "a man", "-o", tmp_path / "a.xyz").exception
    assert re.search(r"`path` must end in one of .*\.png, .*a\.xyz'", str(error))
