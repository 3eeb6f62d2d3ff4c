"""The batches of a corpus whose pairs get other ids each time they come."""

import numpy as np

from keras_bahdanau.data.order import BatchRows, longest_first
from keras_bahdanau.data.stream import Kept
from keras_bahdanau_runtime.prepared.corpus import concatenate_shards, shard_from_lists
from keras_bahdanau_runtime.text.batches import round_up

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
        self._windows = Kept(self._exchange, 2)

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
