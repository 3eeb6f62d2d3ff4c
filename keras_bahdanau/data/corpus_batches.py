"""Endless sequences of batches from prepared corpora."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from keras_bahdanau.data.batching import (
    PlannedBatch,
    count_batches,
    longest_first,
    shaped_batches,
)
from keras_bahdanau.data.corpus import concatenate_shards, shard_from_lists
from keras_bahdanau_runtime.text.batches import round_up

_CACHED_SHARDS = 2  # threads that prefetch may need the shards on both sides of a border
_WINDOW = 256  # number of batches whose pairs are sorted together again


class CorpusBatches:
    """The batches of one corpus in pass after pass, accessible by their index.

    Args:
        corpus: A `PreparedCorpus`.
        shapes: `Shapes` of the batches.
        lengths: `LengthCounts` of the corpus.
        seed: list of ints. Every pass has a different order, or the same one if `None`.

    Attributes:
        batches: Number of batches in a pass.
    """

    def __init__(self, corpus, shapes, lengths, seed):
        self._corpus, self._shapes, self._seed = corpus, shapes, seed
        self._max_length = lengths.max_length
        self._sizes = np.array(
            [
                count_batches(
                    np.bincount(shapes.smallest_for(distinct), counts, len(shapes.rows)).astype(
                        "int64"
                    ),
                    shapes,
                )[0].sum()
                for distinct, counts in lengths.shards
            ]
        )
        self.batches = int(self._sizes.sum())
        self._shard_order = LRUCache(self._order_shards, 2)
        self._plans = LRUCache(self._plan_shard, _CACHED_SHARDS)

    def batch(self, index):
        """Return the shard of a batch, and its `PlannedBatch`."""
        number, index = divmod(index, self.batches)
        order, ends = self._shard_order(number)
        turn = int(np.searchsorted(ends, index, side="right"))
        shard, plan = self._plans((number, int(order[turn])))
        return shard, plan[index - int(ends[turn] - self._sizes[order[turn]])]

    def _order_shards(self, number):
        """Return the order of the shards in a pass, and the index after the last batch of each."""
        order = np.arange(len(self._sizes))
        if self._seed is not None:
            order = np.random.default_rng([*self._seed, number]).permutation(order)
        return order, np.cumsum(self._sizes[order])

    def _plan_shard(self, key):
        """Return a shard and its `BatchPlan`; `key` is the pass and the index of the shard."""
        number, index = key
        shard = self._corpus.shard(index)
        lengths = shard.lengths
        if self._max_length is not None:
            lengths = np.minimum(lengths, self._max_length)
        shape_ids, order = self._shapes.smallest_for(lengths), np.arange(len(shard))
        rng = None
        if self._seed is not None:
            rng = np.random.default_rng([*self._seed, number, index])
            order = rng.permutation(order)
        return shard, shaped_batches(shape_ids, order, self._shapes, rng)


class ResampledBatches:
    """The batches of a `CorpusBatches` with resampled ids.

    Resampling changes the lengths, so a third of a batch would be padding. Therefore the pairs are
    sorted by length again within windows of consecutive batches, and the batches with the largest
    widths get the longest pairs. The number of pairs in each batch does not change.

    Args:
        original: A `CorpusBatches` of pairs without alignments.
        resample: `(sources, targets, rng) -> (sources, targets)`, as in `PreparedDataset`.
        seed: list of ints. The ids are a function of it, the pass and the window.
        bucket: Widths are multiples of this.
        max_length: Longest sequence; `None` for no limit.

    Attributes:
        batches: Number of batches in a pass.
    """

    def __init__(self, original, resample, seed, bucket, max_length):
        self._original, self._resample, self._seed = original, resample, seed
        self._bucket, self._max_length = bucket, max_length
        self.batches = original.batches
        self._windows = LRUCache(self._resample_window, 2)

    def batch(self, index):
        """Return the pairs of a batch's window, and its `PlannedBatch`."""
        number, index = divmod(index, self.batches)
        window, index = divmod(index, _WINDOW)
        pairs, batches = self._windows((number, window))
        return pairs, batches[index]

    def _resample_window(self, key):
        """Return the pairs of a window and a list of `PlannedBatch`."""
        number, window = key
        start = window * _WINDOW
        indices = number * self.batches + np.arange(start, min(start + _WINDOW, self.batches))
        shards, old = zip(*[self._original.batch(int(index)) for index in indices], strict=True)
        pairs = self._resampled(
            concatenate_shards(
                [shard.take(batch.indices) for shard, batch in zip(shards, old, strict=True)]
            ),
            np.random.default_rng([*self._seed, number, window]),
        )
        sides = round_up(pairs.lengths, self._bucket)
        counts = np.array([len(batch.indices) for batch in old])
        widest_first = np.argsort(
            [-(batch.source_width + batch.target_width) for batch in old], kind="stable"
        )
        groups = np.split(longest_first(sides, self._bucket), np.cumsum(counts[widest_first])[:-1])
        batches = [None] * len(old)
        for index, group in zip(widest_first.tolist(), groups, strict=True):
            widths = sides[group].max(axis=0).tolist()
            batches[index] = PlannedBatch(group, old[index].rows, *widths)
        return pairs, batches

    def _resampled(self, pairs, rng):
        limit = self._max_length
        if limit is not None:
            pairs = pairs.truncate(limit)
        lists = [ids.tolist() for ids in np.split(pairs.ids, pairs.offsets[1:-1])]
        lists = self._resample(lists[0::2], lists[1::2], rng)
        resampled = shard_from_lists(*lists, pairs.ids.dtype)
        return resampled if limit is None else resampled.truncate(limit)


