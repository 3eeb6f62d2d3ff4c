"""How sentence pairs become padded batches: choose shapes, group the pairs, order and pad them."""

import logging
from dataclasses import dataclass
from typing import NamedTuple

import keras
import numpy as np

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.text.batches import round_up

logger = logging.getLogger("keras_bahdanau")

_MAX_LENGTHS = 128  # distinct lengths per language that are considered; others are rounded up


class EpochDataset(keras.utils.PyDataset):
    """Dataset whose order is a function of a seed and of an assignable epoch.

    Keras calls `on_epoch_end` once before `fit` begins, so the first trained epoch is `epoch + 1`
    unless a callback sets `epoch` in its `on_epoch_begin`. The dataset has one thread and no
    `workers`, because Keras uses batches that these have prefetched for one epoch in the next.

    `Seq2Seq.fit` keeps this order. The `fit` of another Keras model shuffles the batches with
    Python's `random` unless it is called with `shuffle=False`.

    Attributes:
        epoch: The epoch that determines the order, 0 at first. May be set.
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
        """Called after `epoch` has changed."""

    def on_epoch_end(self):
        """Advance to the order of the next epoch."""
        self.epoch += 1


@dataclass(frozen=True)
class Shapes:
    """Shapes of batches, in ascending order of `Tx + Ty`.

    Args:
        sides: `(shapes, 2)` int64, `Tx` and `Ty` of each shape. Every pair fits into one of them.
        rows: `(shapes,)` int64, number of rows of each shape.
    """

    sides: np.ndarray
    rows: np.ndarray

    def __post_init__(self):
        grid = [np.unique(self.sides[:, axis]) for axis in (0, 1)]
        corners = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1)  # (x, y, 2)
        fits = (self.sides >= corners[:, :, None]).all(axis=-1)  # (x, y, shapes)
        # The first shape that fits is the smallest. Corners that fit into none have no pairs.
        object.__setattr__(self, "_grid", grid)
        object.__setattr__(self, "_table", fits.argmax(axis=-1).astype("uint16"))

    def smallest_for(self, lengths):
        """Return the index of the smallest shape for each pair, `(pairs,)` uint16.

        Args:
            lengths: `(pairs, 2)` ints, lengths of source and target.
        """
        cells = [np.searchsorted(self._grid[axis], lengths[:, axis]) for axis in (0, 1)]
        return self._table[tuple(cells)]

    def next_larger(self):
        """Return for each shape the smallest other shape that contains it, or -1; `(shapes,)`."""
        contains = (self.sides[None] >= self.sides[:, None]).all(axis=-1)
        contains &= np.arange(len(self.sides))[None] > np.arange(len(self.sides))[:, None]
        return np.where(contains.any(axis=1), contains.argmax(axis=1), -1)


def choose_sides(lengths, counts, max_shapes, bucket=1, padding=0.0):
    """Choose rectangles such that pairs need little padding in the smallest one that fits.

    The cost of a pair is `Tx + Ty` of its rectangle. At first each pair of lengths has its own
    rectangle. Then the two rectangles whose union adds the least padding are merged repeatedly,
    until there are few enough, and further while the share of padding is at most `padding`.

    Args:
        lengths: `(n, 2)` ints, distinct lengths of source and target.
        counts: `(n,)` ints, number of pairs with these lengths.
        max_shapes: Largest number of rectangles.
        bucket: The sides are multiples of this.
        padding: Share of padding positions, in [0, 1).

    Returns:
        `(shapes, 2)` int64, in ascending order of `Tx + Ty`.
    """
    sides = np.stack(
        [_quantized(round_up(lengths[:, axis], bucket), counts) for axis in (0, 1)], axis=1
    )
    sides, inverse = np.unique(sides, axis=0, return_inverse=True)
    weights = np.bincount(inverse.ravel(), counts)
    tokens = (lengths.sum(axis=1) * counts).sum()
    merged = _merge(sides.astype("float64"), weights, max_shapes, tokens / (1 - padding))
    merged = merged.astype("int64")
    return merged[np.lexsort((merged[:, 1], merged.sum(axis=1)))]


def _quantized(lengths, counts):
    """Round lengths up to at most `_MAX_LENGTHS` quantiles of their distribution."""
    distinct, inverse = np.unique(lengths, return_inverse=True)
    if len(distinct) <= _MAX_LENGTHS:
        return lengths
    mass = np.cumsum(np.bincount(inverse, counts))
    quantiles = mass[-1] * np.arange(1, _MAX_LENGTHS + 1) / _MAX_LENGTHS
    levels = np.searchsorted(mass, quantiles)
    levels = np.unique(distinct[np.minimum(levels, len(distinct) - 1)])
    return levels[np.searchsorted(levels, lengths)]


def _merge(sides, weights, max_shapes, max_positions):
    """Merge rectangles, the cheapest union first.

    It merges until `max_shapes` are left, and then while all batches together have at most
    `max_positions` positions.
    """
    # Column arrays, because a sum over an axis of size two takes most of the time otherwise.
    width, height = sides.T.copy()
    total = width + height

    def union_costs(i):
        union = np.maximum(width, width[i]) + np.maximum(height, height[i])
        cost = weights * (union - total) + weights[i] * (union - total[i])
        cost[i] = np.inf
        cost[is_merged] = np.inf
        return cost

    def find_partner(i):
        cost = union_costs(i)
        partner[i] = cost.argmin()
        lowest[i] = cost[partner[i]]
        return cost

    is_merged = np.zeros(len(sides), bool)
    lowest, partner = np.full(len(sides), np.inf), np.zeros(len(sides), int)
    for i in range(len(sides)):
        find_partner(i)
    positions = (weights * total).sum()
    for count in range(len(sides), 1, -1):
        i = lowest.argmin()
        if count <= max_shapes and positions + lowest[i] > max_positions:
            break
        positions += lowest[i]
        j = partner[i]
        width[i], height[i] = max(width[i], width[j]), max(height[i], height[j])
        total[i] = width[i] + height[i]
        weights[i] += weights[j]
        is_merged[j], lowest[j] = True, np.inf
        for stale in np.flatnonzero(~is_merged & ((partner == i) | (partner == j))):
            find_partner(stale)
        cost = find_partner(i)
        is_closer = ~is_merged & (cost < lowest)
        lowest[is_closer], partner[is_closer] = cost[is_closer], i
    return np.stack([width, height], axis=1)[~is_merged]


class PlannedBatch(NamedTuple):
    """The pairs of a batch, and its shape.

    Attributes:
        indices: `(n,)` ints, indices of the pairs in a shard or dataset.
        rows: Number of rows, at least `n`. The last `rows - n` rows are padding.
        source_width: `Tx`.
        target_width: `Ty`.
    """

    indices: np.ndarray
    rows: int
    source_width: int
    target_width: int


@dataclass(frozen=True)
class BatchPlan:
    """A sequence of planned batches in flat arrays.

    Args:
        indices: Indices of the pairs of all batches.
        offsets: `(batches + 1,)`. The pairs of batch `i` are
            `indices[offsets[i] : offsets[i + 1]]`.
        shapes: `(batches, 2)`, `Tx` and `Ty` of each batch.
        rows: `(batches,)`, number of rows of each batch, including rows of padding.
    """

    indices: np.ndarray
    offsets: np.ndarray
    shapes: np.ndarray
    rows: np.ndarray

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        """Return a `PlannedBatch`."""
        indices = self.indices[self.offsets[index] : self.offsets[index + 1]]
        return PlannedBatch(indices, int(self.rows[index]), *self.shapes[index].tolist())

    def reordered(self, order):
        """Return the same batches in another order."""
        counts = np.diff(self.offsets)[order]
        ends = np.cumsum(counts)
        moved = np.repeat(self.offsets[:-1][order] - ends + counts, counts) + np.arange(ends[-1])
        return BatchPlan(
            self.indices[moved],
            np.concatenate([[0], ends]),
            self.shapes[order],
            self.rows[order],
        )


def sorted_batches(buckets, order, batch_size, bucket, window=None):
    """Sort pairs by length and cut them into batches of equal size.

    Args:
        buckets: `(pairs, 2)`, lengths of source and target, rounded up to multiples of `bucket`.
        order: `(pairs,)`, order of pairs with equal lengths.
        batch_size: Number of rows of every batch.
        bucket: int.
        window: Number of pairs that are sorted together; all if `None`.

    Returns:
        A `BatchPlan`.
    """
    windows = np.arange(len(order)) // (window or len(order))
    order = order[longest_first(buckets[order], bucket, windows)]
    offsets = np.arange(0, len(order), batch_size)
    shapes = np.maximum.reduceat(buckets[order], offsets, axis=0)
    rows = np.full(len(offsets), batch_size)
    return BatchPlan(order, np.append(offsets, len(order)), shapes, rows)


def longest_first(buckets, bucket, windows=0):
    """Return the order of pairs by window and then by descending target length.

    The batch with missing rows then has the shortest pairs. Source lengths alternate between
    ascending and descending order from one target length to the next, so a batch that contains two
    target lengths has similar sources.
    """
    tx, ty = buckets.T
    keys = (np.where(ty // bucket % 2, tx, -tx), -ty, windows)
    return np.lexsort(np.broadcast_arrays(*keys))


def count_batches(counts, shapes):
    """Count the batches of each shape, and the rows that each shape passes on.

    Rows that do not fill a batch move to the next larger shape, if there is one.

    Args:
        counts: `(shapes,)` ints, number of pairs with each shape.
        shapes: `Shapes`.

    Returns:
        `(batches, remainders)`, two int arrays `(shapes,)`.
    """
    counts, batches, remainders = counts.copy(), np.zeros_like(counts), np.zeros_like(counts)
    for shape, larger in enumerate(shapes.next_larger().tolist()):
        batches[shape], remainders[shape] = divmod(counts[shape], shapes.rows[shape])
        if larger >= 0:
            counts[larger] += remainders[shape]
        else:
            batches[shape] += remainders[shape] > 0
            remainders[shape] = 0
    return batches, remainders


def shaped_batches(shape_ids, order, shapes, rng=None):
    """Group pairs into batches of given shapes.

    The number of batches of each shape depends only on `shape_ids`.

    Args:
        shape_ids: `(pairs,)`, index of the shape of each pair.
        order: `(pairs,)`, order of pairs with the same shape.
        shapes: `Shapes`.
        rng: NumPy generator that shuffles the batches; `None` for the order of the shapes.

    Returns:
        A `BatchPlan`.
    """
    counts = np.bincount(shape_ids, minlength=len(shapes.rows))
    batches, remainders = count_batches(counts, shapes)
    by_shape = np.split(order[np.argsort(shape_ids[order], kind="stable")], np.cumsum(counts)[:-1])
    indices, ends = [], []
    moved_up = [[] for _ in by_shape]
    for shape, larger in enumerate(shapes.next_larger().tolist()):
        pairs = np.concatenate([by_shape[shape], *moved_up[shape]])
        full = len(pairs) - remainders[shape]
        if remainders[shape]:
            moved_up[larger].append(pairs[full:])
        indices.append(pairs[:full])
        ends.append(np.minimum(np.arange(1, batches[shape] + 1) * shapes.rows[shape], full))
    starts = np.cumsum([0, *map(len, indices)])[:-1]
    ends = np.concatenate([start + end for start, end in zip(starts, ends, strict=True)])
    batch_shapes = np.repeat(np.arange(len(batches)), batches)
    plan = BatchPlan(
        np.concatenate(indices),
        np.concatenate([[0], ends]),
        shapes.sides[batch_shapes],
        shapes.rows[batch_shapes],
    )
    return plan if rng is None else plan.reordered(rng.permutation(len(plan)))


def distinct_first(shapes):
    """Return an order of batches whose first two differ in every axis in which any two differ.

    Args:
        shapes: `(batches, 2)` ints.

    Returns:
        `(batches,)` ints. The other batches keep their order.
    """
    shapes = list(map(tuple, shapes.tolist()))
    order = list(range(len(shapes)))
    varying = [axis for axis in (0, 1) if len({shape[axis] for shape in shapes}) > 1]
    first_index = {}
    for index, shape in enumerate(shapes):
        for other, first in first_index.items():
            if varying and all(shape[axis] != other[axis] for axis in varying):
                front = [first, index]
                return np.array(front + [i for i in order if i not in front])
        first_index.setdefault(shape, index)
    return np.array(order)


def make_batch(pairs, rows, source_width, target_width):
    """Return the padded arrays of a batch.

    Args:
        pairs: A `Shard`.
        rows: Number of rows `B`, at least the number of pairs. The last ones are padding.
        source_width: `Tx`, at least the length of the longest source.
        target_width: `Ty`, at least the length of the longest target.

    Returns:
        `(inputs, labels)`: `inputs` is `{"source": (B, Tx), "target": (B, Ty)}`, `labels` is
        `(B, Ty)`, all int32. `target` is `labels` shifted right by one, with `BOS` first. If the
        pairs have alignments, `inputs["alignment"]` is `(B, Ty, Tx)` float32. Its row of a label
        has the sum one over the aligned source positions, or is zero if there are none.
    """
    lengths = np.diff(pairs.offsets)
    positions = np.arange(max(source_width, target_width))
    padded = np.full((2 * rows, len(positions)), PAD, "int32")
    # The mask selects positions in the order of `pairs.ids`: source and target of each pair.
    padded[: len(lengths)][positions < lengths[:, None]] = pairs.ids
    source = np.ascontiguousarray(padded[0::2, :source_width])
    labels = np.ascontiguousarray(padded[1::2, :target_width])
    target = np.full_like(labels, PAD)
    target[: len(pairs), 0] = BOS
    # The position after the last label is padding in both arrays.
    target[:, 1:] = np.where(labels[:, 1:] != PAD, labels[:, :-1], PAD)
    inputs = {"source": source, "target": target}
    if pairs.aligned:
        inputs["alignment"] = _alignment(pairs, (rows, target_width, source_width))
    return inputs, labels


def _alignment(pairs, shape):
    links = np.zeros(shape, "float32")
    rows = np.repeat(np.arange(len(pairs)), np.diff(pairs.starts))
    links[rows, pairs.links[:, 1], pairs.links[:, 0]] = 1.0
    return links / np.maximum(links.sum(axis=-1, keepdims=True), 1.0)


def log_truncation(counts, pairs, max_length):
    """Log a warning with the numbers of truncated sources and targets, if there are any."""
    if any(counts):
        message = "Cut %d of %d sources and %d of %d targets to %d ids."
        logger.warning(message, counts[0], pairs, counts[1], pairs, max_length)
