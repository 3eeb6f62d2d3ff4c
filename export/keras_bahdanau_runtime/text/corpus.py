"""Readers of text files with one sentence, or one sentence's word alignment, a line."""

import codecs
import contextlib
import gzip
import logging
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger("keras_bahdanau_runtime")


def read_lines(source: str | os.PathLike[str] | BinaryIO, may_be_empty: bool = False) -> list[str]:
    r"""Reads text of one sentence a line, all of it; see `iterate_lines`.

    Args:
        source: As `iterate_lines` takes it.
        may_be_empty: Whether text of no line gives an empty list instead of an error.

    Returns:
        The lines, blank ones included, without their ends.

    Raises:
        ValueError: If the text is empty, is not UTF-8 (the line is named) or is no whole gzip file.

    Example:

    >>> import io
    >>> read_lines(io.BytesIO(b"a man\r\n\non a bike"))
    ['a man', '', 'on a bike']
    """
    lines = list(iterate_lines(source))
    if not lines and not may_be_empty:
        raise ValueError(f"{_name_of(source)} is empty: expected one sentence a line.")
    return lines


def iterate_lines(source: str | os.PathLike[str] | BinaryIO) -> Iterator[str]:
    r"""Reads text of one sentence a line, each line as it comes.

    A line ends with `\n` or `\r\n` and nothing else: other separators of Unicode, such as
    U+2028, belong to the sentence. A byte order mark at the start is dropped.

    Args:
        source: Path of UTF-8 text, compressed by gzip if the name ends with `.gz`; or a binary file
            object, which is read to its end. For standard input in a thread, as `translate_stream`
            reads, take `open(0, "rb", closefd=False)`: Python aborts at its end where a thread
            still waits for a line of `sys.stdin.buffer`.

    Yields:
        The lines, blank ones included, without their ends.

    Raises:
        ValueError: If a line is not UTF-8 (it is named), or the file is no whole gzip file.
    """
    name = _name_of(source)
    if isinstance(source, (str, os.PathLike)):
        opened: Any = gzip.open if Path(source).suffix == ".gz" else open
        opened = opened(source, "rb")
    else:
        opened = contextlib.nullcontext(source)
    with opened as file:
        try:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if not line:
                        continue
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{name}, line {number}: not UTF-8 "
                        f"(byte 0x{line[error.start]:02x}, {error.reason})."
                    ) from error
                yield text.removesuffix("\n").removesuffix("\r")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{name} is not a whole gzip file: {error}") from error


def _name_of(source: str | os.PathLike[str] | BinaryIO) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    name = getattr(source, "name", None)  # a number where a descriptor was opened
    return name if isinstance(name, str) else "the stream"


def read_parallel(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> tuple[list[str], list[str]]:
    """Reads two files whose lines translate each other.

    Pairs with a blank side are dropped; a warning in the log says how many.

    Args:
        source_path: Source sentences, as `read_lines` takes them.
        target_path: Their translations, line by line.

    Returns:
        The source sentences and the target sentences, two lists of one length.

    Raises:
        ValueError: If the files have different numbers of lines, if no pair is left, or as
            `read_lines`.
    """
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        raise ValueError(
            "Arguments `source_path` and `target_path` must have the same number of lines. "
            f"Received: {len(sources)} in {source_path}, {len(targets)} in {target_path}"
        )
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]
    if not pairs:
        raise ValueError(
            f"No pair of sentences in {source_path} and {target_path}: "
            "every line is blank in one of them."
        )
    dropped = len(sources) - len(pairs)
    if dropped:
        logger.warning(
            "Dropped %d of %d pairs of %s and %s: one side is blank.",
            dropped,
            len(sources),
            source_path,
            target_path,
        )
    return [source for source, _ in pairs], [target for _, target in pairs]


def read_alignments(path: str | os.PathLike[str]) -> list[list[tuple[int, int]]]:
    r"""Reads word alignments in Pharaoh format, as fast_align and eflomal write them.

    A line such as `0-0 1-2 2-1` holds, for one pair of sentences, places from 0 of a source token
    and of the target token aligned to it. They count the tokens that the model reads, so align
    the sentences cut into these.

    Args:
        path: UTF-8 text; compressed by gzip if the name ends with `.gz`.

    Returns:
        For each line a list of (source place, target place); an empty one for a blank line.

    Raises:
        ValueError: If a line holds anything else (the line is named), or as `read_lines`.

    Example:

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "corpus.align")
    ...     _ = path.write_text("0-0 1-2\n")
    ...     read_alignments(path)
    [[(0, 0), (1, 2)]]
    """
    return [
        parse_links(line, f"{path}, line {number}")
        for number, line in enumerate(read_lines(path), start=1)
    ]


def parse_links(line: str, place: str) -> list[tuple[int, int]]:
    """The links of one line of such a file.

    Args:
        line: Such as `0-0 1-2`.
        place: Where the line stands, for the message.

    Raises:
        ValueError: If the line holds anything else, or a place of more than nine digits.
    """
    links = []
    for link in line.split():
        match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", link)
        if match is None:
            raise ValueError(f"{place}: expected links such as 0-0 1-2. Received: {link!r:.80}")
        links.append((int(match[1]), int(match[2])))
    return links
