"""Standard streams of the commands: messages go to standard error, results to standard output."""

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.text import Text

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.files import add_path_to_errors, temporary_file
from keras_bahdanau_runtime.service.logs import JsonFormatter, escape_unprintable

console = Console(stderr=True)
_json_formatters: list[JsonFormatter] = []  # one if messages are JSON

_DASH = Path("-")


def plain(value: Any) -> Text:
    """Return untrusted text without terminal escape sequences; rich does not read markup in it."""
    return Text("\n".join(map(escape_unprintable, str(value).split("\n"))))


def _plain_line(message: str) -> Text:
    """Return a message in one line, also if it contains the path of a file with a line break."""
    return Text(escape_unprintable(message))


def use_json_messages() -> None:
    """Write all messages, errors and log records of this process as lines of JSON."""
    formatter = JsonFormatter()
    _json_formatters[:] = [formatter]
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.getLogger().handlers = [handler]


def has_progress_bars() -> bool:
    """Whether standard error is a terminal, and for people."""
    return console.is_terminal and not _json_formatters


def print_message(message: str, level: str = "INFO", **fields: Any) -> None:
    """Print a message to standard error as one line, without wrapping it.

    Args:
        message: The message.
        level: Level that a line of JSON has.
        **fields: Values that a line of JSON has in addition.
    """
    if _json_formatters:
        _print_json(level, message, fields)
    else:
        console.print(_plain_line(message), highlight=False, soft_wrap=True)


def print_error(error: BaseException, **fields: Any) -> None:
    """Print an error message as `print_message`."""
    text = str(error) or repr(error)
    if _json_formatters:
        _print_json("ERROR", text, fields)
        return
    message = Text.assemble(("error:", "red"), " ", _plain_line(text))
    console.print(message, highlight=False, soft_wrap=True)


def _print_json(level: str, message: str, fields: dict[str, Any]) -> None:
    record = logging.makeLogRecord({"levelname": level, "msg": message, "fields": fields})
    sys.stderr.write(_json_formatters[0].format(record) + "\n")


def escape_record(record: logging.LogRecord) -> bool:
    """Make a log record's message one plain line; a log filter that accepts every record."""
    record.msg, record.args = _plain_line(record.getMessage()).plain, None
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


@contextlib.contextmanager
def copied_standard_input(name: str, paths: list[Path], output: Path) -> Iterator[list[Path]]:
    """Yield paths with a copy of standard input instead of `-`, for files that are read twice.

    The copy is next to the output. It is removed after the block.

    Args:
        name: Name of the argument, for messages.
        paths: The paths.
        output: File or folder that the command writes.

    Raises:
        ValueError: There are several `-`.
        OSError: The disk is full.
    """
    count = sum(map(is_dash, paths))
    if not count:
        yield paths
        return
    if count > 1:
        raise argument_error(name, "contain - for standard input at most once", received=str(count))
    output = Path(os.path.abspath(output))
    output.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(output.with_name(f"{output.name}.standard-input")) as copy:
        with add_path_to_errors(copy), copy.open("wb") as file:
            shutil.copyfileobj(standard_input(), file)
        yield [copy if is_dash(path) else path for path in paths]


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
        raise argument_error(name, "be open", received="a closed standard stream")
    return stream
