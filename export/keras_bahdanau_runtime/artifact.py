"""The artifact folder: whole or absent, and known by its hashes.

with publish("artifact") as folder:             # a temporary folder beside the destination
    write_the_graph(folder / "model.onnx")
    write_manifest(folder, {"vocabulary": {"source": 8000, "target": 8000}})
manifest = read_manifest("artifact")            # every byte checked
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from keras_bahdanau_runtime.errors import CorruptArtifactError, UnsupportedArtifactError
from keras_bahdanau_runtime.signature import FORMAT, FORMAT_VERSION, MANIFEST_FILE, SIGNATURES

logger = logging.getLogger("keras_bahdanau_runtime")

_WRITTEN_HERE = ("format", "format_version", "files")


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


@contextlib.contextmanager
def publish(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary folder that becomes `path` when the block ends well, and vanishes when it
    does not.

    The block writes its files and then calls `write_manifest`. The folder is then verified, flushed
    to the disk and renamed; missing parent folders of `path` are made. On any exception,
    `KeyboardInterrupt` and a full disk included, the temporary folder is removed and `path` is as
    it was.

    Args:
        path: The artifact to make.
        overwrite: bool. Whether an older artifact at `path` may be replaced. Only an artifact or an
            empty folder is ever replaced.

    Raises:
        ValueError: `path` exists and may not be replaced.
        CorruptArtifactError: The block left no manifest, or one that does not match the files.

    Example:

    >>> with publish("artifact") as folder:
    ...     (folder / "notes.txt").write_text("hello")
    ...     write_manifest(folder, {})
    """
    destination = Path(os.path.abspath(path))
    _check_destination(destination, overwrite)
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.mkdir()
        yield temporary
        manifest = read_manifest(temporary)
        unlisted = sorted(set(_list_files(temporary)) - set(manifest.files))
        if unlisted:
            raise CorruptArtifactError(
                f"{MANIFEST_FILE}: expected every file of the folder to be listed. "
                f"Written after the manifest: {unlisted}"
            )
        _flush(*temporary.rglob("*"), temporary)
        _check_destination(destination, overwrite)  # again: the block may have taken minutes
        _move_into_place(temporary, destination)
        _flush(destination.parent)
    except BaseException:
        if temporary.exists():
            shutil.rmtree(temporary)
            logger.warning(
                "No artifact was written to %s; the partial files were removed.", destination
            )
        raise
    size = sum(record.bytes for record in manifest.files.values())
    logger.info(
        "Wrote the artifact %s: %d files, %d bytes.", destination, len(manifest.files), size
    )


