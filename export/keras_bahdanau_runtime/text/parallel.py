"""Read parallel text: two files with one side each, or files with both sides.

| name ends with       | a pair                                          |
|----------------------|-------------------------------------------------|
| `.csv`               | a row, below a row with the names of columns    |
| `.jsonl` `.ndjson`   | an object on a line                             |
| `.parquet`           | a row                                           |
| `.tmx`               | a translation unit                              |
| anything else        | a line with two columns, separated by a tab     |

Names of other known formats, such as `.json` or `.xlsx`, are refused. A further suffix names the
compression; see `file_kind`. Line breaks inside a text become spaces.
"""

import codecs
import csv
import glob
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from keras_bahdanau_runtime.checks import check_text, parse_json
from keras_bahdanau_runtime.errors import argument_error, quote
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.text.columns import join_columns
from keras_bahdanau_runtime.text.compression import open_bytes
from keras_bahdanau_runtime.text.corpus import (
    MARK_ERRORS,
    MAX_LINE,
    UNDECODABLE,
    UTF_8,
    Source,
    check_length,
    iterate_lines,
    name_of,
    not_utf8,
    read_lines,
)
from keras_bahdanau_runtime.text.file_kind import FileKind, file_kind, is_lines
from keras_bahdanau_runtime.text.parquet_file import batch_rows, open_parquet
from keras_bahdanau_runtime.text.tmx import iterate_units

logger = logging.getLogger("keras_bahdanau_runtime")

BAD_LINE_ACTIONS = ("stop", "skip")
_PARQUET_ROWS = 8192  # rows of a batch read from Parquet

