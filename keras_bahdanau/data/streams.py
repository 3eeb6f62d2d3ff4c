"""Endless streams of batches from prepared corpora."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from keras_bahdanau.data.batching import BatchRows, longest_first, shape_counts, shaped_batches
from keras_bahdanau_runtime.prepared.corpus import concatenate_shards, shard_from_lists
from keras_bahdanau_runtime.text.batches import round_up

_SHARDS_KEPT = 2  # threads that fetch ahead may stand on both sides of a border


class Stream:
    """The batches of one corpus, pass after pass; each is found by its place.

    Args:
        corpus: A `PreparedCorpus`.
        shapes: `Shapes` of the batches.
        lengths: `LengthCounts` of the corpus.
        seed: list of ints; every pass has another order, or the same one if `None`.

    Attributes:
        batches: Number of batches of a pass.
    """

    def __init__(self, corpus, shapes, lengths, seed):
        self._corpus, self._shapes, self._seed = corpus, shapes, seed
        self._longest = lengths.most
        self._sizes = np.array(
            [
                shape_counts(
                    np.bincount(shapes.of(known), counts, len(shapes.rows)).astype("int64"), shapes
                )[0].sum()
                for known, counts in lengths.shards
            ]
        )
        self.batches = int(self._sizes.sum())
        self._pass = LRUCache(self._order, 2)
        self._shards = LRUCache(self._arrange, _SHARDS_KEPT)

    def find(self, place):
        """The shard of a batch, and its `BatchRows`."""
        number, place = divmod(place, self.batches)
        order, ends = self._pass(number)
        turn = int(np.searchsorted(ends, place, side="right"))
        shard, batches = self._shards((number, int(order[turn])))
        return shard, batches[place - int(ends[turn] - self._sizes[order[turn]])]

    def _order(self, number):
        """The shards of a pass, and after how many batches each ends."""
        order = np.arange(len(self._sizes))
        if self._seed is not None:
            order = np.random.default_rng([*self._seed, number]).permutation(order)
        return order, np.cumsum(self._sizes[order])

    def _arrange(self, key):
        """A shard and its `Batches` in a pass; `key` is the pass and the shard."""
        number, place = key
        shard = self._corpus.shard(place)
        lengths = shard.lengths
        if self._longest is not None:
            lengths = np.minimum(lengths, self._longest)
        kinds, order, rng = self._shapes.of(lengths), np.arange(len(shard)), None
        if self._seed is not None:
            rng = np.random.default_rng([*self._seed, number, place])
            order = rng.permutation(order)
        return shard, shaped_batches(kinds, order, self._shapes, rng)


@dataclass(frozen=True)
class LengthCounts:
    """How many pairs of a corpus have which lengths.

    Args:
        shards: For each shard `(lengths (n, 2), counts (n,))`, distinct lengths.
        longer: `(2,)`, how many sources and targets are longer than `most`, and count as that.
        most: The greatest length; `None` for no limit.
    """

    shards: list
    longer: np.ndarray
    most: int | None


def length_counts(corpus, most):
    """The `LengthCounts` of a `PreparedCorpus`."""
    shards, longer = [], np.zeros(2, "int64")
    for number in range(len(corpus.sizes)):
        lengths = corpus.lengths(number)
        if most is not None:
            longer += (lengths > most).sum(axis=0)
            lengths = np.minimum(lengths, most)
        shards.append(merge_counts([(lengths, np.ones(len(lengths), "int64"))]))
    return LengthCounts(shards, longer, most)


def merge_counts(counted):
    """One `(lengths, counts)`, each pair of lengths once, of a list of such."""
    lengths = np.concatenate([lengths for lengths, _ in counted]).astype("int64")
    counts = np.concatenate([counts for _, counts in counted])
    known, places = np.unique(lengths[:, 0] << 32 | lengths[:, 1], return_inverse=True)
    found = np.stack([known >> 32, known & 2**32 - 1], axis=1)
    return found, np.bincount(places, counts, len(known)).astype("int64")


@dataclass(frozen=True)
class CorpusMixer:
    """Which of several streams of batches a step takes, in cycles of fixed shares.

    Args:
        shares: `(streams,)` ints, how many steps of a cycle each stream has.
        seed: list of ints; every cycle has another order, or the same one if `None`.
    """

    shares: np.ndarray
    seed: list | None

    def __call__(self, number):
        """`(streams, places)` of the steps of a cycle; a place counts the stream's own batches."""
        streams = np.repeat(np.arange(len(self.shares)), self.shares)
        if self.seed is not None and len(self.shares) > 1:
            streams = np.random.default_rng([*self.seed, number]).permutation(streams)
        places = np.empty(len(streams), "int64")
        places[np.argsort(streams, kind="stable")] = np.concatenate(
            [number * share + np.arange(share) for share in self.shares]
        )
        return streams, places