def write_manifest(folder: str | os.PathLike[str], contents: Mapping[str, Any]) -> None:
    """Hashes every file of `folder` and writes `manifest.json`; call it when all files are written.

    Args:
        folder: The folder that `publish` gave.
        contents: JSON-like mapping added to the manifest: `vocabulary`, `max_source_length`,
            `search`, `packages`, `parity`, or any other key. `signatures` is filled in for the
            graphs of `signature.SIGNATURES` when absent.

    Raises:
        ValueError: `contents` holds a key that is written here, a wrong type, or NaN; or `folder`
            holds a link.
    """
    folder = Path(folder)
    taken = sorted(set(contents) & set(_WRITTEN_HERE))
    if taken:
        raise ValueError(
            f"Argument `contents` must have no key of {_WRITTEN_HERE}, which are filled in here. "
            f"Received: {taken}"
        )
    files = {}
    for name in _list_files(folder):
        digest, size = _digest(folder / name)
        files[name] = {"sha256": digest, "bytes": size}
    signatures = {
        name: signature.to_json() for name, signature in SIGNATURES.items() if name in files
    }
    document: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "files": files,
        "signatures": signatures,
        **contents,
    }
    try:
        _parse(folder, document)
    except CorruptArtifactError as error:
        raise ValueError(f"Argument `contents` must make a manifest. {error}") from error
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: str | os.PathLike[str], verify: bool = True) -> Manifest:
    """Reads `manifest.json` and checks the files it lists.

    Files that the manifest does not list are not looked at.

    Args:
        folder: The artifact.
        verify: bool. Whether to compare the size and the hash of every file. Without it only the
            manifest itself and the paths in it are checked.

    Returns:
        A `Manifest`.

    Raises:
        ValueError: `folder` is not a folder.
        CorruptArtifactError: Something is missing, damaged, of the wrong type, or points outside
            the folder.
        UnsupportedArtifactError: The artifact was written in a newer format.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(
            "Argument `folder` must be the folder of an artifact. "
            f"Received: {str(folder)!r}, which is none."
        )
    path = folder / MANIFEST_FILE
    if path.is_symlink() or not path.is_file():
        raise CorruptArtifactError(
            f"{path}: expected a file. It is missing: no artifact, or a half-written one."
        )
    try:
        document = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptArtifactError(f"{path}: expected JSON in UTF-8. Received: {error}") from error
    manifest = _parse(folder, document)
    for name, record in manifest.files.items():
        _check_file(folder, name, record, verify)
    return manifest


def _parse(folder: Path, document: Any) -> Manifest:
    path = folder / MANIFEST_FILE

    def field(source: Mapping[str, Any], key: str, kind: type, where: str = "") -> Any:
        value = source.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CorruptArtifactError(
                f"{path}: expected {where}{key!r} to be {kind.__name__}. Received: {value!r:.80}"
            )
        return value

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
        files[name] = FileRecord(
            field(record, "sha256", str, where), field(record, "bytes", int, where)
        )
    sections = ("signatures", "vocabulary", "search", "packages", "parity")
    rest = {"vocabulary": {}, "search": {}, "packages": {}, "parity": {}, **document}
    found = {key: field(rest, key, dict) for key in sections}
    for key in found["vocabulary"]:
        field(found["vocabulary"], key, int, "in 'vocabulary', ")
    for key in found["packages"]:
        field(found["packages"], key, str, "in 'packages', ")
    limit = document.get("max_source_length")
    if limit is not None and field(document, "max_source_length", int) < 1:
        raise CorruptArtifactError(
            f"{path}: expected 'max_source_length' to be at least 1. Received: {limit}"
        )
    known = {*sections, *_WRITTEN_HERE, "max_source_length"}
    other = {key: value for key, value in document.items() if key not in known}
    return Manifest(
        folder=folder,
        format_version=version,
        files=files,
        max_source_length=limit,
        other=other,
        **found,
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


def _check_file(folder: Path, name: str, record: FileRecord, verify: bool) -> None:
    path = folder / name
    steps = [
        folder.joinpath(*PurePosixPath(name).parts[: i + 1])
        for i in range(len(PurePosixPath(name).parts))
    ]
    if any(step.is_symlink() for step in steps):
        raise CorruptArtifactError(
            f"{path}: expected a file inside the artifact. Received: a link."
        )
    if not path.is_file():
        raise CorruptArtifactError(f"{path}: listed in {MANIFEST_FILE}, but there is no such file.")
    if not verify:
        return
    size = path.stat().st_size
    if size != record.bytes:
        raise CorruptArtifactError(
            f"{path}: expected {record.bytes} bytes. Received: {size} bytes."
        )
    digest, _ = _digest(path)
    if digest != record.sha256:
        raise CorruptArtifactError(
            f"{path}: expected sha256 {record.sha256}. Received: {digest}: the file was changed."
        )


def _list_files(folder: Path) -> list[str]:
    """Returns every file below `folder` but the manifest, as sorted relative posix paths."""
    names = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise ValueError(f"Argument `folder` must hold no links. Received: {path}")
        if path.is_file() and path != folder / MANIFEST_FILE:
            names.append(path.relative_to(folder).as_posix())
    return sorted(names)


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _check_destination(destination: Path, overwrite: bool) -> None:
    if not os.path.lexists(destination):
        return
    if not overwrite:
        raise ValueError(
            "Argument `path` must be a new folder, or `overwrite` be True. "
            f"Received: {destination}, which exists."
        )
    # overwrite=True on a mistyped path must never delete a home directory.
    plain = destination.is_dir() and not destination.is_symlink()
    manifest = destination / MANIFEST_FILE
    ours = plain and manifest.is_file() and FORMAT.encode() in manifest.read_bytes()
    if not ours and not (plain and not any(destination.iterdir())):
        raise ValueError(
            "Argument `path` must be an artifact or an empty folder to overwrite. "
            f"Received: {destination}, which is neither."
        )


def _flush(*paths: Path) -> None:
    """Waits until files, and folders where the system allows it, are on the disk."""
    for path in paths:
        if os.name == "nt" and path.is_dir():  # Windows opens no folders
            continue
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(temporary: Path, destination: Path) -> None:
    if not destination.exists():
        temporary.rename(destination)
        return
    aside = temporary.with_suffix(".replaced")
    try:
        destination.rename(aside)
        temporary.rename(destination)
    except BaseException:
        if aside.exists() and not destination.exists():
            aside.rename(destination)
        raise
    logger.info("Replaced the artifact that stood at %s.", destination)
    try:
        shutil.rmtree(aside)
    except OSError as error:  # the new artifact stands; failing now would claim that it does not
        logger.warning("Could not remove the replaced artifact %s: %s", aside, error)
