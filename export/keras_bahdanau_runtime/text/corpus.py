"""Readers of text files with one sentence, or one sentence's word alignment, a line."""

import codecs
import gzip
import logging
import os
import re
import zlib
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger("keras_bahdanau_runtime")


def read_lines(source: str | os.PathLike[str] | BinaryIO, may_be_empty: bool = False) -> list[str]:
    r"""Reads text of one sentence a line.

    A line ends with `\n` or `\r\n` and nothing else: other separators of Unicode, such as
    U+2028, belong to the sentence. A byte order mark at the start is dropped.

    Args:
        source: Path of UTF-8 text, compressed by gzip if the name ends with `.gz`; or a binary file
            object such as `sys.stdin.buffer`, which is read to its end.
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
    if isinstance(source, (str, os.PathLike)):
        name, data = os.fspath(source), _read_file(Path(source))
    else:
        name, data = str(getattr(source, "name", "the stream")), source.read()
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data:
        if may_be_empty:
            return []
        raise ValueError(f"{name} is empty: expected one sentence a line.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}, {error.reason})."
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _read_file(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


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
    alignments = []
    for number, line in enumerate(read_lines(path), start=1):
        links = []
        for link in line.split():
            match = re.fullmatch(r"([0-9]+)-([0-9]+)", link)
            if match is None:
                raise ValueError(
                    f"{path}, line {number}: expected links such as 0-0 1-2. Received: {link!r:.80}"
                )
            links.append((int(match[1]), int(match[2])))
        alignments.append(links)
    return alignments
