"""Read text files, line by line, and word alignments."""

import codecs
import contextlib
import functools
import io
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from keras_bahdanau_runtime.text.compression import open_bytes
from keras_bahdanau_runtime.text.file_kind import COMPRESSIONS

logger = logging.getLogger("keras_bahdanau_runtime")

Source = str | os.PathLike[str] | BinaryIO

UTF_8 = "utf-8"

MAX_LINE = 2**24  # bytes of a line with its end, or characters of a line in UTF-16 and the like

UNDECODABLE = "\udcff"  # a lone surrogate, which no valid text contains
MARK_ERRORS = "keras_bahdanau.mark"  # name of an error handler of `bytes.decode`


def _mark_error(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes of another encoding by `UNDECODABLE`."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODABLE, error.end


codecs.register_error(MARK_ERRORS, _mark_error)

# First bytes of compressed files and of UTF-16, which no UTF-8 text has.
_SIGNATURES = {
    rb"\x1f\x8b": "gzip",
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": "bzip2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd": "zstd",
    rb"PK\x03\x04": "zip",
    rb"\xff\xfe|\xfe\xff": "UTF-16",
}
_SUFFIX_OF = {kind: suffix for suffix, kind in COMPRESSIONS.items()}


def read_lines(
    source: Source, may_be_empty: bool = False, encoding: str = UTF_8, errors: str = "strict"
) -> list[str]:
    r"""Read all lines of a text with one sentence per line; see `iterate_lines`.

    Args:
        source: As for `iterate_lines`.
        may_be_empty: Whether an empty text gives an empty list instead of an error.
        encoding: As for `iterate_lines`.
        errors: As for `iterate_lines`.

    Returns:
        The lines without line ends, including blank lines.

    Raises:
        ValueError: The text is empty, or as `iterate_lines`.

    Example:

    >>> import io
    >>> read_lines(io.BytesIO(b"a man\r\n\non a bike"))
    ['a man', '', 'on a bike']
    """
    lines = list(iterate_lines(source, encoding=encoding, errors=errors))
    if not lines and not may_be_empty:
        raise ValueError(f"{name_of(source)} is empty: expected one sentence per line.")
    return lines


def iterate_lines(
    source: Source, warn: bool = True, encoding: str = UTF_8, errors: str = "strict"
) -> Iterator[str]:
    r"""Read a text with one sentence per line, one line at a time.

    A line ends only with `\n` or `\r\n`: other Unicode separators, such as U+2028, belong to the
    sentence. A byte order mark at the start is dropped. A line has at most `MAX_LINE` bytes, so a
    small compressed file cannot fill the memory.

    Args:
        source: Path of a text file, compressed if the name ends with `.gz`, `.bz2`, `.xz` or
            `.zst`; or a binary file object, which is read to its end. For standard input in
            `translate_stream`, which reads in a thread, use `open(0, "rb", closefd=False)`: Python
            aborts at exit if a thread still waits for a line of `sys.stdin.buffer`.
        warn: bool. Whether to log a warning for lines that seem to end with `\r` alone. `False`
            when the same file is read again.
        encoding: str. Name of the encoding, as for `bytes.decode`.
        errors: "strict" to raise a `ValueError` for a line with another encoding; `MARK_ERRORS` to
            yield it with the character `UNDECODABLE`.

    Yields:
        The lines without line ends, including blank lines.

    Raises:
        ValueError: A line has another encoding or is too long (the message has its number), the
            name does not tell that the file is compressed, or the compressed data is incomplete.
        MissingDependencyError: The name ends with `.zst`, and backports.zstd is not installed.
    """
    if "\n".encode(encoding) != b"\n":
        yield from _iterate_wide_lines(source, encoding, errors)
        return
    for number, line in enumerate(iterate_raw_lines(source, warn), start=1):
        try:
            yield line.decode(encoding, errors)
        except UnicodeDecodeError as error:
            problem = not_utf8(error) if encoding == UTF_8 else f"not {encoding} ({error.reason})."
            raise ValueError(f"{name_of(source)}, line {number}: {problem}") from error


def _iterate_wide_lines(source: Source, encoding: str, errors: str) -> Iterator[str]:
    """Read lines in an encoding such as UTF-16, in which a line feed is more than one byte."""
    number = 0
    with _open(source) as file:
        text = io.TextIOWrapper(file, encoding, errors, newline="\n")
        try:
            lines = iter(functools.partial(text.readline, MAX_LINE + 1), "")
            for number, line in enumerate(lines, start=1):
                if len(line) > MAX_LINE:
                    check_length(len(line), f"{name_of(source)}, line {number}")
                line = line.removesuffix("\n").removesuffix("\r")
                yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeError as error:
            number += 1
            if isinstance(error, UnicodeDecodeError):
                # The wrapper decodes many lines at once. It has returned those of earlier calls.
                valid = error.object[: error.start].decode(error.encoding)
                number += valid.count("\n")
            reason = getattr(error, "reason", error)
            raise ValueError(
                f"{name_of(source)}, line {number}: not {encoding} ({reason})."
            ) from error
        finally:
            text.detach()  # the caller closes the stream


def iterate_raw_lines(
    source: Source, warn: bool = True, keep_ends: bool = False
) -> Iterator[bytes]:
    """Read lines like `iterate_lines`, but as bytes without decoding, with line ends on request."""
    name = name_of(source)
    lines = carriage_returns = 0
    with _open(source) as file:
        for line in iter(functools.partial(file.readline, MAX_LINE + 1), b""):
            if len(line) > MAX_LINE:
                check_length(len(line), f"{name}, line {lines + 1}")
            if not lines:
                _check_is_text(name, line)
                line = line.removeprefix(codecs.BOM_UTF8)
                if not line:
                    continue
            lines += 1
            content = line.removesuffix(b"\n").removesuffix(b"\r")
            carriage_returns += content.count(b"\r")
            yield line if keep_ends else content
    if warn and carriage_returns >= lines > 0:
        logger.warning(
            "%s: the number of carriage returns inside lines is %d, of lines %d. Only a line feed "
            "ends a line: if carriage returns end lines in this file, convert it.",
            name,
            carriage_returns,
            lines,
        )


def check_length(length: int, location: str) -> None:
    """Raise a `ValueError` if a line, a row or a unit is longer than `MAX_LINE`.

    Args:
        length: Its length, or that of its part that is read so far.
        location: File and line number, for the message.
    """
    if length > MAX_LINE:
        raise ValueError(
            f"{location}: expected at most {MAX_LINE >> 20} MB of text. Received: more. "
            "Split the text, or correct where it ends."
        )


def _open(source: Source) -> Any:
    """Return a context manager with the bytes of a text."""
    if not isinstance(source, (str, os.PathLike)):
        return contextlib.nullcontext(source)
    if Path(source).is_dir():
        raise ValueError(f"{name_of(source)} is a folder: expected a file with text.")
    return open_bytes(source)


def not_utf8(error: UnicodeDecodeError) -> str:
    """Describe the first byte of a line that is not UTF-8, for a message."""
    return f"not UTF-8 (byte 0x{error.object[error.start]:02x}, {error.reason})."


def _check_is_text(name: str, line: bytes) -> None:
    """Raise a `ValueError` if a file begins like a compressed file or UTF-16."""
    for signature, kind in _SIGNATURES.items():
        if re.match(signature, line):
            advice = "Unpack the file first."
            if kind == "UTF-16":
                advice = "Convert it to UTF-8, or pass --encoding to a command that has it."
            elif kind in _SUFFIX_OF and not name.lower().endswith(_SUFFIX_OF[kind]):
                advice = f"Give it a name that ends with {_SUFFIX_OF[kind]}, or unpack it first."
            raise ValueError(f"{name}: expected text. Received: {kind}. {advice}")


def name_of(source: Source) -> str:
    """Return the name of a text for messages."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    name = getattr(source, "name", None)  # an int if a file descriptor was opened
    return name if isinstance(name, str) else "standard input" if name == 0 else "the stream"


def read_alignments(path: str | os.PathLike[str]) -> list[list[tuple[int, int]]]:
    r"""Read word alignments in Pharaoh format, as fast_align and eflomal write them.

    A line such as `0-0 1-2 2-1` contains, for one pair of sentences, the positions (from 0) of
    aligned source and target tokens. They count the tokens of the model, so align tokenized
    sentences.

    Args:
        path: UTF-8 text, plain or compressed, as for `read_lines`.

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
