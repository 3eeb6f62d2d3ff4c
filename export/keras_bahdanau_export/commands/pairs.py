"""Scores of the pairs of two files, for the commands `score` and `align`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.progress import Progress

from keras_bahdanau_export.commands.hub_artifacts import artifact_folder
from keras_bahdanau_export.commands.terminal import (
    console,
    is_dash,
    print_message,
    standard_stream,
    text_source,
)
from keras_bahdanau_runtime.files import add_path_to_errors, atomic_write
from keras_bahdanau_runtime.scoring import TargetScore
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.text.corpus import read_lines
from keras_bahdanau_runtime.translator import WINDOW_SIZE, Translator

Timeout = Annotated[
    float | None,
    typer.Option(help="Time limit of one run of the graph, in seconds.", rich_help_panel="Limits"),
]
Megabytes = Annotated[
    float | None,
    typer.Option(
        help="Memory limit of all runs, in MB, without the weights.", rich_help_panel="Limits"
    ),
]


def score_pairs(
    artifact: str,
    source: Path,
    target: Path,
    *,
    alignments: bool,
    batch_size: int,
    batch_tokens: int,
    timeout: float | None,
    megabytes: float | None,
) -> Iterator[TargetScore]:
    """Score the lines of two files in order, and print the errors of pairs to standard error.

    Args:
        artifact: Folder of the artifact, or its address on the Hub.
        source: File of source sentences; `-` is standard input.
        target: File with the target of each; `-` is standard input.
        alignments: As for `Translator.score`, like the other arguments.
        batch_size: See `alignments`.
        batch_tokens: See `alignments`.
        timeout: See `alignments`.
        megabytes: See `alignments`.

    Yields:
        A `TargetScore` for each pair.

    Raises:
        ValueError: The files have different numbers of lines, or as `read_lines`.
    """
    sources, targets = read_lines(text_source(source)), read_lines(text_source(target))
    if len(sources) != len(targets):
        raise ValueError(
            "Arguments `source` and `target` must have the same number of lines. "
            f"Received: {len(sources)} in {source}, {len(targets)} in {target}"
        )
    translator = Translator(
        artifact_folder(artifact),
        timeout=timeout,
        megabytes=megabytes,
        parallel_batches=available_cores(),
    )
    # Standard output keeps the results: rich would print them to the console of the progress bar.
    bar = Progress(
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    with bar as progress:
        task = progress.add_task("scoring", total=len(sources))
        for start in range(0, len(sources), WINDOW_SIZE):
            window = slice(start, start + WINDOW_SIZE)
            scores = translator.score(
                sources[window],
                targets[window],
                batch_size,
                batch_tokens,
                alignments=alignments,
                on_error="keep",
            )
            for number, score in enumerate(scores, start=start + 1):
                if score.error is not None:
                    print_message(f"line {number}: {score.error}")
                yield score
            progress.advance(task, len(scores))


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces `path` at the end, or standard output for `None` or `-`."""
    if path is None or is_dash(path):
        with add_path_to_errors("standard output"):
            yield standard_stream("stdout").buffer
        return
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        yield file
