"""A connection of HTTP: one of so many, that must say soon, and in few words, what it wants."""

import asyncio
import http
import json
import logging
import re
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keras_bahdanau_runtime.service.errors import ServiceError

logger = logging.getLogger("keras_bahdanau_runtime")

LEFT = "keras_bahdanau.left"  # in the scope of a request: a future, done when the client leaves
HEADER_SECONDS = 10.0
BODY_SECONDS = 30.0
READ_SECONDS = 30.0  # in which some of an answer that waits must be read
_LAST_SECONDS = 2.0  # for what follows a request that is none
HEADER_BYTES = 64 * 2**10
_UPGRADE = re.compile(rb"(\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
# A line that may go on as that name.
_BEGUN = re.compile(rb"\r\n(u|up|upg|upgr|upgra|upgrad|upgrade[ \t]*)$", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """Closes where a request takes too long to come, or its answer to be read.

    uvicorn bounds the time between two requests, but not that of a request which never ends; and
    the requests at once, but not the connections without one. Nor does it read on once it has said
    its last word: the system then throws the answer away with what the client still sends.

    Args:
        arguments: uvicorn's.
        most: int, connections at once; one more is told so, and closed. `None` for any number.
        options: uvicorn's.
    """

    def __init__(self, *arguments: Any, most: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most = most
        self._clock: asyncio.TimerHandle | None = None
        self._in_head, self._head = False, 0  # bytes since the request began
        self._begun = False  # whether some of a request has come, and not all of it
        self._head_is_next = True
        self._passed_on, self._held_back = b"", b""  # of the head: the last bytes, and a line begun
        self._ended_here = False  # whether a request has ended in the bytes that are being read
        # The last answer is written, to a request that is read to its end, or to what is none.
        self._closing = self._refused = False
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Called by the event loop."""
        super().connection_made(transport)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._most is not None and len(self.connections) > self._most:
            logger.info("A connection was refused: there are %d.", self._most)
            said = f"The service has {self._most} connections, and takes no more."
            transport.write(_answer(ServiceError("unavailable", said, retry_after=1)))
            self._leave()
        else:
            self._begin_head()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._refused:
            return
        if self._in_head:
            self._head += len(data)
            if self._head - len(data) > HEADER_BYTES:
                said = f"The head of a request must have at most {HEADER_BYTES} bytes."
                self._refuse(ServiceError("head_too_large", said))
                return
        self._ended_here = False
        super().data_received(self._without_upgrade(data) if self._head_is_next else data)
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._clock is None and self.timeout_keep_alive_task is None:
            # Of a body after its answer, or of empty lines, for which uvicorn waits without an end.
            self._begin(HEADER_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no request."""
        self._refuse(ServiceError("invalid", msg))

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._begin_head()
        self._begun = True
        if self._ended_here:  # where in these bytes this one begins, nobody told
            self._head_is_next = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._in_head = self._head_is_next = False
        self._begin(BODY_SECONDS)
        self.scope[LEFT] = self._left  # type: ignore[literal-required]
        super().on_headers_complete()
        self.cycle.transport = _LastWord(self.transport, self._close)  # type: ignore[assignment]
        if self.scope["http_version"] == "1.0":  # which knows nothing of it (RFC 9110, 10.1.1)
            self.cycle.waiting_for_100_continue = False

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._end()
        self._begun = False
        self._head_is_next = self._ended_here = True
        self._passed_on = self._held_back = b""
        super().on_message_complete()
        if self._closing:
            self._leave()
        elif not self.pipeline:
            # uvicorn stops reading at a large body and goes on where it is asked for more, which
            # nobody does at its end: that the client leaves would not be seen.
            self.flow.resume_reading()

    def shutdown(self) -> None:
        """Called by uvicorn when it ends: a request that has not come whole is not accepted."""
        if self._clock is not None and not self._another_is_first():
            self._leave()
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Called by uvicorn when no other request has come."""
        self._leave()

    def pause_writing(self) -> None:
        """Called by the event loop when much of an answer waits to be read."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Called by the event loop when it has been read."""
        super().resume_writing()
        self._forget_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._end()
        self._forget_reader()
        self._left.set_result(None)
        super().connection_lost(exc)

    def _without_upgrade(self, data: bytes) -> bytes:
        """What goes on with the head of a request, the name of a header `Upgrade` made another one.

        There is no other protocol here, and one who asks for it may be answered in this one (RFC
        9110, 7.8). The parser would take what follows the head for the other one, and the body for
        none: Java's client and `curl --http2` ask with every request. The body is not touched,
        however the bytes come in pieces: its length is told.
        """
        before = self._passed_on
        head, end, body = (before + self._held_back + data).partition(b"\r\n\r\n")
        begun = None if end else _BEGUN.search(head)
        self._held_back = begun[1] if begun else b""
        head = _UPGRADE.sub(rb"\1x-upgrade", head.removesuffix(self._held_back))
        passed_on = head + end + body
        self._passed_on = passed_on[-3:]
        return passed_on[len(before) :]

    def _begin_head(self) -> None:
        if not self._in_head:  # a connection begins with one
            self._begin(HEADER_SECONDS)
        self._in_head, self._head = True, 0

    def _begin(self, seconds: float) -> None:
        self._end()
        self._clock = asyncio.get_running_loop().call_later(seconds, self._too_slow, seconds)

    def _end(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _unanswered(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _another_is_first(self) -> bool:
        """Whether a request that is still to come follows one that is not answered yet."""
        return bool(self.pipeline) or (self._in_head and self._unanswered())

    def _too_slow(self, seconds: float) -> None:
        """What is still to come did not come in time."""
        if self._another_is_first():
            self._begin(seconds)
            return
        waits = self._begun if self._in_head else self._unanswered()
        if waits and not self._closing:
            said = f"The request must come whole within {seconds:g} seconds."
            self.transport.write(_answer(ServiceError("too_slow", said)))
        self._leave()

    def _refuse(self, error: ServiceError) -> None:
        """Answers what is no request, and takes no other."""
        self._refused = True
        if self._closing:
            self._leave()
            return
        self.transport.write(_answer(error))
        if self._unanswered():  # the request before it
            self._leave()
        else:
            self._begin(_LAST_SECONDS)
            self._read_on()

    def _close(self) -> None:
        """Closes after the last answer; called in uvicorn's cycle."""
        if self._clock is None:
            self._leave()
        else:  # of its request more is to come
            self._read_on()

    def _read_on(self) -> None:
        """Says that this was all, and throws away what comes until the request or its time ends."""
        self._closing = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _leave(self) -> None:
        self._end()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        """Ends the connection unless of what waits to be read some is read from time to time."""
        self._forget_reader()
        size, loop = self.transport.get_write_buffer_size(), asyncio.get_running_loop()
        self._unread = loop.call_later(READ_SECONDS, self._look_at_reader, size)

    def _look_at_reader(self, size: int) -> None:
        if self.transport.get_write_buffer_size() < size:
            self._watch_reader()
        else:
            logger.info("A connection was ended: nobody reads its answer.")
            self.transport.abort()

    def _forget_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _LastWord:
    """The transport as uvicorn's cycle has it, closed by another function than its own."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, close


def _answer(error: ServiceError) -> bytes:
    """An answer to whatever was asked, and the last one."""
    body = json.dumps(error.to_json())
    headers = {
        "Content-Type": "application/json",
        "Content-Length": len(body),
        **error.headers(),
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode("ascii")
