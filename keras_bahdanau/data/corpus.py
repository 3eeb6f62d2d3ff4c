"""A prepared corpus on the disk: parallel text of any size as ids in memory-mapped shards.

corpus/
  manifest.json               options, counts, size and hash of every file; written last
  tokenizer.json
  shard-00000.ids.npy         the ids of all pairs, source before target
  shard-00000.offsets.npy     where each source and target begins, and the end of the last
  shard-00000.links.npy       with alignments: (source position, target position) of all pairs
  shard-00000.starts.npy      where the links of each pair begin, and the end of the last
"""

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.errors import argument_error, quote
from keras_bahdanau_runtime.files import atomic_write, file_sha256
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

FORMAT = "keras_bahdanau corpus"
VERSION = 1
MANIFEST_FILE, TOKENIZER_FILE = "manifest.json", "tokenizer.json"
SHARD_PREFIX = "shard-"  # of the names of a shard's files
LAST_KIND = "offsets"  # the file of a shard that is written last: if it exists, the others do
_KEYS = {
    "aligned", "blank", "cut", "dropped", "files", "longest", "options", "shards", "text", "tokens",
}  # fmt: skip
_FILE_NAME = re.compile(rf"{re.escape(TOKENIZER_FILE)}|{SHARD_PREFIX}[0-9]+\.[a-z]+\.npy")
_GATHER_PAIRS = 16384  # pairs gathered at once, so that the indices need less memory than the ids


@dataclass(frozen=True)
class Shard:
    """Pairs of id sequences in a few flat arrays.

    Args:
        ids: `(tokens,)`, any unsigned type or int32: the source and then the target of each pair.
        offsets: `(2 * pairs + 1,)` int64. Source `i` is `ids[offsets[2 * i] : offsets[2 * i + 1]]`,
            and its target ends at `offsets[2 * i + 2]`.
        links: `(links, 2)`, (source position, target position) of the pairs' alignments, or `None`.
        starts: `(pairs + 1,)` int64. The links of pair `i` are `links[starts[i] : starts[i + 1]]`.
    """

    ids: NDArray[Any]
    offsets: NDArray[np.int64]
    links: NDArray[Any] | None = None
    starts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.offsets) // 2

    @property
    def aligned(self) -> bool:
        """Whether the pairs have alignments."""
        return self.links is not None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of source and target, `(pairs, 2)`."""
        return np.diff(self.offsets).reshape(-1, 2)

    def slice(self, begin: int, end: int) -> "Shard":
        """Return the pairs from `begin` up to but not including `end`."""
        offsets = self.offsets[2 * begin : 2 * end + 1]
        ids = self.ids[offsets[0] : offsets[-1]]
        if self.links is None or self.starts is None:
            return Shard(ids, offsets - offsets[0])
        starts = self.starts[begin : end + 1]
        links = self.links[starts[0] : starts[-1]]
        return Shard(ids, offsets - offsets[0], links, starts - starts[0])

    def take(self, rows: NDArray[Any]) -> "Shard":
        """Return the pairs `rows`, ints `(n,)`, in that order."""
        bounds = self.offsets[2 * rows[:, None] + np.arange(3)]  # (n, 3): source, target, end
        ids = _gather(self.ids, bounds[:, 0], bounds[:, 2] - bounds[:, 0])
        offsets = _offsets(np.diff(bounds).ravel())
        if self.links is None or self.starts is None:
            return Shard(ids, offsets)
        counts = self.starts[rows + 1] - self.starts[rows]
        links = _gather(self.links, self.starts[rows], counts)
        return Shard(ids, offsets, links, _offsets(counts))

    def truncate(self, max_length: int) -> "Shard":
        """Return the pairs with sequences cut to `max_length` ids; the last id stays the last.

        Links of removed ids are dropped; links of the last id move with it.
        """
        old_lengths = np.diff(self.offsets)
        lengths = np.minimum(old_lengths, max_length)
        if (lengths == old_lengths).all():
            return self
        offsets = _offsets(lengths)
        ids = self.ids[_ranges(self.offsets[:-1], lengths)]
        is_filled = lengths > 0
        ids[offsets[1:][is_filled] - 1] = self.ids[self.offsets[1:][is_filled] - 1]
        if self.links is None or self.starts is None:
            return Shard(ids, offsets)
        counts = np.diff(self.starts)
        before = np.repeat(old_lengths.reshape(-1, 2), counts, axis=0)
        is_moved = (before > max_length) & (self.links == before - 1)
        is_removed = (before > max_length) & ~is_moved & (self.links >= max_length - 1)
        links = np.where(is_moved, max_length - 1, self.links)
        remains = ~is_removed.any(axis=1)
        counts = np.bincount(np.repeat(np.arange(len(self)), counts)[remains], minlength=len(self))
        return Shard(ids, offsets, links[remains], _offsets(counts))

    def save(self, folder: Path, name: str) -> None:
        """Write the files `NAME.ids.npy` and so on, each one atomically and `offsets` last."""
        for kind in shard_kinds(self.aligned):
            _save(folder / shard_file(name, kind), getattr(self, kind))

    @classmethod
    def load(cls, folder: Path, name: str, aligned: bool) -> "Shard":
        """Map the files of `save` into memory.

        Raises:
            ValueError: A file is not an array of the right form.
            OSError: A file cannot be read.
        """
        arrays = {kind: _load(folder / shard_file(name, kind)) for kind in shard_kinds(aligned)}
        shard = cls(**arrays)
        _check_shard(folder / name, shard)
        return shard


def shard_kinds(aligned: bool) -> tuple[str, ...]:
    """Return the kinds of files of a shard, in the order in which they are written."""
    return ("links", "starts", "ids", LAST_KIND) if aligned else ("ids", LAST_KIND)


def shard_file(name: str, kind: str) -> str:
    """Return the name of a shard's file."""
    return f"{name}.{kind}.npy"