# Line number, source and target. Both texts are `None` for a bad line that is skipped.
Pair = tuple[int, str | None, str | None]


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    r"""Format of parallel text, apart from what the names of the files tell.

    A column is a name in CSV, JSON lines and Parquet ("source" and "target" by default), where
    "translation.en" is the key "en" inside "translation"; a number from 1 in tab-separated text;
    and a language code such as "en" in TMX. Without columns, each line of tab-separated text must
    have exactly two. An encoding has its name in Python. Parquet has its own encoding; that of TMX
    is in the file unless `encoding` is another one than UTF-8.

    A source may have several columns, such as a word and its tags. They are joined by tabs, and
    tabs inside of them become spaces. `Tokenizer.train` has an argument for such sources. In two
    files with one side each, a line has all columns of its side.

    A bad line does not have both texts, such as a line with one or three columns, or has another
    encoding. With `on_bad_line="stop"` it is a `ValueError`; with "skip" bad lines are counted and
    left out. A malformed row of CSV is bad if it is one line with an even number of quotes;
    otherwise it is always an error, because the quotes do not tell where the next row begins.

    Raises:
        ValueError: An argument is invalid.

    Example:

    >>> import io
    >>> text_format = TextFormat(source_column=("1", "3"), target_column="2")
    >>> list(iterate_pairs(io.BytesIO(b"talo\ttalot\tN;PL\n"), None, text_format))
    [(1, 'talo\tN;PL', 'talot')]
    >>> TextFormat(on_bad_line="ignore")
    Traceback (most recent call last):
    ValueError: Argument `on_bad_line` must be one of ('stop', 'skip'). Received: 'ignore'
    """

    source_column: tuple[str, ...] | None = option(
        None,
        "For files with both sides, the column of the sources: a name, a number from 1 for "
        "tab-separated text, or a language code for .tmx. Repeat it for a column of words and "
        "columns of symbols, such as tags.",
        panel="Data",
    )
    target_column: str | None = option(
        None, "The column of the translations, like --source-column.", panel="Data"
    )
    encoding: str = option(UTF_8, "Encoding of the text files.", panel="Data")
    on_bad_line: str = option(
        "stop",
        "What to do with a line that does not have both sides or has another encoding: stop or "
        "skip.",
        choices=BAD_LINE_ACTIONS,
        panel="Data",
    )

    def __post_init__(self) -> None:
        sources, target = self.source_column, self.target_column
        if isinstance(sources, str):
            sources = (sources,)
        if sources is not None:
            is_valid = isinstance(sources, list | tuple) and len(sources) > 0
            if not is_valid or not all(isinstance(name, str) and name for name in sources):
                raise argument_error("source_column", "be a name, or several", sources)
            if len(set(sources)) < len(sources):
                raise argument_error("source_column", "be different columns", sources)
            object.__setattr__(self, "source_column", tuple(sources))
        if target is not None and (not isinstance(target, str) or not target):
            raise argument_error("target_column", "be a name", target)
        if self.on_bad_line not in BAD_LINE_ACTIONS:
            raise argument_error("on_bad_line", f"be one of {BAD_LINE_ACTIONS}", self.on_bad_line)
        try:
            b"".decode(self.encoding)
            "\n".encode(self.encoding)
            if codecs.lookup(self.encoding).name == UTF_8:  # such as "UTF8"
                object.__setattr__(self, "encoding", UTF_8)
        except (LookupError, TypeError, ValueError) as error:
            raise argument_error(
                "encoding", "be the name of an encoding, such as utf-8 or latin-1", self.encoding
            ) from error

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in CSV, JSON lines and Parquet, with that of the targets last."""
        return *(self.source_column or ("source",)), self.target_column or "target"

    @property
    def joins_columns(self) -> bool:
        """Whether a source has several columns."""
        return self.source_column is not None and len(self.source_column) > 1

    def check_columns(self, has_columns: bool) -> None:
        """Raise a `ValueError` if sources have several columns, and not for the tokenizer.

        Args:
            has_columns: `Tokenizer.has_columns` of the tokenizer that encodes the sources.
        """
        if self.joins_columns and not has_columns:
            raise argument_error(
                "source_column",
                "be one column for a tokenizer that was not trained on sources of several",
                self.source_column,
            )

    @property
    def skips(self) -> bool:
        """Whether bad lines are skipped."""
        return self.on_bad_line == "skip"

    @property
    def decoding_errors(self) -> str:
        """The argument `errors` of `iterate_lines`."""
        return MARK_ERRORS if self.skips else "strict"

    def lines(self, source: Source, warn: bool) -> Iterator[str]:
        """Return `iterate_lines`, where a bad line that is skipped contains `UNDECODABLE`."""
        return iterate_lines(source, warn, self.encoding, self.decoding_errors)

    def bad_line(self, location: str, problem: str) -> None:
        """Raise a `ValueError` for a bad line, unless bad lines are skipped."""
        if not self.skips:
            raise ValueError(
                f"{location}: {problem}. Correct it, or set `on_bad_line` to skip such lines."
            )


UTF_8_TEXT = TextFormat()


def iterate_pairs(
    source: Source,
    target: Source | None = None,
    text_format: TextFormat = UTF_8_TEXT,
    warn: bool = True,
) -> Iterator[Pair]:
    r"""Read parallel text, one pair at a time.

    Args:
        source: File of the sources, one per line; without `target`, a file with both sides. Its
            name selects the kind of file, and a stream is tab-separated text.
        target: File of the translations, line by line.
        text_format: `TextFormat` of the files.
        warn: As for `iterate_lines`.

    Yields:
        `(line, source, target)`: the number of the line where the pair begins (of the row in
        Parquet), from 1, and both texts, which may be blank. The texts are `None` for a bad line
        that is skipped.

    Raises:
        ValueError: The name is that of another format, two files have different numbers of lines,
            a line does not have both texts, a column is missing, the file is damaged, or as
            `iterate_lines`.
        MissingDependencyError: The file is Parquet, and pyarrow is not installed; or as
            `iterate_lines`.

    Example:

    >>> import io
    >>> list(iterate_pairs(io.BytesIO(b"a man\tein Mann\na dog\tein Hund\n")))
    [(1, 'a man', 'ein Mann'), (2, 'a dog', 'ein Hund')]
    """
    if target is not None:
        return _iterate_sides(source, target, text_format, warn)
    kind = FileKind()
    if isinstance(source, (str, os.PathLike)):
        kind = file_kind(source)
        if kind.format is None and not is_lines(source):
            raise ValueError(
                f"{name_of(source)}: expected tab-separated text, .csv, .jsonl, .parquet or .tmx. "
                "Received: the name of another format. Convert it, or rename tab-separated text."
            )
    return _READERS.get(kind.format, _iterate_tab_separated)(source, text_format, warn)


def _iterate_sides(
    source: Source, target: Source, text_format: TextFormat, warn: bool
) -> Iterator[Pair]:
    skips = text_format.skips
    for side in (source, target):
        _check_side(side)
    sides = [text_format.lines(side, warn) for side in (source, target)]
    for number, (source_line, target_line) in enumerate(zip_longest(*sides), start=1):
        if source_line is None or target_line is None:
            raise_uneven((source, target), (source_line, target_line), number)
        if skips and (UNDECODABLE in source_line or UNDECODABLE in target_line):
            yield number, None, None
        else:
            yield number, source_line, target_line


def _check_side(source: Source) -> None:
    """Raise a `ValueError` for the name of a file that does not have one sentence per line."""
    if isinstance(source, (str, os.PathLike)) and not is_lines(source):
        raise ValueError(
            f"{name_of(source)}: expected a file with one sentence per line. Received: the name of "
            "another format. Convert it, or pass one file with both sides: tab-separated text, "
            ".csv, .jsonl, .parquet or .tmx."
        )


def raise_uneven(
    files: Sequence[Source | None], lines: Sequence[object | None], number: int
) -> NoReturn:
    """Raise the error for files with different numbers of lines; `None` marks an ended file."""
    names = [name_of(file) if file is not None else "" for file in files]
    [ended, *_] = [name for name, line in zip(names, lines, strict=True) if line is None]
    [longer, *_] = [name for name, line in zip(names, lines, strict=True) if line is not None]
    raise ValueError(
        "Files that belong together must have the same number of lines. "
        f"Received: {ended} ends after line {number - 1}, {longer} goes on"
    )


def _iterate_tab_separated(source: Source, text_format: TextFormat, warn: bool) -> Iterator[Pair]:
    name = name_of(source)
    indices = _tab_columns(text_format)
    needed = max(indices) + 1
    is_exact = text_format.source_column is None and text_format.target_column is None
    skips = text_format.skips
    for number, line in enumerate(text_format.lines(source, warn), start=1):
        if skips and UNDECODABLE in line:
            yield number, None, None
            continue
        columns = line.split("\t", needed)
        count = len(columns)
        if count == needed or (count > needed and not is_exact):
            yield number, *_joined([columns[index] for index in indices])
        elif not line.strip():
            yield number, "", ""
        else:
            count = line.count("\t") + 1
            expected = f"expected {needed} columns separated by tabs"
            if count == 1:
                expected += ", or a second file with the other side"
            elif count > needed:
                expected += ", or `source_column` and `target_column` with their numbers"
            text_format.bad_line(f"{name}, line {number}", f"{expected}. Received: {count}")
            yield number, None, None


def _tab_columns(text_format: TextFormat) -> list[int]:
    """Return the indices, from 0, of the columns of tab-separated text, that of the target last."""
    sources, target = text_format.source_column or ("1",), text_format.target_column or "2"
    for name, columns in (("source_column", sources), ("target_column", (target,))):
        for column in columns:
            if not re.fullmatch("[1-9][0-9]{0,5}", column):
                raise argument_error(name, "be a number from 1 for tab-separated text", column)
    return [int(column) - 1 for column in (*sources, target)]


def _joined(columns: list[str]) -> tuple[str, str]:
    """Return the source and the target of a row; see `join_columns`."""
    *sources, target = columns
    return join_columns(sources), target


def _iterate_csv(source: Source, text_format: TextFormat, warn: bool) -> Iterator[Pair]:
    name = name_of(source)
    # Quotes and characters of the row so far, and the last line of the row before.
    quotes = length = end = 0

    def terminated_lines() -> Iterator[str]:
        nonlocal quotes, length
        for line in text_format.lines(source, warn):
            quotes += line.count('"')
            length += len(line) + 1
            if length > MAX_LINE:
                check_length(length, f"{name}, line {end + 1}")
            yield f"{line}\n"

    allow_long_cells()

    # Without `strict`, a quote that is not closed would take in the rest of the file.
    reader = csv.reader(terminated_lines(), strict=True)

    def next_row(is_header: bool = False) -> list[str] | csv.Error | None:
        """Return the next row, an error if it can be skipped, or `None` at the end."""
        nonlocal quotes, length
        quotes = length = 0
        try:
            return next(reader, None)
        except csv.Error as error:
            if not is_header and reader.line_num == end + 1 and quotes % 2 == 0:
                return error
            raise ValueError(f"{name}, line {end + 1}: expected CSV. Received: {error}") from error

    header: Any = next_row(is_header=True) or []
    indices = [_csv_column(name, header, column) for column in text_format.columns]
    end = reader.line_num
    while (row := next_row()) is not None:
        number, end = end + 1, reader.line_num
        location = f"{name}, line {number}"
        if isinstance(row, csv.Error):
            text_format.bad_line(location, f"expected CSV. Received: {row}")
            yield number, None, None
        elif text_format.skips and any(UNDECODABLE in text for text in row):
            yield number, None, None
        elif len(row) == len(header):
            yield number, *_joined([_single_line(row[index]) for index in indices])
        elif not any(row):
            yield number, "", ""
        else:
            text_format.bad_line(
                location,
                f"expected the {len(header)} columns of the first line. Received: {len(row)}",
            )
            yield number, None, None


def allow_long_cells() -> None:
    """Let `csv` read cells of any length; `check_length` limits rows."""
    # The limit of the module is for all readers of the process, so it is never made smaller.
    csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_LINE))


def _csv_column(name: str, header: list[str], column: str) -> int:
    if header.count(column) != 1:
        raise argument_error(
            ("source_column", "target_column"),
            f"be columns of {name}, one of {quote(header)}",
            column,
        )
    return header.index(column)


def _iterate_json_lines(source: Source, text_format: TextFormat, warn: bool) -> Iterator[Pair]:
    name = name_of(source)
    skips = text_format.skips
    for number, line in enumerate(text_format.lines(source, warn), start=1):
        if skips and UNDECODABLE in line:
            yield number, None, None
            continue
        if not line.strip():
            yield number, "", ""
            continue
        location = f"{name}, line {number}"
        try:
            record = parse_json(line)
        except ValueError as error:
            text_format.bad_line(location, f"expected a JSON object. Received: {error}")
            yield number, None, None
        else:
            yield _record_pair(record, location, number, text_format)


def _iterate_parquet(source: Source, text_format: TextFormat, warn: bool) -> Iterator[Pair]:
    path, name = str(source), name_of(source)
    with open_parquet(path) as file:
        columns = [column.path for column in file.schema]
        tops = file.schema_arrow.names
        for column in text_format.columns:
            if columns.count(column) != 1 or tops.count(column.split(".")[0]) > 1:
                raise argument_error(
                    ("source_column", "target_column"),
                    f"be columns of {name}, one of {quote(columns)}",
                    column,
                )
        rows = batch_rows(path, file, text_format.columns, _PARQUET_ROWS)
        number = 0
        for batch in file.iter_batches(rows, columns=list(text_format.columns), use_threads=False):
            for record in _batch_records(batch):
                number += 1
                yield _record_pair(record, f"{name}, row {number}", number, text_format)


def _batch_records(batch: Any) -> list[Any]:
    """Return the rows of a batch as dicts, and an error for each row that is not UTF-8."""
    try:
        records: list[Any] = batch.to_pylist()
        return records
    except UnicodeDecodeError:
        return [_row_record(batch.slice(row, 1)) for row in range(len(batch))]


def _row_record(row: Any) -> Any:
    try:
        return row.to_pylist()[0]
    except UnicodeDecodeError as error:
        return error


def _record_pair(record: Any, location: str, number: int, text_format: TextFormat) -> Pair:
    """Return the pair of a JSON object or a row of Parquet."""
    try:
        if isinstance(record, UnicodeDecodeError):
            raise ValueError(not_utf8(record).removesuffix("."))
        return number, *_joined([_text(record, column) for column in text_format.columns])
    except ValueError as error:
        text_format.bad_line(location, str(error))
        return number, None, None


def _text(record: Any, column: str) -> str:
    """Return the text of a column of a JSON object or a row of Parquet.

    Raises:
        ValueError: There is no such text. The message describes the problem only.
    """
    value = record
    is_key = isinstance(record, dict) and column in record
    for key in [column] if is_key else column.split("."):
        if not isinstance(value, dict) or key not in value:
            received = f"the keys {quote([*value])}" if isinstance(value, dict) else quote(value)
            raise ValueError(f"expected a text as {column!r}. Received: {received}")
        value = value[key]
    if not isinstance(value, str):
        raise ValueError(f"expected a text as {column!r}. Received: {quote(value)}")
    if len(value) > MAX_LINE:
        raise ValueError(f"expected at most {MAX_LINE >> 20} MB of text as {column!r}")
    check_text(column, value)
    return _single_line(value)


def _iterate_tmx(source: Source, text_format: TextFormat, warn: bool) -> Iterator[Pair]:
    name = name_of(source)
    sources, target = text_format.source_column, text_format.target_column
    if sources is None or target is None or len(sources) > 1:
        raise argument_error(
            ("source_column", "target_column"),
            "be language codes for TMX, one for each side, such as en",
            received=f"{sources!r} and {target!r} for {name}",
        )
    languages = sources[0], target
    encoding = None if text_format.encoding == UTF_8 else text_format.encoding
    with open_bytes(str(source)) as file:
        for number, *texts, available in iterate_units(file, name, *languages, encoding):
            if texts[0] is None or texts[1] is None:
                text_format.bad_line(
                    f"{name}, line {number}",
                    f"expected the languages {languages[0]!r} and {languages[1]!r}. "
                    f"Received: {quote(available)}",
                )
                yield number, None, None
            else:
                yield number, _single_line(texts[0]), _single_line(texts[1])


_READERS: dict[str | None, Callable[[Source, TextFormat, bool], Iterator[Pair]]] = {
    "csv": _iterate_csv,
    "jsonl": _iterate_json_lines,
    "parquet": _iterate_parquet,
    "tmx": _iterate_tmx,
}


def _single_line(text: str) -> str:
    """Replace the line breaks that `iterate_lines` knows by spaces."""
    if "\n" in text or "\r" in text:
        return re.sub(r"\r\n|\n|\r", " ", text)
    return text


def expand_paths(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Replace each pattern such as `part*.tsv` by the files that match it, sorted by name.

    Args:
        paths: Paths of files and patterns of `glob.glob`, where `**` matches any folders.

    Raises:
        ValueError: No file matches a pattern.
    """
    files = []
    for path in map(Path, paths):
        if os.path.lexists(path) or not glob.has_magic(str(path)):
            files.append(path)
            continue
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise ValueError(f"Pattern {str(path)!r} must match a file. Received: no such file")
        files += map(Path, matches)
    return files


