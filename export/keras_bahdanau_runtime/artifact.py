"""Write the artifact folder: completely or not at all, with the hash of every file.

with publish("artifact") as folder:             # a temporary folder next to the destination
    write_the_graph(folder / "model.onnx")
    write_manifest(folder, {"vocabulary": {"source": 8000, "target": 8000}})

The module `manifest` reads it.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import CorruptArtifactError, argument_error
from keras_bahdanau_runtime.files import atomic_folder, check_new_folder
from keras_bahdanau_runtime.manifest import RESERVED_KEYS, parse_manifest, read_manifest
from keras_bahdanau_runtime.signature import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MODEL_CARD_FILE,
    SIGNATURES,
)

logger = logging.getLogger("keras_bahdanau_runtime")

_KIND = "an artifact"


@contextlib.contextmanager
def publish(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block succeeds.

    The block writes its files and then calls `write_manifest`. The folder is then verified, flushed
    to the disk and renamed; missing parent folders of `path` are created. After any exception,
    including `KeyboardInterrupt` and a full disk, the temporary folder is removed and `path` is
    unchanged.

    Args:
        path: The artifact to write.
        overwrite: bool. Whether an existing artifact at `path` may be replaced. Only an artifact or
            an empty folder is ever replaced.

    Raises:
        ValueError: `path` exists and may not be replaced.
        CorruptArtifactError: The block wrote no manifest, or one that does not match the files.

    Example:

    >>> with publish("artifact") as folder:
    ...     (folder / "notes.txt").write_text("hello")
    ...     write_manifest(folder, {})
    """
    with atomic_folder(path, _KIND, _is_artifact, overwrite) as folder:
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
    """Raise the `ValueError` of `publish` for the same arguments, without writing."""
    check_new_folder(path, _KIND, _is_artifact, overwrite)


def write_manifest(folder: str | os.PathLike[str], contents: Mapping[str, Any]) -> None:
    """Hash every file of `folder` and write `manifest.json`; call it after all files are written.

    A model card, `README.md`, is not hashed, so that it may be edited.

    Args:
        folder: The folder that `publish` yields.
        contents: JSON-like mapping added to the manifest: `vocabulary`, `max_source_length`,
            `search`, `packages`, `parity`, or any other key. If `signatures` is missing, it is
            filled in for the graphs of `signature.SIGNATURES`.

    Raises:
        ValueError: `contents` has a reserved key, a wrong type, or NaN; or `folder` contains a
            link.
    """
    folder = Path(folder)
    reserved = sorted(set(contents) & set(RESERVED_KEYS))
    if reserved:
        raise argument_error(
            "contents",
            f"have no key of {RESERVED_KEYS}, which `write_manifest` fills in",
            received=str(reserved),
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
        parse_manifest(folder, json.loads(text))  # the checks of the reader
    except (CorruptArtifactError, TypeError) as error:
        raise argument_error("contents", "form a valid manifest", received=str(error)) from error
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def _list_files(folder: Path) -> list[str]:
    """Return the files below `folder` that the manifest lists, as sorted relative posix paths.

    It does not list itself, nor the model card, which people edit on the page of the Hub.
    """
    unlisted = folder / MANIFEST_FILE, folder / MODEL_CARD_FILE
    names = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise argument_error("folder", "contain no links", received=str(path))
        if path.is_file() and path not in unlisted:
            names.append(path.relative_to(folder).as_posix())
    return sorted(names)


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _is_artifact(folder: Path) -> bool:
    manifest = folder / MANIFEST_FILE
    return manifest.is_file() and FORMAT.encode() in manifest.read_bytes()
