"""Translate sources with a teacher, as training data for a smaller or faster student.

In sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2) the
student learns the teacher's translations instead of human ones. They are more regular, so a small
model with greedy search comes close to the teacher with its beam.
"""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.bulk.file import (
    PLAIN,
    Progress,
    fingerprint,
    record_path,
    translate_file,
)
from keras_bahdanau_runtime.bulk.formats import OutputFormat
from keras_bahdanau_runtime.bulk.records import Lines, is_text
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import atomic_write, file_sha256, write_json
from keras_bahdanau_runtime.text.corpus import UNDECODABLE, UTF_8, iterate_lines
from keras_bahdanau_runtime.text.parallel import UTF_8_TEXT, TextFormat, iterate_pairs
from keras_bahdanau_runtime.text.scores import bleu_metric
from keras_bahdanau_runtime.translator import Translator

logger = logging.getLogger("keras_bahdanau_runtime")

SOURCE_FILE, TARGET_FILE = "source.txt", "target.txt"
_SETTINGS_FILE = "settings.json"


def check_texts(
    sources: Sequence[Path],
    references: Sequence[Path] = (),
    n_best: int | None = None,
    text_format: TextFormat = UTF_8_TEXT,
    pairs: bool = False,
) -> list[int]:
    """Check the arguments of `distill_texts` without a teacher.

    Returns:
        The number of lines, or of pairs, of each source.

    Raises:
        ValueError, OSError: As `distill_texts`.
    """
    if not sources:
        raise argument_error("sources", "contain a file", received="none")
    if references and len(references) != len(sources):
        raise argument_error(
            "references",
            "contain one file for each of `sources`",
            received=f"{len(references)} for {len(sources)}",
        )
    if n_best is not None:
        check_positive(n_best=n_best)
        if not references and not pairs:
            raise argument_error(
                "n_best",
                "be used with `references`, which select one of the translations",
                received=f"{n_best} without references",
            )
    if pairs:
        if references:
            raise argument_error(
                "references",
                "be left out with `pairs`, whose files have both sides",
                received=str([str(path) for path in references]),
            )
        return [sum(1 for _ in iterate_pairs(path, None, text_format)) for path in sources]
    for name, paths in (("sources", sources), ("references", references)):
        for path in paths:
            if not is_text(path):
                raise argument_error(name, "be files of lines of text", str(path))
    if text_format.encoding == UTF_8:  # lines that are not UTF-8 are counted, and left out later
        counts = [Lines(path).count() for path in sources]
    else:
        counts = [sum(1 for _ in text_format.lines(path, warn=True)) for path in sources]
    for source, reference, count in zip(sources, references, counts, strict=False):
        lines = sum(1 for _ in text_format.lines(reference, warn=True))
        if lines != count:
            raise argument_error(
                "references",
                "have a line for each line of `sources`",
                received=f"{lines} in {reference}, {count} in {source}",
            )
    return counts


def distill_texts(
    translator: Translator,
    sources: Sequence[Path],
    folder: Path,
    references: Sequence[Path] = (),
    n_best: int | None = None,
    tokenize: str = "13a",
    progress: Progress | None = None,
    on_failed: Callable[[Path, int, str], object] | None = None,
    text_format: TextFormat = UTF_8_TEXT,
    pairs: bool = False,
) -> tuple[Path, Path]:
    """Write sources and their translations by a teacher to two parallel files.

    Rows that are blank or cannot be translated are left out, and their number is logged. A call
    with the same arguments continues an interrupted one; see `translate_file`.

    Args:
        translator: `Translator`, the teacher. Its default search is used.
        sources: Text files, one sentence per line, plain or compressed. Files with both sides if
            `pairs` is True.
        folder: Folder to write to; created with its parents.
        references: Human translations of each source file, line by line. The written translation
            is then the one of the teacher's `n_best` that is closest to the reference, by sentence
            BLEU (section 3.3 of the paper).
        n_best: int. Number of translations to choose from; the beam of the teacher if `None`. Only
            with `references` or `pairs`.
        tokenize: BLEU tokenizer; see `corpus_scores`.
        progress: Called with the number of finished rows and of all rows of all files.
        on_failed: Called with the file, the number (from 1) of a row without a translation, and the
            reason.
        text_format: `TextFormat` of the files. The written files are UTF-8.
        pairs: Whether the sources are files with both sides, as for `iterate_pairs`. Their
            translations are the references if `n_best` is an int, and are not used if it is `None`.

    Returns:
        The paths of the sources and of the translations.

    Raises:
        ValueError: There is no source, a file does not contain lines of text, the numbers of files
            or lines differ, `n_best` is given without references, the folder contains the files of
            other arguments, no row can be translated, or as `iterate_pairs`.
        OSError: A file is missing, or the disk is full.
        MissingDependencyError: There are references, and sacrebleu is not installed.

    Example:

    ```python
    source, target = distill_texts(Translator("teacher"), [Path("train.en")], Path("distilled"))
    ```
    """
    counts = check_texts(sources, references, n_best, text_format, pairs)
    text_format.check_columns(translator.require_tokenizer().has_columns)
    has_references = bool(references) or (pairs and n_best is not None)
    bleu = bleu_metric(tokenize, is_for_sentences=True) if has_references else None
    if references:
        n_best = n_best or translator.manifest.search.num_returned
    folder.mkdir(parents=True, exist_ok=True)
    source_path, target_path = folder / SOURCE_FILE, folder / TARGET_FILE
    texts = sources
    with contextlib.ExitStack() as stack:
        if pairs or text_format != UTF_8_TEXT:
            copies = functools.partial(_utf8_copies, folder, text_format)
            texts = stack.enter_context(copies("sources", sources, 1 if pairs else None))
            if has_references:
                files, side = (sources, 2) if pairs else (references, None)
                references = stack.enter_context(copies("references", files, side))
        _check_settings(
            folder,
            {
                "teacher": fingerprint(translator.manifest),
                "sources": [file_sha256(path) for path in texts],
                "references": [file_sha256(path) for path in references],
                "n_best": n_best,
                "tokenize": tokenize if has_references else None,
            },
        )
        if source_path.exists() and target_path.exists():
            return source_path, target_path
        outputs = [folder / f"translations-{number}.txt" for number in range(1, len(sources) + 1)]
        finished = 0
        for source, text, output, count in zip(sources, texts, outputs, counts, strict=True):
            if not output.exists():
                translate_file(
                    translator,
                    text,
                    output,
                    resume=True,
                    output_format=PLAIN if n_best is None else OutputFormat(n_best, as_json=True),
                    on_failed=None if on_failed is None else functools.partial(on_failed, source),
                    progress=_shifted(progress, finished, sum(counts)),
                )
            finished += count
        join = translator.require_tokenizer().join_target
        rows = _pairs(texts, outputs, references, bleu, join)
        written = _write_pairs(rows, source_path, target_path)
    for output in outputs:
        output.unlink()
        record_path(output).unlink(missing_ok=True)  # absent for one of an earlier version
    if written < sum(counts):
        logger.warning(
            "Left out %d of %d rows, which are blank or have no translation.",
            sum(counts) - written,
            sum(counts),
        )
    return source_path, target_path


