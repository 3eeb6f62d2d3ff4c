"""The command `evaluate` with an artifact that copies its source."""

import json
import math

import click.testing
import pytest
from copy_artifact import calibration, make, make_with_options

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


def test_outputs_are_listed_by_their_errors(evaluate_symbols, tmp_path):
    evaluate_symbols("a b\ta b\na b c\tbb b c d\nc\ta\n", "--output", tmp_path / "errors.tsv")
    assert (tmp_path / "errors.tsv").read_text("utf-8").splitlines() == [
        "source\treference\toutput\terrors\tsymbols\terror_rate",
        "a b c\tbb b c d\ta b c\t2\t4\t50.0",
        "c\ta\tc\t1\t1\t100.0",
        "a b\ta b\ta b\t0\t2\t0.0",
    ]


def test_listed_outputs_of_a_calibrated_model_have_confidences(evaluate_calibrated, tmp_path):
    assert evaluate_calibrated("--output", tmp_path / "errors.tsv").exit_code == 0
    lines = (tmp_path / "errors.tsv").read_text("utf-8").splitlines()
    assert [line.split("\t")[6] for line in lines] == ["confidence", "0.1353", "0.0498"]


def test_picture_has_the_errors_of_the_outputs(evaluate_symbols, tmp_path):
    evaluate_symbols(PAIRS, "--json", "--picture", tmp_path / "errors.svg")
    svg = (tmp_path / "errors.svg").read_text("utf-8")
    assert "66.7% exact, 14.3% symbol errors" in svg and "25.0% of 4" in svg


@pytest.mark.parametrize(
    ("flag", "name"),
    [("picture", "errors.png"), ("picture", "absent/errors.svg"), ("output", "absent/errors.tsv")],
)
def test_file_that_cannot_be_written_is_refused_before_the_translation(tmp_path, flag, name):
    arguments = ["evaluate", tmp_path, tmp_path / "absent.tsv", f"--{flag}", tmp_path / name]
    result = click.testing.CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code and f"`{flag}` must" in str(result.output) + str(result.exception)


@pytest.fixture
def evaluate_calibrated(tmp_path):
    """Run `evaluate` with a model whose confidence is e^-length."""
    artifact = make_with_options(tmp_path / "artifact", calibration=calibration())
    # Three and two tokens with the end of sentence; the second output is wrong.
    (tmp_path / "pairs.tsv").write_text("a dog\ta dog\nb\ta\n", "utf-8")

    def evaluate(*options):
        arguments = ["evaluate", artifact, tmp_path / "pairs.tsv", *options]
        return click.testing.CliRunner().invoke(app, [str(each) for each in arguments])

    return evaluate


def test_json_has_the_measures_of_confidences(evaluate_calibrated):
    result = evaluate_calibrated("--json")
    confidence = json.loads(result.stdout)["confidence"]
    # "a dog" has the smaller confidence and is right.
    right, wrong = math.exp(-3), math.exp(-2)
    assert confidence["outputs"] == 2
    assert confidence["calibration_error"] == pytest.approx(100 * (1 - right + wrong) / 2)
    assert confidence["wrong"] == pytest.approx({"50": 100, "80": 50, "90": 50, "100": 50})
    assert confidence["expected_wrong"] == pytest.approx(100 * (2 - right - wrong) / 2)
    assert confidence["expected_errors"] == pytest.approx(20)


def test_errors_by_confidence_are_printed(evaluate_calibrated):
    lines = evaluate_calibrated().stdout.splitlines()
    assert "calibration error 54.3% (" in lines[2]
    assert lines[3].endswith("outputs: 50% 100.0%, 80% 50.0%, 90% 50.0%, 100% 50.0%")


def test_another_search_prints_why_there_is_no_confidence(evaluate_calibrated):
    result = evaluate_calibrated("--beam-size", 1)
    assert "The confidence holds for beam_size=2. Received: 1." in result.stderr
    assert "calibration error" not in result.stdout


def test_confidences_are_drawn(evaluate_calibrated, tmp_path):
    evaluate_calibrated("--confidence-picture", tmp_path / "confidence.png")
    assert (tmp_path / "confidence.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["confidence.txt"], "must end in one of"),
        (["confidence.png", "--beam-size", 1], "`confidence_picture` must be used with the search"),
    ],
)
def test_a_picture_without_confidences_is_refused(evaluate_calibrated, tmp_path, options, message):
    name, *flags = options
    result = evaluate_calibrated("--confidence-picture", tmp_path / name, *flags)
    assert result.exit_code and message in str(result.output) + str(result.exception)
    assert not (tmp_path / name).exists()
