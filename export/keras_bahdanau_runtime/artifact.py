"""The artifact folder: whole or absent, and known by its hashes.

with publish("artifact") as folder:             # a temporary folder beside the destination
    write_the_graph(folder / "model.onnx")
    write_manifest(folder, {"vocabulary": {"source": 8000, "target": 8000}})

`manifest` reads it back.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import CorruptArtifactError
from keras_bahdanau_runtime.files import check_new_folder, written_folder
from keras_bahdanau_runtime.manifest import WRITTEN_HERE, parse_manifest, read_manifest
from keras_bahdanau_runtime.signature import FORMAT, FORMAT_VERSION, MANIFEST_FILE, SIGNATURES

logger = logging.getLogger("keras_bahdanau_runtime")

_KIND = "an artifact"


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
    with written_folder(path, _KIND, _is_artifact, overwrite) as folder:
        yield folder
        manifest = read_manifest(folder)
        unlisted = sorted(set(_list_files(folder)) - set(manifest.files))
        if unlisted:
            raise CorruptArtifactError(
                f"{MANIFEST_FILE}: expected every file of the folder to be listed. "
                f"Written after the manifest: {unlisted}"
            )
    size = sum(record.bytes for record in manifest.files.values())
    logger.info("Wrote the artifact %s: %d files, %d bytes.", path, len(manifest.files), size)


def check_destination(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Raises a `ValueError` where `publish` would for these arguments, and writes nothing."""
    check_new_folder(path, _KIND, _is_artifact, overwrite)


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
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        parse_manifest(folder, json.loads(text))  # as it will be read
    except (CorruptArtifactError, TypeError) as error:
        raise ValueError(f"Argument `contents` must make a manifest. {error}") from error
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


def _is_artifact(folder: Path) -> bool:
    manifest = folder / MANIFEST_FILE
    return manifest.is_file() and FORMAT.encode() in manifest.read_bytes()
