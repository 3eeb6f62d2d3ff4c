"""Training on several devices gives what training on one does."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from layer_checks import assert_close

from keras_bahdanau.training.devices import shared_by

TESTS = Path(__file__).resolve().parents[1]
BACKEND = keras.config.backend()
CASES = {"tensorflow": ["padded", "ragged", "lacking"], "jax": ["padded", "smaller"], "torch": []}


def run(*command, **environment):
    """What a Python process of its own printed."""
    paths = os.pathsep.join(sys.path)
    environment = {
        **os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": paths, **environment
    }  # fmt: skip
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


COMMAND = ("-m", "keras_bahdanau_export.cli")
# The command, where TensorFlow has two devices.
TWO_CPUS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_bahdanau_export.cli import main
main()
"""
SIZES = ("--units", 6, "--embedding-dim", 5, "--attention-units", 4, "--vocabulary-size", 280)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The arguments of a run without dropout, and its folder after it has run on one device."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "a.src").write_text("".join(f"say {n} {n % 7}\n" for n in range(23)))
    (folder / "a.tgt").write_text("".join(f"{n % 7} is {n}\n" for n in range(23)))
    texts = (folder / "a.src", folder / "a.tgt")
    arguments = (
        "train", *texts, "--validation-source", texts[0],
        "--validation-target", texts[1], *SIZES, "--dropout", 0, "--batch-size", 6, "--epochs", 2,
        "--best-by", "loss", "--max-length", 12,
    )  # fmt: skip
    run(*COMMAND, *arguments, "--output", folder / "one")
    return arguments, folder / "one"


def losses(folder):
    with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
        return [(float(row["loss"]), float(row["val_loss"])) for row in csv.DictReader(file)]


def test_a_run_on_two_devices_is_that_of_one(one, tmp_path):
    arguments, folder = one
    launch = {
        "tensorflow": ("-c", TWO_CPUS),
        "jax": COMMAND,
        "torch": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *COMMAND),
    }[BACKEND]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    run(*launch, *arguments, "--devices", 2, "--output", tmp_path / "two", XLA_FLAGS=flags)
    assert_close(np.array(losses(tmp_path / "two")), np.array(losses(folder)), 1e-5)
    two, first = (
        keras.saving.load_model(each / "last.keras") for each in (tmp_path / "two", folder)
    )
    assert_close(two.get_weights(), first.get_weights(), 1e-5)


def test_more_devices_than_there_are_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`devices` must be .* Received: 99"), shared_by(99):
        pass
