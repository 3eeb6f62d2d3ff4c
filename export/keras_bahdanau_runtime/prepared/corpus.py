"""A prepared corpus on the disk: its manifest and its memory-mapped shards."""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

LAST = "offsets"  # the file that is written last: where it is, the others are
_AT_ONCE = 16384  # pairs that are moved together, lest the indices take more than the ids


@dataclass(frozen=True)
class Shard:
    """Pairs of id sequences, one after the other.

    Args:
        ids: `(tokens,)`, any unsigned type or int32: of each pair the source, then the target.
        offsets: `(2 * pairs + 1,)` int64. Source `i` is `ids[offsets[2 * i] : offsets[2 * i + 1]]`,
            and its target follows up to `offsets[2 * i + 2]`.
        links: `(links, 2)`, (source place, target place) of the pairs' alignments, or `None`.
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

    def part(self, begin: int, end: int) -> "Shard":
        """The pairs from `begin` up to `end`."""
        offsets = self.offsets[2 * begin : 2 * end + 1]
        ids = self.ids[offsets[0] : offsets[-1]]
        if self.links is None or self.starts is None:
            return Shard(ids, offsets - offsets[0])
        starts = self.starts[begin : end + 1]
        links = self.links[starts[0] : starts[-1]]
        return Shard(ids, offsets - offsets[0], links, starts - starts[0])

    def take(self, rows: NDArray[Any]) -> "Shard":
        """The pairs `rows`, ints `(n,)`, in that order."""
        places = self.offsets[2 * rows[:, None] + np.arange(3)]  # (n, 3): source, target, end
        ids = _gathered(self.ids, places[:, 0], places[:, 2] - places[:, 0])
        offsets = _sums(np.diff(places).ravel())
        if self.links is None or self.starts is None:
            return Shard(ids, offsets)
        counts = self.starts[rows + 1] - self.starts[rows]
        return Shard(ids, offsets, _gathered(self.links, self.starts[rows], counts), _sums(counts))

    def cut(self, max_length: int) -> "Shard":
        """The pairs, longer sequences cut to `max_length` ids, the last of which stays the last.

        Links to what is cut away are dropped; those to the last id follow it.
        """
        lengths = np.diff(self.offsets)
        kept = np.minimum(lengths, max_length)
        if (kept == lengths).all():
            return self
        offsets = _sums(kept)
        ids = self.ids[_ranges(self.offsets[:-1], kept)]
        some = kept > 0
        ids[offsets[1:][some] - 1] = self.ids[self.offsets[1:][some] - 1]
        if self.links is None or self.starts is None:
            return Shard(ids, offsets)
        counts = np.diff(self.starts)
        before = np.repeat(lengths.reshape(-1, 2), counts, axis=0)
        moved = (before > max_length) & (self.links == before - 1)
        lost = (before > max_length) & ~moved & (self.links >= max_length - 1)
        links = np.where(moved, max_length - 1, self.links)
        stay = ~lost.any(axis=1)
        counts = np.bincount(np.repeat(np.arange(len(self)), counts)[stay], minlength=len(self))
        return Shard(ids, offsets, links[stay], _sums(counts))

    def save(self, folder: Path, name: str) -> None:
        """Writes the files `NAME.ids.npy` and so on, each whole or not at all, `offsets` last."""
        for kind in files_of(self.aligned):
            _save(folder / file_name(name, kind), getattr(self, kind))

    @classmethod
    def load(cls, folder: Path, name: str, aligned: bool) -> "Shard":
        """Maps into memory what `save` wrote.

        Raises:
            ValueError: If a file is no array of the right form.
            OSError: If a file cannot be read.
        """
        arrays = {kind: _load(folder / file_name(name, kind)) for kind in files_of(aligned)}
        shard = cls(**arrays)
        _check_shard(folder / name, shard)
        return shard


def files_of(aligned: bool) -> tuple[str, ...]:
    """The kinds of file that a shard has, in the order in which they are written."""
    return ("links", "starts", "ids", LAST) if aligned else ("ids", LAST)


def file_name(name: str, kind: str) -> str:
    """The name of a shard's file."""
    return f"{name}.{kind}.npy"


