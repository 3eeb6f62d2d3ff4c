"""The flag `--config`: a file takes every flag of its command by its name."""

import json
from pathlib import Path

import pytest

from keras_bahdanau_cli.app import app
from keras_bahdanau_runtime.option_fields import item_type

COMMANDS = {
    name: command
    for name, command in app.load_commands().items()
    if any(parameter.name == "config" for parameter in command.params)
}
# A value of a file for each type of parameter, and the value that the command receives.
VALUES = {
    int: (3, 3),
    float: (1, 1.0),
    bool: (True, True),
    str: ("a b", "a b"),
    Path: ("a/b", Path("a/b")),
}


def values_of(command, parameter):
    """Return the item of `VALUES` for a parameter, and whether it is a list."""
    kind, is_list = item_type(COMMANDS[command].options[parameter.name])
    return *VALUES[kind], is_list


def names_of(parameter):
    """Names of a parameter in a file: of its long flags, or of an argument."""
    flags = [*parameter.opts, *parameter.secondary_opts]
    return [flag[2:] for flag in flags if flag.startswith("--")] or [parameter.name]


def parse(command, folder, values, *arguments):
    """Return the parameters that a command receives with these values in a file."""
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return COMMANDS[command].make_context(command, [*arguments, "--config", str(path)]).params


def required_values(command):
    """Values of a file for the required parameters of a command."""
    values = {}
    for parameter in COMMANDS[command].params:
        if parameter.required:
            values[parameter.name] = values_of(command, parameter)[0]
    return values


def test_every_command_with_options_of_a_run_or_an_export_has_a_file():
    assert sorted(COMMANDS) == ["distill", "export", "train"]


@pytest.mark.parametrize("command", COMMANDS)
def test_file_takes_every_flag_and_argument_by_its_name(tmp_path, command):
    required = required_values(command)
    count = 0
    for parameter in COMMANDS[command].params:
        if parameter.name == "config":
            continue
        value, expected, is_list = values_of(command, parameter)
        for name in names_of(parameter):
            count += 1
            is_opposite = f"--{name}" in parameter.secondary_opts
            values = {key: each for key, each in required.items() if key != parameter.name}
            for spelling in {name, name.replace("-", "_")}:
                received = parse(command, tmp_path, {**values, spelling: value})[parameter.name]
                if is_list:
                    assert list(received) == [expected], spelling
                else:
                    assert received == (not expected if is_opposite else expected), spelling
                    assert type(received) is type(expected), spelling
            if is_list:
                received = parse(command, tmp_path, {**values, name: [value, value]})
                assert list(received[parameter.name]) == [expected, expected], name
    assert count >= 30


def test_flags_override_the_file(tmp_path):
    values = {**required_values("export"), "beam_size": 3, "max-length": 9, "with": ["a"]}
    received = parse("export", tmp_path, values, "--beam-size", "4")
    assert (received["beam_size"], received["max_length"]) == (4, 9)
    received = parse("export", tmp_path, values, "--with", "b")
    assert list(received["others"]) == [Path("b")]


def test_names_of_earlier_versions_are_read(tmp_path):
    required = required_values("train")
    former = {"loss_chunk": 7, "precision": "float32", "validation_beam": 2}
    received = parse("train", tmp_path, {**required, **former})
    assert received["loss_chunk_size"] == 7 and received["validation_beam_size"] == 2
    assert received["dtype_policy"] == "float32"
    received = parse("export", tmp_path, {**required_values("export"), "imports": ["json"]})
    assert list(received["imports"]) == ["json"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam_sise": 3}, "`beam_sise` must be an option of export. Did you mean `beam_size`?"),
        ({"beam_size": 3, "beam-size": 3}, "`beam-size` must be in the file once"),
        ({"beam_size": "3"}, "`beam_size` must be an int. Received: '3'"),
        ({"beam_size": True}, "`beam_size` must be an int. Received: True"),
        ({"max_length_ratio": "2"}, "`max_length_ratio` must be a number. Received: '2'"),
        ({"stepwise": 1}, "`stepwise` must be true or false. Received: 1"),
        ({"precision": 8}, "`precision` must be a text. Received: 8"),
        ({"length_penalty": [1, "x"]}, "`length_penalty` must be a number. Received: 'x'"),
        ({"config": "a.json"}, "`config` must be an option of export"),
        ({"search": "x"}, "`search` must be an option of export"),
    ],
)
def test_wrong_name_or_type_is_an_error_with_the_file(tmp_path, values, message):
    with pytest.raises(ValueError) as error:
        parse("export", tmp_path, {**required_values("export"), **values})
    assert f"config.json: Argument {message}" in str(error.value)


def test_errors_of_values_name_the_file_only_if_they_are_from_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("units: 0\n")
    arguments = ["a.en", "a.de", "--validation-source", "b.en", "--validation-target", "b.de"]
    arguments += ["--output", str(tmp_path / "run"), "--config", str(path)]
    with pytest.raises(ValueError, match="Argument `units` must be an int of at least 1") as caught:
        app.main(["train", *arguments], standalone_mode=False)
    assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(ValueError, match="Argument `units` must be an int of at least 1") as caught:
        app.main(["train", *arguments, "--units", "-1"], standalone_mode=False)
    assert str(path) not in str(caught.value)
