"""One run on several devices: each takes its share of every batch."""

import contextlib
import os

import keras


def process():
    """`(rank, processes)`: which of the processes that train together this is, and how many.

    On PyTorch, torchrun starts them, one for each device; elsewhere one process has all devices.
    """
    if keras.config.backend() != "torch" or "WORLD_SIZE" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def shared_by(devices):
    """Shares the batches of a model that is built, compiled and trained in this block.

    The loss and the gradients are those of one device with whole batches, however unevenly their
    tokens are spread.

    Args:
        devices: How many. JAX and TensorFlow take the first of those that they see, in one process.
            On PyTorch there must be as many processes, and each sees its own rows: give its dataset
            the `process()`, and the model to `average_gradients`.

    Raises:
        ValueError: If there are fewer devices, or on PyTorch another number of processes.

    Example:

    ```python
    with shared_by(2):
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
    if devices == 1:
        yield
        return
    with (_tensorflow_scope if backend == "tensorflow" else _jax_scope)(devices):
        yield


def updates_done(model):
    """How many updates the optimiser of a model has made, also where devices mirror the number."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


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


def from_first(value):
    """What the first process says, in all of them; they wait for it here."""
    if process()[1] == 1:
        return value
    from torch import distributed

    said = [value]
    distributed.broadcast_object_list(said)
    return said[0]


class StopTogether(keras.callbacks.Callback):
    """Ends training in all processes when the first one ends it. Put it last."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = from_first(self.model.stop_training)


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

    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy(_first(found, devices, lambda each: each.name)).scope()


def _jax_scope(devices):
    return keras.distribution.DataParallel(
        devices=_first(keras.distribution.list_devices(), devices, str)
    ).scope()


def _first(found, devices, name):
    if len(found) < devices:
        raise ValueError(
            f"Argument `devices` must be at most the {len(found)} that "
            f"{keras.config.backend()} sees. Received: {devices}"
        )
    return [name(each) for each in found[:devices]]
