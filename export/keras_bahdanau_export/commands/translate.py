"""The command `translate`: lines while they come, files that can be resumed, folders on Ray."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from keras_bahdanau_export.commands.shown import console, say
from keras_bahdanau_export.commands.streams import is_dash, standard, standard_input
from keras_bahdanau_runtime.bulk.file import translate_file
from keras_bahdanau_runtime.bulk.records import Lines, Source, is_text, one_line
from keras_bahdanau_runtime.errors import ArtifactError
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.ray.bulk import translate_folder
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.translation import BATCH_SIZE, BATCH_TOKENS
from keras_bahdanau_runtime.translator import Translator

_WHOLE = "1/1"
_SHOWN = 64  # lines between two looks at the bar
_PAUSE = 60.0  # seconds between two lines where there is no terminal for a bar

Artifact = Annotated[Path, typer.Argument(help="An artifact (from export).")]
BatchSize = Annotated[int, typer.Option(help="Most sentences searched at once.")]
BatchTokens = Annotated[
    int, typer.Option(help="Most source tokens searched at once, padding included.")
]


def translate(
    artifact: Artifact,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="UTF-8 text, one sentence a line, plain or .gz; .jsonl or .parquet; for Ray a "
            "folder of such files. Standard input if absent or -."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A new file of the same kind; standard output if absent or -."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted file.")
    ] = False,
    shard: Annotated[
        str, typer.Option(help="I/N: the I-th of N parts, whose outputs make up the whole.")
    ] = _WHOLE,
    text_column: Annotated[
        str | None,
        typer.Option(
            help="What to translate of .jsonl and .parquet, such as translation.en for what is "
            "nested; text if absent."
        ),
    ] = None,
    output_column: Annotated[
        str | None,
        typer.Option(help="What is added to .jsonl and .parquet; translation if absent."),
    ] = None,
    batch_size: BatchSize = BATCH_SIZE,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    timeout: Annotated[
        float | None, typer.Option(help="Longest time of one run of the graph.")
    ] = None,
    megabytes: Annotated[
        float | None, typer.Option(help="Most memory of the runs, weights not counted.")
    ] = None,
    parallel_batches: Annotated[
        int | None,
        typer.Option(help="Batches run at once; one for each core if absent, for each actor one."),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut sources over the limit instead of leaving them out."),
    ] = False,
    engine: Annotated[
        str, typer.Option(help="local, or ray for a folder of files on many machines.")
    ] = "local",
    actors: Annotated[
        int | None, typer.Option(help="For ray: files at once; as the processors allow if absent.")
    ] = None,
) -> None:
    """Translates line by line with onnxruntime: one line in, one line out, while they come.

    A line that cannot be read or translated gives an empty one, in .jsonl and .parquet null; it is
    named on standard error, and the exit status is 1 at the end. With --output the lines may be as
    many as the disk holds: what is done survives any end of the process, and the same command with
    --resume goes on.
    """
    source, output = (None if is_dash(path) else path for path in (source, output))
    limits = {"timeout": timeout, "megabytes": megabytes}
    options = {"batch_size": batch_size, "batch_tokens": batch_tokens, "truncate": truncate}
    if engine not in ("local", "ray"):
        raise ValueError(f"Argument `engine` must be local or ray. Received: {engine!r}")
    columns = {"text_column": text_column, "output_column": output_column}
    of_file = {"resume": resume, "shard": shard if shard != _WHOLE else None}
    if engine == "ray":
        _refuse("`engine` local", **of_file)
        parallel_batches = 1 if parallel_batches is None else parallel_batches
        settings = {**columns, "parallel_batches": parallel_batches, "actors": actors}
        _folder(artifact, source, output, **settings, **limits, **options)
        return
    _refuse("`engine` ray", actors=actors)
    given = standard_input() if source is None else source
    parallel_batches = available_cores() if parallel_batches is None else parallel_batches
    if output is None:
        _refuse("an `output`", **of_file, **columns)
        _refuse("an `output`", source=None if is_text(given) else given)
        failed = _stream(
            Translator(artifact, parallel_batches=parallel_batches, **limits), given, options
        )
    else:
        parts, translator = (
            _parts(shard),
            Translator(artifact, parallel_batches=parallel_batches, **limits),
        )
        file = {"resume": resume, "shard": parts, **columns}
        failed = _file(translator, given, output, **file, **options)
    if failed:
        raise ArtifactError(f"{failed} lines have no translation.")


def _stream(translator: Translator, source: Source, options: dict[str, Any]) -> int:
    """Writes translations to standard output when they come; returns how many there are not."""
    unreadable = dict[int, str]()  # why a line has no text, by its number

    def texts() -> Iterator[str]:
        for number, row in enumerate(Lines(source).rows(), start=1):
            if row.error is not None:
                unreadable[number] = row.error
            yield row.text

    found = translator.translate_stream(texts(), **options)
    file, failed = standard("stdout").buffer, 0
    with _Shown() as progress:
        for number, one in enumerate(found, start=1):
            with add_path_to_errors("standard output"):
                file.write((one_line(one.text) + "\n").encode("utf-8"))
                file.flush()
            if number % _SHOWN == 0:
                progress(number, None)
            error = unreadable.pop(number, one.error)
            if error is not None:
                failed += 1
                _say_failed(number, error)
    return failed


def _file(translator: Translator, source: Source, output: Path, **options: Any) -> int:
    """Translates a file into another one; returns how many translations there are not."""
    try:
        with _Shown() as progress:
            return translate_file(
                translator, source, output, progress=progress, on_failed=_say_failed, **options
            )
    except KeyboardInterrupt:
        say(f"Interrupted. Give the same command with --resume to go on with {output}.")
        raise typer.Exit(130) from None


def _folder(artifact: Path, source: Path | None, output: Path | None, **options: Any) -> None:
    if source is None or output is None:
        raise ValueError(
            "Arguments `source` and `output` must be folders for the engine ray. "
            f"Received: {source} and {output}"
        )
    with _Shown("files") as progress:
        failed = translate_folder(artifact, source, output, progress=progress, **options)
    for name, reason in failed.items():
        say(f"{name}: {reason}")
    if failed:
        raise ArtifactError(f"{len(failed)} files are not whole; the others are in {output}.")


def _refuse(without: str, **given: Any) -> None:
    """Raises a `ValueError` that names the first argument that was given and does nothing here."""
    for name, value in given.items():
        if value:
            raise ValueError(f"Argument `{name}` must be given with {without}. Received: {value}")


def _parts(shard: str) -> tuple[int, int]:
    """The numbers of I/N."""
    index, slash, count = shard.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise ValueError(f"Argument `shard` must be I/N, such as 1/4. Received: {shard!r}")
    return int(index), int(count)


def _say_failed(number: int, reason: str) -> None:
    say(f"line {number}: {reason}")


class _Shown:
    """Shows how far it is, how fast, and the time left: a bar, or a line a minute.

    Args:
        unit: str. What is counted.
    """

    def __init__(self, unit: str = "sentences") -> None:
        self._unit = unit
        self._bar = Progress(
            TextColumn("translating"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(unit),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._first = 0  # what an interrupted run had done
        self._began = self._said = time.monotonic()

    def __enter__(self) -> "_Shown":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, total: int | None) -> None:
        """Takes notice of what is done of all that there is, `None` where nobody knows."""
        if self._task is None:
            self._task, self._first = self._bar.add_task("", completed=done, total=total), done
            self._began = self._said = time.monotonic()
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if not console.is_terminal and now - self._said >= _PAUSE:
            self._said, speed = now, (done - self._first) / (now - self._began)
            left = ""
            if total and speed:
                left = f", {timedelta(seconds=round((total - done) / speed))} left"
            said = f"{done:,} of {total:,}" if total else f"{done:,}"
            say(f"{said} {self._unit}, {speed:,.1f}/s{left}")


class _Speed(ProgressColumn):
    """How much is done in a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.1f} {self._unit}/s")
