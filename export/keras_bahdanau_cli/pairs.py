"""Scores of pairs of sentences, for the commands `score` and `align`."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rich.progress import Progress

from keras_bahdanau_cli.arguments import RunLimits
from keras_bahdanau_cli.hub_artifacts import artifact_folder
from keras_bahdanau_cli.terminal import (
    console,
    is_dash,
    pair_sources,
    print_message,
    standard_stream,
)
from keras_bahdanau_runtime.batch_sizes import BatchSizes
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import add_path_to_errors, atomic_write
from keras_bahdanau_runtime.text.parallel import TextFormat, list_pairs

if TYPE_CHECKING:
    from keras_bahdanau_runtime.scoring import TargetScore


def score_pairs(
    artifact: str,
    source: Path,
    target: Path | None,
    text_format: TextFormat,
    batches: BatchSizes,
    limits: RunLimits,
    *,
    alignments: bool,
) -> "Iterator[TargetScore | None]":
    """Score pairs of sentences in order, and print the errors of pairs to standard error.

    Args:
        artifact: Folder of the artifact, or its address on the Hub.
        source: File of source sentences, or of both sides; `-` is standard input.
        target: File with the target of each, or `None`; `-` is standard input.
        text_format: `TextFormat` of the files.
        batches: Sizes of batches.
        limits: Limits of the runs.
        alignments: As for `Translator.score`.

    Yields:
        A `TargetScore` for each pair; `None` for a bad line that is skipped.

    Raises:
        ValueError: As `list_pairs`, or the sources have columns that the model does not have.
    """
    from keras_bahdanau_runtime.session import available_cores
    from keras_bahdanau_runtime.translator import WINDOW_SIZE, Translator

    pairs = list_pairs(*pair_sources(source, target), text_format)
    translator = Translator(
        artifact_folder(artifact),
        parallel_batches=available_cores(),
        **asdict(limits),
    )
    text_format.check_columns(translator.require_tokenizer().has_columns)
    # Standard output keeps the results: rich would print them to the console of the progress bar.
    bar = Progress(
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    with bar as progress:
        task = progress.add_task("scoring", total=len(pairs))
        for start in range(0, len(pairs), WINDOW_SIZE):
            window = pairs[start : start + WINDOW_SIZE]
            scores = translator.score(
                [text or "" for _, text, _ in window],
                [text or "" for _, _, text in window],
                alignments=alignments,
                on_error="keep",
                **asdict(batches),
            )
            for (number, text, _), score in zip(window, scores, strict=True):
                if text is not None and score.error is not None:
                    print_message(f"line {number}: {score.error}")
                yield None if text is None else score
            progress.advance(task, len(scores))


def check_output(path: Path | None, name: str = "output") -> None:
    """Raise a `ValueError` for a file that cannot be written, before its contents are computed.

    Args:
        path: As for `open_output`.
        name: Name of the argument, for the message.
    """
    if path is None or is_dash(path):
        return
    if not path.absolute().parent.is_dir():
        raise argument_error(
            name,
            "be a file in an existing folder",
            received=f"{str(path)!r}, whose folder does not exist",
        )
    if path.is_dir():
        raise argument_error(name, "be a file", received=f"{str(path)!r}, a folder")


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces `path` at the end, or standard output for `None` or `-`."""
    if path is None or is_dash(path):
        with add_path_to_errors("standard output"):
            yield standard_stream("stdout").buffer
        return
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        yield file