_SUSPECT_SHARE = 0.5  # two files with more identical or tabbed lines are probably wrong


class PairCheck:
    """Counter of likely mistakes in two parallel files.

    Args:
        source: str. Name of the file of sources.
        target: str. Name of the file of their translations.
        check_unicode: bool. Whether to count also lines that are not in Unicode form NFC.
        joins_columns: bool. Whether sources have columns, which are separated by tabs.
    """

    def __init__(
        self, source: str, target: str, check_unicode: bool = False, joins_columns: bool = False
    ) -> None:
        self._names, self._check_unicode = (source, target), check_unicode
        self._joins_columns = joins_columns
        self._pairs = self._identical = 0
        self._tabbed, self._not_nfc = [0, 0], [0, 0]

    def add(self, source: str, target: str) -> None:
        """Count one pair."""
        # Written out for both sides: a loop takes twice the time, for each of many million pairs.
        self._pairs += 1
        if source == target:
            self._identical += 1
        if "\t" in source and not self._joins_columns:
            self._tabbed[0] += 1
        if "\t" in target:
            self._tabbed[1] += 1
        if self._check_unicode:
            if not (source.isascii() or unicodedata.is_normalized("NFC", source)):
                self._not_nfc[0] += 1
            if not (target.isascii() or unicodedata.is_normalized("NFC", target)):
                self._not_nfc[1] += 1

    def warn(self) -> None:
        """Log a warning for each kind of mistake, with the file and the share of lines."""
        threshold = max(1.0, _SUSPECT_SHARE * self._pairs)
        if self._identical >= threshold:
            logger.warning(
                "%s and %s: %s pairs are identical. Expected two languages.",
                *self._names,
                self._share(self._identical),
            )
        for name, tabbed, not_nfc in zip(
            dict.fromkeys(self._names), self._tabbed, self._not_nfc, strict=False
        ):
            if tabbed >= threshold:
                logger.warning(
                    "%s: %s lines contain a tab. Expected one language per file: a file of "
                    "tab-separated pairs is read without a second file.",
                    name,
                    self._share(tabbed),
                )
            if not_nfc:
                logger.warning(
                    "%s: %s lines are not in Unicode form NFC. The same text in another form is "
                    'translated differently, unless `normalization` is "nfc".',
                    name,
                    self._share(not_nfc),
                )

    def _share(self, count: int) -> str:
        return f"{count:,} of {self._pairs:,} ({count / self._pairs:.1%})"


