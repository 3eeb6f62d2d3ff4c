"""Batches for training and for generation: few shapes, each pair exactly once an epoch."""

import logging
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.text.batches import cut, pad, round_up

logger = logging.getLogger("keras_bahdanau")


class TranslationDataset(keras.utils.PyDataset):
    """Batches of sentence pairs with similar lengths, for `model.fit` and `model.evaluate`.

    Each epoch shuffles the pairs, sorts them by length in steps of `bucket`, cuts batches of
    exactly `batch_size` rows and shuffles these. The set of batch shapes is the same in every epoch
    and small, so that a compiled training step is compiled only for a few. Rows missing from the
    last batch are filled with `PAD` alone: the loss must leave out labels that are `PAD`.

    With `sort_window`, that many pairs at a time are taken in their shuffled order, sorted and cut
    into batches, which keep their order (arXiv 1409.0473, appendix B.2). Batch shapes may then
    differ from epoch to epoch unless `shuffle="once"`.

    The order of an epoch is a function of `seed + epoch`, or of `seed` if shuffled once. Keras
    reports the end of an epoch once more before `fit` begins, so the first epoch trained is
    `epoch + 1`. To continue an interrupted run in the order it would have had, set `epoch` to the
    number of epochs that are done and call `fit` with `shuffle=False` (as in the first run: Keras
    by default shuffles the batches once more, by Python's `random`). Leave `steps_per_epoch` unset.

    Args:
        sources: Source ids, one list of ints for each sentence, `EOS` last, as
            `Tokenizer.encode_source` gives.
        targets: Target ids, likewise, as many sentences.
        batch_size: Number of rows of every batch.
        bucket: Lengths are padded up to a multiple of this.
        max_length: Longer sentences are cut to this many ids, the last of which stays the last; a
            warning in the log says how many. `None` for no limit.
        shuffle: Whether pairs and batches are shuffled: anew for each epoch, or "once" for the same
            order in all. Otherwise they come from the longest to the shortest target, save what
            moves to the front (see `shapes`).
        seed: Non-negative int, the randomness of the order.
        alignments: One list for each pair of (source place, target place), places in `sources` and
            `targets` from 0, as `read_alignments` gives; for a loss of guided alignment
            (`AlignmentCrossentropy`). What `max_length` cuts away is dropped. `None` for none.
        sort_window: Number of pairs sorted together, a multiple of `batch_size`; `None` for all.
        resample: `epoch -> (sources, targets)`, the ids that an epoch has in the place of those
            above, for as many pairs, such as a `BPEDropout`; or `None`. `shapes` may then differ
            from epoch to epoch.
        **kwargs: `workers`, `use_multiprocessing`, `max_queue_size` of `keras.utils.PyDataset`.

    Attributes:
        epoch: Which epoch's order holds, 0 at first. May be set.
        tokens: Number of target tokens in an epoch, padding left out.

    Returns:
        From `dataset[i]` the pair `(inputs, labels)`: `inputs` is `{"source": (B, Tx), "target":
        (B, Ty)}`, `labels` is `(B, Ty)`, all int32. `target` is `labels` moved by one place, `BOS`
        first. With `alignments`, `inputs["alignment"]` is `(B, Ty, Tx)` float32: each label's row
        sums to one over the source places aligned to it, or is zero if there are none.

    Raises:
        ValueError: If there are no pairs, `sources` and `targets` differ in length, a sentence is
            empty or holds anything but positive ints, `batch_size`, `bucket` or `max_length` is
            too small, `shuffle` is unknown, `sort_window` is no multiple of `batch_size`, or
            `alignments` name a place that is not there.

    Example:

    >>> dataset = TranslationDataset([[5, 6, 3]], [[7, 3]], batch_size=1, bucket=4)
    >>> inputs, labels = dataset[0]
    >>> inputs["source"].tolist(), inputs["target"].tolist(), labels.tolist()
    ([[5, 6, 3, 0]], [[2, 7, 0, 0]], [[7, 3, 0, 0]])
    """

    def __init__(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        batch_size: int = 64,
        bucket: int = 8,
        max_length: int | None = 128,
        shuffle: bool | str = True,
        seed: int = 0,
        alignments: Sequence[Sequence[tuple[int, int]]] | None = None,
        sort_window: int | None = None,
        resample: Callable | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if resample is not None and alignments is not None:
            raise ValueError(
                "Argument `alignments` must be left out beside `resample`, which moves the places. "
                "Received: both"
            )
        if len(sources) != len(targets):
            raise ValueError(
                "Arguments `sources` and `targets` must have the same length. "
                f"Received: {len(sources)} sources, {len(targets)} targets"
            )
        if not len(sources):
            raise ValueError(
                "Arguments `sources` and `targets` must hold at least one pair. Received: none"
            )
        check_range("batch_size", batch_size, int, 1)
        check_range("bucket", bucket, int, 1)
        check_range("seed", seed, int, 0)
        if max_length is not None:
            check_range("max_length", max_length, int, 2)
        if shuffle not in (True, False, "once"):
            raise ValueError(
                f'Argument `shuffle` must be True, False or "once". Received: {shuffle!r}'
            )
        if sort_window is not None:
            check_range("sort_window", sort_window, int, batch_size)
            if sort_window % batch_size:
                raise ValueError(
                    f"Argument `sort_window` must be a multiple of `batch_size`, {batch_size}. "
                    f"Received: sort_window={sort_window}"
                )
        self.batch_size = batch_size
        self.bucket = bucket
        self.max_length = max_length
        self.shuffle = shuffle
        self.sort_window = sort_window
        self.seed = seed
        self._resample = resample
        sources, targets = _checked("sources", sources), _checked("targets", targets)
        self._alignments = None
        if alignments is not None:
            self._alignments = _aligned(alignments, sources, targets, max_length)
        self._take(sources, targets)
        self.epoch = 0

    def _take(self, sources, targets):
        if self.max_length is not None:
            sources, targets = cut(self.max_length, sources=sources, targets=targets)
        self._sources, self._targets = sources, targets
        self._source_buckets = round_up([len(ids) for ids in sources], self.bucket)
        self._target_buckets = round_up([len(ids) for ids in targets], self.bucket)
        self.tokens = sum(len(ids) for ids in targets)

    @property
    def epoch(self) -> int:
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int):
        check_range("epoch", epoch, int, 0)
        self._epoch = epoch
        if self._resample is not None:
            sources, targets = self._resample(epoch)
            self._take(_checked("sources", sources), _checked("targets", targets))
        self._batches, self._shapes = self._arrange()

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The distinct `(Tx, Ty)` of the batches, sorted; the same in every epoch.

        Keras on TensorFlow takes for variable only what differs between the first two batches. They
        are chosen so that they differ in `Tx` if any two batches do, and so for `Ty`.
        """
        return sorted(set(self._shapes))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int):
        rows = self._batches[index]
        empty = [()] * (self.batch_size - len(rows))
        source = pad([self._sources[row] for row in rows] + empty, self.bucket)
        labels = pad([self._targets[row] for row in rows] + empty, self.bucket)
        target = np.full_like(labels, PAD)
        target[: len(rows), 0] = BOS
        # What follows the last id of a row is padding in the labels, and in the target.
        target[:, 1:] = np.where(labels[:, 1:] != PAD, labels[:, :-1], PAD)
        inputs = {"source": source, "target": target}
        if self._alignments is not None:
            links = np.zeros((*labels.shape, source.shape[1]), "float32")
            for place, row in enumerate(rows):
                source_places, target_places = self._alignments[row].T
                links[place, target_places, source_places] = 1.0
            inputs["alignment"] = links / np.maximum(links.sum(axis=-1, keepdims=True), 1.0)
        return inputs, labels

    def on_epoch_end(self):
        """Moves on to the order of the next epoch."""
        self.epoch += 1

    def _arrange(self):
        """Rows of each batch, and the shape of each, for the present epoch."""
        order = np.arange(len(self._sources))
        rng = np.random.default_rng(self.seed + (0 if self.shuffle == "once" else self.epoch))
        if self.shuffle:
            order = rng.permutation(order)
        tx, ty = self._source_buckets[order], self._target_buckets[order]
        # Longest target first, so that the batch with missing rows is a short one. Sources fall and
        # rise in turn: a batch that reaches into the next target length keeps similar sources.
        window = np.arange(len(order)) // (self.sort_window or len(order))
        order = order[np.lexsort((np.where(ty // self.bucket % 2, tx, -tx), -ty, window))]
        starts = np.arange(0, len(order), self.batch_size)
        batches = np.split(order, starts[1:])
        shapes = [
            (int(self._source_buckets[rows].max()), int(self._target_buckets[rows].max()))
            for rows in batches
        ]
        places = list(range(len(batches)))
        if self.shuffle and self.sort_window is None:
            rng.shuffle(places)
        places = _distinct_first(places, [shapes[place] for place in places])
        return [batches[place] for place in places], [shapes[place] for place in places]


def _checked(name, sequences):
    checked = []
    for index, ids in enumerate(sequences):
        try:
            array = np.asarray(ids)
        except ValueError:  # ragged
            array = np.asarray(None)
        if array.ndim == 1 and not array.size:
            raise ValueError(
                f"Argument `{name}[{index}]` must hold at least one id. Received: {ids!r}"
            )
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(
                f"Argument `{name}[{index}]` must be a list of ints. Received: {ids!s:.80}"
            )
        if array.min() <= PAD or array.max() > np.iinfo("int32").max:
            raise ValueError(
                f"Argument `{name}[{index}]` must hold ids from 1 to 2147483647 ({PAD} is "
                f"padding, which is added here). Received: {ids!s:.80}"
            )
        checked.append(array.astype("int32"))
    return checked


def _aligned(alignments, sources, targets, max_length):
    """An int array `(links, 2)` of (source place, target place) for each pair, after the cut."""
    if len(alignments) != len(sources):
        raise ValueError(
            "Argument `alignments` must hold one list for each pair of sentences. "
            f"Received: {len(alignments)} for {len(sources)} pairs"
        )
    aligned = []
    for index, links in enumerate(alignments):
        lengths = np.array([len(sources[index]), len(targets[index])])
        try:
            places = np.asarray(links)
        except ValueError:  # ragged
            places = np.asarray(None)
        if not places.size:
            places = np.zeros((0, 2), int)
        if places.ndim != 2 or places.shape[1] != 2 or places.dtype.kind not in "iu":
            raise ValueError(
                f"Argument `alignments[{index}]` must be a list of pairs of ints. "
                f"Received: {links!s:.80}"
            )
        if (places < 0).any() or (places >= lengths).any():
            raise ValueError(
                f"Argument `alignments[{index}]` must hold pairs (source place, target place) "
                f"below {tuple(lengths.tolist())}, the lengths of the sentences. "
                f"Received: {links!s:.80}"
            )
        if max_length is not None:
            # As `_cut` does: the last id comes to stand at the end, some before it are lost.
            moved = (lengths > max_length) & (places == lengths - 1)
            lost = (lengths > max_length) & ~moved & (places >= max_length - 1)
            places = np.where(moved, max_length - 1, places)[~lost.any(axis=1)]
        aligned.append(places)
    return aligned


def _distinct_first(places, shapes):
    """Brings two batches to the front that differ in every length in which any two differ."""
    varying = [axis for axis in (0, 1) if len({shape[axis] for shape in shapes}) > 1]
    seen = {}
    for position, shape in enumerate(shapes):
        for other, first in seen.items():
            if varying and all(shape[axis] != other[axis] for axis in varying):
                front = [places[first], places[position]]
                return front + [place for place in places if place not in front]
        seen.setdefault(shape, position)
    return places
