"""Command `translate`: a stream of lines, files that can be resumed, or folders on Ray."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_bahdanau_cli.arguments import ARTIFACT, RunLimits, argument, output_path
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.progress_bar import ProgressBar
from keras_bahdanau_cli.search_flags import SearchFlags
from keras_bahdanau_cli.terminal import (
    is_dash,
    print_message,
    standard_input,
    standard_stream,
)
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.bulk.formats import OutputFormat
from keras_bahdanau_runtime.bulk.records import Lines, Source, is_text
from keras_bahdanau_runtime.errors import ArtifactError, argument_error
from keras_bahdanau_runtime.files import add_path_to_errors
from keras_bahdanau_runtime.option_fields import option

if TYPE_CHECKING:
    from keras_bahdanau_runtime.bulk.review import Review
    from keras_bahdanau_runtime.translator import Translator


_WHOLE_FILE = "1/1"
_LINES_PER_UPDATE = 64  # of the progress bar, when lines are streamed


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """Files of the command, and where they are translated."""

    artifact: str = argument(ARTIFACT)
    source: Path | None = argument(
        "UTF-8 text, one sentence a line; or .csv, .tsv, .jsonl or .parquet; plain or compressed; "
        "for Ray a folder of such files. Standard input by default, or for -.",
        None,
    )
    output: Path | None = output_path(
        "A new file of the same format; standard output by default, or for -.", None
    )
    resume: bool = option(False, "Continue an interrupted file.", flags="--resume")
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
    engine: str = option(
        "local", "local, or ray for a folder of files on many machines.", panel="System"
    )
    actors: int | None = option(
        None, "For ray: files to translate at once; as the CPUs allow by default.", panel="System"
    )

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
    null in .jsonl and .parquet. It is reported on standard error, and the exit status is then 1.
    With --output, progress is saved: after any interruption the same command with --resume
    continues. It is an error if a finished output was made from other text, or with other options.

    Example:
        keras-bahdanau translate artifact test.en --output test.de
    """
    source, output = (None if is_dash(path) else path for path in (job.source, job.output))
    options = {**asdict(batches), "truncate": job.truncate, **search.options()}
    if job.engine not in ("local", "ray"):
        raise argument_error("engine", "be local or ray", job.engine)
    file_flags = {"resume": job.resume, "shard": job.shard if job.shard != _WHOLE_FILE else None}
    if job.engine == "ray":
        files = {"prefix": search.prefix, "required": search.required, "review": job.review}
        _refuse_without("`engine` local", **file_flags, **files)
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
        _translate_folder(job.artifact, source, output, **settings)
        return
    _refuse_without("`engine` ray", actors=job.actors)
    lines = standard_input() if source is None else source
    options |= search.constraints()
    review = _review(job)
    if output is None:
        _refuse_without("an `output`", **file_flags, **job.columns)
        _refuse_without("an `output`", source=None if is_text(lines) else lines)
        failures = _translate_stream(_open(job, limits), lines, output_format, options, review)
    else:
        options |= {"resume": job.resume, "shard": _parse_shard(job.shard), **job.columns}
        options |= {"output_format": output_format, "review": review}
        failures = _translate_file(_open(job, limits), lines, output, **options)
    if review is not None:
        print_message(f"{review.count} translations to review are in {review.path}.")
    if failures:
        raise ArtifactError(f"{failures} lines have no translation.")


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
                _print_failure(number, error)
    if review is not None:
        review.publish()
    return failures


def _translate_file(translator: "Translator", source: Source, output: Path, **options: Any) -> int:
    """Translate a file into another one; return the number of failures."""
    from keras_bahdanau_runtime.bulk.file import translate_file

    try:
        with ProgressBar() as progress:
            return translate_file(
                translator, source, output, progress=progress, on_failed=_print_failure, **options
            )
    except KeyboardInterrupt:
        print_message(f"Interrupted. Run the same command with --resume to continue {output}.")
        sys.exit(130)


def _translate_folder(
    artifact: str, source: Path | None, output: Path | None, **options: Any
) -> None:
    from keras_bahdanau_runtime.ray.bulk import translate_folder

    if source is None or output is None:
        raise argument_error(
            ("source", "output"), "be folders for the engine ray", received=f"{source} and {output}"
        )
    folder = artifact_folder(artifact)
    with ProgressBar("files") as progress:
        failures = translate_folder(folder, source, output, progress=progress, **options)
    for name, reason in failures.items():
        print_message(f"{name}: {reason}")
    if failures:
        raise ArtifactError(
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


def _print_failure(number: int, reason: str) -> None:
    print_message(f"line {number}: {reason}")
