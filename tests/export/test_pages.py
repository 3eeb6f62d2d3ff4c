"""The Python of pages that export runs, and so do their commands that train and export.

tests/test_docs.py runs the other Python and the other commands.
"""

import shlex
import shutil

import pytest
from command import run
from pages import (
    DOCS,
    PAGES,
    ROOT,
    blocks,
    is_export,
    page_id,
    run_python,
    shell_commands,
    write_files,
)

from keras_bahdanau_runtime import Translator

# Added to `train`, so that it takes seconds.
SMALL = "--epochs 1 --vocabulary-size 270 --units 4 --embedding-dim 4 --attention-units 4".split()


@pytest.mark.parametrize("path", [path for path in PAGES if is_export(path)], ids=page_id)
def test_python_of_a_page_that_exports_runs(path, tmp_path, monkeypatch):
    write_files(tmp_path, code="".join(blocks(path, "python")))
    monkeypatch.chdir(tmp_path)
    run_python(path)


# The page of your own text has the commands of the README. `train` in the other pages needs a
# large corpus or several machines.
@pytest.mark.parametrize(
    "path",
    [
        ROOT / "README.md",
        DOCS / "guides" / "int8-and-shortlists.md",
        DOCS / "guides" / "search-options.md",
    ],
    ids=page_id,
)
def test_commands_that_train_and_export_run(path, tmp_path, monkeypatch, capsysbinary):
    write_files(tmp_path)
    shutil.rmtree(tmp_path / "artifact")
    monkeypatch.chdir(tmp_path)
    commands = shell_commands(path, "keras-bahdanau (train|export|shortlist) ")
    assert commands
    for command in commands:
        _, name, *arguments = shlex.split(command)
        if name == "train":
            shutil.rmtree("run")
            arguments = [*arguments, *SMALL]
        status, _, err = run(monkeypatch, capsysbinary, name, *arguments)
        assert status == 0, err
        if name == "export":
            [output] = [argument for argument in arguments if argument.startswith("artifact")]
            assert Translator(output).translate(["the dog"])[0].tokens is not None
