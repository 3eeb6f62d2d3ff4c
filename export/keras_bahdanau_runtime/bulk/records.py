"""Read texts from files row by row, and write the files with a translation in each row.

| name ends with       | a row     | the translation                | without a translation      |
|----------------------|-----------|--------------------------------|----------------------------|
| `.csv`               | a row     | its last column, `translation` | an empty cell              |
| `.tsv`, `.tab`       | a line    | its last column                | an empty cell              |
| `.jsonl`, `.ndjson`  | an object | its last keys, `"translation"` | null                       |
| `.parquet`           | a row     | its last column, `translation` | null                       |
| anything else        | a line    | a line                         | a blank line               |

Names of other known formats, such as `.json` or `.xlsx`, are refused. With a further suffix `.gz`,
`.bz2`, `.xz` or `.zst`, all but Parquet are compressed, and so is the output. A row
without a readable text (bytes that are not UTF-8, a missing key or null, a line that is not a JSON
object, another number of columns) has an `error`; the other rows are translated.
"""

import contextlib
import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from keras_bahdanau_runtime.checks import check_text, parse_json
from keras_bahdanau_runtime.errors import argument_error, quote, require
from keras_bahdanau_runtime.files import atomic_write, file_sha256
from keras_bahdanau_runtime.text.columns import join_columns
from keras_bahdanau_runtime.text.compression import compressor
from keras_bahdanau_runtime.text.corpus import (
    MAX_LINE,
    check_length,
    iterate_raw_lines,
    name_of,
    not_utf8,
)
from keras_bahdanau_runtime.text.file_kind import file_kind, is_lines
from keras_bahdanau_runtime.text.parallel import allow_long_cells
from keras_bahdanau_runtime.text.parquet_file import batch_rows, open_parquet

TEXT, TRANSLATION = "text", "translation"  # default names of the columns
_READ_ROWS = 8192  # rows of a batch read from Parquet
_GROUP_ROWS = 65_536  # rows of a Parquet row group to write, at most
_GROUP_BYTES = 2**26  # bytes from which on a row group has fewer rows
_NO_OBJECT = b"{}"  # key of a line that is not a JSON object; its content is dropped
FORMATS = "lines of text, .csv, .tsv, .jsonl or .parquet"  # in messages
Source = Path | BinaryIO
Compress = Callable[[bytes], bytes] | None


class Row(NamedTuple):
    """A row of a file.

    Args:
        key: bytes. The part of the row that determines its output.
        text: str. Text to translate; blank if there is an `error`.
        error: str. Reason why the row has no text; otherwise `None`.
    """

    key: bytes
    text: str
    error: str | None = None


def open_records(
    source: Source,
    output: Path,
    text_column: str | Sequence[str] | None = None,
    output_column: str | None = None,
    key_suffixes: Sequence[str] = (),
) -> "Records":
    """Return the `Records` of a file, selected by its name.

    Args:
        source: `Path`, or a stream of lines that is read once.
        output: `Path` of the translations, of the same kind.
        text_column: Key or column to translate; "text" if `None`. In JSON lines and Parquet, a name
            with dots that is not a key itself is a path of keys: "translation.en" is "en" inside
            "translation". In tab-separated text, which has no header, a number from 1. Several
            columns are joined by tabs; see `TextFormat`.
        output_column: Key or column to add; "translation" if `None`.
        key_suffixes: Ends of further keys that JSON lines get, after "translation_".

    Raises:
        ValueError: The format cannot be translated, the formats differ, a column is given for
            lines, or the column is missing.
        MissingDependencyError: The file is Parquet and pyarrow is not installed, or the output ends
            with `.zst` and backports.zstd is not installed.
    """
    names = (text_column,) if isinstance(text_column, str) else tuple(text_column or ())
    if len(set(names)) < len(names):
        raise argument_error("text_column", "be different columns", names)
    kind = _kind("source", source)
    if _kind("output", output) is not kind:
        raise argument_error(
            "output",
            f"be of the kind of the source: {FORMATS}",
            received=f"{str(output)!r} for {name_of(source)!r}",
        )
    compress = compressor(file_kind(output).compression)
    if kind is Lines or not isinstance(source, Path):
        for name, column in (("text_column", text_column), ("output_column", output_column)):
            if column is not None:
                raise argument_error(
                    name,
                    "be used only with .csv, .tsv, .jsonl and .parquet",
                    received=f"{column!r} for lines of text",
                )
        return Lines(source, compress)
    if kind is TabSeparated:
        if output_column is not None:
            raise argument_error(
                "output_column",
                "be left out for tab-separated text, which has no names of columns",
                output_column,
            )
        return TabSeparated(source, names, compress)
    names = names or (TEXT,)
    new_column = TRANSLATION if output_column is None else output_column
    if new_column in names:
        raise argument_error(
            ("text_column", "output_column"),
            "be different columns",
            received=f"{new_column!r} for both",
        )
    if kind is Parquet:
        return Parquet(source, names, new_column)
    if kind is Csv:
        return Csv(source, names, new_column, compress)
    return JsonLines(source, names, new_column, compress, key_suffixes)


