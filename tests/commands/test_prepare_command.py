"""The report of the command `prepare` about dropped pairs."""

import typer.testing

from keras_bahdanau_export.commands.app import app


def test_pairs_that_rules_dropped_are_printed(tmp_path):
    (tmp_path / "a.tsv").write_text("a man\tein Mann\nx\tx\nb\t\nbad\na man\tein Mann\n")
    rules = ("ratio=9", "identical", "duplicate")
    result = typer.testing.CliRunner().invoke(
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