@dataclass(frozen=True)
class LengthCounts:
    """Number of pairs of a corpus with each pair of lengths.

    Args:
        shards: For each shard `(lengths (n, 2), counts (n,))` with distinct lengths.
        truncated: `(2,)`, number of sources and targets longer than `max_length`. They count as
            sequences of that length.
        max_length: Longest sequence; `None` for no limit.
    """

    shards: list
    truncated: np.ndarray
    max_length: int | None


def length_counts(corpus, max_length):
    """Return the `LengthCounts` of a `PreparedCorpus`."""
    shards, truncated = [], np.zeros(2, "int64")
    for number in range(len(corpus.sizes)):
        lengths = corpus.lengths(number)
        if max_length is not None:
            truncated += (lengths > max_length).sum(axis=0)
            lengths = np.minimum(lengths, max_length)
        shards.append(merge_counts([(lengths, np.ones(len(lengths), "int64"))]))
    return LengthCounts(shards, truncated, max_length)


def merge_counts(parts):
    """Merge a list of `(lengths, counts)` into one with distinct lengths."""
    lengths = np.concatenate([lengths for lengths, _ in parts]).astype("int64")
    counts = np.concatenate([counts for _, counts in parts])
    distinct, inverse = np.unique(lengths[:, 0] << 32 | lengths[:, 1], return_inverse=True)
    lengths = np.stack([distinct >> 32, distinct & 2**32 - 1], axis=1)
    return lengths, np.bincount(inverse, counts, len(distinct)).astype("int64")


@dataclass(frozen=True)
class CorpusMixer:
    """Assigns training steps to several corpora, in cycles with a fixed share for each.

    Args:
        shares: `(corpora,)` ints, number of steps of each corpus in a cycle.
        seed: list of ints. Every cycle has a different order, or the same one if `None`.
    """

    shares: np.ndarray
    seed: list | None

    def __call__(self, cycle):
        """Return `(corpora, indices)` of the steps of a cycle.

        `corpora` holds the corpus of each step, `indices` the index of its batch in that corpus.
        """
        corpora = np.repeat(np.arange(len(self.shares)), self.shares)
        if self.seed is not None and len(self.shares) > 1:
            corpora = np.random.default_rng([*self.seed, cycle]).permutation(corpora)
        indices = np.empty(len(corpora), "int64")
        indices[np.argsort(corpora, kind="stable")] = np.concatenate(
            [cycle * share + np.arange(share) for share in self.shares]
        )
        return corpora, indices


def cycle_shares(sizes, temperature):
    """Return the number of steps of each corpus in a cycle of `sum(sizes)` steps.

    Args:
        sizes: `(corpora,)` ints, number of batches of each corpus.
        temperature: The share of a corpus is proportional to the `1 / temperature` power of its
            size. With 1 each batch is used once per cycle. Larger values favor small corpora.

    Returns:
        `(corpora,)` ints, each at least 1.
    """
    sizes = np.asarray(sizes)
    weights = (sizes / sizes.max()) ** (1.0 / temperature)  # powers of large numbers overflow
    exact = sizes.sum() * weights / weights.sum()
    shares = np.maximum(1, np.floor(exact).astype("int64"))
    missing = max(0, sizes.sum() - shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:missing]] += 1
    return shares


def fixed_shares(batches, shares):
    """Return the number of steps of each corpus in a cycle with fixed shares.

    Args:
        batches: Number of batches of the first corpus, each of which is used once per cycle.
        shares: For each other corpus, its share of all steps, below 1 in all.

    Returns:
        `(1 + len(shares),)` ints, each at least 1.

    Example:

    >>> fixed_shares(12, [0.3, 0.1]).tolist()
    [12, 6, 2]
    """
    cycle = batches / (1 - sum(shares))
    return np.array([batches, *(max(1, round(cycle * share)) for share in shares)])


class LRUCache:
    """Thread-safe cache of the last results of a function of one argument.

    Unlike `functools.lru_cache` it can be pickled, without the results, and computes each result
    only once if several threads need it at the same time.
    """

    def __init__(self, function, max_size):
        self._function, self._max_size = function, max_size
        self._results, self._lock = OrderedDict(), threading.Lock()

    def __call__(self, argument):
        with self._lock:
            if argument not in self._results:
                while len(self._results) >= self._max_size:
                    self._results.popitem(last=False)
                self._results[argument] = self._function(argument)
            self._results.move_to_end(argument)
            return self._results[argument]

    def __reduce__(self):
        return LRUCache, (self._function, self._max_size)
