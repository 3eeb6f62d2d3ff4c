"""Command `translate`: a stream of lines, a file, or several files, also on Ray."""

import contextlib
import functools
import glob
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_bahdanau_cli.arguments import ARTIFACT, RunLimits, argument, output_path
from keras_bahdanau_cli.exit_status import INTERRUPTED, IncompleteError
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.progress_bar import ProgressBar
from keras_bahdanau_cli.search_flags import SearchFlags
from keras_bahdanau_cli.terminal import (
    is_dash,
    print_message,
    standard_input,
    standard_stream,
    use_json_messages,
)
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.formats import OutputFormat
from keras_bahdanau_runtime.bulk.records import Lines, Source, is_text
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.option_fields import option
from keras_bahdanau_runtime.service.logs import check_log_format, log_format_option
from keras_bahdanau_runtime.text.file_kind import file_kind

if TYPE_CHECKING:
    from keras_bahdanau_runtime.bulk.file import FileResult
    from keras_bahdanau_runtime.bulk.review import Review
    from keras_bahdanau_runtime.translator import Translator


_WHOLE_FILE = "1/1"
_LINES_PER_UPDATE = 64  # of the progress bar, when lines are streamed


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """Files of the command, and where they are translated."""

    artifact: str = argument(ARTIFACT)
    sources: tuple[Path, ...] = argument(
        "UTF-8 text, one sentence a line; or .csv, .tsv, .jsonl or .parquet; plain or compressed. "
        "Several files, folders of files, and patterns such as 'in/*.jsonl'. Standard input by "
        "default, or for -.",
        (),
    )
    output: str | None = output_path(
        "A new file of the same format; standard output by default, or for -. For several sources, "
        "a folder, or for one with a slash at the end: files whose outputs are complete are "
        "skipped, and those that have changed are translated again.",
        None,
        metavar="PATH",
    )
    resume: bool = option(
        False, "Continue an interrupted file. Always so for a folder.", flags="--resume"
    )
    shard: str = option(
        _WHOLE_FILE,
        "I/N: translate only part I of N; the outputs can be concatenated.",
        panel="System",
    )
    text_column: tuple[str, ...] | None = option(
        None,
        "The column of .csv, .jsonl and .parquet to translate, text by default, or such as "
        "translation.en for a nested one; the number of the column of .tsv, from 1. Repeat it for "
        "a model with several source columns.",
        panel="Data",
    )
    output_column: str | None = option(
        None,
        "The column added to .csv, .jsonl and .parquet; translation by default.",
        panel="Data",
    )
    review: tuple[float, Path] | None = option(
        None,
        "A confidence and a new file, such as 0.9 doubtful.tsv: translations below the confidence "
        "go to this file, with source, second best translation, confidence and line, the least "
        "confident first. Their lines in the output are empty.",
        types=(float, Path),
        metavar="FLOAT FILE",
        panel="Output",
    )
    parallel_batches: int | None = option(
        None,
        "Batches to run at once; by default one per core, or one per Ray actor.",
        panel="Batching",
    )
    truncate: bool = option(
        False,
        "Truncate sources above the limit instead of leaving them out.",
        flags="--truncate",
        panel="Limits",
    )
    engine: str = option("local", "local, or ray for files on many machines.", panel="System")
    actors: int | None = option(
        None, "For ray: files to translate at once; as the CPUs allow by default.", panel="System"
    )
    log_format: str = log_format_option()

    @property
    def source(self) -> Path | None:
        """The only source; `None` for standard input."""
        return None if not self.sources or is_dash(self.sources[0]) else self.sources[0]

    @property
    def has_files(self) -> bool:
        """Whether the output is a folder, with a file for each file of the sources."""
        if len(self.sources) > 1:
            return True
        if self.source is None:
            return False
        is_pattern = glob.has_magic(str(self.source)) and not os.path.lexists(self.source)
        if is_pattern or self.source.is_dir():
            return True
        if self.output is None:
            return False
        return self.output.endswith(("/", os.sep)) or Path(self.output).is_dir()

    @property
    def columns(self) -> dict[str, Any]:
        """The arguments of `translate_file` for the columns."""
        names = self.text_column
        text_column = names[0] if names is not None and len(names) == 1 else names
        return {"text_column": text_column, "output_column": self.output_column}


