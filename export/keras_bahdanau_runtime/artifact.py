"""The artifact folder: whole or absent, and known by its hashes.

with publish("artifact") as folder:             # a temporary folder beside the destination
    write_the_graph(folder / "model.onnx")
    write_manifest(folder, {"vocabulary": {"source": 8000, "target": 8000}})

`manifest` reads it back.
"""

import contextlib
import glob
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import CorruptArtifactError
from keras_bahdanau_runtime.files import exchange, flush, locked
from keras_bahdanau_runtime.manifest import WRITTEN_HERE, parse_manifest, read_manifest
from keras_bahdanau_runtime.signature import FORMAT, FORMAT_VERSION, MANIFEST_FILE, SIGNATURES

logger = logging.getLogger("keras_bahdanau_runtime")


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
    _remove_leftovers(destination)
    published = False
    try:
        temporary.mkdir()
        with locked(temporary):
            yield temporary
            manifest = read_manifest(temporary)
            unlisted = sorted(set(_list_files(temporary)) - set(manifest.files))
            if unlisted:
                raise CorruptArtifactError(
                    f"{MANIFEST_FILE}: expected every file of the folder to be listed. "
                    f"Written after the manifest: {unlisted}"
                )
            flush(*temporary.rglob("*"), temporary)
            _check_destination(destination, overwrite)  # again: the block may have taken minutes
            replaced = _move_into_place(temporary, destination)
            published = True
            flush(destination.parent)
            if replaced is not None:
                _remove_replaced(replaced, destination)
    except BaseException:
        if not published and temporary.exists():
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
    taken = sorted(set(contents) & set(WRITTEN_HERE))
    if taken:
        raise ValueError(
            f"Argument `contents` must have no key of {WRITTEN_HERE}, which are filled in here. "
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
        parse_manifest(folder, document)
    except CorruptArtifactError as error:
        raise ValueError(f"Argument `contents` must make a manifest. {error}") from error
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


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


def _move_into_place(temporary: Path, destination: Path) -> Path | None:
    """Makes `temporary` the artifact; returns where the replaced one stands now, if there was."""
    if not destination.exists():
        temporary.rename(destination)
        return None
    if exchange(temporary, destination):
        return temporary
    # For a moment there is none; a process that is killed then leaves both beside it.
    replaced = temporary.with_suffix(".replaced")
    try:
        destination.rename(replaced)
        temporary.rename(destination)
    except BaseException:
        if replaced.exists() and not destination.exists():
            replaced.rename(destination)
        raise
    return replaced


def _remove_replaced(replaced: Path, destination: Path) -> None:
    logger.info("Replaced the artifact that stood at %s.", destination)
    try:
        shutil.rmtree(replaced)
    except OSError as error:  # the new artifact stands; failing now would claim that it does not
        logger.warning("Could not remove the replaced artifact %s: %s", replaced, error)


def _remove_leftovers(destination: Path) -> None:
    """Removes what writers of the same artifact left who were killed."""
    for path in destination.parent.glob(f".{glob.escape(destination.name)}.*"):
        if path.suffix not in (".partial", ".replaced") or path.is_symlink() or not path.is_dir():
            continue
        if path.suffix == ".replaced" and not destination.exists():
            continue  # the only copy there is
        with locked(path) as ours:
            if ours:
                shutil.rmtree(path)
                logger.warning("Removed %s, which a writer that was killed left there.", path)
