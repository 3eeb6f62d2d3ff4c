"""Read text files and word alignments, and warn about parallel texts that look wrong."""

import codecs
import contextlib
import gzip
import logging
import os
import re
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger("keras_bahdanau_runtime")

_SUSPECT_SHARE = (
    0.5  # share of identical or tabbed lines from which on the files are likely to be wrong
)


class PairCheck:
    """Counts what looks like a mistake in two files whose lines translate each other.

    Args:
        source: str. The name of the file of sources.
        target: str. The name of the file of their translations.
        forms: bool. Whether lines that are not in Unicode's form NFC are counted, too.
    """

    def __init__(self, source: str, target: str, forms: bool = False) -> None:
        self._names, self._forms = (source, target), forms
        self._pairs = self._identical = 0
        self._tabbed, self._other_forms = [0, 0], [0, 0]

    def add(self, source: str, target: str) -> None:
        """Takes notice of one pair."""
        # Written out for both sides: a loop takes twice the time, for each of many million pairs.
        self._pairs += 1
        if source == target:
            self._identical += 1
        if "\t" in source:
            self._tabbed[0] += 1
        if "\t" in target:
            self._tabbed[1] += 1
        if self._forms:
            if not (source.isascii() or unicodedata.is_normalized("NFC", source)):
                self._other_forms[0] += 1
            if not (target.isascii() or unicodedata.is_normalized("NFC", target)):
                self._other_forms[1] += 1

    def warn(self) -> None:
        """Warns in the log of what was found, with the names of the files and shares of lines."""
        least = max(1.0, _SUSPECT_SHARE * self._pairs)
        if self._identical >= least:
            logger.warning(
                "%s and %s: %s pairs are identical. Expected two languages.",
                *self._names,
                self._share(self._identical),
            )
        for name, tabbed, other_forms in zip(
            dict.fromkeys(self._names), self._tabbed, self._other_forms, strict=False
        ):
            if tabbed >= least:
                logger.warning(
                    "%s: %s lines hold a tab. Expected one language a file: `cut -f 1` and "
                    "`cut -f 2` take the columns of a table apart.",
                    name,
                    self._share(tabbed),
                )
            if other_forms:
                logger.warning(
                    "%s: %s lines are not in Unicode's form NFC. Texts that look the same in "
                    'another form are translated otherwise, unless `normalization` is "nfc".',
                    name,
                    self._share(other_forms),
                )

    def _share(self, count: int) -> str:
        return f"{count:,} of {self._pairs:,} ({count / self._pairs:.1%})"


Source = str | os.PathLike[str] | BinaryIO


# Patterns of bytes that compressed files and UTF-16 begin with, and no UTF-8 text does.
_NO_TEXT = {
    rb"\x1f\x8b": "gzip",
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": "bzip2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd": "zstd",
    rb"PK\x03\x04": "zip",
    rb"\xff\xfe|\xfe\xff": "UTF-16",
}


def read_lines(source: Source, may_be_empty: bool = False) -> list[str]:
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


def iterate_lines(source: Source, warn: bool = True) -> Iterator[str]:
    r"""Reads text of one sentence a line, each line as it comes.

    A line ends with `\n` or `\r\n` and nothing else: other separators of Unicode, such as
    U+2028, belong to the sentence. A byte order mark at the start is dropped.

    Args:
        source: Path of UTF-8 text, compressed by gzip if the name ends with `.gz`; or a binary file
            object, which is read to its end. For standard input in a thread, as `translate_stream`
            reads, take `open(0, "rb", closefd=False)`: Python aborts at its end where a thread
            still waits for a line of `sys.stdin.buffer`.
        warn: bool. Whether the log warns of lines that seem to end with `\r` alone. `False` where
            the same file is read again.

    Yields:
        The lines, blank ones included, without their ends.

    Raises:
        ValueError: If a line is not UTF-8 (it is named), the file is compressed otherwise, or it is
            no whole gzip file.
    """
    for number, line in enumerate(iterate_raw_lines(source, warn), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{_name_of(source)}, line {number}: {not_utf8(error)}") from error


def iterate_raw_lines(source: Source, warn: bool = True) -> Iterator[bytes]:
    """As `iterate_lines`, but each line is the bytes that it consists of, whatever they are."""
    name = _name_of(source)
    if isinstance(source, (str, os.PathLike)):
        if Path(source).is_dir():
            raise ValueError(f"{name} is a folder: expected a file of one sentence a line.")
        opened: Any = gzip.open if Path(source).suffix == ".gz" else open
        opened = opened(source, "rb")
    else:
        opened = contextlib.nullcontext(source)
    lines = returns = 0
    with opened as file:
        try:
            for line in file:
                if not lines:
                    _check_is_text(name, line)
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if not line:
                        continue
                lines += 1
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                returns += line.count(b"\r")
                yield line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{name} is not a whole gzip file: {error}") from error
    if warn and returns >= lines > 0:
        logger.warning(
            "%s: the number of carriage returns inside of lines is %d, of lines %d. Only a line "
            "feed ends a line: if each carriage return was to end one, convert the file.",
            name,
            returns,
            lines,
        )


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong with a line that is not UTF-8, for a message."""
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x}, {error.reason})."


def _check_is_text(name: str, line: bytes) -> None:
    """Raises a `ValueError` that names the compression or the encoding that a file begins with."""
    for beginning, kind in _NO_TEXT.items():
        if re.match(beginning, line):
            advice = "Unpack the file first."
            if kind == "UTF-16":
                advice = "Convert it first."
            elif kind == "gzip" and not name.endswith(".gz"):
                advice = "Give it a name that ends with .gz, or unpack it first."
            raise ValueError(
                f"{name}: expected UTF-8 text, plain or, with a name that ends with .gz, gzip. "
                f"Received: {kind}. {advice}"
            )


def _name_of(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    name = getattr(source, "name", None)  # a number where a descriptor was opened
    return name if isinstance(name, str) else "standard input" if name == 0 else "the stream"


def read_parallel(source_path: Source, target_path: Source) -> tuple[list[str], list[str]]:
    """Reads two files whose lines translate each other.

    Pairs with a blank side are dropped; a warning in the log says how many. Others warn of files
    that cannot be right, because they are identical or hold tabs.

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
    names = _name_of(source_path), _name_of(target_path)
    if len(sources) != len(targets):
        raise ValueError(
            "Arguments `source_path` and `target_path` must have the same number of lines. "
            f"Received: {len(sources)} in {names[0]}, {len(targets)} in {names[1]}"
        )
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s.strip() and t.strip()]
    if not pairs:
        raise ValueError(
            f"No pair of sentences in {names[0]} and {names[1]}: "
            "every line is blank in one of them."
        )
    dropped = len(sources) - len(pairs)
    if dropped:
        logger.warning(
            "Dropped %d of %d pairs of %s and %s: one side is blank.",
            dropped,
            len(sources),
            *names,
        )
    check = PairCheck(*names)
    for source, target in pairs:
        check.add(source, target)
    check.warn()
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
