"""`train --explain`, and the table of choices of `prepare`."""

import json
import subprocess
import sys

import pytest
from command import process

from keras_bahdanau.training.options import TrainingOptions

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


@pytest.mark.parametrize("is_earlier", [False, True])
def test_the_options_file_of_a_run_on_pairs_is_a_config_file(tmp_path, is_earlier):
    write_pairs(tmp_path)
    saved = TrainingOptions("pairs.tsv", validation_source="pairs.tsv", epochs=3).to_dict()
    if is_earlier:  # this version would choose symbols and a dropout of its own
        for name in ("tokenizer", "source_tokenizer", "target_tokenizer"):
            del saved[name]
    (tmp_path / "options.json").write_text(json.dumps(saved))
    result = process("train", "--config", "options.json", "--explain", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    table = rows(result.stdout)
    expected = ("bpe", "given") if is_earlier else ("characters", "short texts of 4.0 characters")
    assert table["--source-tokenizer"] == expected
    assert (table["--dropout"][1] == "given") == is_earlier
    assert table["--epochs"] == ("3", "given")
