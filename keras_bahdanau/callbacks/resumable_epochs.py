"""A callback that makes the random state a function of the epoch."""

import keras
import numpy as np

from keras_bahdanau_runtime.checks import check_range


class ResumableEpochs(keras.callbacks.Callback):
    """Makes each epoch's data and random draws functions of its number, and of nothing before it.

    A run that goes on after epoch `n` then has the batches and the dropout masks that an unbroken
    one would have had. Keras saves neither, and tells a dataset of one epoch's end too many. The
    seeds of Python, NumPy and the backend are set, too, anew for each epoch.

    Args:
        dataset: A dataset with an `epoch` that can be set, such as `TranslationDataset`.
        seed: Non-negative int.
        rank: Which this is of several processes that train together; each has other draws.

    Example:

    ```python
    model.fit(data, epochs=20, shuffle=False, callbacks=[ResumableEpochs(data, seed=1)])
    # later, with the model of epoch 7
    again = ResumableEpochs(data, seed=1)
    model.fit(data, epochs=20, initial_epoch=7, shuffle=False, callbacks=[again])
    ```
    """

    def __init__(self, dataset, seed=0, rank=0):
        super().__init__()
        check_range("seed", seed, int, 0)
        check_range("rank", rank, int, 0)
        self.dataset = dataset
        self.seed = seed
        self.rank = rank

    def on_epoch_begin(self, epoch, logs=None):
        if self.dataset.epoch != epoch:
            self.dataset.epoch = epoch
        rng = np.random.default_rng([self.seed, self.rank, epoch])
        # On torch, Keras's dropout draws from torch's own generator.
        keras.utils.set_random_seed(int(rng.integers(2**32)))
        for variable in self.model.variables:
            # Only the states of seed generators are no weights, metrics or counters.
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=2))
