"""Training on several devices, each with a share of every batch."""

import contextlib
import contextvars
import os

import keras
import numpy as np
from keras import ops

from keras_bahdanau.launcher import launched_rank
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error

__all__ = ["average_gradients", "data_parallel", "rank_and_world_size"]


def rank_and_world_size():
    """Return `(rank, world_size)`: the index of this process, and how many train together.

    On PyTorch, torchrun starts one process for each device of each host. On JAX there is one
    process for each host, with all its devices, if `KERAS_DISTRIBUTION_PROCESS_ID` and
    `KERAS_DISTRIBUTION_NUM_PROCESSES` are set. On TensorFlow there is always one process.
    """
    return launched_rank(keras.config.backend())


def is_spmd():
    """Whether all processes run one program on shared arrays, as several hosts do on JAX.

    Then a computation with the model must run in all processes.
    """
    return keras.config.backend() == "jax" and rank_and_world_size()[1] > 1


@contextlib.contextmanager
def data_parallel(devices):
    """Share the batches of a model that is built, compiled and trained in this block.

    The loss and the gradients equal those of one device with whole batches, however the tokens are
    distributed over the devices.

    Args:
        devices: Number of devices on all hosts. JAX and TensorFlow use the first ones that they
            list. On PyTorch it must equal the number of processes. With several processes, each
            one reads its own rows: pass `rank_and_world_size()` to its dataset. On PyTorch, also
            call `average_gradients` with the model.

    Raises:
        ValueError: If `devices` is not a positive int, there are fewer devices, a different number
            of processes on PyTorch, a different number of devices on several JAX hosts, or several
            hosts on TensorFlow, where Keras 3 cannot train.

    Example:

    ```python
    with data_parallel(2):
        model = RNNSearch(8000, 8000)
        model.compile("adam", TokenCrossentropy())
        model.fit(PreparedDataset("corpus"))
    ```
    """
    check_positive(devices=devices)
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
    """Average the gradients of all PyTorch processes in every training step from now on.

    This does nothing without `torch.distributed` and on other backends.

    Args:
        model: A built `keras.Model` with the same weights in all processes.
    """
    if keras.config.backend() != "torch":
        return
    from torch import distributed

    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    world_size = distributed.get_world_size()

    def average(weight):
        distributed.all_reduce(weight.grad)
        weight.grad /= world_size

    for variable in model.trainable_variables:
        variable.value.register_post_accumulate_grad_hook(average)


@contextlib.contextmanager
def single_process():
    """Let this process work without the others in the block.

    Variables that Keras creates, such as the optimizer of a model that it saves, belong to this
    process only, and losses are reduced over its own rows.
    """
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        with _local_reductions():
            yield
    finally:
        keras.distribution.set_distribution(distribution)


def broadcast_from_rank0(flag):
    """Return the bool `flag` of the process with rank 0 in all processes, which wait for it."""
    if rank_and_world_size()[1] == 1:
        return flag
    if is_spmd():
        from jax.experimental import multihost_utils

        return bool(multihost_utils.broadcast_one_to_all(np.asarray(flag)))
    from torch import distributed

    flags = [flag]
    distributed.broadcast_object_list(flags)
    return flags[0]


def batch_mean(total, count):
    """Return `total / count` over the whole batch, or 0 if `count` is 0.

    Under a `tf.distribute` strategy, each replica has a share of the batch. Both arguments are
    summed over all replicas, so every replica gets the loss of the whole batch. Keras divides a
    loss by the number of replicas and sums their gradients, which gives the gradient of one device.
    The processes of PyTorch also get the loss of the whole batch, and `average_gradients` averages
    their gradients. On JAX a distributed batch is one array and needs nothing.

    Args:
        total: Float32 scalar, the sum over this replica's share.
        count: Float32 scalar, the number of summed values in this replica's share.

    Returns:
        Float32 scalar. For `add_loss`, pass it through `first_replica_loss`.

    Example:

    >>> float(batch_mean(6.0, 4.0))
    1.5
    """
    # `keras.ops` has no collective operations, so these are the backends' own.
    if _has_torch_peers():
        total, count = _sum_over_processes(total, count)
    replica = _tensorflow_replica()
    if replica is not None:
        from tensorflow import distribute

        total, count = replica.all_reduce(distribute.ReduceOp.SUM, [total, count])
    return ops.divide_no_nan(total, count)


