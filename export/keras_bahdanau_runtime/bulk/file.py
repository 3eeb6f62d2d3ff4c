"""Translate a file into a file, which is written completely or not at all and can be resumed.

    translate_file(Translator("artifact"), Path("source.txt"), Path("target.txt"), resume=True)

Rows are translated in windows that depend only on row numbers. So a resumed run, and a run split
into shards, searches in the same batches as an uninterrupted one and writes the same bytes.

A hidden file next to the output, .NAME.journal, records what it was made from. A resumed call with
other rows, another artifact or other options is refused, or replaces the output.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from keras_bahdanau_runtime.batch_sizes import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.bulk.formats import OutputFormat
from keras_bahdanau_runtime.bulk.records import (
    JsonLines,
    Records,
    Row,
    Source,
    open_records,
)
from keras_bahdanau_runtime.bulk.review import Review
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import ArgumentError, argument_error
from keras_bahdanau_runtime.files import (
    add_path_to_errors,
    file_sha256,
    fsync,
    try_lock,
    write_json,
)
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.search_options import check_count
from keras_bahdanau_runtime.translator import WINDOW_SIZE, Translator

logger = logging.getLogger("keras_bahdanau_runtime")

Progress = Callable[[int, int | None], object]
OnFailed = Callable[[int, str], object]

_VERSION = 1
WORK_SUFFIXES = (".partial", ".journal")  # of the files next to an unfinished output
PLAIN = OutputFormat()


@dataclass(frozen=True)
class Position:
    """Progress within a file.

    Args:
        rows: int. Rows that are translated.
        bytes: int. Bytes of the partial file that contain them.
        failed: int. Number of these rows without a translation.
        digest: str. SHA-256 of their keys.
    """

    rows: int = 0
    bytes: int = 0
    failed: int = 0
    digest: str = hashlib.sha256().hexdigest()


@dataclass(frozen=True)
class Finished:
    """Fingerprints of a finished output.

    Args:
        source: str. Result of `Records.fingerprint` for the translated rows.
        output: str. SHA-256 of the output.
    """

    source: str
    output: str


class FileResult(NamedTuple):
    """Numbers of a translated file.

    Args:
        rows: int. Rows of the file, or of the shard.
        failed_rows: int. Rows without a translation, including those of an interrupted call.
        new_rows: int. Rows that this call translated; 0 if the output was complete.
    """

    rows: int
    failed_rows: int
    new_rows: int


class Journal:
    """File with a `Position` and the settings that determine translations.

    It is replaced atomically.

    Args:
        path: `Path`.
        settings: JSON values by name.
        subject: Name of the file with these settings, for messages; `path` if empty.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], subject: str = "") -> None:
        self.path, self._settings = path, dict(settings)
        self._subject = subject or str(path)

    def read(self) -> Position | None:
        """Return the position, or `None` if there is no journal.

        Raises:
            ValueError: The journal has other settings, or the file is not a journal.
        """
        record = self._read()
        return None if record is None else record[0]

    def read_finished(self, output: Path, check_settings: bool = True) -> tuple[Position, Finished]:
        """Return the record of a finished output.

        Raises:
            ValueError: There is none, or as `read`.
        """
        record = self._read(check_settings)
        if record is None or record[1] is None:
            raise argument_error(
                "output",
                "be a new file, or have a record of what it was made from",
                received=(
                    f"{str(output)!r}, which exists without {self.path.name}. {_advice(output)}"
                ),
            )
        return record[0], record[1]

    def check_output(self, output: Path) -> None:
        """Check that a finished output is unchanged, whatever its settings were.

        Raises:
            ValueError: It has changed, or there is no record of it.
        """
        _, finished = self.read_finished(output, check_settings=False)
        if file_sha256(output) != finished.output:
            raise argument_error(
                "output",
                "be a new file, or unchanged since it was written",
                received=f"{str(output)!r}, which has changed. {_advice(output)}",
            )

    def _read(self, check_settings: bool = True) -> tuple[Position, Finished | None] | None:
        try:
            document = json.loads(self.path.read_text("utf-8"))
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']!r}")
            position, settings = Position(**document["place"]), dict(document["settings"])
            finished = document.get("finished") and Finished(**document["finished"])
            for field in dataclasses.fields(Position):
                if type(getattr(position, field.name)) is not type(field.default):
                    raise TypeError(f"{field.name}={getattr(position, field.name)!r}")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path}: expected a journal of version {_VERSION}. Received: {error!r}"
            ) from error
        for name in [*self._settings, *settings] if check_settings else ():
            value = self._settings.get(name)
            if settings.get(name) != value:
                raise argument_error(
                    name,
                    f"be the value that {self._subject} was started with, {settings.get(name)!r}",
                    received=f"{value!r}. Remove {self._subject} to start again.",
                )
        return position, finished

    def write(self, position: Position, finished: Finished | None = None) -> None:
        """Write a position, which is on the disk when this returns."""
        document = {
            "version": _VERSION,
            "settings": self._settings,
            "place": dataclasses.asdict(position),
        }
        if finished is not None:
            document["finished"] = dataclasses.asdict(finished)
        write_json(self.path, document)


def fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256 of an artifact's manifest, which contains the hashes of its files."""
    values = dataclasses.asdict(dataclasses.replace(manifest, folder=Path()))
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def record_path(output: Path) -> Path:
    """Return the path of the journal of a finished output."""
    return output.with_name(f".{output.name}.journal")


def translate_file(
    translator: Translator,
    source: Source,
    output: Path,
    resume: bool = False,
    shard: tuple[int, int] = (1, 1),
    text_column: str | Sequence[str] | None = None,
    output_column: str | None = None,
    batch_size: int = BATCH_SIZE,
    batch_tokens: int = BATCH_TOKENS,
    truncate: bool = False,
    window: int = WINDOW_SIZE,
    progress: Progress | None = None,
    on_failed: OnFailed | None = None,
    output_format: OutputFormat = PLAIN,
    prefixes: Sequence[str | None] | None = None,
    required: Sequence[Sequence[str] | None] | None = None,
    review: Review | None = None,
    replace: bool = False,
    work_folder: Path | None = None,
    **options: Any,
) -> FileResult:
    """Translate a file row by row, in memory that does not grow with the file.

    All rows are read once before, so that a damaged file and wrong columns are reported first. A
    row that cannot be read or translated has no translation; the other rows are translated.
    Until the output is complete, translations are in OUTPUT.partial and the progress is in
    OUTPUT.journal. Then .OUTPUT.journal records what it was made from.

    Args:
        translator: `Translator`.
        source: `Path` of lines of text, CSV, tab-separated text, JSON lines or Parquet (see
            `records`), or a stream of lines.
        output: `Path` of a new file of the same kind.
        resume: bool. Whether to continue an interrupted call. On the same machine, the result has
            the same bytes as that of an uninterrupted call. An existing output is complete if it
            was made from the same rows with the same artifact and options.
        shard: `(i, n)`: translate the i-th (from 1) of n parts with about the same number of rows.
            Parts start at windows; the concatenated outputs of lines have the same bytes as the
            output of the whole file.
        text_column: Key or column to translate, or several, as for `open_records`.
        output_column: Key or column to add, as for `open_records`.
        batch_size: As for `Translator.translate`.
        batch_tokens: As for `Translator.translate`.
        truncate: As for `Translator.translate`.
        window: int. Number of rows that are sorted into batches together. Progress is saved after
            each window.
        progress: Called with the number of finished rows and of all rows, `None` for a stream:
            first with the rows of an interrupted call, then after each batch.
        on_failed: Called with the number (from 1) of each row without a translation, and the
            reason.
        output_format: `OutputFormat`; only a plain one for CSV, tab-separated text and Parquet.
        prefixes: As for `Translator.translate`, one for each row of the file.
        required: As for `Translator.translate`, a list for each row of the file.
        review: `Review`. Translations below its confidence go to its file, and their rows are empty
            in the output, or null; `None` to write all translations to the output.
        replace: bool. Whether a resumed call translates again what was made from other rows, with
            another artifact or with other settings, and replaces it when the new output is
            complete. An output that has changed since it was written is never replaced.
        work_folder: Existing folder of OUTPUT.partial and OUTPUT.journal; that of the output if
            `None`.
        **options: As for `Translator.translate`, with `suppressed` and `disable_unknown`.

    Returns:
        The `FileResult`.

    Raises:
        ValueError: `source` is damaged, or has no such column; sources of the artifact have one
            column and `text_column` is several; `output` exists or was started but
            `resume` is False, or it was made from something else and `replace` is False, or nothing
            records from what, or it has changed since it was written.
        OSError: For example, the disk is full. The call can be resumed.
    """
    text_column = checked_text_column(translator, text_column)
    if review is not None:
        constraints_of_call = {"prefixes": prefixes, "required": required}
        review.check(translator, {**options, **constraints_of_call}, resume)
        if review.path.absolute() == output.absolute():
            raise argument_error("review", "be another file than the output", str(review.path))
        if isinstance(source, Path) and review.path.exists() and review.path.samefile(source):
            raise argument_error("review", "be another file than the source", str(review.path))
    records = open_records(source, output, text_column, output_column, output_format.key_suffixes)
    report = progress or (lambda done, total: None)
    work = output if work_folder is None else work_folder / output.name
    partial, journal_path = (Path(f"{work}{suffix}") for suffix in WORK_SUFFIXES)
    state = _file_state(source)
    exists = output.exists()
    if exists:
        is_source = isinstance(source, Path) and output.samefile(source)
        if not resume or is_source or not output.is_file():
            raise argument_error(
                "output",
                "be a new file",
                received=f"{str(output)!r}, which {'is the source' if is_source else 'exists'}",
            )
    record = record_path(output)
    for path in (partial, journal_path, record):
        if isinstance(source, Path) and path.exists() and path.samefile(source):
            raise argument_error(
                "output", f"be a file whose {path.name} is not the source", str(output)
            )
    check_positive(window=window)
    if records.values == "text" and not output_format.is_plain:
        raise argument_error(
            "output_format",
            "be plain for .csv, .tsv and .parquet, whose new column contains texts",
            received=str(output_format),
        )
    start, stop = _shard_rows(records, shard, window, is_stream=state is None)
    values_by_name: dict[str, Any] = {"prefixes": prefixes, "required": required}
    constraints = {name: values for name, values in values_by_name.items() if values is not None}
    for name, values in constraints.items():
        if stop is None:
            raise argument_error(
                name,
                "be used with a file, whose rows can be counted",
                received=f"{len(values)} for a stream",
            )
        check_count(name, values, records.count())
    settings = {
        "artifact": fingerprint(translator.manifest),
        "providers": translator.providers,
        "text_column": text_column,
        "output_column": output_column,
        "batch_size": batch_size,
        "batch_tokens": batch_tokens,
        "truncate": truncate,
        "window": window,
        # A whole file may have grown since an interrupted call.
        "shard": [*shard, start, stop] if shard[1] > 1 else None,
        **_option_settings(output_format, constraints, options),
    }
    if isinstance(records, JsonLines) and not output_format.is_plain:
        settings["new_keys"] = records.new_keys
    if review is not None:
        settings["review"] = [review.confidence, str(review.path)]
    finished_journal = Journal(record, settings, str(output))
    if exists:
        try:
            position = _check_finished(finished_journal, records, output, start, stop)
        except ArgumentError as error:
            if not replace:
                raise
            finished_journal.check_output(output)
            logger.info("%s is translated again: %s", output, error)
        else:
            if not replace:
                logger.warning("%s exists: it is complete.", output)
            for path in (partial, journal_path):
                path.unlink(missing_ok=True)
            if review is not None:
                review.finish()
                review.read_count()
            return FileResult(position.rows, position.failed, 0)
    output_state = _file_state(output) if exists else None
    journal = Journal(journal_path, settings)
    options |= {name: settings[name] for name in ("batch_size", "batch_tokens", "truncate")}
    job = _FileTranslation(
        translator,
        records,
        start,
        stop,
        window,
        options,
        report,
        on_failed,
        output_format,
        constraints,
        review,
        replace,
        is_first_shard=shard[0] == 1,
    )
    with _lock_partial(partial, journal, resume):
        if (_file_state(output) if output.exists() else None) != output_state:
            raise argument_error(
                "output",
                "be a new file",
                received=f"{str(output)!r}, which another process has written meanwhile",
            )
        with (
            add_path_to_errors(partial),
            partial.open("r+b") as file,
            contextlib.nullcontext() if review is None else review,
        ):
            first, position = job.run(file, journal)
        fingerprint_of_rows = records.fingerprint(position.digest)
        if _file_state(source) != state:
            raise ValueError(f"{source}: expected a file that does not change. It changed.")
        if review is not None:
            review.publish()
        with records.publish(partial, output, start, stop) as complete:
            finished = Finished(fingerprint_of_rows, file_sha256(complete))
            # A record of the new output next to the former one would look like a changed output.
            output.unlink(missing_ok=True)
            finished_journal.write(position, finished)
        fsync(output.parent)
        journal_path.unlink(missing_ok=True)
        if review is not None:
            review.finish()
    return FileResult(position.rows, position.failed, position.rows - first)


