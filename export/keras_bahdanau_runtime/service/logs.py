"""The log of a service: lines of text or of JSON on standard error, written in bunches."""

import json
import logging
import logging.handlers
import threading
from typing import Any

logger = logging.getLogger("keras_bahdanau_runtime")

_SECONDS = 0.2  # that a line may wait for others
_MOST = 1000  # lines that wait


def log_to_stderr(format: str) -> None:
    """Writes the package's log to standard error, in lines of "text" or of "json".

    A write for each request would take a tenth of its time. Warnings are written at once, and take
    along what waits.
    """
    stream = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    stream.setFormatter(JsonLines() if format == "json" else text)
    logger.handlers, logger.propagate = [_Bunches(stream)], False
    logger.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a log that cannot be written, on a full disk, stops nothing


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
