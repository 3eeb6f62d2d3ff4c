"""Training runs and exports that are killed repeatedly give the same result as uninterrupted ones.

These tests are slow. They run in `make test-soak`, which kills a run 50 times (variable KILLS).
tests/commands/test_ctrl_c.py is the fast test of an interrupted run.
"""

import contextlib
import os
import random
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import keras_bahdanau  # noqa: F401  # registers the layers in the files
from keras_bahdanau_runtime import Translator

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL."),
    pytest.mark.skipif("KILLS" not in os.environ, reason="make test-soak kills runs."),
]

KILLS = int(os.environ.get("KILLS", "1"))
EPOCHS = 20 + 12 * KILLS
# A training run that prints a line at the begin of each epoch.
TRAIN = f"""
import sys
from pathlib import Path
import keras
from keras_bahdanau import TrainingOptions, train

folder = Path(sys.argv[1])
options = TrainingOptions(
    folder / "a.src", folder / "a.tgt", validation_source=folder / "a.src",
    validation_target=folder / "a.tgt", vocabulary_size=270, units=4, embedding_dim=4,
    attention_units=4, dropout=0.3, batch_size=4, max_length=12, epochs={EPOCHS},
)
report_epoch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: print("epoch", flush=True))
train(options, folder / sys.argv[2], resume=True, callbacks=[report_epoch], verbose=False)
"""


def start(folder, name):
    command = [sys.executable, "-c", TRAIN, folder, name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def weights(path):
    model = keras.saving.load_model(path)
    return [np.asarray(value) for value in [*model.get_weights(), *model.optimizer.variables]]


def write_texts(folder):
    for suffix in ("src", "tgt"):
        (folder / f"a.{suffix}").write_text("".join(f"say {n} {n}\n" for n in range(8)))


def test_killed_export_keeps_the_old_artifact(tmp_path):
    write_texts(tmp_path)
    with start(tmp_path, "run") as run:
        assert run.stdout.readline() == b"epoch\n"
        assert run.stdout.readline() == b"epoch\n"
        run.kill()
    artifact = tmp_path / "out" / "artifact"
    command = [sys.executable, "-m", "keras_bahdanau_cli", "export"]
    command += [tmp_path / "run", artifact, "--overwrite", "--max-length", "12"]
    start_time = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - start_time
    expected = Translator(artifact).translate(["say 1 1"])[0].text
    rng = random.Random(0)
    for _ in range(max(1, KILLS // 10)):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, seconds))
            process.kill()
        assert Translator(artifact).translate(["say 1 1"])[0].text == expected
    subprocess.run(command, check=True, capture_output=True)
    assert list(artifact.parent.iterdir()) == [artifact]


def test_killed_run_ends_like_an_uninterrupted_one(tmp_path):
    write_texts(tmp_path)
    with start(tmp_path, "whole") as whole:
        assert whole.stdout.read().count(b"epoch\n") == EPOCHS
    rng = random.Random(0)
    for _ in range(KILLS):
        with start(tmp_path, "killed") as run:
            for _ in range(rng.randrange(1, 10)):
                assert run.stdout.readline() == b"epoch\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(rng.uniform(0, 0.1))  # a random time in the next epochs
            assert run.poll() is None
            run.kill()
    with start(tmp_path, "killed") as run:
        rest = run.stdout.read().count(b"epoch\n")
    assert 0 < rest < EPOCHS
    for name in ("last.keras", "best.keras"):
        values, expected = weights(tmp_path / "killed" / name), weights(tmp_path / "whole" / name)
        for value, expected_value in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, expected_value)
    assert (tmp_path / "killed" / "history.csv").read_text().count("\n") == EPOCHS + 1
    assert not list((tmp_path / "killed").glob(".*"))
