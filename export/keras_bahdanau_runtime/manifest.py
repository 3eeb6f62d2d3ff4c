"""Read the manifest of an artifact, and verify the files that it lists.

manifest = read_manifest("artifact")            # compares the hash of every file
graph = manifest.read("model.onnx")             # the verified bytes
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from keras_bahdanau_runtime.errors import (
    ArtifactError,
    CorruptArtifactError,
    MissingArtifactError,
    UnsupportedArtifactError,
    argument_error,
)
from keras_bahdanau_runtime.search_settings import JSON_KEYS, RANGES, ManifestSearch
from keras_bahdanau_runtime.signature import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    OF_RUNS,
    OPTIONS,
    SAMPLE,
    TRANSLATE,
    Signature,
)

logger = logging.getLogger("keras_bahdanau_runtime")

RESERVED_KEYS = ("format", "format_version", "files")  # filled in by `write_manifest`
_MAX_MANIFEST_BYTES = 2**24
_NO_LINK = (
    "expected a file inside the artifact. Received: a link; `cp -rL` replaces links by files."
)
_DIGEST = re.compile("[0-9a-f]{64}")
_INT32_MAX = 2**31 - 1
T = TypeVar("T")


@dataclass(frozen=True)
class FileRecord:
    """SHA-256 in hexadecimal digits and size in bytes of a file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The checked contents of `manifest.json`.

    Args:
        folder: `Path` of the artifact.
        format_version: int.
        files: `FileRecord` by relative posix path, sorted.
        signatures: Inputs and outputs by graph file, as `Signature.to_json` writes them.
        vocabulary: Vocabulary sizes, `{"source": int, "target": int}`, or empty.
        max_source_length: int, largest number of source tokens, including the end of sentence;
            `None` for no limit.
        search: Settings of the search in the graph.
        packages: Versions of the packages that wrote the artifact.
        parity: Results of the comparison with Keras.
        other: All other keys.
    """

    folder: Path
    format_version: int
    files: Mapping[str, FileRecord]
    signatures: Mapping[str, Any]
    vocabulary: Mapping[str, int]
    max_source_length: int | None
    search: ManifestSearch
    packages: Mapping[str, str]
    parity: Mapping[str, Any]
    other: Mapping[str, Any]

    def has_search(self) -> bool:
        """Return whether `model.onnx` contains a search and not only a forward pass.

        Raises:
            UnsupportedArtifactError: There is no `model.onnx`.
        """
        if MODEL_FILE not in self.files:
            raise UnsupportedArtifactError(
                f"{self.folder}: has no {MODEL_FILE}. Export it with format='onnx'."
            )
        return self.search_signature is not None

    def is_sampling(self) -> bool:
        """Return whether the search in `model.onnx` samples, so that it needs random numbers."""
        signature = self.search_signature
        return signature is not None and signature.inputs == SAMPLE.inputs

    @cached_property
    def search_signature(self) -> Signature | None:
        """Signature of the search in `model.onnx`, or `None` if it has no search.

        Its `options` are those of `OPTIONS` that the graph has; none in artifacts written before
        there were options.
        """
        received = self.signatures.get(MODEL_FILE)
        entries = received.get("options") if isinstance(received, dict) else None
        entries = entries if isinstance(entries, list) else []
        options = tuple(option for option in OPTIONS.values() if option.to_json() in entries)
        for signature in (TRANSLATE, SAMPLE):
            without_log_probs = signature.outputs[:-1]
            for outputs in (signature.outputs, without_log_probs):
                signature = replace(signature, outputs=outputs, options=options)
                if received == signature.to_json():
                    return signature
        return None

    @property
    def options(self) -> list[str]:
        """Names of the options that `model.onnx` has, in the order of `OPTIONS`."""
        signature = self.search_signature
        return [option.name for option in signature.options] if signature else []

    def read(self, name: str) -> bytes:
        """Return the bytes of a listed file after verifying their size and hash.

        Raises:
            CorruptArtifactError: The size or hash differs, or the file is missing.
        """
        record, path = self.files[name], self.folder / name
        with _open_listed(self.folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            contents = file.read() if size == record.bytes else b""
        digest = hashlib.sha256(contents).hexdigest()
        _check_digest(path, record, len(contents) or size, digest)
        return contents

    def check(self, name: str) -> None:
        """Verify a listed file like `read`, without loading all of it into memory."""
        record, path = self.files[name], self.folder / name
        with _open_listed(self.folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            digest = ""
            if size == record.bytes:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        _check_digest(path, record, size, digest)


def is_run(folder: Path) -> bool:
    """Return whether a folder contains a training run, finished or not."""
    return any((folder / name).is_file() for name in OF_RUNS)


def read_manifest(path: str | os.PathLike[str], verify: bool = True) -> Manifest:
    """Read `manifest.json` and verify the files that it lists.

    Files that the manifest does not list are ignored.

    Args:
        path: Folder of the artifact.
        verify: bool. Whether to compare the size and hash of every file. If False, only the
            manifest and the paths in it are checked.

    Returns:
        A `Manifest`.

    Raises:
        ValueError: `path` is not a folder, or is the folder of a training run.
        CorruptArtifactError: A file or value is missing, damaged, of the wrong type, or a path
            points outside the folder.
        UnsupportedArtifactError: The artifact was written in a newer format.
    """
    if not verify:
        return _read_manifest(Path(path))

    def check(manifest: Manifest) -> Manifest:
        for name in manifest.files:
            manifest.check(name)
        return manifest

    return read_unreplaced(path, check)


def read_unreplaced(folder: str | os.PathLike[str], read: Callable[[Manifest], T]) -> T:
    """Read an artifact that may be replaced meanwhile, so that all files are from one version.

    Args:
        folder: The artifact.
        read: Function of its `Manifest`. If files do not match because the folder was replaced, it
            is called again for the new artifact.

    Returns:
        The result of `read`.

    Raises:
        As `read_manifest`, and the exceptions of `read` if the folder was not replaced.
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
def expect_unreplaced(manifest: Manifest) -> Iterator[None]:
    """Read more of an open artifact in the block; raise a clear error if it was replaced."""
    try:
        yield
    except ArtifactError as error:
        if _is_unchanged(manifest):
            raise
        raise CorruptArtifactError(
            f"{manifest.folder}: expected the artifact that was opened. It was replaced since: "
            "open it again."
        ) from error


