"""The command `keras-bahdanau`, in this process or in another one, and the history of a run."""

import csv
import os
import subprocess
import sys

from keras_bahdanau_cli import __main__ as cli


def process(*arguments, cwd=None):
    """Run the command in a child process, as a shell does, in the folder `cwd`."""
    environment = {name: os.environ[name] for name in os.environ if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-m", "keras_bahdanau_cli", *map(str, arguments)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def run(monkeypatch, capsysbinary, *arguments):
    """Run the command in this process; return exit status, standard output and error."""
    monkeypatch.setattr(sys, "argv", ["keras-bahdanau", *map(str, arguments)])
    try:
        cli.main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    out, err = capsysbinary.readouterr()
    return status, out.decode(), " ".join(err.decode().split())


def history(run_folder):
    with (run_folder / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))
