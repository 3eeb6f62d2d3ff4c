"""Commands with an address of the Hugging Face Hub, and those of the guide."""

import os
import subprocess
import sys

import click.testing
import pytest
from copy_artifact import COPY_SCORE, COPY_STEPS, make_with_options
from hub_server import environment, running_hub, use_hub
from pages import DOCS, blocks, shell_commands, write_files

from keras_bahdanau_cli import hub_artifacts
from keras_bahdanau_cli.app import app

GUIDE = DOCS / "guides" / "hub.md"
COMMANDS = shell_commands(GUIDE, "keras-bahdanau .*hf://")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with the repository of the guide."""
    folder = tmp_path_factory.mktemp("commands")
    artifact = make_with_options(folder / "artifact", steps=COPY_STEPS, score=COPY_SCORE)
    with running_hub() as hub:
        hub.commit("user/en-de", artifact)
        hub.commit("user/en-de", artifact, branch="v1")
        yield hub


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The current folder, with the texts that the guide names."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def invoke(hub, folder, monkeypatch):
    """Run the command in this process."""
    use_hub(monkeypatch, hub, folder / "cache")
    return lambda *arguments: click.testing.CliRunner().invoke(app, list(map(str, arguments)))


def test_the_guide_has_commands_and_python():
    assert len([command for command in COMMANDS if " serve " not in command]) >= 4
    assert "from_hub" in "".join(blocks(GUIDE, "python notest"))


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if " serve " not in command], ids=str
)
def test_a_command_of_the_guide_runs(invoke, command):
    result = invoke(*command.split()[1:])
    assert result.exit_code == 0, result.output
    assert "Downloading hf://user/en-de" in result.stderr


def test_the_python_of_the_guide_runs(invoke):
    namespace = {}
    for block in blocks(GUIDE, "python notest"):
        exec(compile(block, "hub.md", "exec"), namespace)
    assert namespace["translator"].providers


def test_a_second_command_downloads_nothing_also_offline(hub, folder):
    (folder / "text").write_text("a man on a bike\n")
    variables = {**os.environ, **environment(hub, folder / "cache")}
    arguments = [sys.executable, "-m", "keras_bahdanau_cli", "translate", "hf://user/en-de"]
    outputs = []
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        finished = subprocess.run(
            [*arguments, "text"], env=variables | more, capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stderr
        outputs.append((finished.stdout, finished.stderr))
    (first, download), (second, nothing) = outputs
    assert first == second != ""
    assert download.startswith("Downloading hf://user/en-de: 5 files, 0.0 MB.\n") and nothing == ""


def test_serve_names_a_model_by_its_repository(hub, folder, monkeypatch):
    use_hub(monkeypatch, hub, folder / "cache")
    folders = hub_artifacts.artifact_folders(
        ["hf://user/en-de@v1", "new=hf://user/en-de", "artifact"]
    )
    assert list(folders) == ["en-de", "new", "artifact"]
    assert all((path / "manifest.json").is_file() for path in folders.values())
    with pytest.raises(ValueError, match=r"different names\. Received: 'en-de' twice"):
        hub_artifacts.artifact_folders(["hf://user/en-de", "hf://other/en-de"])


def test_an_error_of_the_hub_is_one_line(hub, folder):
    finished = subprocess.run(
        [sys.executable, "-m", "keras_bahdanau_cli", "inspect", "hf://user/none"],
        env={**os.environ, **environment(hub, folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1 and finished.stderr.startswith("error: Argument `repo")


def test_commands_without_the_hub_do_not_import_its_client(folder):
    (folder / "text").write_text("red cat\n")
    code = (
        "import sys\n"
        "sys.argv[1:] = ['translate', 'artifact', 'text']\n"
        "from keras_bahdanau_cli import __main__ as cli\n"
        "cli.main()\n"
    )
    code = code.replace("cli.main()\n", "try:\n    cli.main()\nfinally:\n    print(*sys.modules)\n")
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "onnxruntime" in finished.stdout.split(), finished.stderr
    assert "huggingface_hub" not in finished.stdout.split()
