"""Training on several devices gives what training on one does."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from layer_checks import assert_close

TESTS = Path(__file__).resolve().parents[1]
EXAMPLE = TESTS.parent / "examples" / "train_on_several_devices.py"
BACKEND = keras.config.backend()
CASES = {"tensorflow": ["padded", "ragged", "lacking"], "jax": ["padded", "smaller"], "torch": []}


def run(*command, **environment):
    """What a Python process of its own printed."""
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, **environment}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Losses, metrics and weights `(2, ...)` of each case: on one device, and on two."""
    path = tmp_path_factory.mktemp("devices") / "results.npz"
    run(TESTS / "two_devices.py", path)
    return np.load(path)


@pytest.mark.parametrize("case", CASES[BACKEND])
def test_two_devices_train_as_one(case, results):
    one, two = results[case]
    assert one[0] > 1.5  # a loss that is worth comparing
    assert_close(two, one, 1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="Processes of PyTorch share the work there alone.")
def test_two_torch_processes_train_as_one(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    printed = run(*torchrun, EXAMPLE, OUTPUT=str(tmp_path))
    one, losses = runpy.run_path(str(EXAMPLE))["train"](rank=0, processes=1)
    two = keras.saving.load_model(tmp_path / "model.keras")
    assert losses[-1] < losses[0]
    assert_close(np.array(printed.split()[1:], "float64"), losses, 1e-5)
    assert_close(two.get_weights(), one.get_weights(), 1e-5)