def batch_sum(total):
    """Return the sum of a loss over the whole batch.

    Under a `tf.distribute` strategy it is the sum over this replica's share, because Keras sums the
    gradients of a loss with reduction "sum" and does not divide them.

    Args:
        total: Float32 scalar, the sum over this replica's share.

    Returns:
        Float32 scalar.
    """
    return _sum_over_processes(total, total)[0] if _has_torch_peers() else total


def first_replica_loss(loss):
    """Return a loss of the whole batch in the form that `add_loss` needs.

    The replicas of a `MirroredStrategy` are threads that call the same layers in turn, so the
    losses that they add accumulate. The returned value is the loss on the first replica and zero on
    the others. The gradient is that of the loss on all replicas.

    Args:
        loss: Float32 scalar of `batch_mean`, the same on every replica.

    Returns:
        Float32 scalar.

    Example:

    >>> float(first_replica_loss(ops.ones(())))
    1.0
    """
    replica = _tensorflow_replica()
    if replica is None:
        return loss
    is_first = ops.equal(replica.replica_id_in_sync_group, 0)
    return ops.where(is_first, loss, loss - ops.stop_gradient(loss))


# Whether the losses of this PyTorch process are reduced without the other processes.
_is_local = contextvars.ContextVar("is_local", default=False)


@contextlib.contextmanager
def _local_reductions():
    token = _is_local.set(True)
    try:
        yield
    finally:
        _is_local.reset(token)


def _tensorflow_replica():
    """Return TensorFlow's context of one of several replicas, or `None`."""
    if keras.config.backend() != "tensorflow":
        return None
    from tensorflow import distribute

    replica = distribute.get_replica_context()
    return replica if replica is not None and replica.num_replicas_in_sync > 1 else None


def _has_torch_peers():
    """Whether this is one of several PyTorch processes with a common loss."""
    if keras.config.backend() != "torch" or _is_local.get():
        return False
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def _sum_over_processes(total, count):
    """Sum both scalars over all processes.

    The gradient of the sum of `total` is the gradient of this process's `total` times the number of
    processes, so the mean of the gradients of all processes is that of the whole batch.
    """
    from torch import distributed

    sums = ops.stack([ops.stop_gradient(total), ops.stop_gradient(count)])
    distributed.all_reduce(sums)
    local = total * distributed.get_world_size()
    return local + ops.stop_gradient(sums[0] - local), sums[1]


@contextlib.contextmanager
def _torch_processes(devices):
    _, world_size = rank_and_world_size()
    if world_size != devices:
        raise ValueError(
            "Argument `devices` must be the number of processes on PyTorch, which torchrun starts: "
            f"torchrun --nproc-per-node {devices} ... Received: {devices} for {world_size} "
            f"process{'es' if world_size > 1 else ''}"
        )
    if world_size == 1:
        yield
        return
    import torch
    from torch import distributed

    if distributed.is_initialized():  # by the caller, who also destroys the group
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
    # `keras.distribution` does not place variables on TensorFlow devices.
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        raise ValueError(
            "Several hosts need JAX or PyTorch: Keras 3 does not train on more than one with "
            f"TensorFlow. Received: TF_CONFIG={os.environ['TF_CONFIG']!r}"
        )
    available = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = _first_devices([device.name for device in available], devices)
    return tf.distribute.MirroredStrategy(names).scope()


def _jax_scope(devices):
    if is_spmd():
        import jax

        if not jax.distributed.is_initialized():
            keras.distribution.initialize()
    available = keras.distribution.list_devices()  # of all hosts
    if is_spmd() and len(available) != devices:
        raise argument_error(
            "devices",
            f"be all {len(available)} of the {rank_and_world_size()[1]} hosts",
            received=str(devices),
        )
    return keras.distribution.DataParallel(
        devices=_first_devices(list(map(str, available)), devices),
        # The datasets of this package select the rows of their process themselves.
        auto_shard_dataset=False,
    ).scope()


def _first_devices(names, count):
    if len(names) < count:
        raise argument_error(
            "devices",
            f"be at most the {len(names)} that {keras.config.backend()} lists",
            received=str(count),
        )
    return names[:count]
