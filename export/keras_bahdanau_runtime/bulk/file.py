"""A file in, the same file translated out: whole or absent, and resumed after any end.

    translate_file(Translator("artifact"), Path("source.txt"), Path("target.txt"), resume=True)

Rows are translated in windows that depend on nothing but their places, so that a run which was
killed and resumed, and one cut into shards, searches in the same batches as an unbroken one and
writes the same bytes.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from keras_bahdanau_runtime.bulk.records import Records, Row, Source, open_records
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.files import flush, locked, naming, written
from keras_bahdanau_runtime.manifest import Manifest
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.translator import WINDOW, Translator

_VERSION = 1


@dataclass(frozen=True)
class Place:
    """How far a file has come.

    Args:
        rows: int. Rows that are translated.
        bytes: int. Bytes of the partial file that hold them.
        failed: int. How many of the rows have no translation.
        digest: str. SHA-256 of their keys.
    """

    rows: int = 0
    bytes: int = 0
    failed: int = 0
    digest: str = hashlib.sha256().hexdigest()


class Journal:
    """A file with a `Place`, and with the settings that decide about translations.

    It is replaced at one stroke, and whole or absent.

    Args:
        path: `Path`.
        settings: Values of JSON by name.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self._settings = path, dict(settings)

    def read(self) -> Place | None:
        """The place; `None` where there is no journal.

        Raises:
            ValueError: It was begun with other settings, or is none.
        """
        try:
            found = json.loads(self.path.read_text("utf-8"))
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']!r}")
            place, begun = Place(**found["place"]), dict(found["settings"])
            for field in dataclasses.fields(Place):
                if type(getattr(place, field.name)) is not type(field.default):
                    raise TypeError(f"{field.name}={getattr(place, field.name)!r}")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path}: expected a journal of version {_VERSION}. Received: {error!r}"
            ) from error
        for name, value in self._settings.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"Argument `{name}` must be what {self.path} was begun with, "
                    f"{begun.get(name)!r}. Received: {value!r}"
                )
        return place

    def write(self, place: Place) -> None:
        """Keeps a place, on the disk when this returns."""
        known = {
            "version": _VERSION,
            "settings": self._settings,
            "place": dataclasses.asdict(place),
        }
        with written(self.path) as path:
            path.write_text(json.dumps(known, indent=2) + "\n", "utf-8")


def fingerprint(manifest: Manifest) -> str:
    """SHA-256 of all that an artifact's manifest says, the hashes of its files among it."""
    known = dataclasses.asdict(dataclasses.replace(manifest, folder=Path()))
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


logger = logging.getLogger("keras_bahdanau_runtime")

Progress = Callable[[int, int | None], object]
Failed = Callable[[int, str], object]


def translate_file(
    translator: Translator,
    source: Source,
    output: Path,
    resume: bool = False,
    shard: tuple[int, int] = (1, 1),
    text_column: str | None = None,
    output_column: str | None = None,
    batch_size: int = BATCH_SIZE,
    batch_tokens: int = BATCH_TOKENS,
    truncate: bool = False,
    window: int = WINDOW,
    progress: Progress | None = None,
    on_failed: Failed | None = None,
) -> int:
    """Translates a file row by row, in memory that does not grow with it.

    The rows are read once before, so that a damaged file and wrong columns are named at once. A row
    whose text cannot be read, or not be translated, has no translation, and the others are
    translated. What is translated stands in OUTPUT.partial, and how far it is in OUTPUT.journal,
    until the output takes its name.

    Args:
        translator: `Translator`.
        source: `Path` of lines of text, JSON lines or Parquet (see `records`), or a stream of
            lines.
        output: `Path` of a new file of the same kind.
        resume: bool. Whether to go on with what an interrupted call left. Its result is, byte for
            byte, that of a call that was not interrupted, on the same machine. An output that is
            there is finished.
        shard: `(i, n)`: the i-th, from 1, of n parts with about as many rows each. They are cut
            between windows; the outputs of lines one after another are, byte for
            byte, that of the whole file.
        text_column: The key or column that is translated, for JSON lines and Parquet, "text" if
            `None`; "translation.en" is "en" inside of "translation".
        output_column: The key or column that is added to them, "translation" if `None`.
        batch_size: As for `Translator.translate`.
        batch_tokens: As for `Translator.translate`.
        truncate: As for `Translator.translate`.
        window: int. Rows that are sorted into batches together; after each such window what is done
            is kept.
        progress: Called with the rows done and the rows that there are, `None` for a stream: at
            first with what an interrupted call had done, and after each batch.
        on_failed: Called with the number of each row, from 1, that there is no translation of, and
            why.

    Returns:
        int, how many rows there is no translation of, those before the interruption included.

    Raises:
        ValueError: `source` is damaged, or has no such column; `output` is there, or begun and not
            to be resumed, or begun with another artifact, settings or rows.
        OSError: The disk is full, for example; what is done can be resumed.
    """
    records = open_records(source, output, text_column, output_column)
    report = progress or (lambda done, total: None)
    partial, kept = (Path(f"{output}{end}") for end in (".partial", ".journal"))
    before = _state(source)
    if output.exists():
        itself = isinstance(source, Path) and output.samefile(source)
        if not resume or itself or not output.is_file():
            raise ValueError(
                f"Argument `output` must be a new file. Received: {str(output)!r}, which "
                f"{'is the source' if itself else 'exists'}"
            )
        logger.warning("%s is there already: it is finished.", output)
        for left in (partial, kept):
            left.unlink(missing_ok=True)
        return 0
    for path in (partial, kept):
        if isinstance(source, Path) and path.exists() and path.samefile(source):
            raise ValueError(
                f"Argument `output` must be a file beside which {path.name} may be made. "
                f"Received: {str(output)!r}, and that is the source"
            )
    check_positive(window=window)
    start, stop = _span(records, shard, window, counted=before is not None)
    settings = {
        "artifact": fingerprint(translator.manifest),
        "providers": translator.providers,
        "text_column": text_column,
        "output_column": output_column,
        "batch_size": batch_size,
        "batch_tokens": batch_tokens,
        "truncate": truncate,
        "window": window,
        "shard": [*shard, start, stop] if shard[1] > 1 else None,  # a whole file may have grown
    }
    journal = Journal(kept, settings)
    options = {name: settings[name] for name in ("batch_size", "batch_tokens", "truncate")}
    work = _Work(translator, records, start, stop, window, options, report, on_failed)
    with _claimed(partial, journal, resume):
        if output.exists():
            raise ValueError(
                f"Argument `output` must be a new file. Received: {str(output)!r}, which another "
                "process has written meanwhile"
            )
        with naming(partial), partial.open("r+b") as file:
            failed = work.run(file, journal)
        if _state(source) != before:
            raise ValueError(f"{source}: expected a file that stays. It changed meanwhile.")
        records.publish(partial, output, start, stop)
        flush(output.parent)
        kept.unlink(missing_ok=True)
    return failed


