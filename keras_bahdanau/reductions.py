"""Means and sums over the whole batch, also where several devices have a share of it each."""

import contextlib
import contextvars

import keras
from keras import ops

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
        Float32 scalar. Keras scales what `add_loss` gets by itself; see `added_once`.

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


def added_once(loss):
    """A loss of the whole batch, as `batch_mean` makes it, in the form that `add_loss` is to get.

    Mirrored replicas are threads that take turns over the same layers, so that each finds what
    those before it have added, too. Here the value is that of the first replica alone; gradients
    are those of all.

    Args:
        loss: Float32 scalar, the same on every replica.

    Returns:
        Float32 scalar.

    Example:

    >>> float(added_once(ops.ones(())))
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
