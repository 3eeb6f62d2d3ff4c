"""Open files that may be compressed; see `file_kind`."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.text.file_kind import file_kind

_BUFFER_SIZE = 2**18  # bytes


@contextlib.contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name tells the compression; see `file_kind`.

    Args:
        path: Path of the file.

    Yields:
        A binary file object.

    Raises:
        ValueError: In the block: the compressed data is damaged or incomplete.
        MissingDependencyError: The name ends with `.zst` and backports.zstd is not installed.
    """
    kind = file_kind(path).compression
    if kind is None:
        with open(path, "rb") as file:
            yield file
        return
    opener, own_errors = _decompressor(kind)
    errors: tuple[type[Exception], ...] = (OSError, EOFError, *own_errors)
    # Lines of the buffer are found in C; the file objects of compressed files find them in Python.
    with io.BufferedReader(opener(path, "rb"), _BUFFER_SIZE) as file:
        try:
            yield file
        except errors as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the system, not of the data
            raise ValueError(f"{os.fspath(path)} is not a complete {kind} file: {error}") from error


def _decompressor(kind: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the function that opens a compressed file, and its errors."""
    if kind == "gzip":
        return gzip.open, (zlib.error,)
    if kind == "bzip2":
        return bz2.open, ()
    if kind == "xz":
        return lzma.open, (lzma.LZMAError,)
    in_library = sys.version_info >= (3, 14)
    zstd = require("compression.zstd" if in_library else "backports.zstd", extra="zstd")
    return zstd.open, (zstd.ZstdError,)