def one_line(text: str) -> str:
    """Replace line breaks, which a translation may contain, by spaces."""
    return " ".join(text.splitlines())


def one_cell(text: str) -> str:
    """Replace line breaks and tabs, which separate the cells of tab-separated text, by spaces."""
    return one_line(text).replace("\t", " ")


def is_text(source: Source) -> bool:
    """Return whether a stream, or a file with this name, contains lines of text."""
    return not isinstance(source, Path) or is_lines(source)


def check_format(path: Path) -> None:
    """Check, by its name alone, that a file can be translated into one with this name.

    Raises:
        ValueError: It has another format.
        MissingDependencyError: The package for its format or its compression is not installed.
    """
    if _kind("source", path) is Parquet:
        require("pyarrow", extra="parquet")
    compressor(file_kind(path).compression)


def _kind(name: str, source: Source) -> "type[Lines | Parquet]":
    """Return the class for a stream or a file; `name` is that of the argument, for the message."""
    if is_text(source):
        return Lines
    kinds = {"csv": Csv, "tsv": TabSeparated, "jsonl": JsonLines, "parquet": Parquet}
    kind = file_kind(source).format if isinstance(source, Path) else None
    if kind not in kinds:
        raise argument_error(
            name,
            f"be {FORMATS}",
            received=f"{str(source)!r}, the name of another format",
        )
    return kinds[kind]


class Lines:
    """Reader and writer of text with one sentence per line; a failed row gives a blank line.

    During translation, the results of `render` are appended to a partial file. At the end,
    `publish` turns it into the output. `Parquet` has the same methods.

    Args:
        source: Path or stream, as for `iterate_lines`.
        compress: The `compressor` of the output; `None` for none.

    Attributes:
        header: Bytes of the file in front of its rows, which determine their meaning.
        values: Kind of `translations` that `render` needs: "lines", "json" or "text".
    """

    header = b""
    values = "lines"

    def __init__(self, source: Source, compress: Compress = None) -> None:
        self._source, self._compress = source, compress
        self._counted = False

    def count(self) -> int:
        """Read the file once and return the number of rows.

        Raises:
            ValueError: The file is damaged, or `text_column` or `output_column` does not fit it.
        """
        rows = sum(1 for _ in self.rows())
        self._counted = True
        return rows

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        """Read the rows from `start` (from 0) up to but not including `stop`.

        Raises:
            ValueError: As `count`.
        """
        lines = iterate_raw_lines(self._source, warn=not self._counted)
        for number, line in enumerate(itertools.islice(lines, start, stop), start + 1):
            yield self._row(line, number)

    def fingerprint(self, digest: str) -> str:
        """Return a hash of the part of the file that determines the output.

        Args:
            digest: SHA-256 of the header and the keys of the rows.
        """
        return digest

    def render_header(self) -> bytes:
        """Return the bytes in front of the first row of the file for the partial file."""
        return b""

    def _row(self, line: bytes, number: int) -> Row:
        try:
            return Row(line, line.decode("utf-8"))
        except UnicodeDecodeError as error:
            return Row(line, "", not_utf8(error))

    def render(self, rows: list[Row], translations: list[Any]) -> bytes:
        """Return the bytes of rows for the partial file.

        Args:
            rows: The rows.
            translations: For "text", the translation of each row, `None` for a failed one. For
                "json", its new keys. For "lines", the list of lines of each row.
        """
        lines = itertools.chain.from_iterable(translations)
        return self._compressed("".join(f"{line}\n" for line in lines).encode("utf-8"))

    @contextlib.contextmanager
    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> Iterator[Path]:
        """Yield the complete file of the rows, which becomes the output after the block.

        Args:
            partial: The partial file.
            output: The output.
            start: As for `rows`.
            stop: As for `rows`.
        """
        if self._compress and not partial.stat().st_size:
            partial.write_bytes(self._compressed(b""))  # an empty file has no stream
        yield partial
        os.replace(partial, output)

    def _compressed(self, data: bytes) -> bytes:
        """Return a separate stream, so that a resumed file can be cut in front of it."""
        return data if self._compress is None else self._compress(data)