def concatenate_shards(shards: Sequence[Shard]) -> Shard:
    """Return one shard with the pairs of all shards, at least one."""
    links, starts = None, None
    if shards[0].links is not None:
        links = np.concatenate([shard.links for shard in shards])
        starts = _concatenate_offsets([shard.starts for shard in shards])
    return Shard(
        np.concatenate([shard.ids for shard in shards]),
        _concatenate_offsets([shard.offsets for shard in shards]),
        links,
        starts,
    )


def shard_from_lists(
    sources: Sequence[Any], targets: Sequence[Any], dtype: Any, links: Sequence[Any] | None = None
) -> Shard:
    """Return a shard of lists of ids; `links` has an array `(n, 2)` for each pair."""
    sequences = [ids for pair in zip(sources, targets, strict=True) for ids in pair]
    offsets = _offsets(np.fromiter(map(len, sequences), np.int64, len(sequences)))
    ids = np.fromiter(chain.from_iterable(sequences), dtype, int(offsets[-1]))
    if links is None:
        return Shard(ids, offsets)
    starts = _offsets(np.fromiter(map(len, links), np.int64, len(links)))
    arrays = [np.zeros((0, 2), dtype), *(np.reshape(array, (-1, 2)) for array in links)]
    return Shard(ids, offsets, np.concatenate(arrays).astype(np.int32), starts)


def _offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each of consecutive parts begins, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _concatenate_offsets(offsets: Sequence[Any]) -> NDArray[np.int64]:
    return _offsets(np.concatenate([np.diff(part) for part in offsets]))


