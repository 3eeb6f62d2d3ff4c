"""`train --explain`, and the table of choices of `prepare`."""

import subprocess
import sys

from command import process

# Runs the command, and says at the end which of the slow libraries it has imported.
PROGRAM = """
import sys
from keras_bahdanau_cli import __main__ as cli
try:
    cli.main()
finally:
    print({"keras", "tensorflow", "jax", "torch"} & set(sys.modules), file=sys.stderr)
"""


def rows(table):
    """The value and the first line of the reason in a table, by flag."""
    lines = [line.split("│")[1:4] for line in table.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return {flag: (value, reason) for flag, value, reason in cells if flag}


def write_pairs(folder):
    (folder / "pairs.tsv").write_text("read\tR EH1 D\ndear\tD IH1 R\n" * 100)


def test_choices_are_explained_without_keras_and_without_a_folder(tmp_path):
    write_pairs(tmp_path)
    command = [sys.executable, "-c", PROGRAM, "train", "pairs.tsv", "--explain", "--units", "7"]
    command += ["--validation-source", "pairs.tsv"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stderr == "set()\n"
    table = rows(result.stdout)
    assert table["--source-tokenizer"] == ("characters", "short texts of 4.0 characters")
    assert table["--target-tokenizer"][0] == "symbols"
    assert table["--units"] == ("7", "given")
    assert table["--best-by"][0] == "exact"
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


def test_a_run_needs_a_folder(tmp_path):
    write_pairs(tmp_path)
    arguments = ("train", "pairs.tsv", "--validation-source", "pairs.tsv")
    result = process(*arguments, cwd=tmp_path)
    assert "`output` must be given without `explain`" in result.stderr


def test_prepare_prints_the_choices_of_its_tokenizer(tmp_path):
    write_pairs(tmp_path)
    result = process("prepare", "--pairs", "pairs.tsv", "--output", "corpus", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    table = rows(result.stderr)
    assert [*table][:2] == ["--source-tokenizer", "--target-tokenizer"]
    assert "--units" not in table
