"""Training with PyTorch in several processes, one for each GPU, by the plain `fit`.

    KERAS_BACKEND=torch torchrun --nproc-per-node 2 examples/train_on_several_devices.py

Without a GPU the processes share the CPU. Losses and gradients are those of one process with the
whole batches, however unevenly their tokens are shared out.

On TensorFlow and JAX no recipe is needed: build the model under `tf.distribute.MirroredStrategy()
.scope()`, or call `keras.distribution.set_distribution(keras.distribution.DataParallel())` first.
"""

import os

import keras
import numpy as np
import torch
from torch import distributed

from keras_bahdanau import RNNSearch, TokenCrossentropy, TranslationDataset


class Shared(keras.Model):
    """`model` for `fit`, with its gradients averaged over the processes."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        # As a bound method: Keras would take a module for one more layer with the same weights.
        self.run = torch.nn.parallel.DistributedDataParallel(model).__call__

    def call(self, inputs, training=None):
        return self.run(inputs, training=training)


class Share(keras.utils.PyDataset):
    """This process's rows of each batch, weighted so that the average of all is the batch's loss.

    The loss of a share is its sum over its own tokens; the whole batch has others.
    """

    def __init__(self, dataset, rank, processes):
        super().__init__()
        self.dataset, self.rank, self.processes = dataset, rank, processes

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        inputs, labels = self.dataset[index]
        own = slice(self.rank, None, self.processes)
        share = np.count_nonzero(labels[own]) / np.count_nonzero(labels)
        weights = np.full(len(labels[own]), share * self.processes, "float32")
        return {name: rows[own] for name, rows in inputs.items()}, labels[own], weights

    def on_epoch_end(self):
        self.dataset.on_epoch_end()


def pairs(count=57, seed=0):
    """Sentences of 1 to 9 letters, to be written down backwards."""
    rng = np.random.default_rng(seed)
    letters = [rng.integers(4, 20, rng.integers(1, 10)).tolist() for _ in range(count)]
    return [[*ids, 3] for ids in letters], [[*reversed(ids), 3] for ids in letters]


def train(rank, processes, epochs=3, batch_size=16):
    """Trains on this process's share; returns the model and the loss of each epoch, of all."""
    sources, targets = pairs()
    dataset = TranslationDataset(sources, targets, batch_size, bucket=4)
    keras.utils.set_random_seed(0)
    model = RNNSearch(20, 20, units=16, embedding_dim=16, attention_units=16, maxout_units=16)
    model(dataset[0][0])  # makes the weights
    shared = Shared(model) if processes > 1 else model
    shared.compile(keras.optimizers.Adam(0.01), TokenCrossentropy())
    share = Share(dataset, rank, processes)
    history = shared.fit(share, epochs=epochs, shuffle=False, verbose=0).history
    losses = torch.tensor(history["loss"])
    if processes > 1:
        distributed.all_reduce(losses)
    return model, (losses / processes).tolist()


def main():
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    rank = distributed.get_rank()
    model, losses = train(rank, distributed.get_world_size())
    if rank == 0:  # the only one that writes
        print("losses", *[f"{loss:.6f}" for loss in losses])
        if folder := os.environ.get("OUTPUT"):
            model.save(os.path.join(folder, "model.keras"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