def join(shards: Sequence[Shard]) -> Shard:
    """The pairs of all shards, at least one, in one."""
    links, starts = None, None
    if shards[0].links is not None:
        links = np.concatenate([shard.links for shard in shards])
        starts = _chain([shard.starts for shard in shards])
    return Shard(
        np.concatenate([shard.ids for shard in shards]),
        _chain([shard.offsets for shard in shards]),
        links,
        starts,
    )


def from_lists(
    sources: Sequence[Any], targets: Sequence[Any], dtype: Any, links: Sequence[Any] | None = None
) -> Shard:
    """A shard of lists of ids; `links` has an array `(n, 2)` for each pair."""
    both = [ids for pair in zip(sources, targets, strict=True) for ids in pair]
    offsets = _sums(np.fromiter(map(len, both), np.int64, len(both)))
    ids = np.fromiter(chain.from_iterable(both), dtype, int(offsets[-1]))
    if links is None:
        return Shard(ids, offsets)
    starts = _sums(np.fromiter(map(len, links), np.int64, len(links)))
    pairs = [np.zeros((0, 2), dtype), *(np.reshape(each, (-1, 2)) for each in links)]
    return Shard(ids, offsets, np.concatenate(pairs).astype(np.int32), starts)


def _sums(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Where each of so many begins, and the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _chain(offsets: Sequence[Any]) -> NDArray[np.int64]:
    """The offsets of arrays that are put one after the other."""
    return _sums(np.concatenate([np.diff(each) for each in offsets]))


def _gathered(
    values: NDArray[Any], begins: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[Any]:
    """The `values` at `_ranges(begins, counts)`, whose places are never all there at once."""
    found = np.empty((int(counts.sum()), *values.shape[1:]), values.dtype)
    done = 0
    for begin in range(0, len(begins), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        places = _ranges(begins[some], counts[some])
        found[done : done + len(places)] = values[places]
        done += len(places)
    return found


def _ranges(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places `begins[i]`, `begins[i] + 1`, ..., `counts[i]` of them, for each i in turn."""
    ends = np.cumsum(counts)
    return np.repeat(begins - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)


def _save(path: Path, array: Any) -> None:
    # `numpy.save` writes through a stream of C and misses a full disk where it closes that.
    array = np.ascontiguousarray(array)
    with written(path) as writing, writing.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8))  # the bytes as they lie there


def _load(path: Path) -> NDArray[Any]:
    try:
        # A plain array over the map: indexing a `memmap` costs several times as much.
        return np.asarray(np.load(path, mmap_mode="r"))
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: expected an array. Received: {error}") from error


def _check_shard(path: Path, shard: Shard) -> None:
    wrong = shard.ids.ndim != 1 or _broken(shard.offsets, len(shard.ids))
    if shard.links is not None:
        wrong = wrong or shard.links.ndim != 2 or _broken(shard.starts, len(shard.links))
        wrong = wrong or len(shard.starts) != len(shard) + 1  # type: ignore[arg-type]
    if wrong or len(shard.offsets) % 2 == 0:
        raise ValueError(f"{path}: expected the arrays of one shard. Received: others")


def _broken(offsets: Any, end: int) -> bool:
    """Whether these are no offsets into so many; a look at their ends, not at all of them."""
    return bool(
        offsets.ndim != 1 or offsets.dtype != np.int64 or offsets[0] != 0 or offsets[-1] != end
    )


FORMAT = "keras_bahdanau corpus"
SHARD = "shard-"  # so the names of a shard's files begin
VERSION = 1
MANIFEST_FILE, TOKENIZER_FILE = "manifest.json", "tokenizer.json"
_KEYS = {
    "aligned", "blank", "cut", "dropped", "files", "longest", "options", "shards", "text", "tokens",
}  # fmt: skip


class PreparedCorpus:
    """A folder that `prepare` has made, opened to be read.

    Opening reads the manifest and looks at the size of every file, no more. A file's hash is
    compared when it is first read.

    Args:
        path: The folder.

    Attributes:
        path: The folder, a `Path`.
        manifest: dict, what the manifest holds.
        pairs: Number of pairs.
        tokens: Number of ids of all targets, the ends included.
        source_tokens: Number of ids of all sources.
        longest: Most ids of a source and of a target.
        aligned: Whether the pairs have alignments.
        sizes: Number of pairs of each shard.

    Raises:
        ValueError: If the folder is no finished corpus of this version, or a file is missing or of
            another size; as it is read, if a file is not the one that `prepare` wrote.

    Example:

    ```python
    corpus = PreparedCorpus("corpus")
    print(corpus.pairs, "pairs in", len(corpus.sizes), "shards")
    model = RNNSearch(
        corpus.tokenizer.source_vocabulary_size, corpus.tokenizer.target_vocabulary_size
    )
    model.compile("adam", TokenCrossentropy())
    model.fit(PreparedDataset(corpus), shuffle=False)
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
        self._known: set[str] = set()  # files whose hash has been compared
        for name, record in self.manifest["files"].items():
            self._check_size(name, record["bytes"])
        for number in range(len(self.sizes)):
            for kind in files_of(self.aligned):
                if file_name(shard_name(number), kind) not in self.manifest["files"]:
                    self._refuse(f"its {MANIFEST_FILE} names no {shard_name(number)}.{kind}.npy")

    @property
    def tokenizer_hash(self) -> str:
        """The SHA-256 of the tokenizer's file: corpora of one tokenizer have one."""
        return str(self.manifest["files"][TOKENIZER_FILE]["sha256"])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The `Tokenizer` that made the ids."""
        self._check_hash(TOKENIZER_FILE)
        return Tokenizer.load(self.path / TOKENIZER_FILE)

    def lengths(self, number: int) -> Any:
        """Lengths of the sources and targets of a shard, `(pairs, 2)` ints; read, not mapped."""
        return self._open(number).lengths

    def shard(self, number: int) -> Shard:
        """Maps a shard into memory.

        Raises:
            ValueError: If a file is not the one that `prepare` wrote.
        """
        for kind in files_of(self.aligned):
            self._check_hash(file_name(shard_name(number), kind))
        return self._open(number)

    def check(self) -> None:
        """Compares the hash of every file; reads all of the corpus.

        Raises:
            ValueError: If one is not the file that `prepare` wrote.
        """
        for name in self.manifest["files"]:
            self._known.discard(name)
            self._check_hash(name)

    def _open(self, number: int) -> Shard:
        shard = Shard.load(self.path, shard_name(number), self.aligned)
        if len(shard) != self.sizes[number]:
            self._refuse(
                f"{shard_name(number)} has {len(shard)} pairs instead of {self.sizes[number]}"
            )
        return shard

    def _check_size(self, name: str, size: int) -> None:
        try:
            found = (self.path / name).stat().st_size
        except FileNotFoundError:
            self._refuse(f"{name} is missing")
        if found != size:
            self._refuse(f"{name} has {found} bytes instead of {size}")

    def _check_hash(self, name: str) -> None:
        if name in self._known:
            return
        if hash_of(self.path / name) != self.manifest["files"][name]["sha256"]:
            self._refuse(f"{name} is not the file that was written: its hash is another")
        self._known.add(name)

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(
            "Argument `path` must be a whole corpus, as `prepare` writes it. "
            f"Received: {str(self.path)!r}: {why}"
        )


def shard_name(number: int) -> str:
    """The name of a shard's files."""
    return f"{SHARD}{number:05d}"


def hash_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    expected = "Argument `path` must be a folder that `prepare` has finished. "
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        begun = "was not finished: give the same command again" if path.is_dir() else "is not there"
        raise ValueError(f"{expected}Received: {str(path)!r}, which {begun}") from None
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} cannot be read: {error}"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(
            f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} is of something else"
        )
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"Argument `path` must be a corpus of version {VERSION}. "
            f"Received: {str(path)!r}, of version {manifest.get('version')!r}"
        )
    if missing := _KEYS - set(manifest):
        raise ValueError(
            f"{expected}Received: {str(path)!r}, whose {MANIFEST_FILE} lacks {sorted(missing)}"
        )
    return manifest
