"""Training on several devices gives the same result as training on one."""

import csv
import os
import socket

import keras
import numpy as np
import pytest
from layer_checks import assert_close
from python_process import run_python, start_python

from keras_bahdanau import TrainingOptions, train
from keras_bahdanau.distribution import data_parallel

BACKEND = keras.config.backend()

COMMAND = ("-m", "keras_bahdanau_cli")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
# Runs the command with two logical devices of TensorFlow.
TWO_CPUS = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
from keras_bahdanau_cli.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def single_device_run(tmp_path_factory):
    """Arguments of a run without dropout, and the output folder of that run on one device."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "a.src").write_text("".join(f"say {n} {n % 7}\n" for n in range(23)))
    (folder / "a.tgt").write_text("".join(f"{n % 7} is {n}\n" for n in range(23)))
    texts = (folder / "a.src", folder / "a.tgt")
    options = TrainingOptions(
        *texts, validation_source=texts[0], validation_target=texts[1], units=6, embedding_dim=5,
        attention_units=4, vocabulary_size=280, dropout=0, batch_size=6, epochs=2, best_by="loss",
        max_length=12, conditional=False, join_embeddings=False, ema=0.5, dtype_policy="float32",
    )  # fmt: skip
    train(options, folder / "one", verbose=False)
    return ("train", "--config", folder / "one" / "options.json"), folder / "one"


def losses(folder):
    with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
        return [(float(row["loss"]), float(row["val_loss"])) for row in csv.DictReader(file)]


def test_a_run_on_two_devices_equals_one_on_a_single_device(single_device_run, tmp_path):
    arguments, folder = single_device_run
    launches = {"tensorflow": ("-c", TWO_CPUS), "jax": COMMAND, "torch": (*TORCHRUN, *COMMAND)}
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    options = ("--devices", 2, "--output", tmp_path / "two")
    run_python(*launches[BACKEND], *arguments, *options, XLA_FLAGS=flags)
    assert_same_run(tmp_path / "two", folder)


@pytest.mark.skipif(BACKEND != "jax", reason="on PyTorch, hosts work like processes")
def test_a_run_on_two_hosts_equals_one_on_a_single_device(single_device_run, tmp_path):
    arguments, folder = single_device_run
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    hosts = [
        start_python(
            *COMMAND, *arguments, "--devices", 2, "--output", tmp_path / "two",
            KERAS_DISTRIBUTION_JOB_ADDRESSES=address,
            KERAS_DISTRIBUTION_NUM_PROCESSES="2",
            KERAS_DISTRIBUTION_PROCESS_ID=str(rank),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    errors = [host.communicate()[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], errors
    assert_same_run(tmp_path / "two", folder)


def assert_same_run(actual, expected):
    assert_close(np.array(losses(actual)), np.array(losses(expected)), 1e-5)
    models = [keras.saving.load_model(folder / "last.keras") for folder in (actual, expected)]
    assert_close(models[0].get_weights(), models[1].get_weights(), 1e-5)


# Runs the command in processes that the caller has joined. A loss before it is per process.
JOINED = """
import sys
import numpy as np
from torch import distributed
from keras_bahdanau import TokenCrossentropy
from keras_bahdanau_cli.__main__ import main
distributed.init_process_group("gloo")
labels = np.full((1, 1 + distributed.get_rank()), 4)
loss = TokenCrossentropy(reduction="sum")(labels, np.zeros((*labels.shape, 8)))
np.testing.assert_allclose(float(loss), 3 * np.log(8), rtol=1e-6)
try:
    main()
finally:
    distributed.destroy_process_group()
"""


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch joins processes")
def test_processes_that_the_caller_joined_save_one_average(single_device_run, tmp_path):
    arguments, folder = single_device_run
    (tmp_path / "joined.py").write_text(JOINED)
    options = ("--devices", 2, "--average", 2, "--output", tmp_path / "two")
    run_python(*TORCHRUN, tmp_path / "joined.py", *arguments, *options)
    assert_same_run(tmp_path / "two", folder)
    assert (tmp_path / "two" / "average.keras").exists()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others train on several hosts")
def test_several_hosts_are_refused_on_tensorflow(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    with pytest.raises(ValueError, match="Several hosts need JAX or PyTorch"), data_parallel(2):
        pass


@pytest.mark.parametrize("devices", [99, 0, -1, 2.0, "2"])
def test_another_number_than_that_of_some_devices_is_refused(devices):
    message = f"`devices` must be .* Received: {devices!r}"
    with pytest.raises(ValueError, match=message), data_parallel(devices):
        pass
