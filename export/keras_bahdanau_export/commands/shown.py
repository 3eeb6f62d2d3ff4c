"""What the command shows: on standard error, so that standard output holds nothing but results."""

import logging
from typing import Any

from rich.console import Console
from rich.text import Text

from keras_bahdanau_runtime.service.logs import escape_unprintable

console = Console(stderr=True)


def plain(value: Any) -> Text:
    """What may come from outside, as text that is neither markup nor a command to a terminal."""
    return Text("\n".join(map(escape_unprintable, str(value).split("\n"))))


def say(message: str) -> None:
    """Prints a message, however long, in one line."""
    console.print(plain(message), highlight=False, soft_wrap=True)


def say_error(error: BaseException) -> None:
    """Prints what is wrong, in one line."""
    message = Text.assemble(("error:", "red"), " ", plain(str(error) or repr(error)))
    console.print(message, highlight=False, soft_wrap=True)


def make_harmless(record: logging.LogRecord) -> bool:
    """A filter of the log that lets everything pass, as `plain` shows it."""
    record.msg, record.args = plain(record.getMessage()).plain, None
    return True