def _is_unchanged(manifest: Manifest) -> bool:
    """Return whether the folder still contains the artifact that was opened."""
    try:
        return _read_manifest(manifest.folder) == manifest
    except (ArtifactError, ValueError):  # the folder contains no artifact
        return False


def _identity(folder: Path) -> tuple[int, int, int, bytes] | None:
    """Return values that differ between an artifact and its replacement.

    The inode alone is not enough: file systems reuse the inode of a replaced folder.
    """
    try:
        status = folder.stat()
        return status.st_dev, status.st_ino, status.st_ctime_ns, _manifest_bytes(folder)
    except OSError:
        return None


def _manifest_bytes(folder: Path) -> bytes:
    with open(folder / MANIFEST_FILE, "rb", opener=_open_without_waiting) as file:
        return file.read(_MAX_MANIFEST_BYTES + 1)


def _read_manifest(folder: Path) -> Manifest:
    """Read the manifest and check that every file in it exists."""
    manifest = read_file_list(folder)
    for name in manifest.files:
        _check_is_file(manifest.folder, name)
    return manifest


def read_file_list(folder: Path) -> Manifest:
    """Read `manifest.json` alone; the files that it lists may be missing.

    Raises:
        As `read_manifest`, for the folder and `manifest.json`.
    """
    # An absolute path stays valid when the process changes its folder; links are not resolved.
    folder = Path(os.path.abspath(folder))
    path = folder / MANIFEST_FILE
    try:
        is_folder, is_file = folder.is_dir(), path.is_file()
        is_link = _is_foreign_link(folder, path)
        text = _manifest_bytes(folder) if is_file and not is_link else b""
    except OSError as error:
        raise CorruptArtifactError(
            f"{path}: expected a readable file. Received: {error.strerror}."
        ) from error
    if not is_folder:
        raise argument_error(
            "path",
            "be the folder of an artifact",
            received=f"{str(folder)!r}, which is not a folder.",
            kind=MissingArtifactError,
        )
    if is_run(folder) and not is_file:
        raise argument_error(
            "path",
            "be the folder of an artifact",
            received=(
                f"{str(folder)!r}, which is a training run. Export it first: keras-bahdanau "
                f"export {shlex.quote(str(folder))} ARTIFACT"
            ),
            kind=MissingArtifactError,
        )
    if is_link:
        raise CorruptArtifactError(f"{path}: {_NO_LINK}")
    if not is_file:
        raise CorruptArtifactError(
            f"{path}: expected a file. It is missing: this is no artifact, or an incomplete one."
        )
    try:
        if len(text) > _MAX_MANIFEST_BYTES:
            raise ValueError(f"more than {_MAX_MANIFEST_BYTES} bytes")
        document = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptArtifactError(f"{path}: expected JSON in UTF-8. Received: {error}") from error
    return parse_manifest(folder, document)