def shares(sizes, temperature):
    """The shares of streams in a cycle of as many steps as all have batches together.

    Args:
        sizes: `(streams,)` ints, the batches of each.
        temperature: A stream is taken as often as the `1 / temperature` power of its size says; 1
            is as often as it has batches, more takes small streams more often.

    Returns:
        `(streams,)` ints, each at least 1.
    """
    sizes = np.asarray(sizes)
    weights = sizes ** (1.0 / temperature)
    exact = sizes.sum() * weights / weights.sum()
    found = np.maximum(1, np.floor(exact).astype("int64"))
    missing = max(0, sizes.sum() - found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1
    return found


class LRUCache:
    """The last few results of a function of one argument, for many threads."""

    def __init__(self, function, most):
        self._function, self._most = function, most
        self._results, self._lock = OrderedDict(), threading.Lock()

    def __call__(self, argument):
        with self._lock:
            if argument not in self._results:
                while len(self._results) >= self._most:
                    self._results.popitem(last=False)
                self._results[argument] = self._function(argument)
            self._results.move_to_end(argument)
            return self._results[argument]

    def __reduce__(self):
        return LRUCache, (self._function, self._most)


_WINDOW = 256  # batches whose pairs are sorted together


class ResampledStream:
    """The batches of a `Stream` with other ids, pairs of like length together again.

    Other ids have other lengths: a batch of once equal lengths would be a third padding. So pairs
    are exchanged among a window of batches that come one after the other in a pass, the longest for
    those that were widest. How many pairs a batch has stays as it was.

    Args:
        stream: A `Stream` of pairs without alignments.
        resample: `(sources, targets, rng) -> (sources, targets)`, as `PreparedDataset` takes it.
        seed: list of ints; the ids are a function of these, the pass and the window.
        bucket: Widths are multiples of this.
        max_length: The greatest length; `None` for no limit.

    Attributes:
        batches: Number of batches of a pass.
    """

    def __init__(self, stream, resample, seed, bucket, max_length):
        self._stream, self._resample, self._seed = stream, resample, seed
        self._bucket, self._max_length = bucket, max_length
        self.batches = stream.batches
        self._windows = LRUCache(self._exchange, 2)

    def find(self, place):
        """The pairs of a batch's window, and its `BatchRows`, as `Stream.find`."""
        number, place = divmod(place, self.batches)
        window, place = divmod(place, _WINDOW)
        pairs, batches = self._windows((number, window))
        return pairs, batches[place]

    def _exchange(self, key):
        """The pairs of a window, and a list of `BatchRows`."""
        number, window = key
        begin = window * _WINDOW
        places = number * self.batches + np.arange(begin, min(begin + _WINDOW, self.batches))
        found = [self._stream.find(int(place)) for place in places]
        old = [batch for _, batch in found]
        pairs = self._other(
            concatenate_shards([shard.take(batch.places) for shard, batch in found]),
            np.random.default_rng([*self._seed, number, window]),
        )
        sides = round_up(pairs.lengths, self._bucket)
        counts = np.array([len(batch.places) for batch in old])
        wide_first = np.argsort(
            [-(batch.source_width + batch.target_width) for batch in old], kind="stable"
        )
        parts = np.split(longest_first(sides, self._bucket), np.cumsum(counts[wide_first])[:-1])
        batches = [None] * len(found)
        for place, chosen in zip(wide_first.tolist(), parts, strict=True):
            widths = sides[chosen].max(axis=0).tolist()
            batches[place] = BatchRows(chosen, old[place].rows, *widths)
        return pairs, batches

    def _other(self, pairs, rng):
        most = self._max_length
        if most is not None:
            pairs = pairs.truncate(most)
        lists = [ids.tolist() for ids in np.split(pairs.ids, pairs.offsets[1:-1])]
        made = shard_from_lists(*self._resample(lists[0::2], lists[1::2], rng), pairs.ids.dtype)
        return made if most is None else made.truncate(most)