class JsonLines(Lines):
    """Reader and writer of JSON lines. The other content of an object keeps its bytes.

    A blank line stays blank. A line that is not a JSON object becomes an object with only the new
    keys, which are null.

    Args:
        source: `Path`.
        columns: Keys of the text, or paths of keys separated by dots.
        new_column: Key of the translation.
        compress: As for `Lines`.
        key_suffixes: As for `open_records`.

    Attributes:
        new_column: Key of the translation.
        new_keys: List of all keys that an object gets.
    """

    values = "json"

    def __init__(
        self,
        source: Path,
        columns: Sequence[str],
        new_column: str,
        compress: Compress = None,
        key_suffixes: Sequence[str] = (),
    ) -> None:
        super().__init__(source, compress)
        self.new_column = new_column
        self.new_keys = [new_column, *(f"{new_column}_{suffix}" for suffix in key_suffixes)]
        # The error of an object without the column, by column.
        self._missing = {
            column: f"expected a str as {column!r}. Received: an object without this key"
            for column in columns
        }

    def count(self) -> int:
        rows = blank = 0
        missing = dict.fromkeys(self._missing, 0)
        for row in self.rows():
            rows += 1
            blank += not row.key.strip()
            for column, error in self._missing.items():
                missing[column] += row.error == error
        for column, count in missing.items():
            if 0 < count == rows - blank:
                raise argument_error(
                    "text_column",
                    f"be a key of the objects in {self._source}",
                    received=f"{column!r}, which no object has",
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
            record = parse_json(text.text)
        except ValueError as error:
            return Row(_NO_OBJECT, "", f"expected a JSON object. Received: {error}")
        if not isinstance(record, dict):
            return Row(_NO_OBJECT, "", f"expected a JSON object. Received: {text.text!r:.80}")
        for key in self.new_keys:
            if key in record:
                raise argument_error(
                    "output_column",
                    "be a new key",
                    received=f"{key!r}, which {self._source}, line {number}, already has",
                )
        try:
            return Row(line, join_columns([self._text(record, name) for name in self._missing]))
        except ValueError as error:
            return Row(line, "", str(error))

    def _text(self, record: dict[str, Any], column: str) -> str:
        value: Any = record
        for key in [column] if column in record else column.split("."):
            if not isinstance(value, dict) or key not in value:
                raise ValueError(self._missing[column])
            value = value[key]
        if not isinstance(value, str):
            received = "null" if value is None else quote(value)
            raise ValueError(f"expected a str as {column!r}. Received: {received}")
        check_text(column, value)
        return value

    def render(self, rows: list[Row], translations: list[Any]) -> bytes:
        lines = []
        for row, keys in zip(rows, translations, strict=True):
            if not row.key.strip():
                lines.append(row.key + b"\n")
                continue
            added = json.dumps(keys, ensure_ascii=False).removeprefix("{").encode("utf-8")
            members = row.key.rstrip().removesuffix(b"}").rstrip()
            comma = b"" if members.endswith(b"{") else b", "
            lines.append(members + comma + added + b"\n")
        return self._compressed(b"".join(lines))


class TabSeparated(Lines):
    """Reader and writer of columns separated by tabs, without a header and without quotes.

    A blank line stays blank. The other lines keep their bytes, with a column at the end.

    Args:
        source: `Path`.
        columns: Numbers of the columns of the text, from 1.
        compress: As for `Lines`.

    Raises:
        ValueError: There is no column, or one is not such a number.
    """

    values = "text"

    def __init__(self, source: Path, columns: Sequence[str], compress: Compress = None) -> None:
        super().__init__(source, compress)
        for column in columns or (None,):
            if column is None or not re.fullmatch("[1-9][0-9]{0,5}", column):
                raise argument_error(
                    "text_column",
                    "be a number from 1 for tab-separated text, which has no names of columns",
                    received=f"{column!r} for {str(source)!r}",
                )
        self._indices = [int(column) - 1 for column in columns]

    def _row(self, line: bytes, number: int) -> Row:
        row = super()._row(line, number)
        if row.error is not None or not line:
            return row
        cells = row.text.split("\t")
        needed = max(self._indices) + 1
        if needed > len(cells):
            expected = f"expected {needed} columns separated by tabs"
            return Row(line, "", f"{expected}. Received: {len(cells)}")
        return Row(line, join_columns([cells[index] for index in self._indices]))

    def render(self, rows: list[Row], translations: list[Any]) -> bytes:
        lines = []
        for row, text in zip(rows, translations, strict=True):
            cell = b"\t" + one_cell(text or "").encode("utf-8")
            lines.append(row.key + (cell if row.key else b"") + b"\n")
        return self._compressed(b"".join(lines))


class Csv(Lines):
    """Reader and writer of CSV with the names of columns in the first row.

    A blank line stays blank. The other rows keep their bytes, with a cell at the end. Only the
    first of several shards has the names of the columns.

    Args:
        source: `Path`.
        columns: Names of the columns of the text.
        new_column: Name of the column of the translation.
        compress: As for `Lines`.

    Raises:
        ValueError: The first row has no such column, or `new_column`.
    """

    values = "text"

    def __init__(
        self, source: Path, columns: Sequence[str], new_column: str, compress: Compress = None
    ) -> None:
        super().__init__(source, compress)
        self.header, names = next(self._raw_rows(), (b"", []))
        if isinstance(names, csv.Error):
            raise ValueError(f"{source}, line 1: expected CSV. Received: {names}")
        for column in columns:
            if names.count(column) != 1:
                raise argument_error(
                    "text_column",
                    f"be one column of {source}, whose first row is {quote(names)}",
                    column,
                )
        if new_column in names:
            raise argument_error(
                "output_column",
                "be a new column",
                received=f"{new_column!r}, which {source} already has",
            )
        self._names, self._new_column = names, new_column
        self._indices = [names.index(column) for column in columns]

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        rows = itertools.islice(self._raw_rows(), 1, None)
        for raw, cells in itertools.islice(rows, start, stop):
            yield self._csv_row(raw, cells)

    def _csv_row(self, raw: bytes, cells: list[str] | csv.Error) -> Row:
        if isinstance(cells, csv.Error):
            return Row(raw, "", f"expected CSV. Received: {cells}")
        if not raw.strip():
            return Row(raw, "")
        if len(cells) != len(self._names):
            expected = f"expected the {len(self._names)} columns of the first row"
            return Row(raw, "", f"{expected}. Received: {len(cells)}")
        text = join_columns([cells[index] for index in self._indices])
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # a byte that `_raw_rows` has kept
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                return Row(raw, "", not_utf8(error))
        return Row(raw, text)

    def _raw_rows(self) -> Iterator[tuple[bytes, list[str] | csv.Error]]:
        """Yield the bytes and the cells of each row, or its error if the next row is known.

        Raises:
            ValueError: A malformed row has an open quote, so that its end is unknown.
        """
        lines, length = list[bytes](), 0  # of the current row

        def decoded_lines() -> Iterator[str]:
            nonlocal length
            for line in iterate_raw_lines(self._source, not self._counted, keep_ends=True):
                lines.append(line)
                length += len(line)
                if length > MAX_LINE:
                    check_length(length, f"{self._source}, line {number}")
                yield line.decode("utf-8", "surrogateescape")

        allow_long_cells()
        number = 1  # of the first line of the row
        # Without `strict`, a quote that is not closed would take in the rest of the file.
        reader = csv.reader(decoded_lines(), strict=True)
        while True:
            lines.clear()
            length = 0
            try:
                cells: list[str] | csv.Error = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if len(lines) > 1 or lines[0].count(b'"') % 2:
                    raise ValueError(
                        f"{self._source}, line {number}: expected CSV. Received: {error}"
                    ) from error
                cells = error
            number += len(lines)
            yield b"".join(lines), cells

    def render_header(self) -> bytes:
        return self._compressed(self._extended(self.header, self._new_column))

    def render(self, rows: list[Row], translations: list[Any]) -> bytes:
        pairs = zip(rows, translations, strict=True)
        return self._compressed(
            b"".join(self._extended(row.key, text or "") for row, text in pairs)
        )

    def _extended(self, raw: bytes, text: str) -> bytes:
        """Return a row with another cell at its end."""
        row = raw.removesuffix(b"\n").removesuffix(b"\r")
        end = raw[len(row) :] or b"\n"  # the last line of a file may have none
        if not row.strip():
            return row + end
        if re.search('[,"\r\n]', text):
            text = '"' + text.replace('"', '""') + '"'
        return row + b"," + text.encode("utf-8") + end


class Parquet:
    """Reader and writer of Parquet; a failed row gets a null. Its methods are those of `Lines`.

    The partial file contains JSON, a string or null per line, because a Parquet file cannot be
    continued.

    Args:
        source: `Path`.
        columns: Columns of the texts, or paths of names separated by dots into a column of structs.
        new_column: Column of the translations.

    Raises:
        ValueError: The file is not Parquet, has no such column of strings, or has `new_column`.
        MissingDependencyError: pyarrow is not installed.
    """

    header = b""
    values = "text"

    def __init__(self, source: Path, columns: Sequence[str], new_column: str) -> None:
        self._arrow = require("pyarrow", extra="parquet")
        self._parquet = require("pyarrow.parquet", extra="parquet")
        self._compute = require("pyarrow.compute", extra="parquet")
        self._source, self._new_column = source, new_column
        with open_parquet(self._source) as file:
            schema = file.schema_arrow
        self._paths = {column: self._checked_path(schema, column) for column in columns}
        if new_column in schema.names:
            raise argument_error(
                "output_column",
                "be a new column",
                received=f"{new_column!r}, which {source} already has",
            )

    def _checked_path(self, schema: Any, column: str) -> list[str]:
        """Return the names of the structs and the column, or raise a `ValueError`."""
        types, names = self._arrow.types, schema.names
        path = [column] if column in names else column.split(".")
        if names.count(path[0]) > 1:
            raise argument_error(
                "text_column",
                f"be one column of {self._source}",
                received=f"{column!r}, the name of {names.count(path[0])}",
            )
        kind = self._arrow.struct(schema)
        for name in path:
            if not types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise argument_error(
                    "text_column",
                    f"be a column of {self._source}, one of {quote(self._leaves(schema))}",
                    column,
                )
            kind = kind.field(name).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise argument_error(
                "text_column", "be a column of strings", received=f"{column!r} of {kind}"
            )
        return path

    def _leaves(self, fields: Any, prefix: str = "") -> list[str]:
        """Return the names of columns, as paths for columns inside structs."""
        names = []
        for field in fields:
            if self._arrow.types.is_struct(field.type):
                names += self._leaves(field.type, f"{prefix}{field.name}.")
            else:
                names.append(f"{prefix}{field.name}")
        return names

    def count(self) -> int:
        return sum(1 for _ in self.rows())

    def fingerprint(self, digest: str) -> str:
        return file_sha256(self._source)  # the output has the other columns, too

    def render_header(self) -> bytes:
        return b""

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[Row]:
        for batch in self._batches(start, stop, [*self._paths]):
            yield from map(self._row, *(self._values(batch, path) for path in self._paths.values()))

    def _values(self, batch: Any, path: list[str]) -> Any:
        """Return the values of a column, as pyarrow scalars if one of them is not UTF-8."""
        # A column "a.b" and the column "b" inside of "a" have the same path, so both are read.
        column = batch.column(path[0])
        for name in path[1:]:
            column = self._compute.struct_field(column, name)
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            return column

    def _row(self, *values: Any) -> Row:
        """Return the row of texts, which may be `None`, or pyarrow scalars that are not UTF-8."""
        texts = []
        for column, value in zip(self._paths, values, strict=True):
            try:
                text = value.as_py() if isinstance(value, self._arrow.Scalar) else value
            except UnicodeDecodeError as error:
                return Row(b"null", "", not_utf8(error))
            if text is None:
                return Row(b"null", "", f"expected a str as {column!r}. Received: null")
            texts.append(text)
        joined = join_columns(texts)
        return Row(json.dumps(joined).encode("ascii"), joined)

    def render(self, rows: list[Row], translations: list[Any]) -> bytes:
        return "".join(f"{json.dumps(text)}\n" for text in translations).encode("ascii")

    @contextlib.contextmanager
    def publish(self, partial: Path, output: Path, start: int, stop: int | None) -> Iterator[Path]:
        new_field = self._arrow.field(self._new_column, self._arrow.string())
        with open_parquet(self._source) as file:
            schema = file.schema_arrow.append(new_field)
        with atomic_write(output) as path, partial.open("rb") as lines:
            with self._parquet.ParquetWriter(path, schema) as writer:
                for batch in self._row_groups(start, stop):
                    texts = [json.loads(line) for line in itertools.islice(lines, len(batch))]
                    columns = [*batch.columns, self._arrow.array(texts, self._arrow.string())]
                    writer.write_batch(self._arrow.RecordBatch.from_arrays(columns, schema=schema))
            yield path
        partial.unlink()

    def _row_groups(self, start: int, stop: int | None) -> Iterator[Any]:
        """Yield record batches with all columns of as many rows as a row group to write."""
        batches, rows, size = [], 0, 0
        for batch in self._batches(start, stop, None):
            batches.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                yield from self._arrow.Table.from_batches(batches).combine_chunks().to_batches()
                batches, rows, size = [], 0, 0
        if batches:
            yield from self._arrow.Table.from_batches(batches).combine_chunks().to_batches()

    def _batches(self, start: int, stop: int | None, columns: list[str] | None) -> Iterator[Any]:
        """Yield record batches of the rows from `start` to `stop`, without reading other groups."""
        with open_parquet(self._source) as file:
            groups, first_row, row = [], 0, 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if row + count <= start:
                    first_row = row + count
                elif stop is None or row < stop:
                    groups.append(group)
                row += count
            row = first_row
            size = batch_rows(self._source, file, columns, _READ_ROWS)
            for batch in file.iter_batches(
                size, row_groups=groups, columns=columns, use_threads=False
            ):
                end = row + len(batch) if stop is None else min(stop, row + len(batch))
                begin = max(start, row)
                if begin < end:
                    yield batch.slice(begin - row, end - begin)
                row += len(batch)


Records = Lines | Parquet
