"""The command `align` with artifacts that copy their source and align equal positions."""

import json
import re

import click.testing
import pytest
from copy_artifact import COPY_SCORE, make, make_copying

from keras_bahdanau_cli.app import app
from keras_bahdanau_runtime.text.tokenizer import Tokenizer


def align(*arguments):
    return click.testing.CliRunner().invoke(app, ["align", *map(str, arguments)])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A function that aligns two sentences, checks the output, and returns the written text."""
    folder = tmp_path_factory.mktemp("align")
    artifact = make(folder / "artifact")

    def draw(name, *options):
        texts = "a man on a bike", "a man"
        result = align(artifact, "--draw", *texts, "-o", folder / name, *options)
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


def test_symbols_are_drawn_without_the_spaces_between_them(tmp_path):
    lines = ["a b a", "b a"]
    kinds = ("characters", "symbols")
    tokenizer = Tokenizer.train(lines, lines, kind=kinds, joint=False, min_frequency=1)
    tokenizer.save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    artifact = make(tmp_path / "artifact", document=document)
    result = align(artifact, "--draw", "ab", "--pieces", "-o", tmp_path / "a.svg")
    assert result.exit_code == 0 and " " in result.stdout, result.output
    assert "␣" not in (tmp_path / "a.svg").read_text("utf-8")
    result = align(artifact, "--draw", "ab", "-o", tmp_path / "one_word.svg")
    letters = (tmp_path / "one_word.svg").read_text("utf-8")
    assert result.exit_code == 0 and "<!-- a -->" in letters and "<!-- ab -->" not in letters


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


def test_draws_what_was_copied(tmp_path):
    artifact = make_copying(tmp_path / "copying")
    for name, text in (("a.html", "0.5"), ("a.svg", "<!-- copied share -->")):
        result = align(artifact, "--draw", "--copied", "a man", "-o", tmp_path / name)
        assert (result.exit_code, result.stdout) == (0, "a man\n"), result.output
        assert text in (tmp_path / name).read_text("utf-8")
    plain = make(tmp_path / "plain", score=COPY_SCORE)
    error = align(plain, "--draw", "--copied", "a man", "-o", tmp_path / "b.html").exception
    assert "`copied` must be used with an artifact of a model that copies" in str(error)
    assert not (tmp_path / "b.html").exists()


def test_writes_a_web_page(drawn):
    page = drawn("a.html")
    assert page.startswith("<!doctype html>") and '"title": "a man on a bike"' in page


@pytest.mark.parametrize("options", [("--style", "none"), ("--columns", "0"), ("--pieces",)])
def test_refuses_options_of_pictures_for_a_web_page(tmp_path, options):
    arguments = "--draw", "a man", "-o", tmp_path / "a.html", *options
    error = align(make(tmp_path / "a"), *arguments).exception
    assert isinstance(error, ValueError)
    assert f"`{options[0].removeprefix('--')}`" in str(error)


def test_refuses_an_unknown_file_ending(tmp_path):
    error = align(tmp_path / "none", "--draw", "a man", "-o", tmp_path / "a.xyz").exception
    assert re.search(r"`path` must end in one of .*\.png, .*a\.xyz'", str(error))


@pytest.fixture
def files(tmp_path):
    """An artifact that aligns each token with its own position, and two files of three lines."""
    artifact = make(tmp_path / "artifact", score=COPY_SCORE, max_source_length=12)
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("a man on a bike\na dog\na boat\n")
    target.write_text("a man on\na dog on\na boat\n")
    return artifact, source, target


def test_writes_links_of_words_in_pharaoh_format(files, tmp_path):
    result = align(*files)
    assert result.exit_code == 0, result.output
    # The third word of the second line is aligned with the end of its source.
    assert result.stdout.splitlines() == ["0-0 1-1 2-2", "0-0 1-1", "0-0 1-1"]
    result = align(*files, "-o", tmp_path / "links.txt")
    assert result.exit_code == 0 and result.stdout == ""
    assert (tmp_path / "links.txt").read_text() == "0-0 1-1 2-2\n0-0 1-1\n0-0 1-1\n"


def test_links_pieces(files):
    for path in files[1:]:
        path.write_text("a cat\n")  # the tokenizer has no piece for the second word
    assert align(*files).stdout == "0-0 1-1\n"
    pieces = align(*files, "--pieces").stdout.split()
    assert len(pieces) > 2 and pieces == [f"{i}-{i}" for i in range(len(pieces))]


def test_a_file_with_both_sides_has_a_line_of_links_for_each_pair(files):
    artifact, both, _ = files
    both.write_bytes(b"a man\t\xe9\ta man\nno tab\na boat\t3\ta boat on\n")
    columns = "--source-column", "1", "--target-column", "3"
    result = align(artifact, both, *columns, "--encoding", "latin-1", "--on-bad-line", "skip")
    assert result.exit_code == 0, result.output
    assert result.stdout == "0-0 1-1\n\n0-0 1-1\n"


def test_a_line_that_is_too_long_has_no_links(files):
    files[1].write_text("a man on a bike\n" + 20 * "a dog " + "\na boat\n")
    result = align(*files)
    assert result.stdout.splitlines() == ["0-0 1-1 2-2", "", "0-0 1-1"]
    message = "line 2: Argument `sources[1]` must have at most 12 tokens, including the end"
    assert message in result.stderr
    assert str(result.exception) == "Pairs without an alignment: 1."


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a man on a bike"], "`inputs` must be two files, .*add --draw"),
        (["a.en", "a.de", "a.fr"], "`inputs` must be two files, .*add --draw"),
        (["--draw", "a man", "--source-column", "2"], "`source_column`.* left out with --draw"),
        (["a.en", "a.de", "--style", "paper"], "`style` must be used with --draw"),
        (["a.en", "a.de", "--columns", "2"], "`columns` must be used with --draw"),
        (["a.en", "a.de", "--threshold", "0"], "`threshold` must be a number above 0"),
        (["--draw", "a man", "--threshold", "0.5"], "`threshold` must be left out with --draw"),
        (["a.en", "a.de", "--batch-size", "0"], "`batch_size` must be"),
    ],
)
def test_refuses_arguments_before_the_artifact_is_opened(tmp_path, arguments, message):
    error = align(tmp_path / "none", *arguments).exception
    assert isinstance(error, ValueError) and re.search(message, str(error))
