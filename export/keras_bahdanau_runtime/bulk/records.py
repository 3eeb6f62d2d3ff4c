"""Files of texts row by row, and the same files with a translation in each row.

| name ends with            | a row                       | the translation                       |
|---------------------------|-----------------------------|---------------------------------------|
| `.jsonl`                  | an object                   | its last key, `"translation"`         |
| `.parquet`                | a row                       | its last column, `translation`        |
| anything else             | a line                      | a line                                |

Lines and JSON lines are compressed by gzip where `.gz` follows.
"""

import gzip
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from keras_bahdanau_runtime.checks import check_text
from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.files import written
from keras_bahdanau_runtime.text.corpus import iterate_lines

TEXT, TRANSLATION = "text", "translation"  # columns: the usual one, and the one that is added
_AT_ONCE = 8192  # rows that are read from Parquet together
_GROUP = 65_536  # rows of a group of Parquet that is written
Source = Path | BinaryIO


class Row(NamedTuple):
    """A row.

    Args:
        key: bytes. All of it that decides what is written for it.
        text: str. What is translated.
    """

    key: bytes
    text: str


class Records(Protocol):
    """The rows of a file, and how they are written.

    While rows are translated, a partial file takes what `render` makes of them. In the end
    `publish` makes the output of it.
    """

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Reads the rows from `start` to `stop`, counted from 0.

        Raises:
            ValueError: A row is wrong; it is named.
        """
        ...

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        """What the partial file takes for these rows; `None` where there is no translation."""
        ...

    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> None:
        """Gives a whole partial file, of these rows, the name and the form of the output."""
        ...


def open_records(source: Source, output: Path, text_column: str | None = None) -> Records:
    """The records of a file, by its name.

    Args:
        source: `Path`, or a stream of lines that is read once.
        output: Where translations go; of the same kind.
        text_column: The key or column that is translated, "text" if `None`.

    Raises:
        ValueError: The kinds differ, lines have no columns, or the column is not there.
        MissingDependencyError: It is Parquet, and pyarrow is not installed.
    """
    kind = _kind(source)
    if _kind(output) is not kind:
        raise ValueError(
            "Argument `output` must be of the kind of the source: .jsonl, .parquet or lines of "
            f"text. Received: {str(output)!r}"
        )
    packed = output.suffix == ".gz"
    if kind is Lines or not isinstance(source, Path):
        if text_column is not None:
            raise ValueError(
                "Argument `text_column` must be given only for .jsonl and .parquet. "
                f"Received: {text_column!r} for lines of text"
            )
        return Lines(source, packed)
    column = TEXT if text_column is None else text_column
    if column == TRANSLATION:
        raise ValueError(
            f"Argument `text_column` must not be {TRANSLATION!r}, the column that is added. "
            f"Received: {column!r}"
        )
    return Parquet(source, column) if kind is Parquet else JsonLines(source, column, packed)


def one_line(text: str) -> str:
    """The text without line breaks, which a translation may hold: one line in is one line out."""
    return " ".join(text.splitlines())


def is_text(source: Source) -> bool:
    """Whether a file, by its name, or a stream holds lines of text."""
    return _kind(source) is Lines


def _kind(source: Source) -> "type[Lines | JsonLines | Parquet]":
    name = source.name if isinstance(source, Path) else ""
    if name.removesuffix(".gz").endswith(".jsonl"):
        return JsonLines
    return Parquet if name.endswith(".parquet") else Lines


class Lines:
    """`Records` of text with one sentence a line; one that has no translation gives a blank line.

    Args:
        source: Path or stream, as `iterate_lines` takes it.
        packed: bool. Whether what is written is compressed by gzip.
    """

    def __init__(self, source: Source, packed: bool = False) -> None:
        self._source, self._packed = source, packed

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        lines = itertools.islice(iterate_lines(self._source), start, stop)
        return (Row(text.encode("utf-8"), text) for text in lines)

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        lines = (one_line(text or "") for text in translations)
        return self._pack("".join(f"{line}\n" for line in lines).encode("utf-8"))

    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> None:
        if self._packed and not partial.stat().st_size:
            partial.write_bytes(self._pack(b""))  # no line: gzip opens no file of no bytes
        os.replace(partial, output)

    def _pack(self, data: bytes) -> bytes:
        """A member of gzip for itself, before which the file may be cut; the same every time."""
        return gzip.compress(data, mtime=0) if self._packed else data


class JsonLines(Lines):
    """`Records` of JSON lines. What stands in an object besides stays as it is, to the byte.

    Args:
        source: `Path`.
        column: The key of the text.
        packed: As for `Lines`.
    """

    def __init__(self, source: Path, column: str, packed: bool = False) -> None:
        super().__init__(source, packed)
        self._column = column

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        for number, (key, line) in enumerate(super().rows(start, stop), start + 1):
            yield Row(key, self._text(f"{self._source}, line {number}", line))

    def _text(self, place: str, line: str) -> str:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: expected a JSON object. Received: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{place}: expected a JSON object. Received: {line!r:.80}")
        if TRANSLATION in found:
            raise ValueError(f"{place}: expected no key {TRANSLATION!r}, which is added.")
        if not isinstance(found.get(self._column), str):
            raise ValueError(f"{place}: expected a str as {self._column!r}. Received: {line!r:.80}")
        check_text(f"{place}, {self._column}", found[self._column])
        return str(found[self._column])

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        lines = []
        for row, text in zip(rows, translations, strict=True):
            added = json.dumps(text, ensure_ascii=False).encode("utf-8")
            whole = row.key.rstrip().removesuffix(b"}").rstrip()
            lines.append(b'%s, "%s": %s}\n' % (whole, TRANSLATION.encode(), added))
        return self._pack(b"".join(lines))


class Parquet:
    """`Records` of Parquet; a row that has no translation gets a null.

    The partial file is JSON, a string or null a line: Parquet can only be written at one go.

    Args:
        source: `Path`.
        column: The column of texts.

    Raises:
        ValueError: It is no Parquet, has no such column of strings, or has a translation.
        MissingDependencyError: pyarrow is not installed.
    """

    def __init__(self, source: Path, column: str) -> None:
        self._arrow = require("pyarrow", extra="parquet")
        self._parquet = require("pyarrow.parquet", extra="parquet")
        self._source, self._column = source, column
        with self._opened() as file:
            schema = file.schema_arrow
        types = self._arrow.types
        names = schema.names
        if column not in names:
            raise ValueError(
                f"Argument `text_column` must be a column of {source}, one of {names}. "
                f"Received: {column!r}"
            )
        if names.count(column) > 1:
            raise ValueError(
                f"Argument `text_column` must be one column of {source}. "
                f"Received: {column!r}, the name of {names.count(column)}"
            )
        kind = schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ValueError(
                "Argument `text_column` must be a column of strings. "
                f"Received: {column!r} of {kind}"
            )
        if TRANSLATION in names:
            raise ValueError(f"{source}: expected no column {TRANSLATION!r}, which is added.")

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        number = start
        for batch in self._batches(start, stop, [self._column]):
            try:
                texts = batch.column(0).to_pylist()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self._source}, rows {number + 1} to {number + len(batch)}: expected texts "
                    f"in UTF-8. Received: {error}"
                ) from error
            for text in texts:
                number += 1
                if text is None:
                    raise ValueError(
                        f"{self._source}, row {number}: expected a str as {self._column!r}. "
                        "Received: null"
                    )
                yield Row(json.dumps(text).encode("ascii"), text)

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        return "".join(f"{json.dumps(text)}\n" for text in translations).encode("ascii")

    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> None:
        added = self._arrow.field(TRANSLATION, self._arrow.string())
        with self._opened() as file:
            schema = file.schema_arrow.append(added)
        with written(output) as path, partial.open("rb") as lines:
            with self._parquet.ParquetWriter(path, schema) as writer:
                for batch in self._batches(start, stop, None, _GROUP):
                    found = [json.loads(line) for line in itertools.islice(lines, len(batch))]
                    column = self._arrow.array(found, self._arrow.string())
                    parts = [*batch.columns, column]
                    writer.write_batch(self._arrow.RecordBatch.from_arrays(parts, schema=schema))
        partial.unlink()

    def _batches(
        self, start: int, stop: int | None, columns: list[str] | None, size: int = _AT_ONCE
    ) -> Iterator[Any]:
        """Record batches of the rows from `start` to `stop`; groups without any are not read."""
        with self._opened() as file:
            wanted, first, place = [], 0, 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if place + count <= start:
                    first = place + count
                elif stop is None or place < stop:
                    wanted.append(group)
                place += count
            place = first
            for batch in file.iter_batches(size, row_groups=wanted, columns=columns):
                end = place + len(batch) if stop is None else min(stop, place + len(batch))
                begin = max(start, place)
                if begin < end:
                    yield batch.slice(begin - place, end - begin)
                place += len(batch)

    def _opened(self) -> Any:
        try:
            # A page at a time, and not a group, which may be larger than memory.
            return self._parquet.ParquetFile(self._source, buffer_size=2**16, pre_buffer=False)
        except self._arrow.ArrowInvalid as error:
            raise ValueError(f"{self._source}: expected Parquet. Received: {error}") from error