def checked_text_column(
    translator: Translator, text_column: str | Sequence[str] | None
) -> str | list[str] | None:
    """Return the columns of the text as they are in a journal.

    Raises:
        ValueError: They are several, and sources of the artifact have one column.
    """
    if isinstance(text_column, str | None):
        return text_column
    columns = list(text_column)
    if len(columns) > 1 and not translator.require_tokenizer().has_columns:
        raise argument_error(
            "text_column",
            "be one column for an artifact that was not trained on sources of several",
            columns,
        )
    return columns


def _check_finished(
    journal: Journal, records: Records, output: Path, start: int, stop: int | None
) -> Position:
    """Return the position of a finished output that the same call would write again.

    Raises:
        ValueError: It was made from something else, or there is no record of it.
    """
    position, finished = journal.read_finished(output)
    digest, rows = hashlib.sha256(records.header), 0
    for row in records.rows(start, stop):
        rows += 1
        _add_row(digest, row)
    if rows != position.rows or records.fingerprint(digest.hexdigest()) != finished.source:
        counts = "" if rows == position.rows else f": {rows} instead of {position.rows}"
        raise argument_error(
            "source",
            f"contain the rows that {output} was made from",
            received=f"other rows{counts}. {_advice(output)}",
        )
    journal.check_output(output)
    return position


