"""Training on two devices, both on this CPU, gives the losses and weights of one device."""

from pathlib import Path

import keras
import numpy as np
import pytest
from layer_checks import assert_close
from python_process import run_python

SUPPORT = Path(__file__).resolve().parents[1] / "support"
# PyTorch has a process for each device: tests/library/test_distribution.py.
CASES = {"tensorflow": ["padded", "ragged", "lacking"], "jax": ["padded", "smaller"], "torch": []}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Losses, metrics and weights `(2, ...)` of each case: on one device, and on two."""
    path = tmp_path_factory.mktemp("devices") / "results.npz"
    run_python(SUPPORT / "two_devices.py", path)
    return np.load(path)


@pytest.mark.parametrize("case", CASES[keras.config.backend()])
def test_two_devices_train_as_one(case, results):
    one, two = results[case]
    assert one[0] > 1.5  # a loss that is worth comparing
    assert_close(two, one, 1e-5)
