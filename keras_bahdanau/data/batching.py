"""How sentence pairs become padded batches: choose shapes, sort, and pad."""

import logging
from dataclasses import dataclass
from typing import NamedTuple

import keras
import numpy as np

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.text.batches import round_up


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


_SIDES = 128  # distinct lengths of a side that are looked at; longer tails are rounded up


@dataclass(frozen=True)
class Shapes:
    """Shapes of batches, from the cheapest to the dearest.

    Args:
        sides: `(shapes, 2)` int64, `Tx` and `Ty` of each; every pair fits into one.
        rows: `(shapes,)` int64, number of rows of each.
    """

    sides: np.ndarray
    rows: np.ndarray

    def __post_init__(self):
        grid = [np.unique(self.sides[:, axis]) for axis in (0, 1)]
        corners = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1)  # (x, y, 2)
        fits = (self.sides >= corners[:, :, None]).all(axis=-1)  # (x, y, shapes)
        # The first that fits is the cheapest; a corner that none holds has no pairs.
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_table", fits.argmax(axis=-1).astype("uint16"))

    def of(self, lengths):
        """The shape of each pair, `(pairs,)` uint16, by its lengths `(pairs, 2)`."""
        places = [np.searchsorted(self._grid[axis], lengths[:, axis]) for axis in (0, 1)]
        return self._table[tuple(places)]

    def larger(self):
        """For each shape the cheapest other one that holds it, or -1; `(shapes,)`."""
        holds = (self.sides[None] >= self.sides[:, None]).all(axis=-1)
        holds &= np.arange(len(self.sides))[None] > np.arange(len(self.sides))[:, None]
        return np.where(holds.any(axis=1), holds.argmax(axis=1), -1)


def choose_sides(lengths, counts, most, bucket=1, padding=0.0):
    """Chooses rectangles so that pairs, each in the cheapest that holds it, need little padding.

    The cost of a pair is `Tx + Ty` of its rectangle. Every length pair begins with one of its own;
    then the two whose union adds the least padding become one, again and again, until there are few
    enough, and from then on as long as no more than `padding` of all places is padding.

    Args:
        lengths: `(n, 2)` ints, distinct lengths of source and target.
        counts: `(n,)` ints, how many pairs have them.
        most: Largest number of rectangles.
        bucket: The sides are multiples of this.
        padding: Share of the places in [0, 1).

    Returns:
        `(shapes, 2)` int64, from the cheapest to the dearest.
    """
    sides = np.stack(
        [_rounded(round_up(lengths[:, axis], bucket), counts) for axis in (0, 1)], axis=1
    )
    sides, places = np.unique(sides, axis=0, return_inverse=True)
    weights = np.bincount(places.ravel(), counts)
    tokens = (lengths.sum(axis=1) * counts).sum()
    merged = _merged(sides.astype("float64"), weights, most, tokens / (1 - padding))
    merged = merged.astype("int64")
    return merged[np.lexsort((merged[:, 1], merged.sum(axis=1)))]


def _rounded(lengths, counts):
    """The lengths, rounded up to a few of them that split the pairs into equal parts."""
    known, places = np.unique(lengths, return_inverse=True)
    if len(known) <= _SIDES:
        return lengths
    mass = np.cumsum(np.bincount(places, counts))
    kept = np.searchsorted(mass, mass[-1] * np.arange(1, _SIDES + 1) / _SIDES)
    kept = np.unique(known[np.minimum(kept, len(known) - 1)])
    return kept[np.searchsorted(kept, lengths)]


def _merged(sides, weights, most, places):
    """Unites rectangles, the cheapest union first: to `most`, and while all are within `places`."""
    # Column by column: a sum over an axis of two takes most of the time otherwise.
    across, down = sides.T.copy()
    around = across + down

    def union_costs(one):
        union = np.maximum(across, across[one]) + np.maximum(down, down[one])
        cost = weights * (union - around) + weights[one] * (union - around[one])
        cost[one] = np.inf
        cost[gone] = np.inf
        return cost

    def look(one):
        cost = union_costs(one)
        partner[one] = cost.argmin()
        best[one] = cost[partner[one]]
        return cost

    gone = np.zeros(len(sides), bool)
    best, partner = np.full(len(sides), np.inf), np.zeros(len(sides), int)
    for one in range(len(sides)):
        look(one)
    filled = (weights * around).sum()
    for count in range(len(sides), 1, -1):
        one = best.argmin()
        if count <= most and filled + best[one] > places:
            break
        filled += best[one]
        other = partner[one]
        across[one], down[one] = max(across[one], across[other]), max(down[one], down[other])
        around[one] = across[one] + down[one]
        weights[one] += weights[other]
        gone[other], best[other] = True, np.inf
        for stale in np.flatnonzero(~gone & ((partner == one) | (partner == other))):
            look(stale)
        cost = look(one)
        closer = ~gone & (cost < best)
        best[closer], partner[closer] = cost[closer], one
    return np.stack([across, down], axis=1)[~gone]


logger = logging.getLogger("keras_bahdanau")


def make_batch(pairs, rows, source_width, target_width):
    """The batch of some pairs.

    Args:
        pairs: A `Shard` of the pairs.
        rows: Number of rows B, at least as many as pairs; those missing are `PAD` alone.
        source_width: Tx, at least the longest source.
        target_width: Ty, at least the longest target.

    Returns:
        `(inputs, labels)`: `inputs` is `{"source": (B, Tx), "target": (B, Ty)}`, `labels` is
        `(B, Ty)`, all int32; `target` is `labels` moved by one place, `BOS` first. If the pairs
        have alignments, `inputs["alignment"]` is `(B, Ty, Tx)` float32: each label's row sums to
        one over the source places aligned to it, or is zero if there are none.
    """
    lengths = np.diff(pairs.offsets)
    places = np.arange(max(source_width, target_width))
    padded = np.full((2 * rows, len(places)), PAD, "int32")
    # Sequences in turn, each from its first place: the order of the ids.
    padded[: len(lengths)][places < lengths[:, None]] = pairs.ids
    source = np.ascontiguousarray(padded[0::2, :source_width])
    labels = np.ascontiguousarray(padded[1::2, :target_width])
    target = np.full_like(labels, PAD)
    target[: len(pairs), 0] = BOS
    # What follows the last id of a row is padding in the labels, and in the target.
    target[:, 1:] = np.where(labels[:, 1:] != PAD, labels[:, :-1], PAD)
    inputs = {"source": source, "target": target}
    if pairs.aligned:
        inputs["alignment"] = _alignment(pairs, (rows, target_width, source_width))
    return inputs, labels


def _alignment(pairs, shape):
    links = np.zeros(shape, "float32")
    row = np.repeat(np.arange(len(pairs)), np.diff(pairs.starts))
    links[row, pairs.links[:, 1], pairs.links[:, 0]] = 1.0
    return links / np.maximum(links.sum(axis=-1, keepdims=True), 1.0)


def warn_of_cut(counts, pairs, max_length):
    """Says in the log how many of so many sources and targets are cut, if any is."""
    if any(counts):
        message = "Cut %d of %d sources and %d of %d targets to %d ids."
        logger.warning(message, counts[0], pairs, counts[1], pairs, max_length)
