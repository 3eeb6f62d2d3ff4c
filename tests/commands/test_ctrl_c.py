"""Ctrl-C while the command trains: what is left, and the run that goes on from it."""

import signal
import sys

import pytest
from command import history, run

EPOCHS = 3


class Interrupting:
    """A stream that presses Ctrl-C when the first epoch is reported."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(text)
        if "epoch 1/" in text:
            signal.raise_signal(signal.SIGINT)

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.fixture
def train(tmp_path, monkeypatch, capsysbinary):
    """Trains by the command, in this process; returns its status and what it said."""
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("".join(f"say {n % 7} {n}\n" for n in range(16)))
    target.write_text("".join(f"{n} {n % 7}\n" for n in range(16)))
    options = {
        "validation-source": source, "validation-target": target, "vocabulary-size": 270,
        "units": 4, "embedding-dim": 4, "attention-units": 3, "batch-size": 8, "max-length": 6,
        "epochs": EPOCHS,
    }  # fmt: skip
    given = [part for name, value in options.items() for part in (f"--{name}", value)]

    def train(output, *more):
        arguments = ("train", source, target, *given, "--output", output, *more)
        status, _, said = run(monkeypatch, capsysbinary, *arguments)
        return status, said

    return train


def losses(run_folder):
    return [float(row["loss"]) for row in history(run_folder)]


def test_the_last_epoch_is_kept_and_resume_ends_where_an_unbroken_run_ends(
    train, tmp_path, monkeypatch
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(whole)[0] == 0
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", Interrupting(sys.stderr))
            status, said = train(broken)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert status == 130, said
    assert "--resume" in said.split("epoch 1/")[-1]
    assert len(losses(broken)) == 1
    status, said = train(broken, "--resume")
    assert status == 0, said
    assert len(losses(broken)) == EPOCHS
    assert losses(broken) == pytest.approx(losses(whole), rel=1e-4)