@contextlib.contextmanager
def _utf8_copies(
    folder: Path, text_format: TextFormat, name: str, paths: Sequence[Path], side: int | None
) -> Iterator[list[Path]]:
    """Copy files to UTF-8 files with one sentence per line, which are removed after the block.

    A bad line that is skipped gives a blank line, so that rows keep their numbers.

    Args:
        folder: Folder of the copies.
        text_format: `TextFormat` of the files.
        name: First part of the names of the copies.
        paths: The files.
        side: Index in a `Pair` of the side to copy; `None` for files with one side.
    """
    copies = [folder / f"{name}-{number}.txt" for number in range(1, len(paths) + 1)]
    try:
        for path, copy in zip(paths, copies, strict=True):
            with copy.open("w", encoding="utf-8", newline="\n") as file:
                for line in _lines(path, text_format, side):
                    file.write(line + "\n")
        yield copies
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)


def _lines(path: Path, text_format: TextFormat, side: int | None) -> Iterator[str]:
    if side is None:
        for line in text_format.lines(path, warn=False):
            yield "" if UNDECODABLE in line else line
        return
    for pair in iterate_pairs(path, None, text_format, warn=False):
        yield str(pair[side] or "")


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a new folder, or check that they are those of an earlier call."""
    path = folder / _SETTINGS_FILE
    if not path.exists():
        texts = [SOURCE_FILE, TARGET_FILE, *(file.name for file in folder.glob("translations-*"))]
        for name in texts:
            if (folder / name).exists():
                raise argument_error(
                    "folder",
                    "be a new folder, or have a record of what its texts were made from",
                    received=(
                        f"{str(folder)!r}, which has {name} but no {_SETTINGS_FILE}. Remove the "
                        "folder to start again."
                    ),
                )
        write_json(path, settings)
        return
    try:
        previous = dict(json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected a JSON object. Received: {error}") from error
    for name, value in settings.items():
        if previous.get(name) != value:
            raise argument_error(
                name,
                f"be the one that {folder} was started with, {previous.get(name)!r}",
                received=f"{value!r}. Remove the folder to start again.",
            )


def _shifted(progress: Progress | None, finished: int, total: int) -> Progress | None:
    """Return a function that reports the rows of one file as rows of all files."""
    if progress is None:
        return None
    return lambda done, _: progress(finished + done, total)


def _pairs(
    sources: Sequence[Path],
    outputs: Sequence[Path],
    references: Sequence[Path],
    bleu: Any,
    join: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    """Yield each source with its translation, which is blank if there is none.

    References that are split into pieces are joined like the translations.
    """
    for number, (source, output) in enumerate(zip(sources, outputs, strict=True)):
        rows, lines = Lines(source).rows(), iterate_lines(output)
        if not references:
            for row, text in zip(rows, lines, strict=True):
                yield row.text, text
            continue
        for row, line, reference in zip(
            rows, lines, iterate_lines(references[number]), strict=True
        ):
            texts = [translation["text"] for translation in json.loads(line)["translations"]]
            joined = [join(reference)]
            scores = [bleu.sentence_score(text, joined).score for text in texts]
            # The first of equal ones has the best score of the teacher.
            yield row.text, texts[scores.index(max(scores))] if texts else ""


def _write_pairs(pairs: Iterator[tuple[str, str]], source_path: Path, target_path: Path) -> int:
    """Write the pairs without a blank side to two files, and return their number."""
    written = 0
    with (
        atomic_write(source_path) as source_copy,
        atomic_write(target_path) as target_copy,
        source_copy.open("w", encoding="utf-8", newline="\n") as source_file,
        target_copy.open("w", encoding="utf-8", newline="\n") as target_file,
    ):
        for source, target in pairs:
            if source.strip() and target.strip():
                source_file.write(source + "\n")
                target_file.write(target + "\n")
                written += 1
        if not written:
            raise argument_error(
                "sources", "contain a sentence that the teacher can translate", received="none"
            )
    return written
