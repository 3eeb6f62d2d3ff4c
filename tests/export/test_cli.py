"""The command, from two text files to translations, with real processes and real files."""

import csv
import os
import subprocess
import sys

import pytest

from keras_bahdanau_export import cli

pytestmark = pytest.mark.once

EPOCHS = 4
PAIRS = [
    (f"say {word} {n}", f"{n} {word[::-1]}") for word in ("abc", "bcd", "cde") for n in range(9)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name, pairs in (("train", PAIRS), ("dev", PAIRS[:5])):
        for suffix, side in (("src", 0), ("tgt", 1)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    return folder


# The command, with Ctrl-C at the moment when the first epoch is reported.
INTERRUPTED = """
import signal, sys
from keras_bahdanau_export import cli

class Watched:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        self.stream.write(text)
        if "epoch 1/" in text:
            signal.raise_signal(signal.SIGINT)
    def __getattr__(self, name):
        return getattr(self.stream, name)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
sys.stderr = Watched(sys.stderr)
cli.main()
"""


def train_arguments(files, output, *more):
    return [
        "train", str(files / "train.src"), str(files / "train.tgt"),
        "--validation-source", str(files / "dev.src"),
        "--validation-target", str(files / "dev.tgt"),
        "--output", str(output), "--vocabulary-size", "280", "--units", "8",
        "--embedding-dim", "6", "--attention-units", "7", "--batch-size", "16",
        "--epochs", str(EPOCHS), "--max-length", "24", "--dropout", "0", *more,
    ]  # fmt: skip


def run(monkeypatch, capsysbinary, *arguments):
    """Runs the command in this process; returns exit status, standard output and error."""
    monkeypatch.setattr(sys, "argv", ["keras-bahdanau", *map(str, arguments)])
    try:
        cli.main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsysbinary.readouterr()
    return status, out.decode(), " ".join(err.decode().split())


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """An uninterrupted run, in a process of its own."""
    output = tmp_path_factory.mktemp("run") / "run"
    subprocess.run(
        [sys.executable, "-m", "keras_bahdanau_export.cli", *train_arguments(files, output)],
        check=True,
        capture_output=True,
    )
    return output


@pytest.fixture(scope="module")
def artifact(trained, tmp_path_factory):
    output = tmp_path_factory.mktemp("export") / "artifact"
    arguments = ["export", trained, output, "--beam", 2, "--max-length", 12]
    subprocess.run(
        [sys.executable, "-m", "keras_bahdanau_export.cli", *map(str, arguments)],
        check=True,
        capture_output=True,
    )
    return output


def history(run_folder):
    with (run_folder / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_its_files(trained):
    assert sorted(path.name for path in trained.iterdir()) == [
        "best.keras",
        "history.csv",
        "last.keras",
        "options.json",
        "tokenizer.json",
    ]
    assert [row["epoch"] for row in history(trained)] == ["1", "2", "3", "4"]


def test_ctrl_c_keeps_the_last_epoch_and_resume_ends_where_an_unbroken_run_ends(
    files, trained, tmp_path
):
    arguments = train_arguments(files, tmp_path / "run")
    interrupted = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert interrupted.returncode == 130, interrupted.stderr
    assert "--resume" in " ".join(interrupted.stderr.splitlines()[-2:])
    assert len(history(tmp_path / "run")) == 1
    subprocess.run(
        [sys.executable, "-m", "keras_bahdanau_export.cli", *arguments, "--resume"],
        check=True,
        capture_output=True,
    )
    whole, resumed = history(trained), history(tmp_path / "run")
    assert len(resumed) == EPOCHS
    for a, b in zip(whole, resumed, strict=True):
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-4)


def test_resume_refuses_other_options(monkeypatch, capsysbinary, files, trained):
    arguments = train_arguments(files, trained, "--resume", "--dropout", "0.5")
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert status == 1
    assert "dropout was 0.0, is 0.5" in err


def test_train_refuses_an_existing_folder(monkeypatch, capsysbinary, files, trained):
    status, _, err = run(monkeypatch, capsysbinary, *train_arguments(files, trained))
    assert status == 1
    assert "exists" in err
    assert "--resume" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short", b"one line\n", "must have the same number of lines. Received: 1"),
        ("empty", b"", "is empty"),
        ("latin", b"ok\nab\xff\n", "line 2: not UTF-8"),
    ],
)
def test_bad_text_files_are_named(
    monkeypatch, capsysbinary, files, tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    arguments = train_arguments(files, tmp_path / "run")
    arguments[1] = str(tmp_path / name)
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert status == 1
    assert name in err
    assert message in err
    assert not (tmp_path / "run").exists()


def test_one_line_in_is_one_line_out(monkeypatch, capsysbinary, artifact, tmp_path):
    (tmp_path / "in").write_text("say abc 1\n\nsay cde 5\n", encoding="utf-8")
    status, out, _ = run(monkeypatch, capsysbinary, "translate", artifact, tmp_path / "in")
    assert status == 0
    assert out.count("\n") == 3
    assert out.split("\n")[1] == ""
    status, _, _ = run(
        monkeypatch, capsysbinary,
        "translate", artifact, tmp_path / "in", "--output", tmp_path / "out",
    )  # fmt: skip
    assert (tmp_path / "out").read_text(encoding="utf-8") == out
    status, _, err = run(
        monkeypatch, capsysbinary,
        "translate", artifact, tmp_path / "in", "--output", tmp_path / "out",
    )  # fmt: skip
    assert (status, "exists" in err) == (1, True)


def test_translate_reads_standard_input_without_keras(artifact):
    program = (
        "import sys; from keras_bahdanau_export import cli\n"
        f"sys.argv = ['keras-bahdanau', 'translate', {str(artifact)!r}]\n"
        "cli.app(standalone_mode=False)\n"
        "loaded = {'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], input="say abc 1\n", capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("\n") == 1


def test_bytes_that_are_not_utf8_are_named(monkeypatch, capsysbinary, artifact, tmp_path):
    (tmp_path / "in").write_bytes(b"ok\n\xff\n")
    status, out, err = run(monkeypatch, capsysbinary, "translate", artifact, tmp_path / "in")
    assert (status, out) == (1, "")
    assert "line 2: not UTF-8" in err


def test_evaluate_gives_keras_and_the_artifact_the_same_score(
    monkeypatch, capsysbinary, files, trained, artifact
):
    test_set = (files / "dev.src", files / "dev.tgt")
    _, by_artifact, _ = run(monkeypatch, capsysbinary, "evaluate", artifact, *test_set)
    _, by_keras, _ = run(
        monkeypatch, capsysbinary,
        "evaluate", trained, *test_set, "--beam", 2, "--max-length", 12,
    )  # fmt: skip
    assert by_artifact == by_keras
    assert by_keras.startswith("BLEU ")


def test_align_draws_a_picture(monkeypatch, capsysbinary, artifact, tmp_path):
    picture = tmp_path / "picture.png"
    status, out, _ = run(
        monkeypatch, capsysbinary, "align", artifact, "say abc 1", "--output", picture
    )
    assert (status, out.count("\n")) == (0, 1)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_inspect_prints_the_manifest(monkeypatch, capsysbinary, artifact):
    status, out, _ = run(monkeypatch, capsysbinary, "inspect", artifact)
    assert status == 0
    assert "model.onnx" in out
    assert "BeamSearch" in out


def test_verify_holds_the_artifact_against_the_model(monkeypatch, capsysbinary, trained, artifact):
    status, out, _ = run(
        monkeypatch, capsysbinary, "verify", artifact, trained / "best.keras", "--count", 3
    )
    assert status == 0
    assert "3 of 3 sources equal" in out


def test_a_folder_that_is_no_run_is_named(monkeypatch, capsysbinary, tmp_path):
    status, _, err = run(monkeypatch, capsysbinary, "export", tmp_path, tmp_path / "artifact")
    assert status == 1
    assert "best.keras" in err


@pytest.mark.parametrize(
    ("missing", "module", "command"),
    [
        ("jax", "keras_bahdanau", 'pip install "keras-bahdanau[jax]"'),
        ("typer", "keras_bahdanau_export.cli", 'pip install "keras-bahdanau[cli]"'),
    ],
)
def test_a_missing_package_names_its_pip_command(missing, module, command):
    program = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert command in finished.stderr.splitlines()[-1]
