"""Command `translate` with several files: outputs, messages, summary and exit statuses."""

import json
import re

import pytest
from command import process, run
from copy_artifact import make

from keras_bahdanau_cli.exit_status import EXIT_STATUSES, IncompleteError, exit_status
from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    ParityError,
    RunError,
    UnsupportedArtifactError,
    argument_error,
)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("files") / "artifact")


@pytest.fixture
def translate(monkeypatch, capsysbinary, artifact, tmp_path):
    """Run `translate` in a folder with two files in `in`; return its status and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a man"}\n{\n')
    (tmp_path / "in" / "b.csv").write_text("text\na dog\n" + "a dog " * 50 + "\n")

    def translate(*arguments):
        status, out, err = run(monkeypatch, capsysbinary, "translate", artifact, *arguments)
        assert out == ""
        return status, err

    return translate


def test_a_folder_is_translated_and_summed_up(translate, tmp_path):
    status, err = translate("in", "-o", "out")
    assert status == 3
    assert "in/a.jsonl, line 2: expected a JSON object" in err
    assert "in/b.csv, row 2: " in err and "at most 40 tokens" in err
    assert re.search(
        r"2 files: 0 unchanged, 0 failed; 4 rows: 4 new, 2 without a translation; "
        r"[\d.]+ s, [\d.,]+ rows/s error: Without a translation: 2 rows\.$",
        err,
    )
    assert (tmp_path / "out" / "b.csv").read_text().startswith("text,translation\na dog,a dog\n")


def test_a_repeated_call_has_the_same_status_and_translates_nothing(translate):
    translate("in", "-o", "out")
    status, err = translate("in", "-o", "out")
    assert status == 3
    assert "2 files: 2 unchanged, 0 failed; 4 rows: 0 new, 2 without a translation" in err
    for _ in range(2):
        status, err = translate("in/a.jsonl", "-o", "single.jsonl", "--resume")
        assert status == 3 and "1 file: " in err


@pytest.mark.parametrize("output", ["new/", "present"])
def test_a_single_file_is_translated_into_a_folder(translate, tmp_path, output):
    (tmp_path / "present").mkdir()
    translate("in/b.csv", "-o", output)
    assert (tmp_path / output / "b.csv").exists()


def test_a_file_that_cannot_be_read_is_named_and_counted(translate, tmp_path):
    (tmp_path / "in" / "b.csv").write_text('text\n"a\n')
    status, err = translate("in/*", "-o", "out")
    assert status == 3 and "in/b.csv: in/b.csv, line 2: expected CSV" in err
    assert "2 files: 0 unchanged, 1 failed; 2 rows: 2 new" in err
    assert err.endswith("error: Without a translation: 1 file and 1 row.")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--shard", "1/2"], "`shard` must be used with a single file"),
        (["--prefix", "x"], "`prefix` must be used with a single file"),
        (["--log-format", "xml"], '`log_format` must be "text" or "json"'),
        ([], "`output` must be a folder for several sources. Received: 'in/b.csv', a file"),
    ],
)
def test_flags_of_a_single_file_are_refused(translate, tmp_path, flags, words):
    status, err = translate("in", "-o", "out" if flags else "in/b.csv", *flags)
    assert status == 2 and words in err
    assert not (tmp_path / "out").exists()


def test_all_messages_are_json_for_log_collectors(translate, artifact, tmp_path):
    arguments = ("translate", artifact, "in", "-o", "out", "--log-format", "json")
    finished = process(*arguments, cwd=tmp_path)
    assert finished.returncode == 3
    failed, a, row, b, summary, error = map(json.loads, finished.stderr.splitlines())
    assert (failed["level"], failed["line"]) == ("warning", 2) and row["row"] == 2
    assert (a["file"], a["rows"], a["failed_rows"]) == ("in/a.jsonl", 2, 1)
    assert b["file"] == "in/b.csv"
    numbers = {name: value for name, value in summary.items() if isinstance(value, int)}
    assert numbers == {
        "files": 2,
        "failed_files": 0,
        "unchanged_files": 0,
        "rows": 4,
        "new_rows": 4,
        "failed_rows": 2,
    }
    assert summary["seconds"] > 0 and summary["rows_per_second"] > 0
    assert (error["level"], error["status"]) == ("error", 3)
    finished = process("translate", "none", "in", "-o", "new", "--log-format", "json", cwd=tmp_path)
    assert json.loads(finished.stderr)["status"] == finished.returncode == 4


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(28, "full"), 1),
        (FileNotFoundError(2, "absent"), 2),
        (RunError("out of memory"), 1),
        (ParityError("different"), 1),
        (argument_error("a", "be b", "c"), 2),
        (IncompleteError("rows"), 3),
        (CorruptArtifactError("damaged"), 4),
        (UnsupportedArtifactError("new"), 4),
    ],
)
def test_every_kind_of_failure_has_a_documented_status(error, status):
    assert exit_status(error) == status and status in EXIT_STATUSES
