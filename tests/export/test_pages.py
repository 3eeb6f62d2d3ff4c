"""The Python of pages that export runs, and so does the command that exports in int8.

test_cli.py runs the other commands that train and export. tests/test_docs.py runs the rest.
"""

import shlex

import pytest
from command import run
from pages import (
    DOCS,
    PAGES,
    blocks,
    is_export,
    page_id,
    run_python,
    shell_commands,
    write_files,
)

from keras_bahdanau_runtime import Translator


@pytest.mark.parametrize("path", [path for path in PAGES if is_export(path)], ids=page_id)
def test_python_of_a_page_that_exports_runs(path, tmp_path, monkeypatch):
    write_files(tmp_path, code="".join(blocks(path, "python")))
    monkeypatch.chdir(tmp_path)
    run_python(path)


def test_the_command_that_exports_in_int8_runs(tmp_path, monkeypatch, capsysbinary):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = DOCS / "guides" / "int8-and-shortlists.md"
    [command] = shell_commands(page, "keras-bahdanau export .*--precision")
    status, _, err = run(monkeypatch, capsysbinary, *shlex.split(command)[1:])
    assert status == 0, err
    translator = Translator("artifact-int8")
    assert translator.manifest.other["precision"]["precision"] == "int8"
    assert translator.translate(["the dog"])[0].tokens is not None
