"""The manifest of an artifact: read, checked, and with it every byte of the files it lists.

manifest = read_manifest("artifact")            # every byte checked
graph = manifest.read("model.onnx")             # the bytes that were checked, and no others
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from keras_bahdanau_runtime.errors import (
    ArtifactError,
    CorruptArtifactError,
    UnsupportedArtifactError,
)
from keras_bahdanau_runtime.runs.folder import is_run
from keras_bahdanau_runtime.signature import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    SAMPLE,
    TRANSLATE,
)

logger = logging.getLogger("keras_bahdanau_runtime")

WRITTEN_HERE = ("format", "format_version", "files")  # keys that `write_manifest` fills in
_LARGEST_MANIFEST = 2**24  # bytes
_NO_LINK = "expected a file inside the artifact. Received: a link; `cp -rL` copies what it is to."
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST = 2**31 - 1  # what an int32 of a graph can count
# Numbers of a search's settings that the runtime reads, and the least of each.
_COUNTS = {
    **dict.fromkeys(("size", "n", "n_best", "groups", "max_length"), 1),
    **dict.fromkeys(("min_length", "no_repeat_ngram", "seed"), 0),
}
Read = TypeVar("Read")


@dataclass(frozen=True)
class FileRecord:
    """What the manifest says of one file: its SHA-256 in hex and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The checked contents of `manifest.json`.

    Args:
        folder: `Path`. The artifact it was read from.
        format_version: int.
        files: `FileRecord` by relative posix path, sorted.
        signatures: Inputs and outputs by graph file, as `Signature.to_json` writes them.
        vocabulary: Vocabulary sizes, `{"source": int, "target": int}`, or empty.
        max_source_length: int, the longest source in tokens, end of sentence included; or None for
            no limit.
        search: Settings of the search inside the graph.
        packages: Versions of the packages that wrote the artifact.
        parity: Figures of the comparison with Keras.
        other: Every further key.
    """

    folder: Path
    format_version: int
    files: Mapping[str, FileRecord]
    signatures: Mapping[str, Any]
    vocabulary: Mapping[str, int]
    max_source_length: int | None
    search: Mapping[str, Any]
    packages: Mapping[str, str]
    parity: Mapping[str, Any]
    other: Mapping[str, Any]

    def searches(self) -> bool:
        """Whether `model.onnx` holds a search, and not the call of a model.

        Raises:
            UnsupportedArtifactError: There is no `model.onnx`.
        """
        if MODEL_FILE not in self.files:
            raise UnsupportedArtifactError(
                f"{self.folder}: holds no {MODEL_FILE}. Export it with format='onnx'."
            )
        return self.signatures.get(MODEL_FILE) in (TRANSLATE.to_json(), SAMPLE.to_json())

    def draws(self) -> bool:
        """Whether the search in `model.onnx` draws numbers."""
        return bool(self.signatures.get(MODEL_FILE) == SAMPLE.to_json())

    def read(self, name: str) -> bytes:
        """The bytes of a listed file, read once and then compared with its size and hash.

        Raises:
            CorruptArtifactError: They are others, or there is no such file.
        """
        record, path = self.files[name], self.folder / name
        with _opened(self.folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            contents = file.read() if size == record.bytes else b""
        digest = hashlib.sha256(contents).hexdigest()
        _compare(path, record, len(contents) or size, digest)
        return contents

    def check(self, name: str) -> None:
        """As `read`, but holds no more than a part of the file in memory."""
        record, path = self.files[name], self.folder / name
        with _opened(self.folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            digest = ""
            if size == record.bytes:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        _compare(path, record, size, digest)


def read_manifest(path: str | os.PathLike[str], verify: bool = True) -> Manifest:
    """Reads `manifest.json` and checks the files it lists.

    Files that the manifest does not list are not looked at.

    Args:
        path: Folder of the artifact.
        verify: bool. Whether to compare the size and the hash of every file. Without it only the
            manifest itself and the paths in it are checked.

    Returns:
        A `Manifest`.

    Raises:
        ValueError: `path` is not a folder, or that of a training run.
        CorruptArtifactError: Something is missing, damaged, of the wrong type, or points outside
            the folder.
        UnsupportedArtifactError: The artifact was written in a newer format.
    """
    if not verify:
        return _read_manifest(Path(path))

    def check(manifest: Manifest) -> Manifest:
        for name in manifest.files:
            manifest.check(name)
        return manifest

    return reading(path, check)


def reading(folder: str | os.PathLike[str], read: Callable[[Manifest], Read]) -> Read:
    """What `read` makes of an artifact, all of it from one: of the new one if it is replaced.

    Args:
        folder: The artifact.
        read: A function of its `Manifest`, which is called again if the folder has become another
            one when the files no longer match.

    Raises:
        As `read_manifest`, and what `read` raises of a folder that is still the same.
    """
    folder = Path(folder)
    while True:
        before = _identity(folder)
        try:
            return read(_read_manifest(folder))
        except CorruptArtifactError:
            if _identity(folder) == before:
                raise
            logger.info("The artifact %s was replaced while it was read: reading it again.", folder)


@contextlib.contextmanager
def unreplaced(manifest: Manifest) -> Iterator[None]:
    """For reading more of an artifact later: says so if it is another one by then."""
    try:
        yield
    except ArtifactError as error:
        if _is_still_there(manifest):
            raise
        raise CorruptArtifactError(
            f"{manifest.folder}: expected the artifact that was opened. It was replaced since: "
            "open it anew."
        ) from error


def _is_still_there(manifest: Manifest) -> bool:
    try:
        return _read_manifest(manifest.folder) == manifest
    except (ArtifactError, ValueError):  # none is
        return False


def _identity(folder: Path) -> tuple[int, int, int, bytes] | None:
    """What tells an artifact from the one that takes its place.

    Not the inode alone: that of an artifact which was replaced may be given to the next but one.
    """
    try:
        found = folder.stat()
        return found.st_dev, found.st_ino, found.st_ctime_ns, _text(folder)
    except OSError:
        return None


def _text(folder: Path) -> bytes:
    with open(folder / MANIFEST_FILE, "rb", opener=_open_without_waiting) as file:
        return file.read(_LARGEST_MANIFEST + 1)


def _read_manifest(folder: Path) -> Manifest:
    """The manifest, with every path in it checked."""
    # A name that stays the artifact's own when the process goes elsewhere; links are kept.
    folder = Path(os.path.abspath(folder))
    path = folder / MANIFEST_FILE
    try:
        is_folder, is_link, is_file = folder.is_dir(), path.is_symlink(), path.is_file()
        text = _text(folder) if is_file and not is_link else b""
    except OSError as error:
        raise CorruptArtifactError(
            f"{path}: expected a file that can be read. Received: {error.strerror}."
        ) from error
    if not is_folder:
        raise ValueError(
            "Argument `path` must be the folder of an artifact. "
            f"Received: {str(folder)!r}, which is none."
        )
    if is_run(folder) and not is_file:
        raise ValueError(
            f"Argument `path` must be the folder of an artifact. Received: {str(folder)!r}, which "
            f"is a training run. Export it first: keras-bahdanau export {shlex.quote(str(folder))} "
            "ARTIFACT"
        )
    if is_link:
        raise CorruptArtifactError(f"{path}: {_NO_LINK}")
    if not is_file:
        raise CorruptArtifactError(
            f"{path}: expected a file. It is missing: no artifact, or a half-written one."
        )
    try:
        if len(text) > _LARGEST_MANIFEST:
            raise ValueError(f"more than {_LARGEST_MANIFEST} bytes")
        document = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptArtifactError(f"{path}: expected JSON in UTF-8. Received: {error}") from error
    manifest = parse_manifest(folder, document)
    for name in manifest.files:
        _check_place(folder, name)
    return manifest


def parse_manifest(folder: Path, document: Any) -> Manifest:
    """A `Manifest` of JSON, every value checked.

    Raises:
        CorruptArtifactError: A value is not what it must be.
        UnsupportedArtifactError: It is of a newer format.
    """
    path = folder / MANIFEST_FILE
    field, count = partial(_field, path), partial(_check_count, path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CorruptArtifactError(
            f"{path}: expected an object with 'format': {FORMAT!r}. Received: {document!r:.80}"
        )
    version = field(document, "format_version", int)
    if version > FORMAT_VERSION:
        raise UnsupportedArtifactError(
            f"{path}: expected format_version {FORMAT_VERSION} or older. Received: {version}. "
            "Update with: pip install --upgrade keras-bahdanau"
        )
    if version < 1:
        raise CorruptArtifactError(
            f"{path}: expected format_version 1 or more. Received: {version}"
        )

    files = {}
    for name in sorted(field(document, "files", dict)):
        _check_name(path, name)
        record = field(document["files"], name, dict, "in 'files', ")
        where = f"in 'files', {name!r}, "
        digest = field(record, "sha256", str, where)
        if not _DIGEST.fullmatch(digest):
            raise CorruptArtifactError(
                f"{path}: expected {where}'sha256' to be 64 hexadecimal digits. "
                f"Received: {digest!r:.80}"
            )
        files[name] = FileRecord(digest, field(record, "bytes", int, where))
    sections = ("signatures", "vocabulary", "search", "packages", "parity")
    rest = {"vocabulary": {}, "search": {}, "packages": {}, "parity": {}, **document}
    found = {key: field(rest, key, dict) for key in sections}
    for key in found["vocabulary"]:
        count(found["vocabulary"], key, 1, "in 'vocabulary', ")
    _check_search(path, found["search"])
    for key in found["packages"]:
        field(found["packages"], key, str, "in 'packages', ")
    limit = document.get("max_source_length")
    if limit is not None:
        count(document, "max_source_length", 1)
    known = {*sections, *WRITTEN_HERE, "max_source_length"}
    other = {key: value for key, value in document.items() if key not in known}
    return Manifest(
        folder=folder,
        format_version=version,
        files=files,
        max_source_length=limit,
        other=other,
        **found,
    )


def _field(path: Path, source: Mapping[str, Any], key: str, kind: type, where: str = "") -> Any:
    value = source.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CorruptArtifactError(
            f"{path}: expected {where}{key!r} to be {kind.__name__}. Received: {value!r:.80}"
        )
    return value


def _check_count(
    path: Path, source: Mapping[str, Any], key: str, least: int, where: str = ""
) -> None:
    if not least <= _field(path, source, key, int, where) <= _MOST:
        raise CorruptArtifactError(
            f"{path}: expected {where}{key!r} to be at least {least} and at most {_MOST}. "
            f"Received: {source[key]!r:.80}"
        )


def _check_search(path: Path, search: Mapping[str, Any]) -> None:
    """Looks at the settings that the runtime reads."""
    for key, least in _COUNTS.items():
        if search.get(key) is not None:
            _check_count(path, search, key, least, "in 'search', ")
    forbidden, ratio = search.get("forbidden"), search.get("max_length_ratio")
    if forbidden is not None and not (
        isinstance(forbidden, list) and all(type(one) is int and one >= 0 for one in forbidden)
    ):
        raise CorruptArtifactError(
            f"{path}: expected in 'search', 'forbidden' to be a list of ids. "
            f"Received: {forbidden!r:.80}"
        )
    if ratio is not None and not (type(ratio) in (int, float) and 0 < ratio <= _MOST):
        raise CorruptArtifactError(
            f"{path}: expected in 'search', 'max_length_ratio' to be above 0 and at most {_MOST}. "
            f"Received: {ratio!r:.80}"
        )


def _check_name(path: Path, name: str) -> None:
    """Refuses every name that is not a plain relative posix path inside the artifact."""
    pure = PurePosixPath(name)
    if (
        pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != name
        or name in (".", MANIFEST_FILE)
        or any(character in name for character in "\\:\0")
    ):
        raise CorruptArtifactError(
            f"{path}: expected relative paths inside the artifact. Received: {name!r}"
        )


def _check_place(folder: Path, name: str) -> None:
    path, parts = folder / name, PurePosixPath(name).parts
    if any(folder.joinpath(*parts[:n]).is_symlink() for n in range(1, len(parts) + 1)):
        raise CorruptArtifactError(f"{path}: {_NO_LINK}")
    if not path.is_file():
        raise CorruptArtifactError(f"{path}: listed in {MANIFEST_FILE}, but there is no such file.")


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[BufferedReader]:
    """A listed file, opened for reading."""
    _check_place(folder, name)
    try:
        file = open(folder / name, "rb", opener=_open_without_waiting)
    except OSError as error:  # gone, or not ours to read
        raise CorruptArtifactError(
            f"{folder / name}: expected a file that can be read. Received: {error.strerror}."
        ) from error
    with file:
        yield file


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens a pipe that took a file's place without waiting for somebody to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _compare(path: Path, record: FileRecord, size: int, digest: str) -> None:
    if size != record.bytes:
        raise CorruptArtifactError(
            f"{path}: expected {record.bytes} bytes. Received: {size} bytes."
        )
    if digest != record.sha256:
        raise CorruptArtifactError(
            f"{path}: expected sha256 {record.sha256}. Received: {digest}: the file was changed."
        )
