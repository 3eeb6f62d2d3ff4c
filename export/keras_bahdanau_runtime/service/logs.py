"""Log of a service: lines of text or JSON on standard error, written in groups."""

import json
import logging
import logging.handlers
import os
import sys
import threading
from typing import Any

logger = logging.getLogger("keras_bahdanau_runtime")

_FLUSH_SECONDS = 0.2  # that a line may wait for others
_MAX_LINES = 1000  # that wait
_OTHER_LOGGERS = ("uvicorn", "asyncio", "grpc")


def log_to_stderr(format: str) -> None:
    """Write the log of the package and its servers to standard error.

    Lines are written in groups, as one write per request would take a tenth of the time of a small
    request. A warning is written immediately, after the lines that wait.

    Args:
        format: "text" or "json".
    """
    stream = logging.StreamHandler()
    stream.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler = BufferingHandler(stream)
    for each in (logger, *map(logging.getLogger, _OTHER_LOGGERS)):
        each.handlers, each.propagate = [handler], False
    logger.setLevel(logging.INFO)
    # Any client can cause a warning of uvicorn with each request.
    logging.getLogger("uvicorn.error").addFilter(_warning_to_info)
    logging.raiseExceptions = False  # the service goes on if the log is on a full disk
    # Not in any line, so not collected for each record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def discard_unwritten() -> None:
    """Discard what standard error could not write; Python would otherwise exit with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


def printable_ascii(value: str, limit: int) -> str:
    r"""Return the printable ASCII characters among the first `limit` of a client's value.

    >>> printable_ascii("a\x1b[2J\nb", 128)
    'a[2Jb'
    """
    short = value[:limit]
    if short.isascii() and short.isprintable():
        return short
    return "".join(c for c in short if c.isascii() and c.isprintable())


def escape_unprintable(text: str) -> str:
    r"""Return a text in one line, with Python's escapes for unprintable characters.

    >>> escape_unprintable("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


class BufferingHandler(logging.handlers.MemoryHandler):
    """Handler that passes records on when the first of them has waited long enough.

    Args:
        target: The handler that writes the records.
    """

    def __init__(self, target: logging.Handler) -> None:
        super().__init__(_MAX_LINES, logging.WARNING, target)

    def emit(self, record: logging.LogRecord) -> None:
        """Buffer a record."""
        if not self.buffer:
            timer = threading.Timer(_FLUSH_SECONDS, self.flush)
            timer.daemon = True
            timer.start()
        super().emit(record)


def _warning_to_info(record: logging.LogRecord) -> bool:
    """Filter that passes every record, warnings with the level INFO."""
    if record.levelno == logging.WARNING:
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


class TextFormatter(logging.Formatter):
    """Formatter with one line of text for each record; an exception adds its traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = escape_unprintable(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formatter with one line of JSON for each record, with the id of its request.

    Example:

    >>> record = logging.makeLogRecord({"msg": "ready", "levelname": "INFO"})
    >>> json.loads(JsonFormatter().format(record))["message"]
    'ready'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        for name in ("request_id", "traceparent", "milliseconds"):
            value = getattr(record, name, "")
            if value != "":
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
