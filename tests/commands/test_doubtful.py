"""The command `score --doubtful` with an artifact that copies its source, and with a run.

The log-probability of an id of the artifact is -id / 8.
"""

import json
from pathlib import Path

import click.testing
import pytest
from copy_artifact import COPY_SCORE, make

from keras_bahdanau_cli.app import app
from keras_bahdanau_cli.exit_status import IncompleteError
from keras_bahdanau_runtime import Translator

RUN = Path(__file__).resolve().parents[1] / "files" / "run"
# The model prefers the copy of a source to any target with a larger sum of ids.
SOURCES = ["a", "a dog", "a man", "on a bike"]
TARGETS = ["a man on a bike", "a dog", "a man on a", "a"]


def list_doubtful(*arguments):
    return click.testing.CliRunner().invoke(app, ["score", "--doubtful", *map(str, arguments)])


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("doubtful") / "artifact", score=COPY_SCORE)


@pytest.fixture
def pairs(tmp_path):
    """A file with the pairs."""
    path = tmp_path / "pairs.tsv"
    lines = (f"{source}\t{target}\n" for source, target in zip(SOURCES, TARGETS, strict=True))
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def ranked(artifact):
    """Line, source, target, log-probabilities and number of tokens of the doubtful pairs."""
    encode = Translator(artifact).tokenizer.encode_targets
    rows = zip(SOURCES, TARGETS, encode(SOURCES), encode(TARGETS), strict=True)
    return sorted(
        (
            (line, source, target, -sum(answer_ids) / 8, -sum(target_ids) / 8, len(target_ids))
            for line, (source, target, answer_ids, target_ids) in enumerate(rows, start=1)
            if sum(answer_ids) < sum(target_ids)
        ),
        key=lambda row: row[4] - row[3],
    )


def test_json_lines_have_the_most_doubtful_pairs_first(artifact, pairs, ranked):
    result = list_doubtful(artifact, pairs, "--json")
    assert result.exit_code == 0, result.output
    assert [row[0] for row in ranked] == [1, 3]
    for rank, (line, expected) in enumerate(
        zip(result.stdout.splitlines(), ranked, strict=True), start=1
    ):
        number, source, target, answer_log_prob, target_log_prob, tokens = expected
        assert json.loads(line) == {
            "rank": rank,
            "line": number,
            "difference": answer_log_prob - target_log_prob,
            "target_log_prob": target_log_prob,
            "target_log_prob_per_token": pytest.approx(target_log_prob / tokens, abs=1e-4),
            "answer_log_prob": answer_log_prob,
            "source": source,
            "target": target,
            "answer": source,
        }


@pytest.mark.parametrize("limit", [("--count", 1), ("--share", 0.25)])
def test_a_limited_list_is_written_with_names_of_columns(artifact, pairs, ranked, tmp_path, limit):
    result = list_doubtful(artifact, pairs, *limit, "--output", tmp_path / "list.tsv")
    assert result.exit_code == 0 and result.stdout == ""
    header, row = (tmp_path / "list.tsv").read_text("utf-8").splitlines()
    columns = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (columns["line"], columns["source"], columns["target"]) == (
        "1",
        *ranked[0][1:3],
    )


def test_two_files_with_a_blank_line_are_compared_and_the_line_is_reported(artifact, tmp_path):
    (tmp_path / "a.en").write_text("\n".join(["", *SOURCES]) + "\n", "utf-8")
    (tmp_path / "a.de").write_text("\n".join(["a", *TARGETS]) + "\n", "utf-8")
    result = list_doubtful(artifact, tmp_path / "a.en", tmp_path / "a.de", "--json")
    assert [json.loads(line)["line"] for line in result.stdout.splitlines()] == [2, 4]
    assert "line 1: Argument `sources[0]` must not be blank" in result.stderr
    assert isinstance(result.exception, IncompleteError)
    assert str(result.exception) == "Pairs that could not be compared: 1."


def test_a_run_gives_the_log_probabilities_of_its_model(tmp_path):
    from keras_bahdanau.training.run import load_best

    (tmp_path / "pairs.csv").write_text("en,de\nred cat,one two three\n", "utf-8")
    columns = "--source-column", "en", "--target-column", "de"
    result = list_doubtful(RUN, tmp_path / "pairs.csv", *columns, "--json")
    assert result.exit_code == 0, result.output
    [row] = map(json.loads, result.stdout.splitlines())
    model = load_best(RUN)
    [answer] = model.translate(["red cat"])
    assert row["answer"] == answer.text
    source = model.tokenizer.encode_sources(["red cat"])
    for name in ("target", "answer"):
        scores = model.score(source, model.tokenizer.encode_targets([row[name]]))
        assert row[f"{name}_log_prob"] == pytest.approx(float(scores.totals[0]), abs=1e-3)


def test_sources_of_several_columns_need_a_model_of_such_sources(artifact, tmp_path):
    (tmp_path / "words.tsv").write_text("talo\ttalot\tN;PL\n", "utf-8")
    columns = "--source-column", 1, "--source-column", 3, "--target-column", 2
    result = list_doubtful(artifact, tmp_path / "words.tsv", *columns)
    with pytest.raises(ValueError, match="`source_column` must be one column for a tokenizer"):
        raise result.exception


def test_file_without_a_doubtful_pair_gives_an_empty_list(artifact, tmp_path):
    (tmp_path / "same.tsv").write_text("a dog\ta dog\n", "utf-8")
    result = list_doubtful(artifact, tmp_path / "same.tsv", "--json")
    assert (result.exit_code, result.stdout) == (0, ""), result.output