def _advice(output: Path) -> str:
    return f"Remove {output} to start again."


@dataclass(frozen=True)
class _FileTranslation:
    """Translation of the rows of a file from `start` to `stop`."""

    translator: Translator
    records: Records
    start: int
    stop: int | None
    window: int
    options: Mapping[str, Any]
    report: Progress
    on_failed: OnFailed | None
    output_format: OutputFormat
    constraints: Mapping[str, Sequence[Any]]
    review: Review | None
    replace: bool
    is_first_shard: bool  # others may start at row 0, too, if it has no rows

    def run(self, file: BinaryIO, journal: Journal) -> tuple[int, Position]:
        """Translate the rows after the journal's position.

        Returns:
            The number of rows before, and the position at the end.
        """
        try:
            position, digest, rows = self._resume(file, journal)
        except ArgumentError as error:
            if not self.replace:
                raise
            logger.info("%s is started again: %s", file.name, error)
            journal.path.unlink(missing_ok=True)
            position, digest, rows = self._resume(file, journal)
        first = position.rows
        file.truncate(position.bytes)
        file.seek(position.bytes)
        if not position.rows:
            head = self.records.render_header() if self.is_first_shard else b""
            file.write(head)
            position = Position(bytes=len(head), digest=digest.hexdigest())
        self._report(position.rows, 0)
        if self.review is not None:
            self.review.start(self.start + position.rows)
        while window := list(itertools.islice(rows, self.window)):
            translations, failed = self._translate(window, position.rows)
            data = self.records.render(window, translations)
            file.write(data)
            for row in window:
                _add_row(digest, row)
            position = Position(
                position.rows + len(window),
                position.bytes + len(data),
                position.failed + failed,
                digest.hexdigest(),
            )
            # If rows are added to the file, a shorter last window would be a different one.
            if len(window) == self.window:
                _flush(file)
                if self.review is not None:
                    self.review.flush()
                journal.write(position)
        _flush(file)
        return first, position

    def _resume(self, file: BinaryIO, journal: Journal) -> tuple[Position, Any, Iterator[Row]]:
        """Return the journal's position, the SHA-256 of the rows before, and those after it.

        Raises:
            ValueError: The files are damaged, or were written for something else.
        """
        position = journal.read() or Position()
        if os.fstat(file.fileno()).st_size < position.bytes:
            raise ValueError(
                f"{file.name}: expected at least {position.bytes} bytes, as {journal.path} says. "
                "Remove both to start again."
            )
        rows = self.records.rows(self.start, self.stop)
        digest = hashlib.sha256(self.records.header)
        for row in itertools.islice(rows, position.rows):
            _add_row(digest, row)
        if position.rows and digest.hexdigest() != position.digest:
            raise argument_error(
                "source",
                f"begin with the {position.rows} rows that {journal.path} was written for",
                received="other rows. Remove it to start again.",
            )
        return position, digest, rows

    def _translate(self, window: list[Row], done: int) -> tuple[list[Any], int]:
        """Return the output of each row, as `Records.render` needs it, and the number of failed."""
        first, style = self.start + done, self.output_format
        num_written, rows = style.n_best or 1, slice(first, first + len(window))
        n_best = num_written
        if self.review is not None:  # which contains the second best translations
            n_best = max(num_written, min(2, self.translator.manifest.search.num_returned))
        options = {name: values[rows] for name, values in self.constraints.items()}
        translations = self.translator.translate(
            [row.text for row in window],
            n_best=n_best,
            alignments=style.alignments is not None,
            on_error="keep",
            progress=lambda count: self._report(done, count),
            **{**options, **self.options},
        )
        outputs, failed = list[Any](), 0
        for number, (row, result) in enumerate(zip(window, translations, strict=True), first):
            hypotheses = result if n_best > 1 else [result]
            if row.error is not None:
                hypotheses = [dataclasses.replace(hypotheses[0], error=row.error)]
            error = hypotheses[0].error
            is_doubtful = (
                error is None
                and self.review is not None
                and self.review.add(number + 1, row.text, hypotheses)
            )
            written = [] if is_doubtful else hypotheses[:num_written]
            if self.records.values == "lines":
                outputs.append(style.lines(number, written))
            elif isinstance(self.records, JsonLines):
                outputs.append(style.keys(self.records.new_column, written))
            else:
                is_empty = error is not None or is_doubtful
                outputs.append(None if is_empty else hypotheses[0].text)
            if error is not None:
                failed += 1
                if self.on_failed is not None:
                    self.on_failed(number + 1, error)
        return outputs, failed

    def _report(self, done: int, more: int) -> None:
        self.report(done + more, None if self.stop is None else self.stop - self.start)