def list_pairs(
    source: Source, target: Source | None = None, text_format: TextFormat = UTF_8_TEXT
) -> list[Pair]:
    """Return all pairs of `iterate_pairs`, and log the number of bad lines that are skipped.

    Raises:
        ValueError: There is no line, or as `iterate_pairs`.
    """
    pairs = list(iterate_pairs(source, target, text_format))
    name = name_of(source)
    if not pairs:
        raise ValueError(f"{name} is empty: expected pairs of sentences.")
    skipped = sum(text is None for _, text, _ in pairs)
    if skipped:
        name = name if target is None else f"{name} and {name_of(target)}"
        logger.warning("Skipped %d of %d bad lines of %s.", skipped, len(pairs), name)
    return pairs


def read_pairs(
    source: Source, target: Source | None = None, text_format: TextFormat = UTF_8_TEXT
) -> tuple[list[str], list[str]]:
    """Read all pairs of parallel text, including pairs with a blank side.

    Args:
        source: As for `iterate_pairs`.
        target: As for `iterate_pairs`.
        text_format: `TextFormat` of the files. Bad lines that are skipped give two blank texts, and
            their number is logged.

    Returns:
        The source sentences and the target sentences, two lists of the same length.

    Raises:
        ValueError: As `list_pairs`.
    """
    pairs = list_pairs(source, target, text_format)
    return [text or "" for _, text, _ in pairs], [text or "" for _, _, text in pairs]


