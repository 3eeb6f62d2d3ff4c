"""Training on several devices, each with a share of every batch."""

import contextlib
import contextvars
import os

import keras
import numpy as np
from keras import ops

from keras_bahdanau_runtime.runs.start import launched_rank

__all__ = ["average_gradients", "data_parallel", "rank_and_world_size"]


def rank_and_world_size():
    """`(rank, processes)`: which of the processes that train together this is, and how many.

    On PyTorch, torchrun starts them, one for each device of each host. On JAX there is one for each
    host, with all its devices, where `KERAS_DISTRIBUTION_PROCESS_ID` and
    `KERAS_DISTRIBUTION_NUM_PROCESSES` say so. On TensorFlow there is one.
    """
    return launched_rank(keras.config.backend())


def is_spmd():
    """Whether the processes run one program on arrays that all of them hold, as on JAX.

    Then whatever one of them computes with the model all must compute.
    """
    return keras.config.backend() == "jax" and rank_and_world_size()[1] > 1


@contextlib.contextmanager
def data_parallel(devices):
    """Shares the batches of a model that is built, compiled and trained in this block.

    The loss and the gradients are those of one device with whole batches, however unevenly their
    tokens are spread.

    Args:
        devices: How many, of all hosts. JAX and TensorFlow take the first of those that they see.
            On PyTorch there must be as many processes. Each of several processes sees its own rows:
            pass `rank_and_world_size()` to its dataset, and on PyTorch the model to
            `average_gradients`.

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
    if devices == 1 and not is_spmd():
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
def single_process():
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


def broadcast_from_rank0(flag):
    """The flag, a bool, of the first process, in all of them; they wait for it here."""
    if rank_and_world_size()[1] == 1:
        return flag
    if is_spmd():
        from jax.experimental import multihost_utils

        return bool(multihost_utils.broadcast_one_to_all(np.asarray(flag)))
    from torch import distributed

    said = [flag]
    distributed.broadcast_object_list(said)
    return said[0]


@contextlib.contextmanager
def _torch_processes(devices):
    _, processes = rank_and_world_size()
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
    if is_spmd():
        _join_hosts()
    found = keras.distribution.list_devices()  # of all hosts
    if is_spmd() and len(found) != devices:
        raise ValueError(
            f"Argument `devices` must be all {len(found)} of the {rank_and_world_size()[1]} hosts. "
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


_alone = contextvars.ContextVar("alone", default=False)


@contextlib.contextmanager
def alone():
    """In the block, PyTorch's process has losses of its own rows: others take no part in them."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def batch_mean(total, count):
    """`total / count` over the whole batch; 0 if it counts nothing.

    Under a `tf.distribute` strategy each replica sees its share of the batch: here both are summed
    over all shares, so that every replica has the loss of the whole batch, however its rows and
    their tokens are spread. Keras divides a loss by the number of replicas and adds up their
    gradients, which makes the gradient that of one device. PyTorch's processes likewise have the
    loss of the whole batch, and `average_gradients` takes the mean of their gradients. On JAX a
    distributed batch is one array and needs nothing.

    Args:
        total: Float32 scalar, the sum of what is averaged over this replica's share.
        count: Float32 scalar, how many that is.

    Returns:
        Float32 scalar. Keras scales what `add_loss` gets by itself; see `first_replica_loss`.

    Example:

    >>> float(batch_mean(6.0, 4.0))
    1.5
    """
    # The only ways to other replicas are those of the backends; `keras.ops` has none.
    if _among_processes():
        total, count = _of_all_processes(total, count)
    replica = _replica()
    if replica is not None:
        from tensorflow import distribute

        total, count = replica.all_reduce(distribute.ReduceOp.SUM, [total, count])
    return ops.divide_no_nan(total, count)


def batch_sum(total):
    """The sum of a loss over the whole batch, where `batch_mean` would be its mean.

    Under a `tf.distribute` strategy it stays that of this replica's share: Keras adds up the
    gradients of a sum and does not divide it.

    Args:
        total: Float32 scalar, the sum over this replica's share.

    Returns:
        Float32 scalar.
    """
    return _of_all_processes(total, total)[0] if _among_processes() else total


def first_replica_loss(loss):
    """A loss of the whole batch, as `batch_mean` makes it, in the form that `add_loss` is to get.

    Mirrored replicas are threads that take turns over the same layers, so that each finds what
    those before it have added, too. Here the value is that of the first replica alone; gradients
    are those of all.

    Args:
        loss: Float32 scalar, the same on every replica.

    Returns:
        Float32 scalar.

    Example:

    >>> float(first_replica_loss(ops.ones(())))
    1.0
    """
    replica = _replica()
    if replica is None:
        return loss
    first = ops.equal(replica.replica_id_in_sync_group, 0)
    return ops.where(first, loss, loss - ops.stop_gradient(loss))


def _replica():
    """TensorFlow's context of one of several replicas, or `None` elsewhere."""
    if keras.config.backend() != "tensorflow":
        return None
    from tensorflow import distribute

    replica = distribute.get_replica_context()
    return replica if replica is not None and replica.num_replicas_in_sync > 1 else None


def _among_processes():
    """Whether this is one of PyTorch's processes that have a loss together."""
    if keras.config.backend() != "torch" or _alone.get():
        return False
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def _of_all_processes(total, count):
    """Both sums over all processes; the gradient of `total` is that of its own, times their number.

    The mean of the gradients is then that of the whole batch.
    """
    from torch import distributed

    sums = ops.stack([ops.stop_gradient(total), ops.stop_gradient(count)])
    distributed.all_reduce(sums)
    own = total * distributed.get_world_size()
    return own + ops.stop_gradient(sums[0] - own), sums[1]
