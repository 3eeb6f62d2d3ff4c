"""Translate several files into a folder, but only those that are new or have changed.

    files = find_files([Path("in")], Path("out"))
    translate_files(Translator("artifact"), files, Path("out"))

The record next to each output decides whether it is complete; see `translate_file`. So the same
call also continues after an interruption.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.bulk.file import (
    PLAIN,
    WORK_SUFFIXES,
    FileResult,
    Progress,
    checked_text_column,
    record_path,
    translate_file,
)
from keras_bahdanau_runtime.bulk.formats import OutputFormat
from keras_bahdanau_runtime.bulk.records import FORMATS, check_format
from keras_bahdanau_runtime.errors import ArtifactError, argument_error
from keras_bahdanau_runtime.files import claim_folder
from keras_bahdanau_runtime.text.parallel import expand_paths
from keras_bahdanau_runtime.translator import Translator

_SHOWN_FILES = 10  # in a message


def find_files(sources: Sequence[Path], output: Path) -> list[Path]:
    """Return the files to translate into a folder, in which each output has the name of its file.

    A folder means the files in it, without hidden files and subfolders. Files inside of
    `output`, which an earlier call may have written, are left out.

    Args:
        sources: Files, folders, and patterns as for `expand_paths`.
        output: Folder of the outputs; it need not exist.

    Raises:
        ValueError: A source does not exist, a pattern matches nothing, there is no file, a file has
            a format that cannot be translated, two files have the same name, or a file has the name
            of a working file of another output.
        MissingDependencyError: The package for the format or the compression of a file is not
            installed.
    """
    files = dict[str, Path]()
    folder, is_inside = output.resolve(), False
    for source in expand_paths(sources):
        if source.is_dir():
            paths = sorted(path for path in source.iterdir() if not path.name.startswith("."))
            paths = [path for path in paths if path.is_file()]
        elif source.is_file():
            paths = [source]
        else:
            raise argument_error(
                "sources",
                "be files, folders or patterns of files",
                received=f"{str(source)!r}, which does not exist",
            )
        for path in paths:
            if folder in path.resolve().parents:
                is_inside = True
                continue
            other = files.setdefault(path.name, path)
            if os.path.abspath(other) != os.path.abspath(path):
                raise _same_names(other, path)
    if is_inside and not files:
        raise argument_error("output", "be another folder than that of the sources", str(output))
    if not files:
        raise argument_error(
            "sources", "contain a file", received=", ".join(map(str, sources)) or "none"
        )
    _check_formats(list(files.values()))
    for name, path in files.items():
        work_names = [*(f"{name}{suffix}" for suffix in WORK_SUFFIXES), record_path(path).name]
        for work_name in work_names:
            if work_name in files:
                raise _same_names(path, files[work_name])
    return list(files.values())


def _check_formats(files: Sequence[Path]) -> None:
    """Raise one `ValueError` that names the files that cannot be translated."""
    refused = []
    for path in files:
        try:
            check_format(path)
        except ValueError:
            refused.append(str(path))
    if refused:
        names = ", ".join(refused[:_SHOWN_FILES])
        others = len(refused) - _SHOWN_FILES
        raise argument_error(
            "sources",
            f"be {FORMATS}; all but Parquet may end with .gz, .bz2, .xz or .zst; name the files, "
            "or use a pattern",
            received=f"{names} and {others} more" if others > 0 else names,
        )


def _same_names(first: Path, second: Path) -> ValueError:
    return argument_error(
        "sources",
        "be files whose outputs have different names, also from the working files .partial and "
        ".journal of another output",
        received=f"{str(first)!r} and {str(second)!r}",
    )


def translate_files(
    translator: Translator,
    files: Sequence[Path],
    output: Path,
    text_column: str | Sequence[str] | None = None,
    output_column: str | None = None,
    output_format: OutputFormat = PLAIN,
    progress: Progress | None = None,
    on_failed: Callable[[Path, int, str], object] | None = None,
    on_finished: Callable[[Path, FileResult | str], object] | None = None,
    **options: Any,
) -> dict[Path, FileResult | str]:
    """Translate each file that has no complete output made from the same rows in the same way.

    Args:
        translator: `Translator`.
        files: Result of `find_files`.
        output: Folder of the outputs. It is created if missing.
        text_column: As for `translate_file`.
        output_column: As for `translate_file`.
        output_format: As for `translate_file`.
        progress: Called with the number of rows that this call has translated, and `None`.
        on_failed: Called with the file, the number (from 1) of each row without a translation, and
            the reason.
        on_finished: Called with each file and its result.
        **options: As for `translate_file`, without constraints on single rows.

    Returns:
        The `FileResult` of each file, or the message of the error that left it without an output.

    Raises:
        ValueError: Another call writes to `output`, or an option is not one of the artifact.
    """
    text_column = checked_text_column(translator, text_column)
    translator.translate((), **options)  # checks the options
    results, done = dict[Path, FileResult | str](), 0
    with claim_folder(output, "translates into"):
        for path in files:
            job = _Callbacks(path, done, progress, on_failed)
            result: FileResult | str
            try:
                result = translate_file(
                    translator,
                    path,
                    output / path.name,
                    resume=True,
                    replace=True,
                    text_column=text_column,
                    output_column=output_column,
                    output_format=output_format,
                    progress=job.progress,
                    on_failed=job.on_failed,
                    **options,
                )
                done += result.new_rows
            except (ArtifactError, ValueError, OSError) as error:
                if getattr(error, "name", None) == "n_best":
                    raise  # too large for each file, which only a run of the graph tells
                result = str(error)
            results[path] = result
            if on_finished is not None:
                on_finished(path, result)
    return results


class _Callbacks:
    """Callbacks of `translate_file` for one of several files.

    Args:
        path: The file.
        done: Number of rows that the call has translated before.
        progress: As for `translate_files`.
        on_failed: As for `translate_files`.
    """

    def __init__(
        self,
        path: Path,
        done: int,
        progress: Progress | None,
        on_failed: Callable[[Path, int, str], object] | None,
    ) -> None:
        self._path, self._done = path, done
        self._progress, self._on_failed = progress, on_failed
        self._first: int | None = None  # rows of an interrupted call

    def progress(self, done: int, total: int | None) -> None:
        """Report the rows that the call has translated."""
        self._first = done if self._first is None else self._first
        if self._progress is not None:
            self._progress(self._done + done - self._first, None)

    def on_failed(self, number: int, reason: str) -> None:
        """Report a row without a translation."""
        if self._on_failed is not None:
            self._on_failed(self._path, number, reason)
