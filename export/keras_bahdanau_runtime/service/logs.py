"""The log of a service: lines of text or of JSON on standard error, written in bunches."""

import json
import logging
import logging.handlers
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("keras_bahdanau_runtime")

_SECONDS = 0.2  # that a line may wait for others
_MOST = 1000  # lines that wait
_LONGEST = 128  # characters of what a client sent
_OTHERS = ("uvicorn", "asyncio", "grpc")  # who else may have something to say
_random = random.Random()  # ids are no secrets, and the system's generator takes 0.1 ms


def log_to_stderr(format: str) -> None:
    """Writes the package's log to standard error, in lines of "text" or of "json".

    A write for each request would take a tenth of its time. Warnings are written at once, and take
    along what waits.
    """
    stream = logging.StreamHandler()
    stream.setFormatter(JsonLines() if format == "json" else TextLines())
    handler = _Bunches(stream)
    for each in (logger, *map(logging.getLogger, _OTHERS)):
        each.handlers, each.propagate = [handler], False
    logger.setLevel(logging.INFO)
    # A client can cause one with every request.
    logging.getLogger("uvicorn.error").addFilter(_lower_warnings)
    logging.raiseExceptions = False  # a log that cannot be written, on a full disk, stops nothing
    # What no line says need not be found out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def give_up_unwritten() -> None:
    """Lets go of what standard error could not take: with it Python would end with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


class Called:
    """A request that is answered now, for its line in the log.

    Args:
        headers: Of HTTP, or the metadata of gRPC. A request keeps the id that it brought in
            `x-request-id`, or gets one.

    Attributes:
        id: str.
        trace: str, its `traceparent`, or "".
    """

    def __init__(self, headers: Mapping[str, Any]) -> None:
        self._began = time.perf_counter()
        self.trace = clean(headers.get("traceparent", ""))
        self.id = clean(headers.get("x-request-id", "")) or f"{_random.getrandbits(64):016x}"

    def log(self, what: str, answer: Any) -> None:
        """Writes the line: what was asked, and the status of the answer."""
        milliseconds = round(1000 * (time.perf_counter() - self._began), 2)
        extra = {"request_id": self.id, "traceparent": self.trace, "milliseconds": milliseconds}
        if logger.isEnabledFor(logging.INFO):  # `info` would look for the line of code that calls
            said = (logger.name, logging.INFO, "", 0, "%s %s", (what, answer), None)
            logger.handle(logger.makeRecord(*said, extra=extra))


def clean(value: str) -> str:
    r"""What a client sent to be written down, without what a log or a header cannot hold.

    >>> clean("a\x1b[2J\nb")
    'a[2Jb'
    """
    short = value[:_LONGEST]
    if short.isascii() and short.isprintable():
        return short
    return "".join(c for c in short if c.isascii() and c.isprintable())


def harmless(text: str) -> str:
    r"""A text in one line, what is no letter of it as Python writes it.

    >>> harmless("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


class _Bunches(logging.handlers.MemoryHandler):
    """Hands records on when the first of them has waited long enough."""

    def __init__(self, target: logging.Handler) -> None:
        super().__init__(_MOST, logging.WARNING, target)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        if not self.buffer:
            clock = threading.Timer(_SECONDS, self.flush)
            clock.daemon = True
            clock.start()
        super().emit(record)


def _lower_warnings(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass, warnings as what may wait."""
    if record.levelno == logging.WARNING:
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


class TextLines(logging.Formatter):
    """A line of text for each record, whatever its message holds; an exception adds its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line."""
        record.message = harmless(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """A line of JSON for each record, with the id of its request.

    Example:

    >>> record = logging.makeLogRecord({"msg": "ready", "levelname": "INFO"})
    >>> json.loads(JsonLines().format(record))["message"]
    'ready'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
