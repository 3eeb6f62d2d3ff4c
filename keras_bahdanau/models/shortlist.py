"""Vocabulary shortlists: the candidate target ids for a batch of sources."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
from keras import ops

from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.batch_sizes import BATCH_TOKENS
from keras_bahdanau_runtime.checks import check_range, checked_array
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import PAD, SPECIAL
from keras_bahdanau_runtime.text.batches import length_sorted_batches, pad
from keras_bahdanau_runtime.zip_files import open_zip, read_member

_MIN_WEIGHT = 0.1  # smaller attention weights are no links
# Errors of NumPy and of `open_zip` for a wrong file.
_READ_ERRORS = (TypeError, ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile)
_MAX_BYTES = 2**30  # of an array in a file: a table of 250,000 words takes 100 million
_ALWAYS = 1e6  # larger than the expected count of any id
_ARRAYS = ("table", "shares", "counts", "size")


class Shortlist:
    """Selects the target ids that the source tokens make likely, and the most frequent ones.

    All sentences of a batch are searched among the same `size` target ids: the special ids, the ids
    of forced prefixes, and those with the largest expected counts,

        E(y) = sum_{b, j} p(y | x_bj)            x_bj the source ids of the batch,

    followed by the most frequent ids. The matrix product with the vocabulary and the ranking take
    `size / V` of the time that all ids take. Probabilities are normalized over these ids and an
    estimate of the others from the mean of all logits. (Candidates by source word: Jean et al.
    2015, arXiv 1412.2007, section 3.2.)

    Args:
        table: `(S, C)` int array: up to `C` target ids for each source id, padded with `PAD`.
        shares: `(S, C)` float array, `p(y | x)` of each. Values at `PAD` are ignored.
        counts: `(V,)` array of numbers, the frequency of each target id.
        size: Number of candidate ids of a batch, at least 8 and at most `V`.

    Raises:
        ValueError: If a shape is wrong, an id is outside the vocabulary, a share outside [0, 1],
            the table has no candidate with a share, or `size` is out of range.

    Example:

    >>> table, shares = [[0, 0]] * 9 + [[12, 10]], [[0, 0]] * 9 + [[0.7, 0.3]]
    >>> shortlist = Shortlist(table, shares, counts=range(20), size=8)
    >>> ops.convert_to_numpy(shortlist.candidates(np.array([[9, 3]], "int32"))).tolist()
    [0, 1, 2, 3, 10, 12, 18, 19]
    """

    def __init__(self, table, shares, counts, size):
        table, shares, counts = np.asarray(table), np.asarray(shares), np.asarray(counts)
        check_shape("table", table, "source_ids candidates", "ints")
        if shares.shape != table.shape or not ((shares >= 0) & (shares <= 1)).all():
            raise argument_error(
                "shares",
                f"be numbers in [0, 1] of shape {table.shape}",
                received=f"shape {shares.shape}, "
                f"{shares.min(initial=0)} to {shares.max(initial=0)}",
            )
        if counts.ndim != 1 or counts.dtype.kind not in "iuf":
            raise argument_error(
                "counts",
                "be numbers (target ids,)",
                received=f"{counts.dtype} of shape {counts.shape}",
            )
        check_range("size", size, int, 2 * len(SPECIAL), len(counts))
        outside = table[(table < 0) | (table >= len(counts))]
        if outside.size:
            raise argument_error(
                "table", f"hold ids in [0, {len(counts)})", received=str(outside[0])
            )
        if not ((table >= len(SPECIAL)) & (shares > 0)).any():
            raise argument_error("table", "hold candidates with a share", received="none")
        self.table, self.counts, self.size = table.astype("int32"), counts, size
        self.shares = np.where(table == PAD, 0, shares).astype("float32")
        self.shares[PAD] = 0.0  # padding makes no target id likely
        # Ranks of ids without an expected count, by frequency. They are distinct and smaller than
        # any `E(y)`.
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

    def candidates(self, source, prefix=None, excluded=(), copied=None):
        """Return the candidate ids of a batch.

        Args:
            source: `(B, Tx)` int32 tensor.
            prefix: `(B, P)` int32 tensor of ids that are always candidates, or `None`. Together
                with the special ids there may be at most `size`.
            excluded: Ids that are not candidates, unless they are in `prefix` or there are too few
                other ids.
            copied: `(B, Tx)` int32 tensor of ids that can be copied, which are candidates if there
                is room for all of them; or `None`.

        Returns:
            `(size,)` int32 tensor in ascending order, with the special ids first.
        """
        ranks = self._ranks.copy()
        ranks[list(excluded)] = -_ALWAYS
        ids, shares = (  # (B, Tx, C)
            ops.take(ops.convert_to_tensor(array), source, axis=0)
            for array in (self.table, self.shares)
        )
        if prefix is not None:
            ids = ops.concatenate([ops.reshape(ids, (-1,)), ops.reshape(prefix, (-1,))], axis=0)
            forced = ops.full_like(ops.reshape(prefix, (-1,)), 3 * _ALWAYS, dtype="float32")
            shares = ops.concatenate([ops.reshape(shares, (-1,)), forced], axis=0)
        expected = ops.scatter(  # sums the shares of repeated ids
            ops.reshape(ids, (-1, 1)), ops.reshape(shares, (-1,)), (self.target_vocabulary_size,)
        )
        ranks = ops.convert_to_tensor(ranks) + expected
        if copied is not None:
            is_copied = ops.scatter_update(
                ops.zeros((self.target_vocabulary_size,), dtype="float32"),
                ops.reshape(copied, (-1, 1)),
                ops.ones_like(ops.reshape(copied, (-1,)), dtype="float32"),
            )
            ranks = ranks + 0.5 * _ALWAYS * is_copied
        _, ids = ops.top_k(ranks, self.size)
        return ops.sort(ops.cast(ids, "int32"))

    def save(self, path):
        """Write an `.npz` file. An error leaves no incomplete file."""
        with atomic_write(path) as temporary_path, temporary_path.open("wb") as file:
            np.savez_compressed(file, **{name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path):
        """Read a file that `save` has written.

        Args:
            path: The file.

        Raises:
            ValueError: If it is another file.
        """
        return cls.parse(Path(path).read_bytes(), path)

    @classmethod
    def parse(cls, contents, path="the shortlist"):
        """As `load`, from the bytes of a file; `path` is its name in error messages."""
        try:
            arguments = {}
            with open_zip(contents) as archive:
                for name in _ARRAYS:
                    array = io.BytesIO(read_member(archive, f"{name}.npy", _MAX_BYTES))
                    arguments[name] = np.lib.format.read_array(array, allow_pickle=False)
            arguments["size"] = int(arguments["size"])
        except _READ_ERRORS as error:
            raise argument_error(
                "path",
                "be a file that `Shortlist.save` wrote",
                received=f"{os.fspath(path)!r}: {error}",
            ) from error
        return cls(**arguments)

    @classmethod
    def from_links(cls, pairs, source_size, target_size, size, candidates=50):
        """Create a shortlist of the target ids that are aligned most often to each source id.

        Args:
            pairs: Iterable of `(source ids, target ids, weights)`, one for each pair of sentences:
                two lists of ints, and a `(Ty, Tx)` float array, such as attention weights, or a
                list of links (source position, target position), as returned by `read_alignments`.
            source_size: Number of source ids `S`.
            target_size: Number of target ids `V`.
            size: The argument of the class.
            candidates: Largest number of candidates of a source id, `C`.

        Raises:
            ValueError: For the errors of the class, or if there are no pairs, an id is outside its
                vocabulary, weights have the wrong shape, or a link has a position outside its
                sentence.
        """
        check_range("candidates", candidates, int, 1)
        links, counts, pair_count = _LinkCounts(target_size), np.zeros(target_size), 0
        for source, target, weights in pairs:
            pair_count += 1
            source, target = (
                _checked_sentence(source, source_size),
                _checked_sentence(target, target_size),
            )
            np.add.at(counts, target, 1)
            if isinstance(weights, list):
                weights = _link_matrix(weights, len(source), len(target))
            if np.shape(weights) != (len(target), len(source)):
                raise argument_error(
                    "pairs",
                    f"have weights of shape {(len(target), len(source))} for sentences of "
                    "these lengths",
                    received=str(np.shape(weights)),
                )
            i, j = np.nonzero(weights >= _MIN_WEIGHT)
            links.add(source[j], target[i], weights[i, j])
        if not pair_count:
            raise argument_error("pairs", "hold at least one", received="none")
        return cls(*links.most_frequent(source_size, candidates), counts, size)

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
        """Create a shortlist from the attention weights of a model, by forced decoding.

        Args:
            model: A `Seq2Seq` or an `Ensemble`.
            sources: Lists of source ids with `EOS` last.
            targets: Lists of target ids, one for each source.
            size: The argument of the class.
            candidates: Largest number of candidates of a source id, `C`.
            batch_size: Largest number of pairs in a batch.
            progress: Function that is called after each batch with the number of finished pairs.
            batch_tokens: Largest number of source or target positions in a batch, including
                padding. A longer pair is a batch with one row. `None` for no limit.

        Raises:
            ValueError: For the errors of `from_links` and `model.score`, or if `sources` and
                `targets` have different lengths.
        """
        if len(targets) != len(sources):
            raise argument_error(
                "targets",
                f"hold one for each of {len(sources)} sources",
                received=str(len(targets)),
            )
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]

        def pairs():
            done = 0
            for indices in length_sorted_batches(lengths, batch_size, batch_tokens):
                batch = [(sources[i], targets[i]) for i in indices]
                scores = model.score(*(pad(side) for side in zip(*batch, strict=True)))
                for row, (source, target) in enumerate(batch):
                    yield source, target, scores.alignments[row, : len(target), : len(source)]
                done += len(batch)
                if progress is not None:
                    progress(done)

        return cls.from_links(
            pairs(), model.source_vocabulary_size, model.target_vocabulary_size, size, candidates
        )


def _checked_sentence(ids, size):
    """Return the ids of a sentence as an array, after checking them."""
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not ((0 <= array) & (array < size)).all():
        raise argument_error("pairs", f"hold ids in [0, {size})", ids)
    return array


def _link_matrix(links, source_length, target_length):
    """Return `(Ty, Tx)` float32 weights, 1 at links and 0 elsewhere."""
    weights = np.zeros((target_length, source_length), "float32")
    positions = checked_array("pairs", links or np.empty((0, 2), int))
    if positions.ndim != 2 or positions.shape[1] != 2 or positions.dtype.kind not in "iu":
        raise argument_error(
            "pairs", "have weights that are an array, or a list of links with two ints each", links
        )
    j, i = positions.T
    is_outside = (positions < 0).any(axis=1) | (j >= source_length) | (i >= target_length)
    if is_outside.any():
        link = "-".join(map(str, positions[is_outside][0].tolist()))
        raise argument_error(
            "pairs",
            f"link positions of sentences of {source_length} and {target_length} ids",
            received=str(link),
        )
    weights[i, j] = 1.0
    return weights


def check_shortlist(shortlist, model, search, prefix=None, required=None):
    """Raise a `ValueError` unless a shortlist fits a model, a search and forced ids.

    Args:
        shortlist: The argument `shortlist` of the caller.
        model: A model with `source_vocabulary_size` and `target_vocabulary_size`.
        search: A `Search`. Its beam needs enough candidates that are not forbidden.
        prefix: `(B, n)` int array of ids that must be candidates, or `None`.
        required: `(B, P, L)` int array of ids that must be candidates, or `None`.
    """
    if not isinstance(shortlist, Shortlist):
        raise argument_error(
            "shortlist", "be a Shortlist or None", received=str(type(shortlist).__name__)
        )
    for side in ("source", "target"):
        expected = getattr(model, f"{side}_vocabulary_size")
        size = getattr(shortlist, f"{side}_vocabulary_size")
        if size != expected:
            raise argument_error(
                "shortlist", f"be of the model's {expected} {side} ids", received=f"one of {size}"
            )
    if search.num_hypotheses > shortlist.size:
        raise argument_error(
            "shortlist",
            f"have at least as many ids as the search has hypotheses, {search.num_hypotheses}",
            received=str(shortlist.size),
        )
    forbidden = set(search.forbidden) - set(SPECIAL)
    limit = shortlist.target_vocabulary_size - len(forbidden)
    if shortlist.size > limit:
        raise argument_error(
            "shortlist",
            f"have room to leave out the ids that the search forbids: a size of at most {limit}",
            received=str(shortlist.size),
        )
    forced, limit = set(), shortlist.size - len(SPECIAL)
    for name, ids in (("prefix", prefix), ("required", required)):
        new = set() if ids is None else set(np.unique(ids).tolist()) - set(SPECIAL)
        if new & forbidden:
            raise argument_error(
                name,
                "not hold ids that the search forbids if there is a shortlist",
                received=str(min(new & forbidden)),
            )
        forced |= new
        if len(forced) > limit:
            raise argument_error(
                name,
                f"hold at most {limit} distinct ids, for which the shortlist has room",
                received=str(len(forced)),
            )


class _LinkCounts:
    """Sums of weights by source and target id."""

    def __init__(self, target_size):
        self._target_size = target_size
        self._keys, self._sums = np.empty(0, "int64"), np.empty(0)
        self._pending = []

    def add(self, sources, targets, weights):
        self._pending.append((sources.astype("int64") * self._target_size + targets, weights))
        if len(self._pending) == 10_000:
            self._merge()

    def _merge(self):
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._pending)])
        weights = np.concatenate([self._sums, *(weights for _, weights in self._pending)])
        self._keys, inverse = np.unique(keys, return_inverse=True)
        self._sums = np.bincount(inverse, weights, len(self._keys))
        self._pending = []

    def most_frequent(self, source_size, limit):
        """Return the target ids with the largest sums for each source id, and their shares.

        Both are `(S, C)` arrays.
        """
        self._merge()
        sources, targets = np.divmod(self._keys, self._target_size)
        is_ordinary = targets >= len(SPECIAL)
        sources, targets, sums = (array[is_ordinary] for array in (sources, targets, self._sums))
        shares = sums / np.bincount(sources, sums, source_size)[sources]
        order = np.lexsort((-shares, sources))
        ranks = np.arange(len(order)) - np.searchsorted(sources, sources)
        order, ranks = order[ranks < limit], ranks[ranks < limit]
        table = np.full((source_size, limit), PAD, "int32")
        table[sources[order], ranks] = targets[order]
        table_shares = np.zeros(table.shape, "float32")
        table_shares[sources[order], ranks] = shares[order]
        return table, table_shares
