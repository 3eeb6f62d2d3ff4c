"""Zip files of strangers, such as checkpoints and `.keras` files, read within limits."""

import contextlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

_MAX_DIRECTORY = 2**22  # bytes of the list of members, which takes ten times as much in memory
_CHUNK = 2**20
# Further errors that `zipfile` raises for damaged files.
_ERRORS = (
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
    OSError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
)


class _LimitedReader(io.BufferedReader):
    """A file whose reads are limited: `zipfile` reads the whole directory at once."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"a directory of {size} bytes")
        return super().read(size)


@contextlib.contextmanager
def open_zip(source: str | os.PathLike[str] | bytes) -> Iterator[zipfile.ZipFile]:
    """Open a zip file for `read_member`.

    Args:
        source: Path of the file, or its contents.

    Raises:
        zipfile.BadZipFile: It is damaged, or the list of its members is too large.
        OSError: It cannot be opened.
    """
    raw: Any = io.BytesIO(source) if isinstance(source, bytes) else io.FileIO(source)
    with _LimitedReader(raw) as file:
        try:
            archive = zipfile.ZipFile(file)
        except _ERRORS as error:
            raise zipfile.BadZipFile(f"a damaged directory: {error}") from error
        with archive:
            yield archive


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return the contents of a member of a zip file.

    Args:
        archive: The file, from `open_zip`.
        name: Name of the member.
        limit: Largest number of bytes of the contents.

    Raises:
        zipfile.BadZipFile: The file has no such member, or it is damaged, larger than `limit`,
            encrypted, or compressed by another method than "deflate".
    """
    member = archive.NameToInfo.get(name)
    if member is None:
        raise zipfile.BadZipFile(f"no member {name!r:.80}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"member {name!r:.80} has compression {member.compress_type}")
    chunks, size = [], 0
    try:
        with archive.open(member) as file:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise zipfile.BadZipFile(f"member {name!r:.80} has more than {limit} bytes")
                chunks.append(chunk)
    except _ERRORS as error:
        raise zipfile.BadZipFile(f"member {name!r:.80} is damaged: {error}") from error
    return b"".join(chunks)
