"""The command `select` with an artifact that copies its source.

The log-probability of each token is -1, so longer sources have answers of less confidence.
"""

import json
import math
from pathlib import Path

import click.testing
import pytest
from copy_artifact import make

from keras_bahdanau_cli.app import app
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_runtime import Translator

RUN = Path(__file__).resolve().parents[1] / "files" / "run"
SOURCES = ["a", "a man on a bike", "a dog", "a man on a bikes", ""]


def select(*arguments):
    return click.testing.CliRunner().invoke(app, ["select", *map(str, arguments)])


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("select") / "artifact")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "unlabeled.txt"
    path.write_text("".join(f"{source}\n" for source in SOURCES), "utf-8")
    return path


def test_lines_are_pairs_to_correct_the_least_confident_first(artifact, texts, tmp_path):
    result = select(artifact, texts, "--count", 2, "--output", tmp_path / "list.tsv")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    rows = [line.split("\t") for line in (tmp_path / "list.tsv").read_text("utf-8").splitlines()]
    # One letter more than "a man on a bike", which is left out as a near duplicate.
    assert [row[:2] for row in rows] == [["a man on a bikes"] * 2, ["a dog"] * 2]
    ids = Translator(artifact).tokenizer.encode_targets([row[1] for row in rows])
    assert [row[2] for row in rows] == [f"{math.exp(-len(row)):.6f}" for row in ids]


def test_a_tab_of_a_source_ends_no_column(artifact, texts):
    texts.write_text("a man\ton a bike\n", "utf-8")
    [row] = (line.split("\t") for line in select(artifact, texts).stdout.splitlines())
    assert row[:2] == ["a man on a bike"] * 2


def test_json_lines_have_line_numbers_and_near_duplicates_can_be_kept(artifact, texts):
    result = select(artifact, texts, "--similarity", 1, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["line"], row["source"], row["answer"]) for row in rows] == [
        (line, SOURCES[line - 1], SOURCES[line - 1]) for line in (4, 2, 3, 1)
    ]


def test_confidence_of_a_run_is_the_probability_of_the_answer(tmp_path):
    from keras_bahdanau.training.run import load_best

    (tmp_path / "texts").write_text("zebra quick\n", "utf-8")
    result = select(RUN, tmp_path / "texts")
    assert result.exit_code == 0, result.output
    source, answer, confidence = result.stdout.removesuffix("\n").split("\t")
    model = load_best(RUN)
    targets = model.tokenizer.encode_targets([answer])
    scores = model.score(model.tokenizer.encode_sources([source]), targets)
    assert float(confidence) == pytest.approx(math.exp(float(scores.totals[0])), abs=1e-5)


def test_lines_that_cannot_be_translated_are_reported_and_left_out(artifact, tmp_path):
    path = tmp_path / "texts"
    path.write_bytes(b"a dog\nun \xe9t\xe9\n" + b"a boat on a bike " * 20 + b"\n")
    result = select(artifact, path)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["a dog"]
    assert "line 2: " in result.stderr and "line 3: " in result.stderr
    assert isinstance(result.exception, IncompleteError)
    assert str(result.exception) == "Sources without a translation: 2."
