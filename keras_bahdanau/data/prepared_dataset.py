"""Batches from prepared corpora of any size, each accessible by its number."""

import os
from collections.abc import Iterable

import keras
import numpy as np

from keras_bahdanau.data.batching import (
    EpochDataset,
    Shapes,
    choose_sides,
    log_truncation,
    make_batch,
)
from keras_bahdanau.data.corpus import PreparedCorpus, Shard
from keras_bahdanau.data.corpus_batches import (
    CorpusBatches,
    CorpusMixer,
    LRUCache,
    ResampledBatches,
    cycle_shares,
    fixed_shares,
    length_counts,
    merge_counts,
)
from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.errors import argument_error

_BATCHES_PER_SHAPE = 8  # in a shard, on average


class PreparedDataset(EpochDataset):
    """Batches of pairs with similar lengths from prepared corpora, for `model.fit`.

    Training is a sequence of updates. The batch of an update is a function of `seed` and its
    number, and `batch(update)` returns it without computing earlier ones. A pass over a corpus
    takes its shards in a random order, permutes the pairs of each shard, groups them by shape and
    shuffles the batches of the shard. Every pair occurs once in a pass. The next pass follows
    immediately.

    There are only a few shapes of batches, chosen once for all pairs such that little of them is
    padding, so a training step is compiled only a few times. Each has enough rows for `batch_size`
    or `batch_tokens`. Rows that do not fill a batch of their shape move to a larger one. Missing
    rows in the last batch of a shard are padding, so the loss must ignore labels that are `PAD`.

    Keras calls `on_epoch_end` once before `fit` begins: see `epoch`. Pass `shuffle=False` to the
    `fit` of a model that is not a `Seq2Seq`, because Keras by default shuffles the batches with
    Python's `random`, and each batch may then be in another shard.

    Args:
        corpora: A `PreparedCorpus`, its path, or a list of them with the same tokenizer.
        batch_size: Number of rows of every batch, of all replicas together.
        batch_tokens: Largest number of positions of a batch, rows times (Tx + Ty), of all replicas
            together; `None` to use `batch_size`. With `resample`, rows are counted before it, so
            longer resampled sequences exceed this.
        steps: Number of batches of an epoch; `None` for one pass over all corpora.
        bucket: `Tx` and `Ty` are multiples of this.
        max_length: Longest sequence. Longer ones are truncated to this many ids, with their last id
            at the end, and a warning in the log states their number. `None` for no limit.
        shuffle: Whether the order differs from pass to pass. Otherwise each pass takes the shards
            in order, and the batches of a shard from the smallest shape to the largest.
        seed: Non-negative int, the seed of the order.
        rank: Rank of this replica, from 0. Each row belongs to one replica. The batches of all
            replicas have the same shape.
        replicas: Number of replicas.
        multiple: Int. The number of rows of every batch is a multiple of it, such as the number of
            devices.
        temperature: With several corpora, each is used in proportion to the `1 / temperature`
            power of its size. With 1 all pairs are used once before any is repeated. Larger values
            favor small corpora.
        shapes: Largest number of shapes. More shapes need less padding.
        padding: Share of positions, in [0, 1), that may be padding. The number of shapes is reduced
            as far as this allows; 0 for the largest number.
        resample: `(sources, targets, rng) -> (sources, targets)`, which returns other lists of ids
            for each pair, such as a `BPEDropout`; or `None`. The pairs are then grouped by their
            new lengths within 256 batches, whose widths are not those of `shapes`.
        shares: For each corpus but the first, the share of the batches that it gets, above 0 and
            below 1 in all. The first corpus gets the rest, and one pass uses each of its pairs
            once. `None` to use `temperature`.

    Attributes:
        corpora: List of `PreparedCorpus`.
        epoch: Number of the epoch whose batches `dataset[i]` returns: `steps` batches from
            `batch(epoch * steps)` on, which need not be a pass. 0 at first; may be set. The end of
            an epoch increments it, and Keras also does so before the first epoch. To train the
            epochs from 0, set it in a callback's `on_epoch_begin`.
        tokens: Number of target tokens in one pass over all corpora, or with `shares` in one pass
            over the first.
        steps: Number of batches of an epoch. May be set.
        pass_steps: Number of batches of such a pass.
        shapes: List of the `(rows, Tx, Ty)` of the batches, including rows of padding.

    Returns:
        From `dataset[i]` the pair `(inputs, labels)` of a `TranslationDataset`, with `"alignment"`
        if all corpora have alignments. On TensorFlow the first batch of an epoch has one more
        column of `PAD` where it is as wide as the second, because Keras treats an axis as variable
        only if these two differ in it. Epochs of one batch must all have the same shape there.

    Raises:
        ValueError: If an argument is out of range, a corpus is damaged, the corpora have different
            tokenizers, the longest pair does not fit into `batch_tokens`, or a batch has fewer rows
            than there are replicas.

    Example:

    ```python
    dataset = PreparedDataset("corpus", batch_tokens=4096, steps=5000)
    set_epoch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(dataset, "epoch", epoch)
    )
    model.fit(dataset, epochs=20, callbacks=[set_epoch])
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
        shares=None,
    ):
        super().__init__()
        _check_arguments(batch_size, batch_tokens, steps, bucket, max_length, seed, rank, replicas)
        check_range("multiple", multiple, int, 1)
        if shuffle not in (True, False):
            raise argument_error("shuffle", "be True or False", shuffle)
        if batch_tokens is None and batch_size % multiple:
            raise argument_error(
                "batch_size",
                f"be a multiple of {multiple}, because devices share the rows",
                received=str(batch_size),
            )
        check_range("temperature", temperature, float, 0, open_low=True)
        check_range("shapes", shapes, int, 1, 2**16 - 1)
        check_range("padding", padding, float, 0, 1, open_high=True)
        self.corpora = _opened(corpora)
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.bucket, self.max_length = bucket, max_length
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.replicas, self.multiple = rank, replicas, multiple
        lengths = [length_counts(corpus, max_length) for corpus in self.corpora]
        chosen = self._choose_shapes(lengths, shapes, padding)
        self._batches = [
            CorpusBatches(corpus, chosen, counts, [seed, number] if shuffle else None)
            for number, (corpus, counts) in enumerate(zip(self.corpora, lengths, strict=True))
        ]
        self._aligned = all(corpus.aligned for corpus in self.corpora)
        if self._aligned and resample is not None:
            raise argument_error(
                "resample",
                "be None for corpora with alignments, because it changes the positions of tokens",
                resample,
            )
        if resample is not None:
            self._batches = [
                ResampledBatches(original, resample, [seed, number], bucket, max_length)
                for number, original in enumerate(self._batches)
            ]
        batches = [source.batches for source in self._batches]
        self.tokens = sum(corpus.tokens for corpus in self.corpora)
        if shares is None:
            steps_per_pass = cycle_shares(batches, temperature)
        else:
            steps_per_pass = fixed_shares(batches[0], _checked_shares(shares, self.corpora))
            self.tokens = sum(
                round(corpus.tokens * used / all_batches)
                for corpus, used, all_batches in zip(
                    self.corpora, steps_per_pass.tolist(), batches, strict=True
                )
            )
        self.pass_steps = int(steps_per_pass.sum())
        self._mixer = LRUCache(CorpusMixer(steps_per_pass, [seed] if shuffle else None), 2)
        self.steps = self.pass_steps if steps is None else steps
        self.shapes = [
            (-(-rows // replicas), tx, ty)
            for rows, (tx, ty) in zip(chosen.rows.tolist(), chosen.sides.tolist(), strict=True)
        ]

    def _choose_shapes(self, length_counts, max_shapes, padding):
        """Return the `Shapes` of all batches for a list of `LengthCounts`, one for each corpus."""
        if self.max_length is not None:
            truncated = sum(counts.truncated for counts in length_counts)
            pairs = sum(corpus.pairs for corpus in self.corpora)
            log_truncation(truncated, pairs, self.max_length)
        shards = [shard for counts in length_counts for shard in counts.shards]
        lengths, counts = merge_counts(shards)
        ids = lengths.sum(axis=1)
        if self.batch_tokens is None:
            batches = counts.sum() / self.batch_size
        else:
            batches = (ids * counts).sum() / self.batch_tokens
        # The largest shapes have a batch with missing rows in every shard, so limit their number.
        limit = max(1, int(batches / len(shards) / _BATCHES_PER_SHAPE))
        sides = choose_sides(lengths, counts, min(max_shapes, limit), self.bucket, padding)
        if self.batch_tokens is None:
            return Shapes(sides, np.full(len(sides), self.batch_size))
        min_rows = max(self.replicas, self.multiple)
        rows = self.batch_tokens // sides.sum(axis=1) // self.multiple * self.multiple
        if rows.min() < min_rows:
            needed = int(sides.sum(axis=1).max()) * min_rows
            over = int(counts[ids * min_rows > self.batch_tokens].sum())
            raise argument_error(
                "batch_tokens",
                f"be at least {needed}, enough for {min_rows} of the longest rows, or "
                "`max_length` be smaller",
                received=f"{self.batch_tokens}, which {over} of {counts.sum()} pairs alone exceed",
            )
        return Shapes(sides, rows)

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        update = self.epoch * self.steps + index
        inputs, labels = self.batch(update)
        if index == 0 and self.steps > 1 and keras.config.backend() == "tensorflow":
            _, following = self._planned_batch(update + 1)
            return _widened(inputs, labels, following.source_width, following.target_width)
        return inputs, labels

    def batch(self, update):
        """Return the batch of an update.

        Args:
            update: Non-negative int, without an upper limit.

        Returns:
            `(inputs, labels)`, as `dataset[i]`.

        Raises:
            ValueError: If `update` is negative, or a file of the corpus is not the one that
                `prepare` wrote.
        """
        check_range("update", update, int, 0)
        shard, batch = self._planned_batch(update)
        pairs = shard.take(batch.indices[self.rank :: self.replicas])
        if self.max_length is not None:
            pairs = pairs.truncate(self.max_length)
        if not self._aligned:
            pairs = Shard(pairs.ids, pairs.offsets)
        rows = -(-batch.rows // self.replicas)
        return make_batch(pairs, rows, batch.source_width, batch.target_width)

    def _planned_batch(self, update):
        """Return the shard of a batch, and its `PlannedBatch`."""
        cycle, step = divmod(update, self.pass_steps)
        corpora, indices = self._mixer(cycle)
        return self._batches[corpora[step]].batch(int(indices[step]))


def _widened(inputs, labels, tx, ty):
    """Add a column of padding to a batch in each axis in which it is as wide as `(Tx, Ty)`."""
    pad_widths = {
        "source": ((0, 0), (0, int(inputs["source"].shape[1] == tx))),
        "target": ((0, 0), (0, int(labels.shape[1] == ty))),
    }
    pad_widths["alignment"] = ((0, 0), pad_widths["target"][1], pad_widths["source"][1])
    inputs = {name: np.pad(array, pad_widths[name]) for name, array in inputs.items()}
    return inputs, np.pad(labels, pad_widths["target"])


def _opened(corpora):
    """Return the corpora as a list, after checking that they have the same tokenizer."""
    if isinstance(corpora, (str, os.PathLike, PreparedCorpus)):
        corpora = [corpora]
    if not isinstance(corpora, Iterable):
        raise argument_error(
            "corpora", "be a PreparedCorpus, the path of one, or a list of them", corpora
        )
    opened = [
        corpus if isinstance(corpus, PreparedCorpus) else PreparedCorpus(corpus)
        for corpus in corpora
    ]
    if not opened:
        raise argument_error("corpora", "hold at least one corpus", received="none")
    for other in opened[1:]:
        # Another version of the tokenizers library may have written an equal tokenizer.
        same_file = other.tokenizer_hash == opened[0].tokenizer_hash
        if not same_file and other.tokenizer != opened[0].tokenizer:
            raise argument_error(
                "corpora",
                "be prepared with one tokenizer",
                received=f"{str(opened[0].path)!r} and {str(other.path)!r}, which have two",
            )
    return opened


def _checked_shares(shares, corpora):
    """Return `shares` as a list, or raise a `ValueError`."""
    shares = list(shares)
    for share in shares:
        check_range("shares", share, float, 0, 1, open_low=True, open_high=True)
    if len(shares) != len(corpora) - 1 or sum(shares) >= 1:
        raise argument_error(
            "shares",
            "have a share for each corpus but the first, below 1 in all",
            received=f"{shares} for {len(corpora)} corpora",
        )
    return shares


def _check_arguments(batch_size, batch_tokens, steps, bucket, max_length, seed, rank, replicas):
    check_range("batch_size", batch_size, int, 1)
    check_range("bucket", bucket, int, 1)
    check_range("seed", seed, int, 0)
    for name, value, low in (
        ("batch_tokens", batch_tokens, 1),
        ("steps", steps, 1),
        ("max_length", max_length, 2),
    ):
        if value is not None:
            check_range(name, value, int, low)
    check_range("replicas", replicas, int, 1, None if batch_tokens else batch_size)
    check_range("rank", rank, int, 0, replicas, open_high=True)