@dataclass(frozen=True)
class _Work:
    """The rows of a file from `start` to `stop`, and how they are translated."""

    translator: Translator
    records: Records
    start: int
    stop: int | None
    window: int
    options: Mapping[str, Any]
    report: Progress
    on_failed: Failed | None

    def run(self, file: BinaryIO, journal: Journal) -> int:
        """Translates what the journal does not tell of; returns how many rows there failed."""
        place = journal.read() or Place()
        if os.fstat(file.fileno()).st_size < place.bytes:
            raise ValueError(
                f"{file.name}: expected at least the {place.bytes} bytes that {journal.path} tells "
                "of. Remove both to begin anew."
            )
        file.truncate(place.bytes)
        file.seek(place.bytes)
        rows, seen = self.records.rows(self.start, self.stop), hashlib.sha256()
        _add(seen, itertools.islice(rows, place.rows))
        if seen.hexdigest() != place.digest:
            raise ValueError(
                f"Argument `source` must begin with the {place.rows} rows that {journal.path} "
                "tells of. Received: other rows. Remove it to begin anew."
            )
        self._report(place.rows, 0)
        while window := list(itertools.islice(rows, self.window)):
            translations = self._translate(window, place.rows)
            data = self.records.render(window, translations)
            file.write(data)
            _add(seen, window)
            place = Place(
                place.rows + len(window),
                place.bytes + len(data),
                place.failed + translations.count(None),
                seen.hexdigest(),
            )
            if len(window) == self.window:  # should rows be added, a shorter one would be another
                _flush(file)
                journal.write(place)
        _flush(file)
        return place.failed

    def _translate(self, window: list[Row], done: int) -> list[str | None]:
        """The translation of each row, `None` where there is none."""
        found = self.translator.translate(
            [row.text for row in window],
            alignments=False,
            on_error="keep",
            progress=lambda count: self._report(done, count),
            **self.options,
        )
        translations = list[str | None]()
        for number, (row, one) in enumerate(zip(window, found, strict=True), self.start + done + 1):
            error = one.error if row.error is None else row.error
            translations.append(one.text if error is None else None)
            if error is not None and self.on_failed is not None:
                self.on_failed(number, error)
        return translations

    def _report(self, done: int, more: int) -> None:
        self.report(done + more, None if self.stop is None else self.stop - self.start)


@contextlib.contextmanager
def _claimed(partial: Path, journal: Journal, resume: bool) -> Iterator[None]:
    """Keeps the partial file for this process alone; it stays as long as it has a journal."""
    partial.touch()
    with locked(partial) as ours:
        if not ours:
            raise ValueError(
                f"Argument `output` must be written by one process. Received: {partial}, which "
                "another one writes"
            )
        try:
            if not resume and journal.path.exists():
                raise ValueError(
                    "Argument `resume` must be True to go on with a file that was begun. Received: "
                    f"{resume}, and {journal.path} is there. Remove it to begin anew."
                )
            yield
        except BaseException:
            if not journal.path.exists():
                partial.unlink(missing_ok=True)
            raise


def _span(
    records: Records, shard: tuple[int, int], window: int, counted: bool
) -> tuple[int, int | None]:
    """The rows of a shard; all of what cannot be counted, as it is read once."""
    index, count = shard
    if not 1 <= index <= count:
        raise ValueError(
            f"Argument `shard` must be (i, n) with i from 1 to n. Received: ({index}, {count})"
        )
    if not counted:
        if count > 1:
            raise ValueError(
                "Argument `shard` must be given only for a file, which can be counted. "
                f"Received: {index}/{count} for a stream"
            )
        return 0, None
    rows = records.count()
    windows = -(-rows // window)
    start, stop = ((windows * place // count) * window for place in (index - 1, index))
    return min(start, rows), min(stop, rows)


def _state(source: Source) -> tuple[int, ...] | None:
    """What changes when a file does; `None` for what is no file."""
    if not isinstance(source, Path) or (source.exists() and not source.is_file()):
        return None
    found = source.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _add(seen: Any, rows: Iterable[Row]) -> None:
    for row in rows:
        seen.update(row.key + b"\n")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
