"""Files of texts row by row, and the same files with a translation in each row.

| name ends with | a row     | the translation                | without a translation            |
|----------------|-----------|--------------------------------|----------------------------------|
| `.jsonl`       | an object | its last key, `"translation"`  | null                             |
| `.parquet`     | a row     | its last column, `translation` | null                             |
| anything else  | a line    | a line                         | a blank line                     |

Lines and JSON lines are compressed by gzip where `.gz` follows. A row whose text cannot be read
(bytes that are not UTF-8, a key that is missing or null, a line that is no JSON object) has an
`error` instead, and the others are translated.
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
from keras_bahdanau_runtime.text.corpus import iterate_raw_lines, not_utf8

TEXT, TRANSLATION = "text", "translation"  # columns: the usual one, and the one that is added
_PACKED = (".bz2", ".xz", ".zst", ".zip")  # names of what is not written
_AT_ONCE = 8192  # rows that are read from Parquet together
_GROUP = 65_536  # rows of a group of Parquet that is written
_NO_OBJECT = b"{}"  # the key of a line of JSON that holds no object: nothing of it is kept
Source = Path | BinaryIO


class Row(NamedTuple):
    """A row.

    Args:
        key: bytes. All of it that decides what is written for it.
        text: str. What is translated, blank where there is an `error`.
        error: str. Why the row has no text; `None` where it has one.
    """

    key: bytes
    text: str
    error: str | None = None


class Records(Protocol):
    """The rows of a file, and how they are written.

    While rows are translated, a partial file takes what `render` makes of them. In the end
    `publish` makes the output of it.
    """

    def count(self) -> int:
        """Reads the file once and returns the number of its rows.

        Raises:
            ValueError: The file is damaged, or `text_column` or `output_column` does not fit it.
        """
        ...

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Reads the rows from `start` to `stop`, counted from 0.

        Raises:
            ValueError: As `count`.
        """
        ...

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        """What the partial file takes for these rows; `None` where there is no translation."""
        ...

    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> None:
        """Gives a whole partial file, of these rows, the name and the form of the output."""
        ...


def open_records(
    source: Source,
    output: Path,
    text_column: str | None = None,
    output_column: str | None = None,
) -> Records:
    """The records of a file, by its name.

    Args:
        source: `Path`, or a stream of lines that is read once.
        output: Where translations go; of the same kind.
        text_column: The key or column that is translated, "text" if `None`. A name with dots that
            is no key itself is a path of keys: "translation.en" is "en" of "translation".
        output_column: The key or column that is added, "translation" if `None`.

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
    if output.suffix in _PACKED:
        raise ValueError(
            "Argument `output` must be plain, or end with .gz. "
            f"Received: {str(output)!r}, which names another compression"
        )
    packed = output.suffix == ".gz"
    if kind is Lines or not isinstance(source, Path):
        for name, column in (("text_column", text_column), ("output_column", output_column)):
            if column is not None:
                raise ValueError(
                    f"Argument `{name}` must be given only for .jsonl and .parquet. "
                    f"Received: {column!r} for lines of text"
                )
        return Lines(source, packed)
    column = TEXT if text_column is None else text_column
    added = TRANSLATION if output_column is None else output_column
    if column == added:
        raise ValueError(
            "Argument `text_column` must not be the column that is added, `output_column`. "
            f"Received: {column!r} for both"
        )
    if kind is Parquet:
        return Parquet(source, column, added)
    return JsonLines(source, column, added, packed)


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
        self._counted = False

    def count(self) -> int:
        rows = sum(1 for _ in self.rows())
        self._counted = True
        return rows

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        lines = iterate_raw_lines(self._source, warn=not self._counted)
        for number, line in enumerate(itertools.islice(lines, start, stop), start + 1):
            yield self._row(line, number)

    def _row(self, line: bytes, number: int) -> Row:
        try:
            return Row(line, line.decode("utf-8"))
        except UnicodeDecodeError as error:
            return Row(line, "", not_utf8(error))

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

    A blank line stays blank. A line that is no JSON object becomes one that holds the null of a row
    without a translation and nothing else.

    Args:
        source: `Path`.
        column: The key of the text, or a path of keys with dots between them.
        added: The key of the translation.
        packed: As for `Lines`.
    """

    def __init__(self, source: Path, column: str, added: str, packed: bool = False) -> None:
        super().__init__(source, packed)
        self._column, self._added = column, added
        self._missing = f"expected a str as {column!r}. Received: an object without this key"

    def count(self) -> int:
        rows = blank = missing = 0
        for row in self.rows():
            rows += 1
            blank += not row.key.strip()
            missing += row.error == self._missing
        if 0 < missing == rows - blank:
            raise ValueError(
                f"Argument `text_column` must be a key of the objects in {self._source}. "
                f"Received: {self._column!r}, which none of them has"
            )
        self._counted = True
        return rows

    def _row(self, line: bytes, number: int) -> Row:
        if not line.strip():
            return Row(line, "")
        text = super()._row(line, number)
        try:
            if text.error is not None:
                raise ValueError(text.error)
            found = json.loads(text.text)
        except (ValueError, RecursionError) as error:
            return Row(_NO_OBJECT, "", f"expected a JSON object. Received: {error}")
        if not isinstance(found, dict):
            return Row(_NO_OBJECT, "", f"expected a JSON object. Received: {text.text!r:.80}")
        if self._added in found:
            raise ValueError(
                "Argument `output_column` must be a new key. Received: "
                f"{self._added!r}, which {self._source}, line {number}, has already"
            )
        try:
            return Row(line, self._text(found))
        except ValueError as error:
            return Row(line, "", str(error))

    def _text(self, record: dict[str, Any]) -> str:
        value: Any = record
        for key in [self._column] if self._column in record else self._column.split("."):
            if not isinstance(value, dict) or key not in value:
                raise ValueError(self._missing)
            value = value[key]
        if not isinstance(value, str):
            raise ValueError(
                f"expected a str as {self._column!r}. Received: {json.dumps(value):.80}"
            )
        check_text(self._column, value)
        return value

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        lines, name = [], json.dumps(self._added, ensure_ascii=False).encode("utf-8")
        for row, text in zip(rows, translations, strict=True):
            if not row.key.strip():
                lines.append(row.key + b"\n")
                continue
            value = json.dumps(text, ensure_ascii=False).encode("utf-8")
            members = row.key.rstrip().removesuffix(b"}").rstrip()
            comma = b"" if members.endswith(b"{") else b", "
            lines.append(b"%s%s%s: %s}\n" % (members, comma, name, value))
        return self._pack(b"".join(lines))


