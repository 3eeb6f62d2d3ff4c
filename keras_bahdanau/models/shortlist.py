"""Vocabulary shortlists: the few target ids that a batch of sources is searched among."""

import io
import os
import zipfile
import zlib

import numpy as np
from keras import ops

from keras_bahdanau_runtime.checks import check_range
from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.ids import PAD, SPECIAL
from keras_bahdanau_runtime.text.batches import pad

_LEAST_WEIGHT = 0.1  # of an alignment that counts


class Shortlist:
    """The target ids that a source's tokens make likely, and the most frequent ones.

    A batch is searched among the same `size` target ids: the special ones, those of a forced
    prefix, the candidates of every source id in the batch, and as many of the most frequent as fill
    the number; where there are too many, the rarest are left out. The product with the vocabulary
    and the ranking cost `size / V` of what they do without; probabilities are normalised over these
    ids alone. (Jean et al. 2015, arXiv 1412.2007, section 3.2; Marian has it, too.)

    Args:
        table: `(S, C)` int array: for each source id up to `C` target ids, the likeliest first,
            padded with `PAD` at the right.
        counts: `(V,)` array of numbers, how often each target id occurs.
        size: Number of target ids that a batch is searched among, at least 8 and at most `V`.

    Raises:
        ValueError: If the shapes are others, an id is outside the vocabulary, the table holds no
            candidate, or `size` is out of range.

    Example:

    >>> shortlist = Shortlist([[0, 0]] * 9 + [[12, 10]], counts=range(20), size=8)
    >>> ops.convert_to_numpy(shortlist.candidates(np.array([[9, 3]], "int32"))).tolist()
    [0, 1, 2, 3, 10, 12, 18, 19]
    """

    def __init__(self, table, counts, size):
        table, counts = np.asarray(table), np.asarray(counts)
        if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                "Argument `table` must be ints (source ids, candidates). "
                f"Received: {table.dtype} of shape {table.shape}"
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
        if not (table >= len(SPECIAL)).any():
            raise ValueError("Argument `table` must hold candidates. Received: none")
        self.table, self.counts, self.size = table.astype("int32"), counts, size
        # Numbers that all differ, so that no order depends on how a backend breaks ties.
        ranks = np.empty(len(counts), "int64")
        ranks[np.argsort(counts, kind="stable")] = np.arange(len(counts))
        ranks[: len(SPECIAL)] += 4 * len(counts)
        self._ranks = ranks.astype("float32")

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
            prefix: `(B, P)` int32 tensor of ids that are among them in any case, or `None`.
            without: Ids that are not, unless there are too few others.

        Returns:
            `(size,)` int32 tensor, ascending; the special ids are the first.
        """
        every = self.target_vocabulary_size

        def among(ids):
            ids = ops.reshape(ids, (-1, 1))
            found = ops.scatter(ids, ops.ones_like(ids[:, 0], dtype="float32"), (every,))
            return ops.cast(found > 0, "float32")

        ranks = self._ranks.copy()
        ranks[list(without)] -= 2 * every
        likely = ops.take(ops.convert_to_tensor(self.table), source, axis=0)  # (B, Tx, C)
        ranks = ops.convert_to_tensor(ranks) + every * among(likely)
        if prefix is not None:
            ranks = ranks + 2 * every * among(prefix)
        _, ids = ops.top_k(ranks, self.size)
        return ops.sort(ops.cast(ids, "int32"))

    def save(self, path):
        """Writes one `.npz` file, whole or not at all."""
        with written(path) as writing, writing.open("wb") as file:
            np.savez_compressed(file, table=self.table, counts=self.counts, size=self.size)

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: If it is no such file.
        """
        with open(path, "rb") as file:
            contents = io.BytesIO(file.read())
        try:
            with np.load(contents, allow_pickle=False) as arrays:
                parts = {name: arrays[name] for name in ("table", "counts", "size")}
        except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                "Argument `path` must be a file that `Shortlist.save` wrote. "
                f"Received: {os.fspath(path)!r}: {error}"
            ) from error
        return cls(parts["table"], parts["counts"], int(parts["size"]))

    @classmethod
    def from_links(cls, pairs, source_size, target_size, size, candidates=50):
        """A shortlist of the target ids that stand most often beside each source id.

        Args:
            pairs: Iterable of `(source ids, target ids, weights)`, one for each pair of sentences:
                lists of ints, and a `(Ty, Tx)` float array, such as attention weights or ones where
                words are linked.
            source_size: Number of source ids `S`.
            target_size: Number of target ids `V`.
            size: As for the class.
            candidates: Most candidates of a source id, `C`.

        Raises:
            ValueError: As the class; or if there are no pairs.
        """
        check_range("candidates", candidates, int, 1)
        links, counts, parts = _Links(target_size), np.zeros(target_size), 0
        for source, target, weights in pairs:
            parts += 1
            source, target = np.asarray(source), np.asarray(target)
            np.add.at(counts, target, 1)
            places = np.argwhere(np.asarray(weights) >= _LEAST_WEIGHT)
            links.add(source[places[:, 1]], target[places[:, 0]], weights[tuple(places.T)])
        if not parts:
            raise ValueError("Argument `pairs` must hold at least one. Received: none")
        return cls(links.best(source_size, candidates), counts, min(size, target_size))

    @classmethod
    def learned(cls, model, sources, targets, size, candidates=50, batch_size=64, progress=None):
        """A shortlist of what a model's own attention links, by forced decoding.

        Args:
            model: A `Seq2Seq` or an `Ensemble`.
            sources: Lists of source ids, `EOS` last.
            targets: Lists of target ids, one for each source.
            size: As for the class.
            candidates: Most candidates of a source id, `C`.
            batch_size: Pairs decoded at once.
            progress: Called after each batch with the number of pairs done.

        Raises:
            ValueError: As `from_links` and `model.score`.
        """

        def pairs():
            order = np.argsort([len(ids) for ids in targets], kind="stable")
            for begin in range(0, len(order), batch_size):
                some = order[begin : begin + batch_size].tolist()
                source, target = ([side[i] for i in some] for side in (sources, targets))
                found = model.score(pad(source), pad(target))
                for row, (of_source, of_target) in enumerate(zip(source, target, strict=True)):
                    weights = found.alignments[row, : len(of_target), : len(of_source)]
                    yield of_source, of_target, weights
                if progress is not None:
                    progress(begin + len(some))

        return cls.from_links(
            pairs(), model.source_vocabulary_size, model.target_vocabulary_size, size, candidates
        )


def check_shortlist(shortlist, model, search):
    """Raises a `ValueError` unless a `Shortlist` fits a model and leaves a search its beam."""
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
        """`(S, C)` int32: the target ids with the largest sums of each source id, largest first."""
        self._merge()
        sources, targets = np.divmod(self._keys, self._target_size)
        kept = targets >= len(SPECIAL)
        sources, targets, sums = sources[kept], targets[kept], self._sums[kept]
        order = np.lexsort((-sums, sources))
        sources, targets = sources[order], targets[order]
        places = np.arange(len(sources)) - np.searchsorted(sources, sources)
        table = np.full((source_size, most), PAD, "int32")
        table[sources[places < most], places[places < most]] = targets[places < most]
        return table
