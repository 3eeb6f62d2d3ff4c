"""The command `align`, with an artifact that copies its source."""

import re

import pytest
import typer.testing
from copy_artifact import make

from keras_bahdanau_export import cli


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Runs the command on two sentences; gives what it wrote, and checks what it printed."""
    folder = tmp_path_factory.mktemp("align")
    artifact = make(folder / "artifact")

    def draw(name, *options):
        arguments = ["align", str(artifact), "a man on a bike", "a man", "-o", str(folder / name)]
        answer = typer.testing.CliRunner().invoke(cli.app, [*arguments, *options])
        assert answer.exit_code == 0, answer.output
        assert answer.stdout == "a man on a bike\na man\n"
        return (folder / name).read_text("utf-8")

    return draw


def test_draws_words_or_pieces(drawn):
    words, pieces = drawn("words.svg"), drawn("pieces.svg", "--pieces")
    # The SVG names each text that it draws in a comment.
    assert "<!-- bike -->" in words and "␣" not in words
    assert "␣" in pieces
    assert words.count("<!-- man -->") == 4  # two sentences, each with two sides


def test_draws_in_the_style_of_the_paper(drawn):
    assert "<!-- attention weight -->" in drawn("light.svg")
    assert "<!-- attention weight -->" not in drawn("paper.svg", "--style", "paper")


def test_puts_sentences_below_each_other(drawn):
    sizes = []
    for columns in ("1", "2"):
        picture = drawn("a.svg", "--columns", columns)
        box = picture.partition('viewBox="')[2].partition('"')[0]
        sizes.append([float(number) for number in box.split()[2:]])
    (narrow, high), (wide, low) = sizes
    assert narrow < wide and high > low


def test_writes_a_page(drawn):
    page = drawn("a.html")
    assert page.startswith("<!doctype html>") and '"title": "a man on a bike"' in page


@pytest.mark.parametrize("options", [("--style", "none"), ("--columns", "0"), ("--pieces",)])
def test_refuses_what_a_page_would_not_use(tmp_path, options):
    arguments = ["align", str(make(tmp_path / "a")), "a man", "-o", str(tmp_path / "a.html")]
    answer = typer.testing.CliRunner().invoke(cli.app, [*arguments, *options])
    assert isinstance(answer.exception, ValueError)
    assert f"`{options[0].removeprefix('--')}`" in str(answer.exception)


def test_refuses_an_ending_of_no_picture(tmp_path):
    arguments = ["align", str(tmp_path / "none"), "a man", "-o", str(tmp_path / "a.xyz")]
    answer = typer.testing.CliRunner().invoke(cli.app, arguments)
    assert re.search(r"`path` must end in one of .*\.png, .*a\.xyz'", str(answer.exception))