def translate(
    job: TranslateOptions,
    batches: BatchSizes,
    limits: RunLimits,
    output_format: OutputFormat,
    search: SearchFlags,
) -> None:
    """Translate line by line with onnxruntime, and write each translation as soon as it is ready.

    A line that cannot be read or translated gives an empty line, an empty cell in .csv and .tsv, or
    null in .jsonl and .parquet. It is reported on standard error, and the exit status is then 3.
    With --output, progress is saved: after any interruption the same command with --resume
    continues. It is an error if a finished output was made from other text, or with other options.
    Into a folder, the same command continues, and translates such a file again.

    Example:
        keras-bahdanau translate artifact test.en --output test.de
    """
    began = time.monotonic()
    check_log_format(job.log_format)
    if job.log_format == "json":
        use_json_messages()
    if job.engine not in ("local", "ray"):
        raise argument_error("engine", "be local or ray", job.engine)
    output = None if job.output is None or is_dash(Path(job.output)) else Path(job.output)
    options = {**asdict(batches), "truncate": job.truncate, **search.options()}
    file_flags = {"resume": job.resume, "shard": job.shard if job.shard != _WHOLE_FILE else None}
    row_flags = {"prefix": search.prefix, "required": search.required, "review": job.review}
    if job.engine == "ray":
        _refuse_without("`engine` local", **file_flags, **row_flags)
        if not output_format.is_plain:
            raise argument_error(
                ("n_best", "scores", "tokens", "alignments", "json"),
                "be used with `engine` local",
                received=str(output_format),
            )
        settings = {
            "parallel_batches": 1 if job.parallel_batches is None else job.parallel_batches,
            "actors": job.actors,
        }
        settings |= {**job.columns, **asdict(limits), **options}
        _translate_on_ray(job.artifact, job.sources, output, **settings)
        return
    _refuse_without("`engine` ray", actors=job.actors)
    if job.has_files:
        _refuse_without("a single file", shard=file_flags["shard"], **row_flags)
        options |= {"output_format": output_format, **job.columns}
        summary = _translate_files(job, limits, output, **options)
        summary.print(time.monotonic() - began)
        summary.check()
        return
    lines = standard_input() if job.source is None else job.source
    options |= search.constraints()
    review = _review(job)
    if output is None:
        _refuse_without("an `output`", **file_flags, **job.columns)
        _refuse_without("an `output`", sources=None if is_text(lines) else lines)
        failures = _translate_stream(_open(job, limits), lines, output_format, options, review)
        summary = _Summary(failed_rows=failures)
    else:
        options |= {"resume": job.resume, "shard": _parse_shard(job.shard), **job.columns}
        options |= {"output_format": output_format, "review": review}
        summary = _Summary([_translate_file(_open(job, limits), lines, output, **options)])
    if review is not None:
        _print_review(review, output)
    if output is not None:
        summary.print(time.monotonic() - began)
    summary.check()


