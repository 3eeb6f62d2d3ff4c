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

Source = str | os.PathLike[str] | BinaryIO

# First bytes of compressed files and of UTF-16, which no UTF-8 text has.
_SIGNATURES = {
    rb"\x1f\x8b": "gzip",
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": "bzip2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd": "zstd",
    rb"PK\x03\x04": "zip",
    rb"\xff\xfe|\xfe\xff": "UTF-16",
}


def read_lines(source: Source, may_be_empty: bool = False) -> list[str]:
    r"""Read all lines of a text with one sentence per line; see `iterate_lines`.

    Args:
        source: As for `iterate_lines`.
        may_be_empty: Whether an empty text gives an empty list instead of an error.

    Returns:
        The lines without line ends, including blank lines.

    Raises:
        ValueError: The text is empty, is not UTF-8 (the message has the line number), or is an
            incomplete gzip file.

    Example:

    >>> import io
    >>> read_lines(io.BytesIO(b"a man\r\n\non a bike"))
    ['a man', '', 'on a bike']
    """
    lines = list(iterate_lines(source))
    if not lines and not may_be_empty:
        raise ValueError(f"{_name_of(source)} is empty: expected one sentence per line.")
    return lines


def iterate_lines(source: Source, warn: bool = True) -> Iterator[str]:
    r"""Read a text with one sentence per line, one line at a time.

    A line ends only with `\n` or `\r\n`: other Unicode separators, such as U+2028, belong to the
    sentence. A byte order mark at the start is dropped.

    Args:
        source: Path of UTF-8 text, compressed by gzip if the name ends with `.gz`; or a binary file
            object, which is read to its end. For standard input in `translate_stream`, which reads
            in a thread, use `open(0, "rb", closefd=False)`: Python aborts at exit if a thread still
            waits for a line of `sys.stdin.buffer`.
        warn: bool. Whether to log a warning for lines that seem to end with `\r` alone. `False`
            when the same file is read again.

    Yields:
        The lines without line ends, including blank lines.

    Raises:
        ValueError: A line is not UTF-8 (the message has its number), the file has another
            compression, or is an incomplete gzip file.
    """
    for number, line in enumerate(iterate_raw_lines(source, warn), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{_name_of(source)}, line {number}: {not_utf8(error)}") from error


def iterate_raw_lines(source: Source, warn: bool = True) -> Iterator[bytes]:
    """Read lines like `iterate_lines`, but as bytes without decoding."""
    name = _name_of(source)
    if isinstance(source, (str, os.PathLike)):
        if Path(source).is_dir():
            raise ValueError(f"{name} is a folder: expected a file with one sentence per line.")
        opener: Any = gzip.open if Path(source).suffix == ".gz" else open
        context = opener(source, "rb")
    else:
        context = contextlib.nullcontext(source)
    lines = carriage_returns = 0
    with context as file:
        try:
            for line in file:
                if not lines:
                    _check_is_text(name, line)
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if not line:
                        continue
                lines += 1
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                carriage_returns += line.count(b"\r")
                yield line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{name} is not a complete gzip file: {error}") from error
    if warn and carriage_returns >= lines > 0:
        logger.warning(
            "%s: the number of carriage returns inside lines is %d, of lines %d. Only a line feed "
            "ends a line: if carriage returns end lines in this file, convert it.",
            name,
            carriage_returns,
            lines,
        )


def not_utf8(error: UnicodeDecodeError) -> str:
    """Describe the first byte of a line that is not UTF-8, for a message."""
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x}, {error.reason})."


def _check_is_text(name: str, line: bytes) -> None:
    """Raise a `ValueError` if a file begins like a compressed file or UTF-16."""
    for signature, kind in _SIGNATURES.items():
        if re.match(signature, line):
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
    name = getattr(source, "name", None)  # an int if a file descriptor was opened
    return name if isinstance(name, str) else "standard input" if name == 0 else "the stream"