def _gather(
    values: NDArray[Any], begins: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[Any]:
    """Return `values[_ranges(begins, counts)]` without all indices in memory at once."""
    gathered = np.empty((int(counts.sum()), *values.shape[1:]), values.dtype)
    done = 0
    for begin in range(0, len(begins), _GATHER_PAIRS):
        pairs = slice(begin, begin + _GATHER_PAIRS)
        indices = _ranges(begins[pairs], counts[pairs])
        gathered[done : done + len(indices)] = values[indices]
        done += len(indices)
    return gathered


def _ranges(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices `begins[i]`, `begins[i] + 1`, ..., `counts[i]` of them, for each `i`."""
    ends = np.cumsum(counts)
    return np.repeat(begins - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)


def _save(path: Path, array: Any) -> None:
    # `numpy.save` writes through a C stream and does not notice a full disk when it closes it.
    array = np.ascontiguousarray(array)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8))


def _load(path: Path) -> NDArray[Any]:
    try:
        # Indexing a `memmap` takes several times as long as indexing a plain array over it.
        return np.asarray(np.load(path, mmap_mode="r"))
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: expected an array. Received: {error}") from error


def _check_shard(path: Path, shard: Shard) -> None:
    is_valid = shard.ids.ndim == 1 and _are_offsets(shard.offsets, len(shard.ids))
    if is_valid and shard.links is not None and shard.starts is not None:
        is_valid = shard.links.ndim == 2 and _are_offsets(shard.starts, len(shard.links))
        is_valid = is_valid and len(shard.starts) == len(shard) + 1
    if not is_valid or len(shard.offsets) % 2 == 0:
        raise ValueError(f"{path}: expected the arrays of one shard. Received: others")


def _are_offsets(offsets: Any, end: int) -> bool:
    """Check the form and both ends of offsets, without reading all of them."""
    return bool(
        offsets.ndim == 1 and offsets.dtype == np.int64 and offsets[0] == 0 and offsets[-1] == end
    )


class PreparedCorpus:
    """Folder written by `prepare`, opened for reading.

    Opening reads the manifest and checks the size of every file. The hash of a file is compared
    when the file is first read.

    Args:
        path: The folder.

    Attributes:
        path: The folder, a `Path`.
        manifest: dict, contents of the manifest.
        pairs: Number of pairs.
        tokens: Number of ids of all targets, including the ends of sentences.
        source_tokens: Number of ids of all sources.
        longest: Largest number of ids of a source and of a target.
        aligned: Whether the pairs have alignments.
        sizes: Number of pairs of each shard.

    Raises:
        ValueError: The folder is not a complete corpus of this version, or a file is missing or has
            another size. While reading: a file is not the one that `prepare` wrote.

    Example:

    ```python
    corpus = PreparedCorpus("corpus")
    print(corpus.pairs, "pairs in", len(corpus.sizes), "shards")
    model = RNNSearch.from_tokenizer(corpus.tokenizer)
    model.compile("adam", TokenCrossentropy())
    model.fit(PreparedDataset(corpus))
    ```
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = _read_manifest(self.path)
        self.sizes: tuple[int, ...] = tuple(self.manifest["shards"])
        self.pairs = sum(self.sizes)
        self.source_tokens, self.tokens = self.manifest["tokens"]
        self.longest: tuple[int, int] = tuple(self.manifest["longest"])
        self.aligned: bool = self.manifest["aligned"]
        self._verified: set[str] = set()  # files whose hash was compared
        for name, record in self.manifest["files"].items():
            self._check_size(name, record["bytes"])
        for number in range(len(self.sizes)):
            for kind in shard_kinds(self.aligned):
                if shard_file(shard_name(number), kind) not in self.manifest["files"]:
                    self._raise(f"its {MANIFEST_FILE} lists no {shard_name(number)}.{kind}.npy")

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the tokenizer's file, to compare the tokenizers of two corpora."""
        return str(self.manifest["files"][TOKENIZER_FILE]["sha256"])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The `Tokenizer` of the ids."""
        self._check_hash(TOKENIZER_FILE)
        return Tokenizer.load(self.path / TOKENIZER_FILE)

    def lengths(self, number: int) -> Any:
        """Return the lengths of a shard's sources and targets, `(pairs, 2)` ints, in memory."""
        return self._open(number).lengths

    def shard(self, number: int) -> Shard:
        """Map a shard into memory.

        Raises:
            ValueError: A file is not the one that `prepare` wrote.
        """
        for kind in shard_kinds(self.aligned):
            self._check_hash(shard_file(shard_name(number), kind))
        return self._open(number)

    def check(self) -> None:
        """Compare the hash of every file, which reads the whole corpus.

        Raises:
            ValueError: A file is not the one that `prepare` wrote.
        """
        for name in self.manifest["files"]:
            self._verified.discard(name)
            self._check_hash(name)

    def _open(self, number: int) -> Shard:
        shard = Shard.load(self.path, shard_name(number), self.aligned)
        if len(shard) != self.sizes[number]:
            self._raise(
                f"{shard_name(number)} has {len(shard)} pairs instead of {self.sizes[number]}"
            )
        return shard

    def _check_size(self, name: str, expected: int) -> None:
        try:
            size = (self.path / name).stat().st_size
        except FileNotFoundError:
            self._raise(f"{name} is missing")
        if size != expected:
            self._raise(f"{name} has {size} bytes instead of {expected}")

    def _check_hash(self, name: str) -> None:
        if name in self._verified:
            return
        if file_sha256(self.path / name) != self.manifest["files"][name]["sha256"]:
            self._raise(f"{name} was changed: its hash differs from the one in {MANIFEST_FILE}")
        self._verified.add(name)

    def _raise(self, reason: str) -> NoReturn:
        raise argument_error(
            "path",
            "be a complete corpus written by `prepare`",
            received=f"{str(self.path)!r}: {reason}",
        )


def shard_name(number: int) -> str:
    """Return the common part of the names of a shard's files."""
    return f"{SHARD_PREFIX}{number:05d}"


def _read_manifest(path: Path) -> dict[str, Any]:
    expected = "Argument `path` must be a folder that `prepare` has finished. "
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        problem = "is not finished: run the same command again" if path.is_dir() else "is missing"
        raise ValueError(f"{expected}Received: {str(path)!r}, which {problem}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(
            f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} cannot be read: {error}"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(
            f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} is not that of a corpus"
        )
    if manifest.get("version") != VERSION:
        raise argument_error(
            "path",
            f"be a corpus of version {VERSION}",
            received=f"{str(path)!r}, of version {manifest.get('version')!r}",
        )
    if missing := _KEYS - set(manifest):
        raise ValueError(
            f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} lacks {sorted(missing)}"
        )
    for name, is_valid in _VALUES.items():
        if not is_valid(manifest[name]):
            raise ValueError(
                f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} has the invalid "
                f"`{name}` {quote(manifest[name])}"
            )
    return manifest


def _are_counts(values: Any, length: int | None = None) -> bool:
    """Return whether a value is a list of non-negative ints, `length` of them."""
    return (
        isinstance(values, list)
        and all(type(value) is int and value >= 0 for value in values)
        and length in (None, len(values))
    )


def _are_files(files: Any) -> bool:
    """Return whether a value has the size and the hash of files in the folder of a corpus."""
    return (
        isinstance(files, dict)
        and TOKENIZER_FILE in files
        # A name such as "../a" would be read, and linked into a run, outside of the folder.
        and all(map(_FILE_NAME.fullmatch, files))
        and all(
            isinstance(record, dict)
            and type(record.get("bytes")) is int
            and isinstance(record.get("sha256"), str)
            for record in files.values()
        )
    )


# Functions that check the values of a manifest that are read, by name.
_VALUES: dict[str, Callable[[Any], bool]] = {
    "aligned": lambda value: isinstance(value, bool),
    "files": _are_files,
    "longest": functools.partial(_are_counts, length=2),
    "shards": lambda value: _are_counts(value) and sum(value) > 0,
    "tokens": functools.partial(_are_counts, length=2),
}
