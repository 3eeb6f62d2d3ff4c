"""Vocabulary shortlists: the few target ids that a batch of sources is searched among."""

import io
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
from keras import ops

from keras_bahdanau_runtime.checks import check_range, checked_array
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import PAD, SPECIAL
from keras_bahdanau_runtime.text.batches import length_sorted_batches, pad
from keras_bahdanau_runtime.translation import BATCH_TOKENS

_LEAST_WEIGHT = 0.1  # of an alignment that counts
_UNREADABLE = (  # what NumPy raises of a file
    KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_ALWAYS = 1e6  # more often than any id is expected
_PARTS = ("table", "shares", "counts", "size")


class Shortlist:
    """The target ids that a source's tokens make likely, and the most frequent ones.

    All of a batch is searched among the same `size` target ids: the special ones, those of a forced
    prefix, and those that are expected most often,

        E(y) = sum_{b, j} p(y | x_bj)            x_bj the source ids of the batch,

    filled up with the most frequent. The product with the vocabulary and the ranking cost `size /
    V` of what they do without. Probabilities are normalised over these ids and, by the mean of all
    logits, the others. (Candidates by source word: Jean et al. 2015, arXiv 1412.2007, section 3.2.)

    Args:
        table: `(S, C)` int array: for each source id up to `C` target ids, padded with `PAD`.
        shares: `(S, C)` float array, `p(y | x)` of each; what stands at `PAD` does not count.
        counts: `(V,)` array of numbers, how often each target id occurs.
        size: Number of target ids that a batch is searched among, at least 8 and at most `V`.

    Raises:
        ValueError: If the shapes are others, an id is outside the vocabulary, a share outside
            [0, 1], the table holds no candidate with a share, or `size` is out of range.

    Example:

    >>> table, shares = [[0, 0]] * 9 + [[12, 10]], [[0, 0]] * 9 + [[0.7, 0.3]]
    >>> shortlist = Shortlist(table, shares, counts=range(20), size=8)
    >>> ops.convert_to_numpy(shortlist.candidates(np.array([[9, 3]], "int32"))).tolist()
    [0, 1, 2, 3, 10, 12, 18, 19]
    """

    def __init__(self, table, shares, counts, size):
        table, shares, counts = np.asarray(table), np.asarray(shares), np.asarray(counts)
        if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                "Argument `table` must be ints (source ids, candidates). "
                f"Received: {table.dtype} of shape {table.shape}"
            )
        if shares.shape != table.shape or not ((shares >= 0) & (shares <= 1)).all():
            raise ValueError(
                f"Argument `shares` must be numbers in [0, 1] of shape {table.shape}. Received: "
                f"shape {shares.shape}, {shares.min(initial=0)} to {shares.max(initial=0)}"
            )
        if counts.ndim != 1 or counts.dtype.kind not in "iuf":
            raise ValueError(
                "Argument `counts` must be numbers (target ids,). "
                f"Received: {counts.dtype} of shape {counts.shape}"
            )
        check_range("size", size, int, 2 * len(SPECIAL), len(counts))
        outside = table[(table < 0) | (table >= len(counts))]
        if outside.size:
            raise ValueError(
                f"Argument `table` must hold ids in [0, {len(counts)}). Received: {outside[0]}"
            )
        if not ((table >= len(SPECIAL)) & (shares > 0)).any():
            raise ValueError("Argument `table` must hold candidates with a share. Received: none")
        self.table, self.counts, self.size = table.astype("int32"), counts, size
        self.shares = np.where(table == PAD, 0, shares).astype("float32")
        self.shares[PAD] = 0.0  # what fills up a batch makes nothing likely
        # What is not expected at all, by its frequency: numbers that differ, less than any `E(y)`.
        self._ranks = np.empty(len(counts), "float32")
        self._ranks[np.argsort(counts, kind="stable")] = np.linspace(0, 1e-4, len(counts))
        self._ranks[: len(SPECIAL)] = _ALWAYS

    @property
    def source_vocabulary_size(self):
        """Number of source ids `S`."""
        return len(self.table)

    @property
    def target_vocabulary_size(self):
        """Number of target ids `V`."""
        return len(self.counts)

    def candidates(self, source, prefix=None, without=()):
        """The ids that a batch is searched among.

        Args:
            source: `(B, Tx)` int32 tensor.
            prefix: `(B, P)` int32 tensor of ids that are among them in any case, with the special
                ones at most `size`; or `None`.
            without: Ids that are not, unless `prefix` holds them or there are too few others.

        Returns:
            `(size,)` int32 tensor, ascending; the special ids are the first.
        """
        ranks = self._ranks.copy()
        ranks[list(without)] = -_ALWAYS
        ids, shares = (  # (B, Tx, C)
            ops.take(ops.convert_to_tensor(part), source, axis=0)
            for part in (self.table, self.shares)
        )
        if prefix is not None:
            ids = ops.concatenate([ops.reshape(ids, (-1,)), ops.reshape(prefix, (-1,))], axis=0)
            forced = ops.full_like(ops.reshape(prefix, (-1,)), 3 * _ALWAYS, dtype="float32")
            shares = ops.concatenate([ops.reshape(shares, (-1,)), forced], axis=0)
        expected = ops.scatter(  # which sums where ids repeat
            ops.reshape(ids, (-1, 1)), ops.reshape(shares, (-1,)), (self.target_vocabulary_size,)
        )
        _, ids = ops.top_k(ops.convert_to_tensor(ranks) + expected, self.size)
        return ops.sort(ops.cast(ids, "int32"))

    def save(self, path):
        """Writes one `.npz` file, whole or not at all."""
        with atomic_write(path) as writing, writing.open("wb") as file:
            np.savez_compressed(file, **{name: getattr(self, name) for name in _PARTS})

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: If it is no such file.
        """
        return cls.parse(Path(path).read_bytes(), path)

    @classmethod
    def parse(cls, contents, path="the shortlist"):
        """As `load`, of the bytes of such a file; `path` is its name in messages."""
        try:
            with np.load(io.BytesIO(contents), allow_pickle=False) as arrays:
                parts = {name: arrays[name] for name in _PARTS}
        except _UNREADABLE as error:
            raise ValueError(
                "Argument `path` must be a file that `Shortlist.save` wrote. "
                f"Received: {os.fspath(path)!r}: {error}"
            ) from error
        return cls(**{**parts, "size": int(parts["size"])})

    @classmethod
    def from_links(cls, pairs, source_size, target_size, size, candidates=50):
        """A shortlist of the target ids that stand most often beside each source id.

        Args:
            pairs: Iterable of `(source ids, target ids, weights)`, one for each pair of sentences:
                lists of ints, and a `(Ty, Tx)` float array, such as attention weights, or a list of
                links (source place, target place), as `read_alignments` gives it.
            source_size: Number of source ids `S`.
            target_size: Number of target ids `V`.
            size: As for the class.
            candidates: Most candidates of a source id, `C`.

        Raises:
            ValueError: As the class; or if there are no pairs, an id is of another vocabulary,
                weights have another shape, or a link has no such place.
        """
        check_range("candidates", candidates, int, 1)
        links, counts, parts = _Links(target_size), np.zeros(target_size), 0
        for source, target, weights in pairs:
            parts += 1
            source, target = _ids(source, source_size), _ids(target, target_size)
            np.add.at(counts, target, 1)
            if isinstance(weights, list):
                weights = _linked(weights, len(source), len(target))
            if np.shape(weights) != (len(target), len(source)):
                raise ValueError(
                    f"Argument `pairs` must have weights of shape {(len(target), len(source))} "
                    f"where they have so many ids. Received: {np.shape(weights)}"
                )
            i, j = np.nonzero(weights >= _LEAST_WEIGHT)
            links.add(source[j], target[i], weights[i, j])
        if not parts:
            raise ValueError("Argument `pairs` must hold at least one. Received: none")
        return cls(*links.best(source_size, candidates), counts, size)

    @classmethod
    def learned(
        cls,
        model,
        sources,
        targets,
        size,
        candidates=50,
        batch_size=64,
        progress=None,
        batch_tokens=BATCH_TOKENS,
    ):
        """A shortlist of what a model's own attention links, by forced decoding.

        Args:
            model: A `Seq2Seq` or an `Ensemble`.
            sources: Lists of source ids, `EOS` last.
            targets: Lists of target ids, one for each source.
            size: As for the class.
            candidates: Most candidates of a source id, `C`.
            batch_size: Most pairs decoded at once.
            progress: Called after each batch with the number of pairs done.
            batch_tokens: Most ids of their sources, or targets, padding included; a longer pair is
                decoded alone. `None` for no limit.

        Raises:
            ValueError: As `from_links` and `model.score`; or if there is not one target for each
                source.
        """
        if len(targets) != len(sources):
            raise ValueError(
                f"Argument `targets` must hold one for each of {len(sources)} sources. "
                f"Received: {len(targets)}"
            )
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]

        def pairs():
            done = 0
            for some in length_sorted_batches(lengths, batch_size, batch_tokens):
                source, target = ([side[i] for i in some] for side in (sources, targets))
                found = model.score(pad(source), pad(target))
                for row, (of_source, of_target) in enumerate(zip(source, target, strict=True)):
                    weights = found.alignments[row, : len(of_target), : len(of_source)]
                    yield of_source, of_target, weights
                done += len(some)
                if progress is not None:
                    progress(done)

        return cls.from_links(
            pairs(), model.source_vocabulary_size, model.target_vocabulary_size, size, candidates
        )


def _ids(ids, size):
    """The ids of a sentence as an array."""
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not ((0 <= array) & (array < size)).all():
        raise ValueError(f"Argument `pairs` must hold ids in [0, {size}). Received: {ids!r:.80}")
    return array


def _linked(links, source_length, target_length):
    """`(Ty, Tx)` float32 ones where places are linked."""
    weights = np.zeros((target_length, source_length), "float32")
    places = checked_array("pairs", links or np.empty((0, 2), int))
    if places.ndim != 2 or places.shape[1] != 2 or places.dtype.kind not in "iu":
        raise ValueError(
            "Argument `pairs` must link two places by two ints where weights are a list, and hold "
            f"an array of them else. Received: {links!r:.80}"
        )
    j, i = places.T
    outside = (places < 0).any(axis=1) | (j >= source_length) | (i >= target_length)
    if outside.any():
        wrong = "-".join(map(str, places[outside][0].tolist()))
        raise ValueError(
            "Argument `pairs` must link places of sentences of "
            f"{source_length} and {target_length} ids. Received: {wrong}"
        )
    weights[i, j] = 1.0
    return weights


def check_shortlist(shortlist, model, search, prefix=None):
    """Raises a `ValueError` unless a `Shortlist` fits a model, a search and forced prefixes.

    Args:
        shortlist: Whatever was given for one.
        model: What has `source_vocabulary_size` and `target_vocabulary_size`.
        search: A `Search`, whose beam and forbidden ids must leave candidates.
        prefix: `(B, P)` int array whose ids must have room, or `None`.
    """
    if not isinstance(shortlist, Shortlist):
        raise ValueError(
            "Argument `shortlist` must be a Shortlist or None. "
            f"Received: {type(shortlist).__name__}"
        )
    for side in ("source", "target"):
        wanted, size = (getattr(each, f"{side}_vocabulary_size") for each in (model, shortlist))
        if size != wanted:
            raise ValueError(
                f"Argument `shortlist` must be of the model's {wanted} {side} ids. "
                f"Received: one of {size}"
            )
    if search.size > shortlist.size:
        raise ValueError(
            "Argument `shortlist` must leave as many ids as the search keeps hypotheses, "
            f"{search.size}. Received: {shortlist.size}"
        )
    forbidden = set(search.forbidden) - set(SPECIAL)
    most = shortlist.target_vocabulary_size - len(forbidden)
    if shortlist.size > most:
        raise ValueError(
            "Argument `shortlist` must have room to leave out what the search forbids: a size of "
            f"at most {most}. Received: {shortlist.size}"
        )
    forced = set() if prefix is None else set(np.unique(prefix).tolist()) - set(SPECIAL)
    if forced & forbidden:
        raise ValueError(
            "Argument `prefix` must hold nothing that the search forbids where there is a "
            f"shortlist. Received: {min(forced & forbidden)}"
        )
    most = shortlist.size - len(SPECIAL)
    if len(forced) > most:
        raise ValueError(
            f"Argument `prefix` must hold at most {most} ids that differ, for which the shortlist "
            f"has room. Received: {len(forced)}"
        )


class _Links:
    """Sums of weights by source and target id."""

    def __init__(self, target_size):
        self._target_size = target_size
        self._keys, self._sums = np.empty(0, "int64"), np.empty(0)
        self._new = []

    def add(self, sources, targets, weights):
        self._new.append((sources.astype("int64") * self._target_size + targets, weights))
        if len(self._new) == 10_000:
            self._merge()

    def _merge(self):
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._new)])
        weights = np.concatenate([self._sums, *(weights for _, weights in self._new)])
        self._keys, places = np.unique(keys, return_inverse=True)
        self._sums = np.bincount(places, weights, len(self._keys))
        self._new = []

    def best(self, source_size, most):
        """The target ids with the largest sums of each source id, and their shares, `(S, C)`."""
        self._merge()
        sources, targets = np.divmod(self._keys, self._target_size)
        kept = targets >= len(SPECIAL)
        sources, targets, sums = sources[kept], targets[kept], self._sums[kept]
        shares = sums / np.bincount(sources, sums, source_size)[sources]
        order = np.lexsort((-shares, sources))
        places = np.arange(len(order)) - np.searchsorted(sources, sources)
        order, places = order[places < most], places[places < most]
        table = np.full((source_size, most), PAD, "int32")
        table[sources[order], places] = targets[order]
        found = np.zeros(table.shape, "float32")
        found[sources[order], places] = shares[order]
        return table, found