def read_side(source: Source, text_format: TextFormat) -> list[str]:
    """Read all lines of a file with one side.

    Args:
        source: As for `iterate_lines`.
        text_format: `TextFormat` of the file. A bad line that is skipped gives a blank text, and
            the number of these lines is logged.

    Raises:
        ValueError: The name is that of another format, or as `read_lines`.
    """
    _check_side(source)
    lines = read_lines(source, encoding=text_format.encoding, errors=text_format.decoding_errors)
    skipped = sum(UNDECODABLE in line for line in lines)
    if skipped:
        logger.warning("Skipped %d of %d bad lines of %s.", skipped, len(lines), name_of(source))
    return ["" if UNDECODABLE in line else line for line in lines]


def read_parallel(
    source: Source, target: Source | None = None, text_format: TextFormat = UTF_8_TEXT
) -> tuple[list[str], list[str]]:
    """Read parallel text without the pairs that have a blank side.

    The number of dropped pairs is logged. A warning is also logged for files that look wrong,
    because both sides are identical or contain tabs.

    Args:
        source: As for `iterate_pairs`.
        target: As for `iterate_pairs`.
        text_format: As for `read_pairs`.

    Returns:
        The source sentences and the target sentences, two lists of the same length.

    Raises:
        ValueError: No pair remains, or as `read_pairs`.
    """
    sources, targets = read_pairs(source, target, text_format)
    names = side_names(source, target)
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]
    if not pairs:
        raise ValueError(
            f"No pair of sentences in {names[0]} and {names[1]}: "
            "every line is blank in one of them."
        )
    dropped = len(sources) - len(pairs)
    if dropped:
        logger.warning(
            "Dropped %d of %d pairs of %s and %s: one side is blank.",
            dropped,
            len(sources),
            *names,
        )
    check = PairCheck(*names, joins_columns=text_format.joins_columns)
    for source_text, target_text in pairs:
        check.add(source_text, target_text)
    check.warn()
    return [source for source, _ in pairs], [target for _, target in pairs]


def side_names(source: Source, target: Source | None) -> tuple[str, str]:
    """Return the names of both sides for messages."""
    if target is not None:
        return name_of(source), name_of(target)
    return f"{name_of(source)} (sources)", f"{name_of(source)} (targets)"
