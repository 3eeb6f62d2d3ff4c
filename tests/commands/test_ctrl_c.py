"""Ctrl-C while the command trains, and resuming the interrupted run."""

import signal
import sys

import pytest
from command import history, run

EPOCHS = 3


class Interrupting:
    """A stream that raises the signal of Ctrl-C when the first epoch is reported."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(text)
        if text.startswith("epoch 1/"):
            signal.raise_signal(signal.SIGINT)

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.fixture
def train(tmp_path, monkeypatch, capsysbinary):
    """A function that runs the command in this process; returns its status and error output."""
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("".join(f"say {n % 7} {n}\n" for n in range(16)))
    target.write_text("".join(f"{n} {n % 7}\n" for n in range(16)))
    options = {
        "validation-source": source, "validation-target": target, "vocabulary-size": 270,
        "units": 4, "embedding-dim": 4, "attention-units": 3, "batch-size": 8, "max-length": 6,
        "epochs": EPOCHS,
    }  # fmt: skip
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]

    def train(output, *more):
        arguments = ("train", source, target, *flags, "--output", output, *more)
        status, _, err = run(monkeypatch, capsysbinary, *arguments)
        return status, err

    return train


def losses(run_folder):
    return [float(row["loss"]) for row in history(run_folder)]


def test_ctrl_c_keeps_the_last_epoch_and_resume_gives_the_losses_of_an_uninterrupted_run(
    train, tmp_path, monkeypatch
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(whole)[0] == 0
    handler = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job ignores SIGINT
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", Interrupting(sys.stderr))
            status, err = train(broken)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert status == 130, err
    assert "--resume" in err.split("\nepoch 1/")[-1]
    assert len(losses(broken)) == 1
    status, err = train(broken, "--resume")
    assert status == 0, err
    assert len(losses(broken)) == EPOCHS
    assert losses(broken) == pytest.approx(losses(whole), rel=1e-4)