def _option_settings(
    output_format: OutputFormat,
    constraints: Mapping[str, Sequence[Any]],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the options that determine the output, for the journal; none without options."""
    settings = {
        name: list(value) if isinstance(value, tuple) else value  # as in the JSON of the journal
        for name, value in options.items()
    }
    if not output_format.is_plain:
        settings["output_format"] = dataclasses.asdict(output_format)
    for name, values in constraints.items():
        settings[name] = hashlib.sha256(json.dumps(list(values)).encode("ascii")).hexdigest()
    return settings


@contextlib.contextmanager
def _lock_partial(partial: Path, journal: Journal, resume: bool) -> Iterator[None]:
    """Lock the partial file; on an error it is kept only if there is a journal."""
    partial.touch()
    with try_lock(partial) as is_locked:
        if not is_locked:
            raise argument_error(
                "output",
                "be written by one process",
                received=f"{partial}, which another process writes",
            )
        try:
            if not resume and journal.path.exists():
                raise argument_error(
                    "resume",
                    "be True to continue an interrupted file",
                    received=f"{resume}, and {journal.path} exists. Remove it to start again.",
                )
            yield
        except BaseException:  # also when it is interrupted; raised again
            if not journal.path.exists():
                partial.unlink(missing_ok=True)
            raise


def _shard_rows(
    records: Records, shard: tuple[int, int], window: int, is_stream: bool
) -> tuple[int, int | None]:
    """Return the first row of a shard and the row after its last, `None` for a stream."""
    index, count = shard
    if not 1 <= index <= count:
        raise argument_error(
            "shard", "be (i, n) with i from 1 to n", received=f"({index}, {count})"
        )
    if is_stream:
        if count > 1:
            raise argument_error(
                "shard",
                "be used with a file, whose rows can be counted",
                received=f"{index}/{count} for a stream",
            )
        return 0, None
    rows = records.count()
    windows = -(-rows // window)
    start, stop = ((windows * part // count) * window for part in (index - 1, index))
    return min(start, rows), min(stop, rows)


def _file_state(source: Source) -> tuple[int, ...] | None:
    """Return values that change with a file; `None` for a stream."""
    if not isinstance(source, Path) or (source.exists() and not source.is_file()):
        return None
    status = source.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _add_row(digest: Any, row: Row) -> None:
    digest.update(row.key + b"\n")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
