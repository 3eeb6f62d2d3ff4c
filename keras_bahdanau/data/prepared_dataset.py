"""Batches from prepared corpora of any size, each found by its number alone."""

import os
from collections.abc import Iterable

import keras
import numpy as np

from keras_bahdanau.data.batching import EpochDataset, Shapes, choose_sides, make_batch, warn_of_cut
from keras_bahdanau.data.streams import (
    CorpusMixer,
    LRUCache,
    ResampledStream,
    Stream,
    length_counts,
    merge_counts,
    shares,
)
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus, Shard

_BATCHES_A_SHAPE = 8  # of a shard, on average


class PreparedDataset(EpochDataset):
    """Batches of pairs with similar lengths from prepared corpora, for `model.fit`.

    Training is a sequence of updates, and the batch of each is a function of `seed` and of the
    update's number: `batch(update)` finds it without making those before it. One pass over a corpus
    takes its shards in a random order, permutes the pairs of each, sorts them by shape and shuffles
    the batches of the shard; every pair comes once in a pass, and the next pass follows at once.

    Batches have a few shapes, chosen once for all pairs so that little of them is padding, and
    rows enough to fill `batch_size` or `batch_tokens`: a compiled step is compiled for these alone.
    Rows that fill no batch of their shape move to a larger one; what is missing in the last of a
    shard is `PAD` alone, so the loss must leave out labels that are `PAD`.

    Keras reports the end of an epoch once more before `fit` begins: see `epoch`. Call `fit` with
    `shuffle=False`: Keras by default shuffles the batches once more, by Python's `random`.

    Args:
        corpora: A `PreparedCorpus`, the path of one, or a list of them with one tokenizer.
        batch_size: Number of rows of every batch, of all replicas together.
        batch_tokens: In its place, the number of places of a batch, of all replicas together: as
            many rows as keep rows times (Tx + Ty) at most this. `None` for `batch_size`. With
            `resample` rows are counted before it, and what it makes longer takes more places.
        steps: Number of batches of an epoch; `None` for those of one pass over all corpora.
        bucket: `Tx` and `Ty` are multiples of this.
        max_length: Longer sequences are cut to this many ids, the last of which stays the last; a
            warning in the log says how many. `None` for no limit.
        shuffle: Whether the order differs from pass to pass. Otherwise each pass takes the shards
            as they are, and in each its batches from the smallest shape to the largest.
        seed: Non-negative int, the randomness of the order.
        rank: Which of the replicas this is, from 0. Each row goes to one of them; all have batches
            of one shape.
        replicas: Number of replicas.
        multiple: Int; the rows of every batch are a multiple of it, such as the number of devices.
        temperature: With several corpora, each is taken in proportion to the `1 / temperature`
            power of its size, again and again: 1 takes all pairs once before any a second time,
            more takes small corpora more often.
        shapes: Largest number of shapes. More of them need less padding.
        padding: Share of the places, in [0, 1), that may be padding: there are no more shapes than
            keep to it. 0 for as many as there may be.
        resample: `(sources, targets, rng) -> (sources, targets)`, lists of other ids for each pair,
            such as a `BPEDropout`; or `None`. Pairs of like length by these ids are then brought
            together among 256 batches, whose widths are not those of `shapes`.

    Attributes:
        corpora: List of `PreparedCorpus`.
        epoch: `dataset[i]` is `batch(epoch * len(dataset) + i)`. 0 at first; may be set. The end of
            an epoch moves it on by one, and so does Keras before the first: to train the epochs
            from 0, set it in a callback's `on_epoch_begin`.
        tokens: Number of target tokens of one pass over all corpora.
        steps: Number of batches of an epoch. May be set.
        pass_steps: Number of batches of one pass over all corpora.
        shapes: List of the `(rows, Tx, Ty)` of the batches, those of padding included.

    Returns:
        From `dataset[i]` the pair `(inputs, labels)` of a `TranslationDataset`; `"alignment"` is
        there if all corpora have alignments. On TensorFlow the first batch of an epoch is wider by
        one place of `PAD` where it is as wide as the second, as Keras takes for variable only what
        differs between these two; epochs of one batch there must all have one shape.

    Raises:
        ValueError: If an argument is out of range, a corpus is damaged, the corpora have different
            tokenizers, the longest pair does not fit into `batch_tokens`, or a batch has fewer rows
            than there are replicas.

    Example:

    ```python
    dataset = PreparedDataset("corpus", batch_tokens=4096, steps=5000)
    follow = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(dataset, "epoch", epoch)
    )
    model.fit(dataset, epochs=20, shuffle=False, callbacks=[follow])
    ```
    """

    def __init__(
        self,
        corpora,
        batch_size=64,
        batch_tokens=None,
        steps=None,
        bucket=1,
        max_length=None,
        shuffle=True,
        seed=0,
        rank=0,
        replicas=1,
        multiple=1,
        temperature=1.0,
        shapes=96,
        padding=0.06,
        resample=None,
    ):
        super().__init__()
        _check_arguments(batch_size, batch_tokens, steps, bucket, max_length, seed, rank, replicas)
        check_range("multiple", multiple, int, 1)
        if shuffle not in (True, False):
            raise ValueError(f"Argument `shuffle` must be True or False. Received: {shuffle!r}")
        if batch_tokens is None and batch_size % multiple:
            raise ValueError(
                f"Argument `batch_size` must be a multiple of {multiple}, as devices share the "
                f"rows. Received: {batch_size}"
            )
        check_range("temperature", temperature, float, 0, open_low=True)
        check_range("shapes", shapes, int, 1, 2**16 - 1)
        check_range("padding", padding, float, 0, 1, open_high=True)
        self.corpora = _opened(corpora)
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.bucket, self.max_length = bucket, max_length
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.replicas, self.multiple = rank, replicas, multiple
        self.tokens = sum(corpus.tokens for corpus in self.corpora)
        found = [length_counts(corpus, max_length) for corpus in self.corpora]
        chosen = self._choose(found, shapes, padding)
        self._streams = [
            Stream(corpus, chosen, lengths, [seed, place] if shuffle else None)
            for place, (corpus, lengths) in enumerate(zip(self.corpora, found, strict=True))
        ]
        self._aligned = all(corpus.aligned for corpus in self.corpora)
        if self._aligned and resample is not None:
            raise ValueError(
                "Argument `resample` must be None for corpora with alignments, whose places it "
                f"moves. Received: {resample!r}"
            )
        if resample is not None:
            self._streams = [
                ResampledStream(stream, resample, [seed, place], bucket, max_length)
                for place, stream in enumerate(self._streams)
            ]
        cycle = shares([stream.batches for stream in self._streams], temperature)
        self.pass_steps = int(cycle.sum())
        self._turns = LRUCache(CorpusMixer(cycle, [seed] if shuffle else None), 2)
        self.steps = self.pass_steps if steps is None else steps
        self.shapes = [
            (-(-rows // replicas), tx, ty)
            for rows, (tx, ty) in zip(chosen.rows.tolist(), chosen.sides.tolist(), strict=True)
        ]

    def _choose(self, found, most, padding):
        """The `Shapes` of all batches, by the lengths of all pairs."""
        if self.max_length is not None:
            longer = sum(counts.longer for counts in found)
            warn_of_cut(longer, sum(corpus.pairs for corpus in self.corpora), self.max_length)
        lengths, counts = merge_counts([each for counts in found for each in counts.shards])
        ids = lengths.sum(axis=1)
        if self.batch_tokens is None:
            batches = counts.sum() / self.batch_size
        else:
            batches = (ids * counts).sum() / self.batch_tokens
        # The largest shapes have a batch with missing rows in every shard: few of them, then.
        shards = sum(len(counts.shards) for counts in found)
        most = min(most, max(1, int(batches / shards / _BATCHES_A_SHAPE)))
        sides = choose_sides(lengths, counts, most, self.bucket, padding)
        if self.batch_tokens is None:
            return Shapes(sides, np.full(len(sides), self.batch_size))
        least = max(self.replicas, self.multiple)
        rows = self.batch_tokens // sides.sum(axis=1) // self.multiple * self.multiple
        if rows.min() < least:
            needed = int(sides.sum(axis=1).max()) * least
            over = int(counts[ids * least > self.batch_tokens].sum())
            raise ValueError(
                f"Argument `batch_tokens` must be at least {needed}, enough for {least} of the "
                "longest rows, or `max_length` be smaller. Received: "
                f"{self.batch_tokens}, which {over} of {counts.sum()} pairs alone exceed"
            )
        return Shapes(sides, rows)

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        update = self.epoch * self.steps + index
        inputs, labels = self.batch(update)
        if index == 0 and self.steps > 1 and keras.config.backend() == "tensorflow":
            _, following = self._find(update + 1)
            return _widened(inputs, labels, following.source_width, following.target_width)
        return inputs, labels

    def batch(self, update):
        """The batch of an update.

        Args:
            update: Non-negative int; there is no last one.

        Returns:
            `(inputs, labels)`, as `dataset[i]`.

        Raises:
            ValueError: If `update` is negative, or a file of the corpus is not the one that
                `prepare` wrote.
        """
        check_range("update", update, int, 0)
        shard, batch = self._find(update)
        pairs = shard.take(batch.places[self.rank :: self.replicas])
        if self.max_length is not None:
            pairs = pairs.truncate(self.max_length)
        if not self._aligned:
            pairs = Shard(pairs.ids, pairs.offsets)
        rows = -(-batch.rows // self.replicas)
        return make_batch(pairs, rows, batch.source_width, batch.target_width)

    def _find(self, update):
        """The shard of a batch, and its `BatchRows`."""
        cycle, step = divmod(update, self.pass_steps)
        streams, places = self._turns(cycle)
        return self._streams[streams[step]].find(int(places[step]))


def _widened(inputs, labels, tx, ty):
    """The batch, wider by a place of padding where it is as wide as one of `(Tx, Ty)`."""
    more = {
        "source": ((0, 0), (0, int(inputs["source"].shape[1] == tx))),
        "target": ((0, 0), (0, int(labels.shape[1] == ty))),
    }
    more["alignment"] = ((0, 0), more["target"][1], more["source"][1])
    inputs = {name: np.pad(array, more[name]) for name, array in inputs.items()}
    return inputs, np.pad(labels, more["target"])


def _opened(corpora):
    """The corpora as a list, all of one tokenizer."""
    if isinstance(corpora, (str, os.PathLike, PreparedCorpus)):
        corpora = [corpora]
    if not isinstance(corpora, Iterable):
        raise ValueError(
            "Argument `corpora` must be a PreparedCorpus, the path of one, or a list of them. "
            f"Received: {corpora!r}"
        )
    opened = [
        each if isinstance(each, PreparedCorpus) else PreparedCorpus(each) for each in corpora
    ]
    if not opened:
        raise ValueError("Argument `corpora` must hold at least one corpus. Received: none")
    for other in opened[1:]:
        if other.tokenizer_hash != opened[0].tokenizer_hash:
            raise ValueError(
                "Argument `corpora` must be prepared with one tokenizer. Received: "
                f"{str(opened[0].path)!r} and {str(other.path)!r}, which have different ones"
            )
    return opened


def _check_arguments(batch_size, batch_tokens, steps, bucket, max_length, seed, rank, replicas):
    check_range("batch_size", batch_size, int, 1)
    check_range("bucket", bucket, int, 1)
    check_range("seed", seed, int, 0)
    for name, value, least in (
        ("batch_tokens", batch_tokens, 1),
        ("steps", steps, 1),
        ("max_length", max_length, 2),
    ):
        if value is not None:
            check_range(name, value, int, least)
    check_range("replicas", replicas, int, 1, None if batch_tokens else batch_size)
    check_range("rank", rank, int, 0, replicas, open_high=True)
