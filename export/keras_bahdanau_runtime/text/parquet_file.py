"""Read Parquet files in bounded memory.

A few kilobytes of Parquet can expand to gigabytes of text: a page is compressed, and many rows can
refer to one long text. So the headers of all pages are read first, without the pages. They tell how
many rows a batch may have, and a page that is too large is refused. pyarrow refuses a page that
does not have the size of its header.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from keras_bahdanau_runtime.errors import require

_MAX_PAGE = 2**28  # bytes of a page without compression; writers make pages of 1 to 100 MB
_MAX_HEADER = 2**20  # bytes of the header of a page
_BATCH_BYTES = 2**27  # bytes of the texts of a batch
_MAX_DEPTH = 16  # of structs and lists in a header
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7  # of Parquet's enumerations PageType and Encoding


@contextlib.contextmanager
def open_parquet(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a Parquet file; yield a `pyarrow.parquet.ParquetFile`.

    Raises:
        ValueError: Also in the block: the file is not Parquet, is damaged, or a page is too large.
        MissingDependencyError: pyarrow is not installed.
    """
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    try:
        # Read page by page, because a row group may be larger than memory.
        with parquet.ParquetFile(path, buffer_size=2**16, pre_buffer=False) as file:
            yield file
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system, not of the data
        reason = " ".join(str(error).split())
        raise ValueError(f"{os.fspath(path)}: expected Parquet. Received: {reason:.200}") from error


def batch_rows(
    path: str | os.PathLike[str], file: Any, columns: Sequence[str] | None, limit: int
) -> int:
    """Return how many rows of some columns may be read at once.

    Args:
        path: Path of the file.
        file: Its `pyarrow.parquet.ParquetFile`.
        columns: Paths of columns, such as "translation.en"; a column of structs has all columns
            inside. `None` for all columns.
        limit: Largest result.

    Raises:
        ValueError: A page is too large or has no valid header.
    """
    # The chunks of a row group have the order of the schema; the names in them have no effect.
    is_read = [
        columns is None or any(f"{leaf.path}.".startswith(f"{column}.") for column in columns)
        for leaf in file.schema
    ]
    largest = 1.0
    with open(path, "rb") as data:
        try:
            for chunks in _row_groups(data):
                for chunk in itertools.compress(chunks, is_read):
                    largest = max(largest, _row_bytes(data, chunk))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # A damaged file has other fields, or fields of other types.
            problem = error if isinstance(error, ValueError) else "damaged headers"
            raise ValueError(
                f"{os.fspath(path)}: expected pages of at most {_MAX_PAGE >> 20} MB. "
                f"Received: {problem}"
            ) from error
    return max(1, min(limit, int(_BATCH_BYTES / largest)))


def _row_groups(data: BinaryIO) -> Iterator[list[dict[int, Any]]]:
    """Yield the fields of ColumnMetaData of all column chunks of each row group.

    pyarrow ends the process when it returns the metadata of some damaged files.
    """
    end = data.seek(-8, os.SEEK_END)
    size = int.from_bytes(data.read(4), "little")
    data.seek(max(0, end - size))
    footer, _ = _parse_struct(data.read(size), 0)
    for group in footer.get(4, ()):
        yield [column[3] for column in group[1]]


def _row_bytes(data: BinaryIO, chunk: dict[int, Any]) -> float:
    """Return how many bytes a row of a column chunk needs, more or less.

    A row may be any text of a dictionary, and with delta encoding all texts before it.
    """
    position = min(chunk[9], chunk.get(11) or chunk[9])  # of the data, and of the dictionary
    end, values = position + chunk[7], 0
    if not 0 <= position <= end <= data.seek(0, os.SEEK_END):
        raise ValueError("pages outside of the file")
    largest, delta = 1.0, 0
    while position < end and values < chunk[5]:
        data.seek(position)
        page, length = _parse_struct(data.read(min(_MAX_HEADER, end - position)), 0)
        size, compressed = page.get(2), page.get(3)
        if not isinstance(size, int) or not isinstance(compressed, int) or compressed < 0:
            raise ValueError("a page without a size")
        if not 0 <= size <= _MAX_PAGE:
            raise ValueError(f"a page of {size} bytes")
        body = page.get(5) or page.get(8) or {}  # DataPageHeader or DataPageHeaderV2
        encoding = body.get(2 if 5 in page else 4)
        count = body.get(1, 0)
        values += count
        if page.get(1) == _DICTIONARY_PAGE:
            largest = max(largest, size)
        elif encoding == _DELTA_BYTE_ARRAY:
            delta += size
            largest = max(largest, delta)
        else:
            largest = max(largest, size / max(1, count))
        position += length + compressed
    return largest


def _parse_struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Parse a struct of Thrift's compact protocol; return its fields by number, and its end."""
    fields, number = dict[int, Any](), 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        at += 1
        if step:
            number += step
        else:
            number, at = _parse_integer(data, at)
        fields[number], at = _parse_value(data, at, kind, depth)
    return fields, at + 1


def _parse_value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, at
    if kind == 3:  # a byte
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _parse_integer(data, at)
    if kind == 7:  # a double
        return data[at + 7], at + 8  # only its end is checked
    if kind == 8:  # bytes
        size, at = _parse_varint(data, at)
        return data[at : at + size], at + size
    if depth < _MAX_DEPTH and kind == 12:
        return _parse_struct(data, at, depth + 1)
    if depth < _MAX_DEPTH and kind == 9:  # a list
        size, kind, at = data[at] >> 4, data[at] & 15, at + 1
        if size == 15:
            size, at = _parse_varint(data, at)
        items = []
        for _ in range(size):
            # A bool of a list is a byte.
            item, at = _parse_value(data, at, 3 if kind in (1, 2) else kind, depth + 1)
            items.append(item)
        return items, at
    raise ValueError("a header of another form")  # Parquet has no sets and maps


def _parse_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a header of another form")


def _parse_integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _parse_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