class _Summary:
    """Numbers of translated files and rows.

    Args:
        results: The `FileResult`, or an error, of each file.
        failed_rows: Number of further rows without a translation.
    """

    def __init__(self, results: "Iterable[FileResult | str]" = (), failed_rows: int = 0) -> None:
        results = list(results)
        finished = [result for result in results if not isinstance(result, str)]
        self.files, self.failed_files = len(results), len(results) - len(finished)
        self.unchanged_files = sum(not result.new_rows and result.rows > 0 for result in finished)
        self.rows = sum(result.rows for result in finished)
        self.new_rows = sum(result.new_rows for result in finished)
        self.failed_rows = failed_rows + sum(result.failed_rows for result in finished)

    def print(self, seconds: float) -> None:
        """Print the numbers and the speed, as one line."""
        rate = self.new_rows / seconds
        print_message(
            f"{_count(self.files, 'file')}: {self.unchanged_files:,} unchanged, "
            f"{self.failed_files:,} failed; {_count(self.rows, 'row')}: {self.new_rows:,} new, "
            f"{self.failed_rows:,} without a translation; {seconds:.1f} s, {rate:,.1f} rows/s",
            **vars(self),
            seconds=round(seconds, 3),
            rows_per_second=round(rate, 1),
        )

    def check(self) -> None:
        """Raise an `IncompleteError` if a file or a row has no translation."""
        failures = [_count(self.failed_files, "file")] if self.failed_files else []
        failures += [_count(self.failed_rows, "row")] if self.failed_rows else []
        if failures:
            raise IncompleteError(f"Without a translation: {' and '.join(failures)}.")


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _review(job: TranslateOptions) -> "Review | None":
    """Return the file of doubtful translations."""
    if job.review is None:
        return None
    from keras_bahdanau_runtime.bulk.review import Review

    return Review(*job.review)


def _open(job: TranslateOptions, limits: RunLimits) -> "Translator":
    """Open the artifact."""
    from keras_bahdanau_runtime.session import available_cores
    from keras_bahdanau_runtime.translator import Translator

    parallel_batches = available_cores() if job.parallel_batches is None else job.parallel_batches
    return Translator(
        artifact_folder(job.artifact), parallel_batches=parallel_batches, **asdict(limits)
    )


def _translate_stream(
    translator: "Translator",
    source: Source,
    output_format: OutputFormat,
    options: dict[str, Any],
    review: "Review | None",
) -> int:
    """Write translations to standard output as they are ready; return the number of failures."""
    if review is not None:
        review.check(translator, options, resume=False)
    read_errors = dict[int, str]()  # by line number
    texts_to_review = dict[int, str]()

    def texts() -> Iterator[str]:
        for number, row in enumerate(Lines(source).rows(), start=1):
            if row.error is not None:
                read_errors[number] = row.error
            if review is not None:
                texts_to_review[number] = row.text
            yield row.text

    num_written = n_best = output_format.n_best or 1
    if review is not None:  # which contains the second best translations
        n_best = max(num_written, min(2, translator.manifest.search.num_returned))
    results = translator.translate_stream(
        texts(),
        alignments=output_format.alignments is not None,
        n_best=n_best,
        **options,
    )
    file, failures = standard_stream("stdout").buffer, 0
    with ProgressBar() as progress, contextlib.nullcontext() if review is None else review:
        if review is not None:
            review.start(0)
        for number, result in enumerate(results, start=1):
            hypotheses = result if n_best > 1 else [result]
            error = read_errors.pop(number, hypotheses[0].error)
            hypotheses = [replace(hypotheses[0], error=error)] if error else hypotheses
            if review is not None:
                text = texts_to_review.pop(number)
                is_doubtful = not error and review.add(number, text, hypotheses)
                hypotheses = [] if is_doubtful else hypotheses[:num_written]
            with add_path_to_errors("standard output"):
                for line in output_format.lines(number - 1, hypotheses):
                    file.write((line + "\n").encode("utf-8"))
                file.flush()
            if number % _LINES_PER_UPDATE == 0:
                progress(number, None)
            if error is not None:
                failures += 1
                _print_failure(source, number, error, names_file=False)
    if review is not None:
        review.publish()
        review.finish()
    return failures


def _translate_file(
    translator: "Translator", source: Source, output: Path, **options: Any
) -> "FileResult":
    """Translate a file into another one."""
    from keras_bahdanau_runtime.bulk.file import translate_file

    try:
        with ProgressBar() as progress:
            return translate_file(
                translator,
                source,
                output,
                progress=progress,
                on_failed=functools.partial(_print_failure, source, names_file=False),
                **options,
            )
    except KeyboardInterrupt:
        print_message(f"Interrupted. Run the same command with --resume to continue {output}.")
        sys.exit(INTERRUPTED)


