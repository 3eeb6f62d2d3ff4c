"""Read files that may be compressed, and compress the parts of a file; see `file_kind`."""

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.text.file_kind import file_kind

_BUFFER_SIZE = 2**18  # bytes
_READ_SIZE = 2**16  # compressed bytes; what follows a stream in them is copied once per stream
_MAX_WINDOW = 2**30  # bytes of a decompressor for xz; that of zstd allows 2^27
_GZIP = 16 + zlib.MAX_WBITS  # zlib's code for data with the header of gzip


@contextlib.contextmanager
def open_bytes(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name tells the compression; see `file_kind`.

    A compressed file has one or several complete streams of that compression. Zero bytes may
    follow a stream as padding: any number in gzip and bzip2, a multiple of four in xz, none in
    zstd. Anything else is an error, also an empty file.

    Args:
        path: Path of the file.

    Yields:
        A binary file object.

    Raises:
        ValueError: In the block: the compressed data is damaged, incomplete, or followed by other
            data.
        MissingDependencyError: The name ends with `.zst` and backports.zstd is not installed.
    """
    kind = file_kind(path).compression
    if kind is None:
        with open(path, "rb") as file:
            yield file
        return
    new_stream, padding, own_errors = _decompressor(kind)
    errors: tuple[type[Exception], ...] = (OSError, EOFError, *own_errors)
    with open(path, "rb", buffering=0) as compressed:
        # Lines of the buffer are found in C.
        raw = _Streams(compressed, new_stream, padding)
        with io.BufferedReader(raw, _BUFFER_SIZE) as file:
            try:
                yield file
            except errors as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # an error of the system, not of the data
                raise ValueError(
                    f"{os.fspath(path)} is not a complete {kind} file: {error}"
                ) from error


class _Streams(io.RawIOBase):
    """The decompressed data of all streams of a file.

    The file objects of `bz2` and `lzma` ignore everything from the first bytes that do not begin
    another stream, such as padding or damage.

    Args:
        file: The compressed file.
        new_stream: Returns a new decompressor for one stream.
        padding: Unit of the zero bytes that may follow a stream; 0 if none may.
    """

    def __init__(self, file: io.RawIOBase, new_stream: Callable[[], Any], padding: int) -> None:
        self._file, self._new_stream, self._padding = file, new_stream, padding
        self._stream = new_stream()
        self._following = b""  # compressed data that was read with the stream before

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._stream.eof and not self._begin_stream():
                return 0
            data = b""
            if self._stream.needs_input:
                data = self._following or self._read()
                self._following = b""
                if not data:
                    raise EOFError("the data ends before a complete stream")
            block = self._stream.decompress(data, len(buffer))
            if block:
                buffer[: len(block)] = block
                return len(block)

    def _begin_stream(self) -> bool:
        """Skip the padding after a stream; return whether another stream follows."""
        data, zeros = self._stream.unused_data or self._read(), 0
        while data:
            following = data.lstrip(b"\0") if self._padding else data
            zeros += len(data) - len(following)
            if following:
                break
            data = self._read()
        if self._padding and zeros % self._padding:
            raise EOFError(f"{zeros} zero bytes follow a stream, not a multiple of {self._padding}")
        if not data:
            return False
        self._following, self._stream = following, self._new_stream()
        return True

    def _read(self) -> bytes:
        return self._file.read(_READ_SIZE) or b""


class _GzipStream:
    """Decompressor of one gzip stream, with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(data or self._stream.unconsumed_tail, max_length)


def _decompressor(kind: str) -> tuple[Callable[[], Any], int, tuple[type[Exception], ...]]:
    """Return a function that returns a decompressor, the unit of padding, and the errors."""
    if kind == "gzip":
        return _GzipStream, 1, (zlib.error,)
    if kind == "bzip2":
        return bz2.BZ2Decompressor, 1, ()
    if kind == "xz":
        return (
            lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_WINDOW),
            4,
            (lzma.LZMAError,),
        )
    zstd = _import_zstd()
    return zstd.ZstdDecompressor, 0, (zstd.ZstdError,)


def compressor(kind: str | None) -> Callable[[bytes], bytes] | None:
    """Return a function that compresses bytes to one complete stream; `None` for no compression.

    A file may be the concatenation of such streams.

    Args:
        kind: `FileKind.compression`.

    Raises:
        MissingDependencyError: The kind is zstd and backports.zstd is not installed.
    """
    match kind:
        case "gzip":
            return functools.partial(gzip.compress, mtime=0)  # for reproducible bytes
        case "bzip2":
            return bz2.compress
        case "xz":
            return lzma.compress
        case "zstd":
            compress: Callable[[bytes], bytes] = _import_zstd().compress
            return compress
    return None


def _import_zstd() -> Any:
    in_library = sys.version_info >= (3, 14)
    return require("compression.zstd" if in_library else "backports.zstd", extra="zstd")
