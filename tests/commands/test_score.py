"""The command `score` with an artifact whose log-probability of an id is -id / 8."""

import json
import math

import click.testing
import pytest
from copy_artifact import COPY_SCORE, make

from keras_bahdanau_cli.app import app
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.errors import UnsupportedArtifactError

SOURCES, TARGETS = ["a man on a bike", "a boat", "a dog"], ["a dog on", "a man", "a bike"]


def score(*arguments):
    return click.testing.CliRunner().invoke(app, ["score", *map(str, arguments)])


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("score") / "artifact", score=COPY_SCORE)


@pytest.fixture
def write(tmp_path):
    """A function that writes lines to a file and returns its path."""

    def write(name, lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return path

    return write


def expected_ids(artifact):
    return Translator(artifact).tokenizer.encode_targets(TARGETS)


def test_prints_a_log_probability_per_pair_and_the_perplexity(artifact, write):
    result = score(artifact, write("a.en", SOURCES), write("a.de", TARGETS))
    assert result.exit_code == 0, result.output
    ids = expected_ids(artifact)
    assert result.stdout.splitlines() == [f"{-sum(row) / 8:.6f}" for row in ids]
    count = sum(map(len, ids))
    perplexity = math.exp(sum(map(sum, ids)) / 8 / count)
    assert result.stderr == f"Perplexity {perplexity:.4f} (pairs: 3, tokens: {count})\n"


def test_writes_json_lines_with_tokens_to_a_file(artifact, write, tmp_path):
    output = tmp_path / "scores.jsonl"
    arguments = artifact, write("a.en", SOURCES), write("a.de", TARGETS)
    result = score(*arguments, "--json", "-o", output)
    assert result.exit_code == 0 and result.stdout == ""
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    for line, ids, target in zip(lines, expected_ids(artifact), TARGETS, strict=True):
        assert line["log_probs"] == [-index / 8 for index in ids]
        assert line["total"] == -sum(ids) / 8
        assert "".join(line["tokens"]) == f"{target}</s>"


def test_a_blank_pair_has_an_empty_line_and_is_reported(artifact, write):
    result = score(artifact, write("a.en", SOURCES), write("a.de", ["a dog on", " ", "a bike"]))
    first, blank, last = result.stdout.splitlines()
    assert blank == "" and float(first) < 0 and float(last) < 0
    assert "line 2: Argument `targets[1]` must not be blank. Received: ' '" in result.stderr
    assert "(pairs: 2, tokens: " in result.stderr
    assert isinstance(result.exception, IncompleteError)
    assert str(result.exception) == "Pairs without a score: 1."


def test_a_file_with_both_sides_has_a_line_for_each_pair(artifact, write, tmp_path):
    rows = [f"{target},{source}" for source, target in zip(SOURCES, TARGETS, strict=True)]
    both = write("a.csv", ["de,en", rows[0], "bad", *rows[1:], ","])
    columns = "--source-column", "en", "--target-column", "de"
    result = score(artifact, both, *columns, "--on-bad-line", "skip", "--json")
    first, bad, *others, blank = map(json.loads, result.stdout.splitlines())
    expected = [-sum(row) / 8 for row in expected_ids(artifact)]
    assert [line["total"] for line in (first, *others)] == expected
    assert bad["total"] is None and bad["error"].startswith("skipped, because")
    assert blank["total"] is None and "must not be blank" in blank["error"]
    assert "line 6: " in result.stderr and "line 3: " not in result.stderr
    assert str(result.exception) == "Pairs without a score: 1."


def test_skipped_lines_are_no_failure(artifact, tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\nun \xe9t\xe9\ta man\n")
    options = "--on-bad-line", "skip", "--encoding", "latin-1"
    result = score(artifact, tmp_path / "a.tsv", *options)
    assert result.exit_code == 0, result.output
    blank, second = result.stdout.splitlines()
    assert blank == "" and float(second) == -sum(expected_ids(artifact)[1]) / 8


def test_files_of_different_lengths_are_refused(artifact, write):
    result = score(artifact, write("a.en", SOURCES), write("a.de", TARGETS[:2]))
    assert result.stdout == ""
    message = "must have the same number of lines. Received: .*a.de ends after line 2, .*a.en goes"
    with pytest.raises(ValueError, match=message):
        raise result.exception


def test_an_artifact_without_a_score_graph_is_refused(write, tmp_path):
    path = make(tmp_path / "old")
    result = score(path, write("a.en", SOURCES), write("a.de", TARGETS))
    assert isinstance(result.exception, UnsupportedArtifactError)
    assert "has no score.onnx" in str(result.exception)
    assert "Export it again" in str(result.exception)