def _translate_files(
    job: TranslateOptions, limits: RunLimits, output: Path | None, **options: Any
) -> _Summary:
    """Translate the files of the sources that have no complete output into a folder."""
    from keras_bahdanau_runtime.bulk.folder import find_files, translate_files

    if output is None:
        raise argument_error("output", "be a folder for several sources", None)
    if any(map(is_dash, job.sources)):
        raise argument_error("sources", "be files for an output folder", received="-")
    if output.exists() and not output.is_dir():
        raise argument_error(
            "output", "be a folder for several sources", received=f"{str(output)!r}, a file"
        )
    files = find_files(job.sources, output)

    def report(path: Path, result: "FileResult | str") -> None:
        if isinstance(result, str):
            reason = result.removeprefix(f"{path}: ")
            print_message(f"{path}: {reason}", "WARNING", file=str(path))
        elif result.new_rows or result.failed_rows:
            rows, new_rows, failed_rows = result.rows, result.new_rows, result.failed_rows
            print_message(
                f"{path}: {_count(rows, 'row')}, {failed_rows:,} without a translation",
                "WARNING" if failed_rows else "INFO",
                file=str(path),
                rows=rows,
                new_rows=new_rows,
                failed_rows=failed_rows,
            )

    try:
        with ProgressBar() as progress:
            results = translate_files(
                _open(job, limits),
                files,
                output,
                progress=progress,
                on_failed=_print_failure,
                on_finished=report,
                **options,
            )
    except KeyboardInterrupt:
        print_message("Interrupted. Run the same command to continue.")
        sys.exit(INTERRUPTED)
    return _Summary(results.values())


def _translate_on_ray(
    artifact: str, sources: tuple[Path, ...], output: Path | None, **options: Any
) -> None:
    from keras_bahdanau_runtime.ray.bulk import translate_folder

    if not sources or output is None:
        raise argument_error(
            ("sources", "output"),
            "be files and a folder for the engine ray",
            received=f"{', '.join(map(str, sources)) or 'none'} and {output}",
        )
    folder = artifact_folder(artifact)
    with ProgressBar("files") as progress:
        failures = translate_folder(folder, sources, output, progress=progress, **options)
    for name, reason in failures.items():
        print_message(f"{name}: {reason}", file=name)
    if failures:
        raise IncompleteError(
            f"{len(failures)} files are not translated completely; the others are in {output}."
        )


def _refuse_without(requirement: str, **flags: Any) -> None:
    """Raise a `ValueError` that names the first flag that only works with the requirement."""
    for name, value in flags.items():
        if value:
            raise argument_error(name, f"be used with {requirement}", received=str(value))


def _parse_shard(shard: str) -> tuple[int, int]:
    """Return I and N of I/N."""
    index, slash, count = shard.partition("/")
    if not slash or not index.isdecimal() or not count.isdecimal():
        raise argument_error("shard", "be I/N, such as 1/4", shard)
    return int(index), int(count)


def _print_review(review: "Review", output: Path | None) -> None:
    """Print the number of translations to review, and their file."""
    if review.count is None:
        print_message(
            f"{review.path} is missing. {output} was complete, so nothing was translated. Remove "
            f"{output} to write both files again.",
            "WARNING",
        )
    else:
        verb = "is" if review.count == 1 else "are"
        print_message(f"{_count(review.count, 'translation')} to review {verb} in {review.path}.")


def _print_failure(source: Source, number: int, reason: str, names_file: bool = True) -> None:
    """Print why a row of a source has no translation."""
    fields: dict[str, Any] = {"file": str(source)} if isinstance(source, Path) else {}
    has_lines = is_text(source) or file_kind(str(source)).format in ("jsonl", "tsv")
    unit = "line" if has_lines else "row"
    prefix = f"{source}, " if names_file else ""
    print_message(f"{prefix}{unit} {number}: {reason}", "WARNING", **fields, **{unit: number})
