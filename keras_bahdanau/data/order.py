"""The order of pairs: which make a batch, and which batch comes when."""

from dataclasses import dataclass
from typing import NamedTuple

import keras
import numpy as np

from keras_bahdanau_runtime.checks import check_range


class EpochDataset(keras.utils.PyDataset):
    """Batches whose order is a function of a seed and of the epoch, which may be set.

    Keras reports the end of an epoch once more before `fit` begins, so the first epoch trained is
    `epoch + 1`, unless a callback sets `epoch` in its `on_epoch_begin`. It has one thread and no
    `workers`: what these have fetched ahead for one epoch Keras gives in the next.

    Attributes:
        epoch: Which epoch's order holds, 0 at first. May be set.
    """

    def __init__(self):
        super().__init__()
        self._epoch = 0

    @property
    def epoch(self):
        return self._epoch

    @epoch.setter
    def epoch(self, epoch):
        check_range("epoch", epoch, int, 0)
        self._epoch = epoch
        self._begin_epoch()

    def _begin_epoch(self):
        """What is to be done when `epoch` has changed."""

    def on_epoch_end(self):
        """Moves on to the order of the next epoch."""
        self.epoch += 1


class BatchRows(NamedTuple):
    """The pairs of a batch, and its shape.

    Attributes:
        places: `(n,)` ints, the pairs of a shard or dataset.
        rows: Number of rows, at least `n`; the others are padding.
        source_width: `Tx`.
        target_width: `Ty`.
    """

    places: np.ndarray
    rows: int
    source_width: int
    target_width: int


@dataclass(frozen=True)
class Batches:
    """Rows in batches.

    Args:
        rows: Places of pairs, in the order of the batches.
        starts: `(batches + 1,)`, where each batch begins in `rows`, and the last ends.
        shapes: `(batches, 2)`, `Tx` and `Ty` of each.
        sizes: `(batches,)`, the number of rows that each has with those of padding.
    """

    rows: np.ndarray
    starts: np.ndarray
    shapes: np.ndarray
    sizes: np.ndarray

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, index):
        """The `BatchRows` of a batch."""
        places = self.rows[self.starts[index] : self.starts[index + 1]]
        return BatchRows(places, int(self.sizes[index]), *self.shapes[index].tolist())

    def reordered(self, places):
        """The same batches in another order."""
        counts = np.diff(self.starts)[places]
        ends = np.cumsum(counts)
        moved = np.repeat(self.starts[:-1][places] - ends + counts, counts) + np.arange(ends[-1])
        return Batches(
            self.rows[moved],
            np.concatenate([[0], ends]),
            self.shapes[places],
            self.sizes[places],
        )


def sorted_batches(buckets, order, batch_size, bucket, window=None):
    """Batches of similar lengths: pairs sorted, and cut into as many rows each.

    Args:
        buckets: `(pairs, 2)`, lengths of source and target in multiples of `bucket`.
        order: `(pairs,)`, the pairs in the order that equal lengths keep.
        batch_size: Number of rows of every batch.
        bucket: int.
        window: Number of pairs sorted together; `None` for all.

    Returns:
        `Batches`.
    """
    windows = np.arange(len(order)) // (window or len(order))
    order = order[longest_first(buckets[order], bucket, windows)]
    starts = np.arange(0, len(order), batch_size)
    shapes = np.maximum.reduceat(buckets[order], starts, axis=0)
    sizes = np.full(len(starts), batch_size)
    return Batches(order, np.append(starts, len(order)), shapes, sizes)


def longest_first(buckets, bucket, windows=0):
    """The places of pairs by window, then by target length, the longest first.

    So the batch with missing rows is a short one. Sources fall and rise in turn: a batch that
    reaches into the next target length keeps similar sources.
    """
    tx, ty = buckets.T
    keys = (np.where(ty // bucket % 2, tx, -tx), -ty, windows)
    return np.lexsort(np.broadcast_arrays(*keys))


def shape_counts(counts, shapes):
    """How many batches of each shape so many pairs make, and how many rows each shape passes on.

    Rows that fill no batch go to the cheapest larger shape, if there is one.

    Args:
        counts: `(shapes,)` ints, how many pairs have each of the shapes.
        shapes: `Shapes`.

    Returns:
        `(batches, left)`, two int arrays `(shapes,)`.
    """
    counts, batches, left = counts.copy(), np.zeros_like(counts), np.zeros_like(counts)
    for shape, larger in enumerate(shapes.larger().tolist()):
        batches[shape], left[shape] = divmod(counts[shape], shapes.rows[shape])
        if larger >= 0:
            counts[larger] += left[shape]
        else:
            batches[shape] += left[shape] > 0
            left[shape] = 0
    return batches, left


def shaped_batches(kinds, order, shapes, rng=None):
    """Batches of given shapes; how many there are of each depends on `kinds` alone.

    Args:
        kinds: `(pairs,)`, the shape of each pair.
        order: `(pairs,)`, the pairs in the order that those of one shape keep.
        shapes: `Shapes`.
        rng: A NumPy generator that shuffles the batches; `None` to leave them sorted by shape.

    Returns:
        `Batches`.
    """
    counts = np.bincount(kinds, minlength=len(shapes.rows))
    batches, left = shape_counts(counts, shapes)
    own = np.split(order[np.argsort(kinds[order], kind="stable")], np.cumsum(counts)[:-1])
    rows, ends = [], []
    passed = [[] for _ in own]
    for shape, larger in enumerate(shapes.larger().tolist()):
        mine = np.concatenate([own[shape], *passed[shape]])
        full = len(mine) - left[shape]
        if left[shape]:
            passed[larger].append(mine[full:])
        rows.append(mine[:full])
        size = shapes.rows[shape]
        ends.append(np.minimum(np.arange(1, batches[shape] + 1) * size, full))
    begins = np.cumsum([0, *map(len, rows)])[:-1]
    ends = np.concatenate([begin + end for begin, end in zip(begins, ends, strict=True)])
    made = np.repeat(np.arange(len(batches)), batches)
    found = Batches(
        np.concatenate(rows),
        np.concatenate([[0], ends]),
        shapes.sides[made],
        shapes.rows[made],
    )
    return found if rng is None else found.reordered(rng.permutation(len(found)))


def distinct_first(shapes):
    """An order of batches, the first two of which differ in every length in which any two differ.

    Args:
        shapes: `(batches, 2)` ints.

    Returns:
        `(batches,)` ints; but for these two, the order that there was.
    """
    shapes = list(map(tuple, shapes.tolist()))
    places = list(range(len(shapes)))
    varying = [axis for axis in (0, 1) if len({shape[axis] for shape in shapes}) > 1]
    seen = {}
    for place, shape in enumerate(shapes):
        for other, first in seen.items():
            if varying and all(shape[axis] != other[axis] for axis in varying):
                front = [first, place]
                return np.array(front + [each for each in places if each not in front])
        seen.setdefault(shape, place)
    return np.array(places)
