"""Standard streams of the commands: messages go to standard error, results to standard output."""

import logging
import sys
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.text import Text

from keras_bahdanau_runtime.service.logs import escape_unprintable

console = Console(stderr=True)

_DASH = Path("-")


def plain(value: Any) -> Text:
    """Return untrusted text without terminal escape sequences; rich does not read markup in it."""
    return Text("\n".join(map(escape_unprintable, str(value).split("\n"))))


def print_message(message: str) -> None:
    """Print a message to standard error, without wrapping it."""
    console.print(plain(message), highlight=False, soft_wrap=True)


def print_error(error: BaseException) -> None:
    """Print an error message to standard error, without wrapping it."""
    message = Text.assemble(("error:", "red"), " ", plain(str(error) or repr(error)))
    console.print(message, highlight=False, soft_wrap=True)


def escape_record(record: logging.LogRecord) -> bool:
    """Make a log record's message `plain`; a log filter that accepts every record."""
    record.msg, record.args = plain(record.getMessage()).plain, None
    return True


def is_dash(path: Path | None) -> bool:
    """Whether a path is `-`, which means standard input or output."""
    return path == _DASH


def text_source(path: Path) -> Path | BinaryIO:
    """Return standard input for the path `-`, else the path."""
    return standard_input() if is_dash(path) else path


def pair_sources(
    source: Path, target: Path | None
) -> tuple[Path | BinaryIO, Path | BinaryIO | None]:
    """Return the `text_source` of both sides; `None` if the file of the sources has both."""
    return text_source(source), None if target is None else text_source(target)


def standard_input() -> BinaryIO:
    """Return the bytes of standard input.

    The buffer is a new one: a thread may still wait for a line when the command ends, and Python
    aborts if it cannot close `sys.stdin`.
    """
    return open(standard_stream("stdin").fileno(), "rb", closefd=False)


def standard_stream(name: str) -> Any:
    """Return `sys.stdin` or `sys.stdout`; raise a `ValueError` if it is closed."""
    stream = getattr(sys, name)
    if stream is None:
        raise ValueError(f"Argument `{name}` must be open. Received: a closed standard stream")
    return stream
