"""The command `evaluate` with an artifact that copies its source."""

import json

import click.testing
import pytest
from copy_artifact import make

from keras_bahdanau_cli.app import app
from keras_bahdanau_runtime.text.tokenizer import Tokenizer


@pytest.mark.parametrize("references", [["ein@@ er ist da"], ["einer ist da"]])
def test_references_of_a_model_of_split_text_may_be_split_or_joined(tmp_path, references):
    Tokenizer.from_pieces(["ein@@", "er", "ist", "da"]).save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    artifact = make(tmp_path / "artifact", document=document)
    (tmp_path / "a.en").write_text("ein@@ er ist da\n", "utf-8")
    (tmp_path / "a.de").write_text("\n".join(references) + "\n", "utf-8")
    arguments = ["evaluate", artifact, tmp_path / "a.en", tmp_path / "a.de"]
    result = click.testing.CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    assert "exact 100.0%" in result.output


@pytest.fixture
def evaluate_symbols(tmp_path):
    """Run `evaluate` with a model that copies symbols, and pairs; return its output."""
    lines = ["a b c", "a b", "c"]
    tokenizer = Tokenizer.train(lines, lines, kind="symbols", min_frequency=1)
    tokenizer.save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    artifact = make(tmp_path / "artifact", document=document)

    def evaluate(pairs, *options):
        (tmp_path / "pairs.tsv").write_text(pairs, "utf-8")
        arguments = ["evaluate", artifact, tmp_path / "pairs.tsv", *options]
        result = click.testing.CliRunner().invoke(app, [str(each) for each in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    return evaluate


# The first copy has a wrong symbol of three.
PAIRS = "a b c\tb b c\na b\ta c b\na b\ta b\n"


def test_errors_of_short_outputs_are_printed_aligned(evaluate_symbols):
    summary, errors, worst = evaluate_symbols("a b c\tbb b c d\n").split("\n\n", 2)
    assert "exact 0.0% (0.0 to 0.0)  symbol errors 50.0% (50.0 to 50.0)" in summary
    assert sorted(errors.splitlines()[1:]) == ["  bb a 1", "  d - 1"]
    assert worst.splitlines()[1:4] == ["  a b c", "  bb b c d", "  a  b c -"]


def test_json_has_the_measures_and_all_errors(evaluate_symbols):
    document = json.loads(evaluate_symbols(PAIRS, "--json"))
    # Both lines of "a b" are right, because the second one has it as its reference.
    assert document["outputs"] == 3 and document["exact"] == pytest.approx(200 / 3)
    assert document["ser"] == pytest.approx(100 / 7)
    assert document["errors"] == [{"expected": "b", "received": "a", "count": 1}]
    low, high = document["intervals"]["exact"]
    assert 0 <= low < document["exact"] < high <= 100
    assert {"bleu", "chrf"} <= document.keys()


def test_picture_has_the_errors_of_the_outputs(evaluate_symbols, tmp_path):
    evaluate_symbols(PAIRS, "--json", "--picture", tmp_path / "errors.svg")
    svg = (tmp_path / "errors.svg").read_text("utf-8")
    assert "66.7% exact, 14.3% symbol errors" in svg and "25.0% of 4" in svg


@pytest.mark.parametrize("name", ["errors.png", "absent/errors.svg"])
def test_picture_that_cannot_be_written_is_refused_before_the_translation(tmp_path, name):
    arguments = ["evaluate", tmp_path, tmp_path / "absent.tsv", "--picture", tmp_path / name]
    result = click.testing.CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code and "`picture` must" in str(result.output) + str(result.exception)
