"""A prepared corpus: what its manifest says, and its shards."""

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, NoReturn

from keras_bahdanau_runtime.prepared.shard import Shard, file_name, files_of
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

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
