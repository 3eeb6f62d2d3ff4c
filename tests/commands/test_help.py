"""Help pages at 80 columns, and the version."""

import re
import shlex
import subprocess
import sys

import click.testing
import pytest
from command import process

import keras_bahdanau
import keras_bahdanau_runtime
from keras_bahdanau_cli.app import app
from keras_bahdanau_cli.help_pages import PANELS, example, help_record

COMMANDS = app.load_commands()
TRAIN_PANELS = [
    "Data", "Model", "Fine-tuning", "Optimization", "Regularization", "Validation", "System",
]  # fmt: skip


def page(monkeypatch, *command, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = click.testing.CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.output
    return result.output


def words(text):
    """The text in one line, without the borders of panels."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_cut(monkeypatch, name, columns):
    output = page(monkeypatch, name, columns=columns)
    assert "…" not in output
    if columns >= 80:  # in a narrower terminal it wraps the example
        assert max(map(len, output.splitlines())) <= columns
    text = words(output)
    context = click.Context(COMMANDS[name], info_name=name)
    for parameter in COMMANDS[name].get_params(context):
        names, help_text = help_record(COMMANDS[name], parameter, context)
        for part in (*parameter.opts, *parameter.secondary_opts):
            assert part in text or part == parameter.name
        if columns >= 80:
            assert words(names) in text and words(help_text) in text


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_page_ends_with_one_example_that_the_command_accepts(monkeypatch, name):
    output = page(monkeypatch, *filter(None, [name]))
    command = COMMANDS[name] if name else app
    _, heading, lines = output.partition("\n Example:\n")
    assert heading and output.count("Example:") == 1
    assert [line.strip() for line in lines.strip().splitlines()] == [
        line.strip() for line in example(command.help).splitlines()
    ]
    program, *arguments = shlex.split(lines.replace("\\\n", " "))
    assert (program, arguments[0]) == ("keras-bahdanau", name or "quickstart")
    parsed = COMMANDS[arguments[0]].make_context(arguments[0], arguments[1:])
    assert parsed.params


def test_options_are_in_panels(monkeypatch):
    titles = re.findall(r"^╭─ (.+?) ─", page(monkeypatch, "train"), re.M)
    assert titles == ["Arguments", "Options", *TRAIN_PANELS]
    for name in ("export", "serve", "translate", "evaluate", "prepare"):
        titles = re.findall(r"^╭─ (.+?) ─", page(monkeypatch, name), re.M)
        assert len(titles) >= 4 and titles == sorted(titles, key=PANELS.index)


def test_page_of_the_group_lists_every_command_in_a_panel(monkeypatch):
    output = page(monkeypatch)
    assert "…" not in output and "─ Commands ─" not in output
    for name in COMMANDS:
        assert re.search(rf"^│ +{name} +[A-Z]", output, re.M), name


def test_a_help_text_without_an_example_is_an_error():
    with pytest.raises(ValueError, match="must end with a section"):
        example("Train a model.")


def test_command_without_arguments_prints_its_help():
    finished = process()
    assert "Usage: " in finished.stdout and "Example:" in finished.stdout


def test_version():
    finished = process("--version")
    assert finished.returncode == 0
    assert finished.stdout == f"keras-bahdanau {keras_bahdanau.__version__}\n"
    assert keras_bahdanau.__version__ == keras_bahdanau_runtime.__version__


def test_help_pages_need_no_large_package():
    code = (
        "import sys; from keras_bahdanau_cli.app import app; app.load_commands(); "
        "print({'keras', 'numpy', 'onnxruntime', 'pydantic', 'starlette'} & {*sys.modules})"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout.strip() == "set()", finished.stderr
