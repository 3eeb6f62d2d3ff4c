"""The batches of a prepared corpus without end, and of several corpora in turns."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from keras_bahdanau.data.order import shape_counts, shaped_batches

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
        self._pass = Kept(self._order, 2)
        self._shards = Kept(self._arrange, _SHARDS_KEPT)

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
class Turns:
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


class Kept:
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
        return Kept, (self._function, self._most)