def parse_manifest(folder: Path, document: Any) -> Manifest:
    """Return the `Manifest` of a JSON document after checking every value.

    Raises:
        CorruptArtifactError: A value is invalid.
        UnsupportedArtifactError: The format is newer than this version.
    """
    path = folder / MANIFEST_FILE
    field, check_count = partial(_field, path), partial(_check_count, path)
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
    defaults: dict[str, Any] = {"vocabulary": {}, "search": {}, "packages": {}, "parity": {}}
    values = {key: field({**defaults, **document}, key, dict) for key in sections}
    for key in values["vocabulary"]:
        check_count(values["vocabulary"], key, 1, "in 'vocabulary', ")
    _check_search(path, values["search"])
    values["search"] = ManifestSearch.from_json(values["search"])
    for key in values["packages"]:
        field(values["packages"], key, str, "in 'packages', ")
    max_source_length = document.get("max_source_length")
    if max_source_length is not None:
        check_count(document, "max_source_length", 1)
    fields = {*sections, *RESERVED_KEYS, "max_source_length"}
    other = {key: value for key, value in document.items() if key not in fields}
    return Manifest(
        folder=folder,
        format_version=version,
        files=files,
        max_source_length=max_source_length,
        other=other,
        **values,
    )


def _field(path: Path, source: Mapping[str, Any], key: str, kind: type, where: str = "") -> Any:
    value = source.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CorruptArtifactError(
            f"{path}: expected {where}{key!r} to be {kind.__name__}. Received: {value!r:.80}"
        )
    return value


def _check_count(
    path: Path, source: Mapping[str, Any], key: str, low: int, where: str = ""
) -> None:
    if not low <= _field(path, source, key, int, where) <= _INT32_MAX:
        raise CorruptArtifactError(
            f"{path}: expected {where}{key!r} to be at least {low} and at most {_INT32_MAX}. "
            f"Received: {source[key]!r:.80}"
        )


def _check_search(path: Path, search: Mapping[str, Any]) -> None:
    """Check the settings of a search; earlier versions had wider ranges, or none."""
    forbidden, ratio = search.get("forbidden"), search.get("max_length_ratio")
    for name, (kind, low, _) in RANGES.items():
        key = JSON_KEYS.get(name, name)
        if search.get(key) is None or name in ("forbidden", "max_length_ratio"):
            continue
        if kind is int:
            _check_count(path, search, key, int(low), "in 'search', ")
        elif type(search[key]) not in (int, float):
            raise CorruptArtifactError(
                f"{path}: expected in 'search', {key!r} to be a number. "
                f"Received: {search[key]!r:.80}"
            )
    if forbidden is not None and not (
        isinstance(forbidden, list)
        and all(type(index) is int and index >= 0 for index in forbidden)
    ):
        raise CorruptArtifactError(
            f"{path}: expected in 'search', 'forbidden' to be a list of ids. "
            f"Received: {forbidden!r:.80}"
        )
    if ratio is not None and not (type(ratio) in (int, float) and 0 < ratio <= _INT32_MAX):
        raise CorruptArtifactError(
            f"{path}: expected in 'search', 'max_length_ratio' to be above 0 and at most "
            f"{_INT32_MAX}. Received: {ratio!r:.80}"
        )


def _check_name(path: Path, name: str) -> None:
    """Raise an error unless `name` is a plain relative posix path inside the artifact."""
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


def _check_is_file(folder: Path, name: str) -> None:
    path, parts = folder / name, PurePosixPath(name).parts
    parents = (folder.joinpath(*parts[:n]) for n in range(1, len(parts)))
    if any(map(Path.is_symlink, parents)) or _is_foreign_link(folder, path):
        raise CorruptArtifactError(f"{path}: {_NO_LINK}")
    if not path.is_file():
        raise CorruptArtifactError(f"{path}: listed in {MANIFEST_FILE}, but there is no such file.")


def _is_foreign_link(folder: Path, path: Path) -> bool:
    """Return whether a file is a link, except within one cache of the Hugging Face Hub.

    Such a cache has files like `CACHE/models--USER--NAME/snapshots/COMMIT/model.onnx`, which are
    links to `CACHE/models--USER--NAME/blobs` or, through another link, to `CACHE/blobs`.
    """
    if not path.is_symlink():
        return False
    snapshots = Path(os.path.realpath(folder)).parent
    repository, target = snapshots.parent, Path(os.path.realpath(path))
    stores = repository / "blobs", repository.parent / "blobs"
    is_cached = snapshots.name == "snapshots" and repository.name.startswith("models--")
    return not (is_cached and any(target.is_relative_to(store) for store in stores))


@contextlib.contextmanager
def _open_listed(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a listed file for reading."""
    _check_is_file(folder, name)
    try:
        file = open(folder / name, "rb", opener=_open_without_waiting)
    except OSError as error:  # deleted meanwhile, or no permission
        raise CorruptArtifactError(
            f"{folder / name}: expected a readable file. Received: {error.strerror}."
        ) from error
    with file:
        yield file


def _open_without_waiting(path: str, flags: int) -> int:
    """Open without blocking: if a pipe replaced the file, a plain `open` waits for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_digest(path: Path, record: FileRecord, size: int, digest: str) -> None:
    if size != record.bytes:
        raise CorruptArtifactError(
            f"{path}: expected {record.bytes} bytes. Received: {size} bytes."
        )
    if digest != record.sha256:
        raise CorruptArtifactError(
            f"{path}: expected sha256 {record.sha256}. Received: {digest}: the file was changed."
        )
