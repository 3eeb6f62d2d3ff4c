"""Facts about a request for its line in the log and its span."""

import logging
import random
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

logger = logging.getLogger("keras_bahdanau_runtime")

_MAX_LOGGED = 128  # characters of a value that a client sends
_random = random.Random()  # ids are not secret, and the system's generator takes 0.1 ms
_current: ContextVar["RequestLog | None"] = ContextVar("request", default=None)


class WorkTimes(NamedTuple):
    """Times of the work of a request, in seconds of `time.monotonic`.

    It waits in the queue until `started`. The graph runs until `ran`, and the outputs are decoded
    until `done`. The batches of a long request take turns with others between `started` and `ran`.
    """

    queued: float
    started: float
    ran: float
    done: float


class Span(Protocol):
    """Span of a request, such as `tracing.RequestSpan`."""

    traceparent: str

    def end(self, log: "RequestLog", call: str, status: Any) -> None:
        """End the span; `call` and `status` as for `RequestLog.write`."""
        ...


class Tracer(Protocol):
    """Creator of spans, such as `tracing.Tracing`."""

    def begin(self, headers: Mapping[str, Any]) -> Span:
        """Start the span of a request with these headers."""
        ...


class RequestLog:
    """Id, work and duration of one request, for its line in the log.

    Args:
        headers: HTTP headers or gRPC metadata. The id is the header `x-request-id`; a request
            without one gets a random id.
        tracer: `Tracer`, or `None` for no span.

    Attributes:
        id: str.
        trace: str, the header `traceparent`: that of the span, or the received one, or "".
        model: str, name of the model, or "" for a request without one.
        texts: int, number of texts of a request to a text model; otherwise `None`.
        tokens: int, number of source tokens, or of the numbers in the inputs of a graph model;
            `None` for a request that does not run a model.
        error: str, kind of the error, a name of `KINDS`, or "".
        times: `WorkTimes`, or `None` for a request that does not run a model.
    """

    def __init__(self, headers: Mapping[str, Any], tracer: Tracer | None = None) -> None:
        self._start = time.monotonic()
        self._span = None if tracer is None else tracer.begin(headers)
        received = headers.get("traceparent", "")
        self.trace = _printable_ascii(received if self._span is None else self._span.traceparent)
        self.id = _printable_ascii(headers.get("x-request-id", ""))
        self.id = self.id or f"{_random.getrandbits(64):016x}"
        self.model = self.error = ""
        self.texts: int | None = None
        self.tokens: int | None = None
        self.times: WorkTimes | None = None

    @classmethod
    def begin(cls, headers: Mapping[str, Any], tracer: Tracer | None = None) -> "RequestLog":
        """Return the log of a new request, which the current task and its tasks answer."""
        log = cls(headers, tracer)
        _current.set(log)
        return log

    @staticmethod
    def current() -> "RequestLog | None":
        """Return the log of the request that the current task answers."""
        return _current.get()

    def write(self, request: str, call: str, status: Any) -> None:
        """Write the line, and end the span.

        Args:
            request: Method and path of HTTP, or method of gRPC, as the client sent it.
            call: Function of an HTTP endpoint, or method of gRPC; "" for an unknown one.
            status: Status of the response.
        """
        if self._span is not None:
            self._span.end(self, call, status)
        # `logger.info` would search the stack for its caller, which no line contains.
        if logger.isEnabledFor(logging.INFO):
            arguments = (_printable_ascii(request), status)
            record = (logger.name, logging.INFO, "", 0, "%s %s", arguments, None)
            logger.handle(logger.makeRecord(*record, extra=self._fields()))

    def _fields(self) -> dict[str, Any]:
        """Return the fields of `logs.REQUEST_FIELDS`."""
        fields = {
            "request_id": self.id,
            "traceparent": self.trace,
            "milliseconds": _milliseconds(time.monotonic() - self._start),
            "model": self.model,
            "texts": self.texts,
            "tokens": self.tokens,
            "error": self.error,
        }
        if self.times is not None:
            queued, started, _, done = self.times
            fields["queue_milliseconds"] = _milliseconds(started - queued)
            fields["run_milliseconds"] = _milliseconds(done - started)
        return fields


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _printable_ascii(value: str) -> str:
    r"""Return the printable ASCII characters of a client's value, which may be cut.

    >>> _printable_ascii("a\x1b[2J\nb")
    'a[2Jb'
    """
    short = value[:_MAX_LOGGED]
    if short.isascii() and short.isprintable():
        return short
    return "".join(c for c in short if c.isascii() and c.isprintable())
