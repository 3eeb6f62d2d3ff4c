"""One run on several devices: each takes its share of every batch."""

import contextlib
import os

import keras
import numpy as np

from keras_bahdanau.reductions import alone
from keras_bahdanau_runtime.runs.start import launched_rank

__all__ = ["average_gradients", "data_parallel"]


def process():
    """`(rank, processes)`: which of the processes that train together this is, and how many.

    On PyTorch, torchrun starts them, one for each device of each host. On JAX there is one for each
    host, with all its devices, where `KERAS_DISTRIBUTION_PROCESS_ID` and
    `KERAS_DISTRIBUTION_NUM_PROCESSES` say so. On TensorFlow there is one.
    """
    return launched_rank(keras.config.backend())


def in_step():
    """Whether the processes run one program on arrays that all of them hold, as on JAX.

    Then whatever one of them computes with the model all must compute.
    """
    return keras.config.backend() == "jax" and process()[1] > 1


@contextlib.contextmanager
def data_parallel(devices):
    """Shares the batches of a model that is built, compiled and trained in this block.

    The loss and the gradients are those of one device with whole batches, however unevenly their
    tokens are spread.

    Args:
        devices: How many, of all hosts. JAX and TensorFlow take the first of those that they see.
            On PyTorch there must be as many processes. Each of several processes sees its own rows:
            give its dataset the `process()`, and on PyTorch the model to `average_gradients`.

    Raises:
        ValueError: If there are fewer devices, on PyTorch another number of processes, on several
            hosts with JAX another number of devices, or several hosts with TensorFlow, on which
            Keras 3 does not train.

    Example:

    ```python
    with data_parallel(2):
        model = RNNSearch(8000, 8000)
        model.compile("adam", TokenCrossentropy())
        model.fit(PreparedDataset("corpus"), shuffle=False)
    ```
    """
    backend = keras.config.backend()
    if backend == "torch":
        with _torch_processes(devices):
            yield
        return
    if devices == 1 and not in_step():
        yield
        return
    with (_tensorflow_scope if backend == "tensorflow" else _jax_scope)(devices):
        yield


def average_gradients(model):
    """Gives each PyTorch process the mean of all processes' gradients in every step from now on.

    Without `torch.distributed`, and on other backends, nothing is to be done.

    Args:
        model: A built `keras.Model`, with the same weights in all processes.
    """
    if keras.config.backend() != "torch":
        return
    from torch import distributed

    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    processes = distributed.get_world_size()

    def average(weight):
        distributed.all_reduce(weight.grad)
        weight.grad /= processes

    for variable in model.trainable_variables:
        variable.value.register_post_accumulate_grad_hook(average)


@contextlib.contextmanager
def by_itself():
    """In the block this process works by itself: others need not take part.

    Variables that Keras makes, such as the optimiser of a model that it saves, are the process's
    own, and losses are of its own rows.
    """
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        with alone():
            yield
    finally:
        keras.distribution.set_distribution(distribution)


def from_first(flag):
    """The flag, a bool, of the first process, in all of them; they wait for it here."""
    if process()[1] == 1:
        return flag
    if in_step():
        from jax.experimental import multihost_utils

        return bool(multihost_utils.broadcast_one_to_all(np.asarray(flag)))
    from torch import distributed

    said = [flag]
    distributed.broadcast_object_list(said)
    return said[0]


@contextlib.contextmanager
def _torch_processes(devices):
    _, processes = process()
    if processes != devices:
        raise ValueError(
            "Argument `devices` must be the number of processes on PyTorch, which torchrun starts: "
            f"torchrun --nproc-per-node {devices} ... Received: {devices} for {processes} "
            f"process{'es' if processes > 1 else ''}"
        )
    if processes == 1:
        yield
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():  # by who called, who will end it, too
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _tensorflow_scope(devices):
    # Keras leaves the devices of TensorFlow to TensorFlow.
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        raise ValueError(
            "Several hosts need JAX or PyTorch: Keras 3 does not train on more than one with "
            f"TensorFlow. Received: TF_CONFIG={os.environ['TF_CONFIG']!r}"
        )
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy(_first(found, devices, lambda each: each.name)).scope()


def _jax_scope(devices):
    if in_step():
        _join_hosts()
    found = keras.distribution.list_devices()  # of all hosts
    if in_step() and len(found) != devices:
        raise ValueError(
            f"Argument `devices` must be all {len(found)} of the {process()[1]} hosts. "
            f"Received: {devices}"
        )
    return keras.distribution.DataParallel(
        devices=_first(found, devices, str),
        # Its datasets know which rows are theirs.
        auto_shard_dataset=False,
    ).scope()


def _join_hosts():
    import jax

    if not jax.distributed.is_initialized():
        keras.distribution.initialize()


def _first(found, devices, name):
    if len(found) < devices:
        raise ValueError(
            f"Argument `devices` must be at most the {len(found)} that "
            f"{keras.config.backend()} sees. Received: {devices}"
        )
    return [name(each) for each in found[:devices]]