def read_parallel(source_path: Source, target_path: Source) -> tuple[list[str], list[str]]:
    """Read two parallel files, whose lines are translations of each other.

    Pairs with a blank side are dropped, and their number is logged. A warning is also logged for
    files that look wrong, because they are identical or contain tabs.

    Args:
        source_path: Source sentences, as for `read_lines`.
        target_path: Their translations, line by line.

    Returns:
        The source sentences and the target sentences, two lists of the same length.

    Raises:
        ValueError: The files have different numbers of lines, no pair remains, or as `read_lines`.
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
    r"""Read word alignments in Pharaoh format, as fast_align and eflomal write them.

    A line such as `0-0 1-2 2-1` contains, for one pair of sentences, the positions (from 0) of
    aligned source and target tokens. They count the tokens of the model, so align tokenized
    sentences.

    Args:
        path: UTF-8 text; compressed by gzip if the name ends with `.gz`.

    Returns:
        A list of (source position, target position) for each line; empty for a blank line.

    Raises:
        ValueError: A line has another form (the message has its number), or as `read_lines`.

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


def parse_links(line: str, location: str) -> list[tuple[int, int]]:
    """Parse a line of word alignments in Pharaoh format.

    Args:
        line: Such as `0-0 1-2`.
        location: File and line number, for the message.

    Raises:
        ValueError: The line has another form, or a position with more than nine digits.
    """
    links = []
    for link in line.split():
        match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", link)
        if match is None:
            raise ValueError(f"{location}: expected links such as 0-0 1-2. Received: {link!r:.80}")
        links.append((int(match[1]), int(match[2])))
    return links


_SUSPECT_SHARE = 0.5  # two files with more identical or tabbed lines are probably wrong


class PairCheck:
    """Counter of likely mistakes in two parallel files.

    Args:
        source: str. Name of the file of sources.
        target: str. Name of the file of their translations.
        check_unicode: bool. Whether to count also lines that are not in Unicode form NFC.
    """

    def __init__(self, source: str, target: str, check_unicode: bool = False) -> None:
        self._names, self._check_unicode = (source, target), check_unicode
        self._pairs = self._identical = 0
        self._tabbed, self._not_nfc = [0, 0], [0, 0]

    def add(self, source: str, target: str) -> None:
        """Count one pair."""
        # Written out for both sides: a loop takes twice the time, for each of many million pairs.
        self._pairs += 1
        if source == target:
            self._identical += 1
        if "\t" in source:
            self._tabbed[0] += 1
        if "\t" in target:
            self._tabbed[1] += 1
        if self._check_unicode:
            if not (source.isascii() or unicodedata.is_normalized("NFC", source)):
                self._not_nfc[0] += 1
            if not (target.isascii() or unicodedata.is_normalized("NFC", target)):
                self._not_nfc[1] += 1

    def warn(self) -> None:
        """Log a warning for each kind of mistake, with the file and the share of lines."""
        threshold = max(1.0, _SUSPECT_SHARE * self._pairs)
        if self._identical >= threshold:
            logger.warning(
                "%s and %s: %s pairs are identical. Expected two languages.",
                *self._names,
                self._share(self._identical),
            )
        for name, tabbed, not_nfc in zip(
            dict.fromkeys(self._names), self._tabbed, self._not_nfc, strict=False
        ):
            if tabbed >= threshold:
                logger.warning(
                    "%s: %s lines contain a tab. Expected one language per file: `cut -f 1` and "
                    "`cut -f 2` separate the columns of a table.",
                    name,
                    self._share(tabbed),
                )
            if not_nfc:
                logger.warning(
                    "%s: %s lines are not in Unicode form NFC. The same text in another form is "
                    'translated differently, unless `normalization` is "nfc".',
                    name,
                    self._share(not_nfc),
                )

    def _share(self, count: int) -> str:
        return f"{count:,} of {self._pairs:,} ({count / self._pairs:.1%})"
