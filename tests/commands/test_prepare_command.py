"""The report of the command `prepare` about dropped pairs."""

import sys

import click.testing
import pytest
from command import process, run

from keras_bahdanau_cli.app import app


def test_pairs_that_rules_dropped_are_printed(tmp_path):
    (tmp_path / "a.tsv").write_text("a man\tein Mann\nx\tx\nb\t\nbad\na man\tein Mann\n")
    rules = ("ratio=9", "identical", "duplicate")
    result = click.testing.CliRunner().invoke(
        app,
        [
            *("prepare", "--pairs", str(tmp_path / "*.tsv"), "-o", str(tmp_path / "corpus")),
            *("--on-bad-line", "skip", "--vocabulary-size", "280"),
            *(argument for rule in rules for argument in ("--filter", rule)),
        ],
    )
    assert result.exit_code == 0, result.exception
    *report, summary = result.output.splitlines()
    assert report[-4:] == [
        "Dropped 2 of 5 pairs by rules:",
        "  ratio=9             0",
        "  identical           1",
        "  duplicate           1",
    ]
    assert summary.startswith(f"The corpus is {tmp_path / 'corpus'}: 1 pairs, ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("-", "--pairs"), "a\tx\nb\ty\n"), (("-", "b.de"), "a\nb\n"), (("b.de", "-"), "a\nb\n")],
)
def test_standard_input_is_prepared_and_its_copy_is_removed(
    tmp_path, monkeypatch, capsysbinary, arguments, text
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.de").write_text("x\ny\n")
    (tmp_path / "input").write_text(text)

    def prepare_input(*flags):
        with (tmp_path / "input").open() as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            arguments_and_flags = (*arguments, "--output", "new/corpus", *flags)
            return run(patch, capsysbinary, "prepare", *arguments_and_flags)

    status, _, err = prepare_input("--vocabulary-size", 280)
    assert status == 0 and "new/corpus: 2 pairs" in err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["corpus"]
    status, _, err = prepare_input("--vocabulary-size", 0)
    assert status != 0 and "`vocabulary_size`" in err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["corpus"]


def test_the_number_of_pairs_with_an_empty_side_is_printed(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tx\nb\t \n\ty\nc\tz\n")
    arguments = "--pairs", tmp_path / "a.tsv", "--output", tmp_path / "corpus"
    finished = process("prepare", *arguments, "--vocabulary-size", 280)
    assert "Dropped 2 of 4 pairs: one side is blank." in finished.stderr


def test_no_normalization_is_the_default(tmp_path, monkeypatch, capsysbinary):
    (tmp_path / "a.tsv").write_text("a\tx\n")
    arguments = "--pairs", tmp_path / "a.tsv", "--output", tmp_path / "corpus"

    def prepare_with(*flags):
        flags = "--vocabulary-size", 280, *flags
        status, _, err = run(monkeypatch, capsysbinary, "prepare", *arguments, *flags)
        return status, err

    assert prepare_with()[0] == 0
    assert prepare_with("--normalization", "none")[0] == 0
    assert "`normalization` was None, is 'nfc'" in prepare_with("--normalization", "nfc")[1]
