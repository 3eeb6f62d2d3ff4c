"""Batches of sentence pairs that fit into memory."""

from collections.abc import Sequence, Sized

import numpy as np

from keras_bahdanau.data.batching import (
    EpochDataset,
    distinct_first,
    log_truncation,
    make_batch,
    sorted_batches,
)
from keras_bahdanau.data.corpus import shard_from_lists
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import PAD
from keras_bahdanau_runtime.text.batches import round_up


class TranslationDataset(EpochDataset):
    """Batches of sentence pairs with similar lengths, for `model.fit` and `model.evaluate`.

    Each epoch shuffles the pairs, sorts them by length in steps of `bucket`, cuts batches of
    exactly `batch_size` rows and shuffles the batches. The set of batch shapes is small and the
    same in every epoch, so a training step is compiled only a few times. Missing rows of the last
    batch are padding, so the loss must ignore labels that are `PAD`.

    With `sort_window`, that many pairs at a time are taken in their shuffled order, sorted and cut
    into batches, which keep their order (arXiv 1409.0473, appendix B.2). Batch shapes may then
    differ from epoch to epoch unless `shuffle="once"`.

    The order of an epoch is a function of `seed + epoch`, or of `seed` with `shuffle="once"`. Keras
    calls `on_epoch_end` once before `fit` begins, so the first trained epoch is `epoch + 1`. To
    resume an interrupted run with the order of an uninterrupted one, set `epoch` to the number of
    finished epochs, and leave `steps_per_epoch` unset. For a model that is not a `Seq2Seq`, call
    `fit` with `shuffle=False` in both runs, because Keras by default shuffles the batches with
    Python's `random`.

    Args:
        sources: One list of ints for each source sentence, with `EOS` last, as returned by
            `Tokenizer.encode_source`.
        targets: As many lists for the target sentences.
        batch_size: Number of rows of every batch.
        bucket: Widths are multiples of this.
        max_length: Longest sentence. Longer ones are truncated to this many ids, with their last id
            at the end, and a warning in the log states their number. `None` for no limit.
        shuffle: Whether pairs and batches are shuffled: `True` for another order in each epoch,
            "once" for the same order in all. `False` orders them from the longest to the shortest
            target, except for the batches that move to the front (see `shapes`).
        seed: Non-negative int, the seed of the order.
        alignments: One list of (source position, target position) for each pair, with positions in
            `sources` and `targets` from 0, as returned by `read_alignments`; for the loss of guided
            alignment (`AlignmentCrossentropy`). Links to truncated ids are dropped. `None` for no
            alignments.
        sort_window: Number of pairs sorted together, a multiple of `batch_size`; `None` for all.

    Attributes:
        epoch: The epoch that determines the order, 0 at first. May be set.
        tokens: Number of target tokens in an epoch, without padding.

    Returns:
        From `dataset[i]` the pair `(inputs, labels)`: `inputs` is `{"source": (B, Tx), "target":
        (B, Ty)}`, `labels` is `(B, Ty)`, all int32. `target` is `labels` shifted right by one, with
        `BOS` first. With `alignments`, `inputs["alignment"]` is `(B, Ty, Tx)` float32. Its row of a
        label has the sum one over the aligned source positions, or is zero if there are none.

    Raises:
        ValueError: If there are no pairs, `sources` and `targets` differ in length, a sentence is
            empty or contains anything but positive ints, `batch_size`, `bucket` or `max_length` is
            too small, `shuffle` is unknown, `sort_window` is not a multiple of `batch_size`, or
            `alignments` contain a position outside a sentence.

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
    ):
        super().__init__()
        for name, sequences in (("sources", sources), ("targets", targets)):
            if not isinstance(sequences, Sized):
                raise argument_error(name, "be a list of lists of ids", sequences)
        if len(sources) != len(targets):
            raise argument_error(
                ("sources", "targets"),
                "have the same length",
                received=f"{len(sources)} sources, {len(targets)} targets",
            )
        if not len(sources):
            raise argument_error(("sources", "targets"), "hold at least one pair", received="none")
        check_range("batch_size", batch_size, int, 1)
        check_range("bucket", bucket, int, 1)
        check_range("seed", seed, int, 0)
        if max_length is not None:
            check_range("max_length", max_length, int, 2)
        if shuffle not in (True, False, "once"):
            raise argument_error("shuffle", 'be True, False or "once"', shuffle)
        if sort_window is not None:
            check_range("sort_window", sort_window, int, batch_size)
            if sort_window % batch_size:
                raise argument_error(
                    "sort_window",
                    f"be a multiple of `batch_size`, {batch_size}",
                    received=f"sort_window={sort_window}",
                )
        self.batch_size = batch_size
        self.bucket = bucket
        self.max_length = max_length
        self.shuffle = shuffle
        self.sort_window = sort_window
        self.seed = seed
        sources, targets = (
            _checked_sequences("sources", sources),
            _checked_sequences("targets", targets),
        )
        if alignments is not None:
            alignments = _checked_alignments(alignments, sources, targets)
        pairs = shard_from_lists(sources, targets, "int32", alignments)
        if max_length is not None:
            log_truncation((pairs.lengths > max_length).sum(axis=0), len(pairs), max_length)
            pairs = pairs.truncate(max_length)
        self._pairs = pairs
        self._buckets = round_up(pairs.lengths, bucket)
        self.tokens = int(pairs.lengths[:, 1].sum())
        self.epoch = 0

    def _begin_epoch(self):
        order = np.arange(len(self._pairs))
        rng = np.random.default_rng(self.seed + (0 if self.shuffle == "once" else self.epoch))
        if self.shuffle:
            order = rng.permutation(order)
        batches = sorted_batches(
            self._buckets, order, self.batch_size, self.bucket, self.sort_window
        )
        if self.shuffle and self.sort_window is None:
            batch_order = list(range(len(batches)))
            rng.shuffle(batch_order)
            batches = batches.reordered(batch_order)
        self._batches = batches.reordered(distinct_first(batches.shapes))

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The distinct `(Tx, Ty)` of the batches, sorted; the same in every epoch.

        Keras on TensorFlow treats an axis as variable only if the first two batches differ in it.
        These differ in `Tx` if any two batches do, and in `Ty` if any two batches do.
        """
        return sorted(set(map(tuple, self._batches.shapes.tolist())))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int):
        indices, *shape = self._batches[index]
        return make_batch(self._pairs.take(indices), *shape)


