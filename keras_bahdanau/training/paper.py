"""Training settings of the paper."""

from typing import NamedTuple

import keras


class PaperTraining(NamedTuple):
    """Training settings of the paper; see `paper_training`.

    Attributes:
        optimizer: A new Keras optimizer.
        data: Arguments of `TranslationDataset`.
    """

    optimizer: keras.optimizers.Optimizer
    data: dict


def paper_training():
    """Return the training settings of the paper (arXiv 1409.0473, appendix B.2).

    The optimizer is Adadelta with epsilon 1e-6 and rho 0.95, with gradients clipped to the norm 1.
    Pairs are shuffled once and then sorted by length, 1600 at a time, into 20 batches of 80.

    Returns:
        A `PaperTraining`.

    Example:

    >>> training = paper_training()
    >>> dataset = TranslationDataset([[5, 6, 3]] * 100, [[7, 3]] * 100, **training.data)
    >>> len(dataset), float(training.optimizer.rho)
    (2, 0.95)
    """
    return PaperTraining(
        optimizer=keras.optimizers.Adadelta(
            learning_rate=1.0, rho=0.95, epsilon=1e-6, global_clipnorm=1.0
        ),
        data={"batch_size": 80, "sort_window": 20 * 80, "shuffle": "once"},
    )
