"""Train on one device and on two, both on this CPU. Run by `test_two_devices.py`.

    python tests/support/two_devices.py RESULTS.npz

It needs its own process, because a backend fixes the number of devices when it starts.
"""

import os
import sys

# This adds to the flags of the tests, which halve the compilation time.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)

import contextlib

import keras
import numpy as np
from copy_task import copy_task

from keras_bahdanau import (
    AttentiveDecoder,
    DeepOutput,
    Perplexity,
    Seq2Seq,
    TokenCrossentropy,
    TranslationDataset,
)
from keras_bahdanau.layers import CoverageAttention


def dataset():
    """Nine pairs in batches of four: three rows of the last batch are padding."""
    rng = np.random.default_rng(1)
    sources, targets = ([[*rng.integers(4, 12, rng.integers(1, 9)), 3] for _ in range(9)],) * 2
    first = [[(0, 0)]] * 9  # alignments for the guided-alignment loss
    return TranslationDataset(sources, targets, batch_size=4, bucket=4, alignments=first)


def arrays(rows, batch_size):
    inputs, labels = copy_task(rows)
    return dict(x=inputs, y=labels, batch_size=batch_size)


def compiled(scope, chunk):
    """The model on the devices of a scope, with the same initial weights on any devices."""
    keras.utils.set_random_seed(0)
    with scope():
        # The coverage loss is a mean over the tokens of a batch, so it depends on all devices, too.
        model = Seq2Seq(
            14, 14, 8, keras.layers.Conv1D(8, 3, padding="same"),
            AttentiveDecoder(
                keras.layers.GRUCell(8),
                CoverageAttention(8, coverage_loss_weight=1.0),
                DeepOutput(8),
            ),
            bridge="mean",
        )  # fmt: skip
        model.build()
        model.compile(
            keras.optimizers.SGD(1.0), TokenCrossentropy(chunk_size=chunk), metrics=[Perplexity()]
        )
    return model


def losses_and_weights(model, start, data, scope):
    """Losses and perplexities of training, then of evaluation, then all weights, in one row."""
    with scope():
        model.set_weights(start)
        history = model.fit(**data, epochs=2, shuffle=False, verbose=0).history
        # Only arrays have rows that cannot be divided evenly between the devices.
        evaluated = [] if "y" not in data else model.evaluate(**data, verbose=0)
    weights = [weight.ravel() for weight in model.get_weights()]
    return np.concatenate([*history.values(), evaluated, *weights])


def devices_of(weight):
    """How many devices hold a copy of the weight."""
    if keras.config.backend() == "tensorflow":
        return len(getattr(weight.value, "values", [weight.value]))
    return len(weight.value.sharding.device_set)


def main(results):
    cases = {"padded": lambda: dict(x=dataset())}
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        # as in tests/conftest.py
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        # One strategy for all models: TensorFlow numbers the reductions of every strategy in the
        # same way, and confuses the reductions of two strategies in a process.
        scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope
        # In the last batch the devices have two rows and one row, or one row and no row.
        cases["ragged"] = lambda: arrays(rows=7, batch_size=4)
        cases["lacking"] = lambda: arrays(rows=9, batch_size=4)
    else:
        scope = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope
        # Keras on JAX refuses a batch whose rows the devices cannot share evenly.
        cases["smaller"] = lambda: arrays(rows=10, batch_size=4)
    # Each model is compiled once for all cases. Chunks must not change the results either.
    one, two = compiled(contextlib.nullcontext, chunk=None), compiled(scope, chunk=5)
    assert [devices_of(model.weights[0]) for model in (one, two)] == [1, 2]
    start, rows = one.get_weights(), {}
    for name, data in cases.items():
        rows[name] = np.stack(
            [
                losses_and_weights(one, start, data(), contextlib.nullcontext),
                losses_and_weights(two, start, data(), scope),
            ]
        )
    np.savez(results, **rows)


if __name__ == "__main__":
    main(sys.argv[1])
