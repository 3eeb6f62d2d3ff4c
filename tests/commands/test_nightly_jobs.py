"""The script and the systemd units of the page about nightly jobs."""

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from copy_artifact import make
from pages import DOCS, ROOT, blocks

PAGE = DOCS / "guides" / "nightly-jobs.md"


@pytest.fixture
def job(tmp_path):
    """A folder with an artifact, a file in `in`, and the command on the path."""
    make(tmp_path / "artifact")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "monday.jsonl").write_text('{"text": "a dog"}\n')
    command = tmp_path / "bin" / "keras-bahdanau"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m keras_bahdanau_cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(job, *command):
    path = os.pathsep.join([str(job / "bin"), os.environ["PATH"]])
    modules = os.pathsep.join([str(ROOT), str(ROOT / "export")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": modules}
    return subprocess.run(command, cwd=job, env=environment, capture_output=True, text=True)


def log_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_script_prints_only_problems_and_returns_the_status(job):
    [script] = blocks(PAGE, "sh")
    (job / "nightly.sh").write_text(script)
    first = run(job, "sh", "nightly.sh")
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    *_, summary = log_of((job / "nightly.log").read_text())
    assert summary["new_rows"] == summary["rows"] == 1
    assert all(f"`{key}`" in PAGE.read_text("utf-8") for key in summary)
    (job / "in" / "tuesday.jsonl").write_text('{"text": "a cat"}\n{\n')
    second = run(job, "sh", "nightly.sh")
    assert second.returncode == 3 and second.stdout.startswith("Some rows or files have no transl")
    *_, summary, _ = log_of((job / "nightly.log").read_text())
    assert (summary["unchanged_files"], summary["new_rows"]) == (1, 2)
    (job / "in" / "wednesday.jsonl").write_bytes(b"\xff\xfe")
    command = "keras-bahdanau translate artifact in -o out/ --log-format json"
    unchanged, bad, *_ = log_of(run(job, *command.split()).stderr)
    assert bad["level"] == unchanged["level"] == "warning"
    numbers = unchanged["new_rows"], unchanged["failed_rows"]
    assert (unchanged["file"], *numbers) == ("in/tuesday.jsonl", 0, 1)
    shutil.rmtree(job / "artifact")
    third = run(job, "sh", "nightly.sh")
    message, *last_lines = third.stdout.splitlines()
    assert third.returncode == 4 and message == "The translation failed with status 4."
    assert log_of("\n".join(last_lines))[-1]["status"] == 4


def test_the_service_of_systemd_runs_the_command(job):
    units = [configparser.ConfigParser() for _ in range(2)]
    for unit, text in zip(units, blocks(PAGE, "ini"), strict=True):
        unit.optionxform = str
        unit.read_string(text)
    service, timer = units
    _, *arguments = shlex.split(service["Service"]["ExecStart"])
    finished = run(job, "keras-bahdanau", *arguments)
    assert finished.returncode == 0 and log_of(finished.stderr)[-1]["files"] == 1
    assert service["Service"]["SuccessExitStatus"] == "3"
    assert timer["Timer"]["OnCalendar"]
