"""Open files that may be compressed. The end of the name selects the compression."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from keras_bahdanau_runtime.errors import require

SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_BUFFER_SIZE = 2**18  # bytes


def uncompressed_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file without its folder and without the suffix of a compression.

    Example:

    >>> uncompressed_name("data/train.tsv.xz")
    'train.tsv'
    """
    name = Path(path).name
    suffix = Path(name).suffix
    return name.removesuffix(suffix) if suffix in SUFFIXES else name


@contextlib.contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name ends with one of `SUFFIXES`.

    Args:
        path: Path of the file.

    Yields:
        A binary file object.

    Raises:
        ValueError: In the block: the compressed data is damaged or incomplete.
        MissingDependencyError: The name ends with `.zst` and backports.zstd is not installed.
    """
    kind = SUFFIXES.get(Path(path).suffix)
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