def _checked_sequences(name, sequences):
    checked = []
    for index, ids in enumerate(sequences):
        try:
            array = np.asarray(ids)
        except ValueError:  # ragged
            array = np.asarray(None)
        if array.ndim == 1 and not array.size:
            raise argument_error(f"{name}[{index}]", "hold at least one id", ids)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise argument_error(f"{name}[{index}]", "be a list of ints", received=str(ids)[:80])
        if array.min() <= PAD or array.max() > np.iinfo("int32").max:
            raise argument_error(
                f"{name}[{index}]",
                f"hold ids from 1 to 2147483647 ({PAD} is padding, which is added here)",
                received=str(ids)[:80],
            )
        checked.append(array.astype("int32"))
    return checked


def _checked_alignments(alignments, sources, targets):
    """Return an int array `(links, 2)` of (source position, target position) for each pair."""
    if len(alignments) != len(sources):
        raise argument_error(
            "alignments",
            "hold one list for each pair of sentences",
            received=f"{len(alignments)} for {len(sources)} pairs",
        )
    checked = []
    for index, links in enumerate(alignments):
        lengths = np.array([len(sources[index]), len(targets[index])])
        try:
            positions = np.asarray(links)
        except ValueError:  # ragged
            positions = np.asarray(None)
        if not positions.size:
            positions = np.zeros((0, 2), int)
        if positions.ndim != 2 or positions.shape[1] != 2 or positions.dtype.kind not in "iu":
            raise argument_error(
                f"alignments[{index}]", "be a list of pairs of ints", received=str(links)[:80]
            )
        if (positions < 0).any() or (positions >= lengths).any():
            raise argument_error(
                f"alignments[{index}]",
                "hold pairs (source position, target position) below "
                f"{tuple(lengths.tolist())}, the lengths of the sentences",
                received=str(links)[:80],
            )
        checked.append(positions)
    return checked
