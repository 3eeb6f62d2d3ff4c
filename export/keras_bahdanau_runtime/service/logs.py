"""Log of a service: lines of text or JSON on standard error, written in groups."""

import json
import logging
import logging.handlers
import os
import sys
import threading
import time
from typing import Any

from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.option_fields import option

logger = logging.getLogger("keras_bahdanau_runtime")

_FLUSH_SECONDS = 0.2  # between two writes
_MAX_LINES = 1000  # that are buffered
_OTHER_LOGGERS = ("uvicorn", "asyncio", "grpc", "opentelemetry")
# Fields of the JSON line of a request, if it has them.
REQUEST_FIELDS = (
    *("request_id", "traceparent", "model", "texts", "tokens", "error"),
    *("milliseconds", "queue_milliseconds", "run_milliseconds"),
)
_FORMATS = ("text", "json")


def log_format_option() -> Any:
    """Return the field of the option `log_format`."""
    return option("text", "Format of the log: text or json.", panel="System")


def check_log_format(log_format: str) -> None:
    """Raise a `ValueError` unless a `log_format` is known."""
    if log_format not in _FORMATS:
        raise argument_error("log_format", 'be "text" or "json"', log_format)


def log_to_stderr(format: str) -> None:
    """Write the log of the package and its servers to standard error.

    Lines are written in groups, as one write per request would take a tenth of the time of a small
    request. A warning is written immediately, after the lines that wait.

    Args:
        format: "text" or "json".
    """
    stream = logging.StreamHandler()
    stream.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler = buffer_lines(stream)
    for log in (logger, *map(logging.getLogger, _OTHER_LOGGERS)):
        log.handlers, log.propagate = [handler], False
    logger.setLevel(logging.INFO)
    # Any client can cause a warning of uvicorn with each request.
    logging.getLogger("uvicorn.error").addFilter(_warning_to_info)
    logging.raiseExceptions = False  # the service goes on if the log is on a full disk
    # No line contains the thread or process, so records do not need them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def discard_unwritten() -> None:
    """Discard what standard error could not write; Python would otherwise exit with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


def escape_unprintable(text: str) -> str:
    r"""Return a text in one line, with Python's escapes for unprintable characters.

    >>> escape_unprintable("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def buffer_lines(target: logging.Handler) -> logging.handlers.MemoryHandler:
    """Return a handler that passes its records on to another one periodically.

    Args:
        target: The handler that writes the records.
    """
    handler = logging.handlers.MemoryHandler(_MAX_LINES, logging.WARNING, target)

    def flush_periodically() -> None:
        while True:
            time.sleep(_FLUSH_SECONDS)
            handler.flush()

    threading.Thread(target=flush_periodically, name="keras_bahdanau log", daemon=True).start()
    return handler


def _warning_to_info(record: logging.LogRecord) -> bool:
    """Logging filter that lowers warnings to INFO. It drops no record."""
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
    """Formatter with one line of JSON for each record, with the fields of its request.

    The values of an attribute `fields` of a record, a dict, are added by their names.

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
        for name in REQUEST_FIELDS:
            value = getattr(record, name, None)
            if value not in (None, ""):
                line[name] = value
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