class Parquet:
    """`Records` of Parquet; a row that has no translation gets a null.

    The partial file is JSON, a string or null a line: Parquet can only be written at one go.

    Args:
        source: `Path`.
        column: The column of texts, or a path of names with dots between them into a column of
            structs.
        added: The column of translations.

    Raises:
        ValueError: It is no Parquet, has no such column of strings, or has the column `added`.
        MissingDependencyError: pyarrow is not installed.
    """

    def __init__(self, source: Path, column: str, added: str) -> None:
        self._arrow = require("pyarrow", extra="parquet")
        self._parquet = require("pyarrow.parquet", extra="parquet")
        self._compute = require("pyarrow.compute", extra="parquet")
        self._source, self._column, self._added = source, column, added
        with self._opened() as file:
            schema = file.schema_arrow
        types, names = self._arrow.types, schema.names
        self._path = [column] if column in names else column.split(".")
        if names.count(self._path[0]) > 1:
            raise ValueError(
                f"Argument `text_column` must be one column of {source}. "
                f"Received: {column!r}, the name of {names.count(self._path[0])}"
            )
        kind = self._arrow.struct(schema)
        for name in self._path:
            if not types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise ValueError(
                    f"Argument `text_column` must be a column of {source}, one of "
                    f"{self._leaves(schema)}. Received: {column!r}"
                )
            kind = kind.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ValueError(
                "Argument `text_column` must be a column of strings. "
                f"Received: {column!r} of {kind}"
            )
        if added in names:
            raise ValueError(
                "Argument `output_column` must be a new column. "
                f"Received: {added!r}, which {source} has already"
            )

    def _leaves(self, fields: Any, before: str = "") -> list[str]:
        """The names of columns, those inside of structs with a path."""
        names = []
        for field in fields:
            if self._arrow.types.is_struct(field.type):
                names += self._leaves(field.type, f"{before}{field.name}.")
            else:
                names.append(f"{before}{field.name}")
        return names

    def count(self) -> int:
        return sum(1 for _ in self.rows())

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        for batch in self._batches(start, stop, [self._column]):
            column = batch.column(0)
            for name in self._path[1:]:
                column = self._compute.struct_field(column, name)
            try:
                texts = column.to_pylist()
            except UnicodeDecodeError:
                yield from map(self._row, column)
            else:
                yield from map(self._row, texts)

    def _row(self, value: Any) -> Row:
        """The row of a text, of `None`, or of a scalar of pyarrow that may be no text."""
        try:
            text = value.as_py() if isinstance(value, self._arrow.Scalar) else value
        except UnicodeDecodeError as error:
            return Row(b"null", "", not_utf8(error))
        if text is None:
            return Row(b"null", "", f"expected a str as {self._column!r}. Received: null")
        return Row(json.dumps(text).encode("ascii"), text)

    def render(self, rows: list[Row], translations: list[str | None]) -> bytes:
        return "".join(f"{json.dumps(text)}\n" for text in translations).encode("ascii")

    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> None:
        added = self._arrow.field(self._added, self._arrow.string())
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
