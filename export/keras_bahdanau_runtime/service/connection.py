"""HTTP connections with limits on the time and size of requests, and their server.

Only this module uses names of uvicorn that it does not document: `INTERNALS`.
"""

import asyncio
import contextlib
import http
import json
import logging
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from keras_bahdanau_runtime.service import listeners
from keras_bahdanau_runtime.service.errors import STOPPING, ServiceError

logger = logging.getLogger("keras_bahdanau_runtime")

# Key in the ASGI scope of a request: a future that is done when the client disconnects.
DISCONNECTED = "keras_bahdanau.disconnected"
HEAD_SECONDS = 10.0
BODY_SECONDS = 30.0
HEAD_BYTES = 64 * 2**10
_DISCARD_SECONDS = 2.0  # to read and discard the rest of a malformed request
# Until a connection without a response to send is closed when the service stops. A request that
# arrives in this time is answered.
LAST_SECONDS = 0.5
# Undocumented names of uvicorn, by class; `tests/service/test_uvicorn.py` checks that they exist.
INTERNALS: Mapping[type, set[str]] = {
    HttpToolsProtocol: {
        *("on_message_begin", "on_headers_complete", "on_message_complete", "send_400_response"),
        *("shutdown", "connections", "cycle", "flow", "headers", "parser", "pipeline", "scope"),
        *("timeout_keep_alive_task", "transport", "url", "_unset_keepalive_if_required"),
    },
    RequestResponseCycle: {
        *("keep_alive", "response_complete", "response_started", "transport"),
        "waiting_for_100_continue",
    },
    FlowControl: {"resume_reading"},
    uvicorn.Server: {
        *("capture_signals", "config", "lifespan", "server_state", "servers", "shutdown"),
    },
    uvicorn.Config: {"http_protocol_class", "ssl"},
}
_UPGRADE = re.compile(rb"(\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """A connection that answers 408, 431 or 503 and closes if a client exceeds a limit.

    uvicorn limits the idle time between two requests, but not how long one request may take to
    arrive, how large its head is, or how many connections are open. It also closes a connection
    directly after its last response. If the client is still sending, the operating system then
    resets the connection, and the client may never see the response.

    Args:
        arguments: Passed to uvicorn's protocol.
        max_connections: int, connections at once. A further connection gets a 503 response and is
            closed. `None` for any number.
        is_terminating: Function that returns whether the service is about to stop, so that each
            response is the last of its connection.
        is_stopping: Function that returns whether the service closes its connections.
        options: Passed to uvicorn's protocol.
    """

    def __init__(
        self,
        *arguments: Any,
        max_connections: int | None = None,
        is_terminating: Callable[[], bool],
        is_stopping: Callable[[], bool],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._max_connections = max_connections
        self._is_terminating, self._is_stopping = is_terminating, is_stopping
        self._timer: asyncio.TimerHandle | None = None  # runs while a request is arriving
        self._in_head = True  # the head of the next request is not complete
        self._head_bytes = 0  # received so far
        self._head_buffer: bytes | None = b""  # of an incomplete head; `None` once it is parsed
        self._is_closing = False  # the last response is written
        self._is_deaf = False  # no further bytes are parsed
        self._error: ServiceError | None = None  # of the head that the parser has read
        self._last_cycle: Any = None  # that ends the connection only because the service stops

    def connection_made(self, transport: Any) -> None:
        """Called by the event loop."""
        super().connection_made(transport)
        self._disconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            logger.info("A connection was refused: %d are open.", self._max_connections)
            message = f"All {self._max_connections} connections of the service are in use."
            transport.write(_response(ServiceError("unavailable", message, retry_after=1)))
            self._close()
        else:
            self._start_timer(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._is_deaf:
            return
        if self._in_head:
            # `data` is not counted yet: it may contain the end of the head and a body.
            if self._head_bytes > HEAD_BYTES:
                self._refuse(_head_too_large())
                return
            self._head_bytes += len(data)
            if self._head_buffer is not None:
                data = self._buffer_head(self._head_buffer + data)
        if data:
            super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._timer is None and self.timeout_keep_alive_task is None:
            # The response was sent before its request ended, so uvicorn started no idle timer.
            self._start_timer(HEAD_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn if a request is malformed."""
        self._refuse(self._error or ServiceError("invalid", msg))

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of a request."""
        self._head_buffer = None
        self._head_bytes = max(1, self._head_bytes)
        if self._timer is None:
            self._start_timer(HEAD_SECONDS)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of a head."""
        self._error = self._head_error()
        if self._error is not None:
            raise ValueError  # the parser raises an error for which uvicorn sends the response
        self._in_head = False
        self._start_timer(BODY_SECONDS)
        self.scope[DISCONNECTED] = self._disconnected  # type: ignore[literal-required]
        earlier = self.cycle
        super().on_headers_complete()
        if self._is_terminating() and self.cycle.keep_alive:
            if earlier is self._last_cycle and earlier is not None and not earlier.response_started:
                earlier.keep_alive = True  # a pipelined request follows
            self.cycle.keep_alive, self._last_cycle = False, self.cycle
        self.cycle.transport = _ResponseTransport(  # type: ignore[assignment]
            self.transport, self._close_after_response
        )
        if self.scope["http_version"] == "1.0":  # it has no 100 Continue (RFC 9110, 10.1.1)
            self.cycle.waiting_for_100_continue = False

    def on_message_complete(self) -> None:
        """Called by the parser at the last byte of a request."""
        self._stop_timer()
        self._in_head, self._head_bytes, self._head_buffer = True, 0, b""
        super().on_message_complete()
        if self._is_closing:
            self._close()
        elif not self.pipeline:
            # uvicorn pauses reading at a large body and resumes when the application receives more.
            # After the end of the body that does not happen, and a disconnect would not be noticed.
            self.flow.resume_reading()

    def shutdown(self) -> None:
        """Called by uvicorn when it stops. A request that has arrived is answered.

        It may not be read yet, so the connection is not closed at once.
        """
        if self._awaits_response() and (self._timer is None or self._waits_for_earlier_response()):
            super().shutdown()
        else:
            self._start_timer(LAST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._stop_timer()
        self._disconnected.set_result(None)
        super().connection_lost(exc)

    def _buffer_head(self, data: bytes) -> bytes:
        """Buffer the bytes of a request until its head is complete, then return them.

        The header `Upgrade` is renamed: an HTTP/1.1 server may ignore it (RFC 9110, 7.8), but the
        parser would end the request at the head and take the body for another protocol. Java's
        client and `curl --http2` send the header with every request.
        """
        self._unset_keepalive_if_required()
        if self._timer is None:
            self._start_timer(HEAD_SECONDS)
        head, end, body = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
        if len(head) > HEAD_BYTES:
            self._refuse(_head_too_large())
            return b""
        # Other bytes are malformed, such as a TLS handshake or lines that end without CR: the
        # parser refuses them now, and the client need not wait for the timeout.
        may_be_head = head[:1].isalpha() and head.count(b"\n") == head.count(b"\r\n")
        if not end and (may_be_head or not head):
            self._head_buffer = data
            return b""
        return _UPGRADE.sub(rb"\1x-upgrade", head) + end + body

    def _head_error(self) -> ServiceError | None:
        """Return the error of a head that the parser accepts."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_BYTES:  # of a pipelined request, which is not buffered
            return _head_too_large()
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        # The parser reads other codings as chunks, and knows none in HTTP/1.0 (RFC 9112, 6.1). A
        # proxy could end such a request at another place.
        is_chunked = [coding.strip().lower() for coding in codings] == [b"chunked"]
        if codings and (not is_chunked or self.parser.get_http_version() == "1.0"):
            return ServiceError(
                "invalid",
                "Header `Transfer-Encoding` must be chunked, in HTTP/1.1. Send `Content-Length`. "
                f"Received: {b', '.join(codings)!r:.80}",
                "Transfer-Encoding",
            )
        if self.parser.should_upgrade():  # of a pipelined request, which is not buffered
            return ServiceError(
                "invalid",
                "Header `Upgrade` must not be in a request that is sent before the response to the "
                "one before it. Send it later, or leave the header out.",
                "Upgrade",
            )
        return None

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        if self._is_stopping():
            seconds = min(seconds, LAST_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _awaits_response(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _waits_for_earlier_response(self) -> bool:
        """Whether the arriving request follows one that has no response yet."""
        return bool(self.pipeline) or (self._in_head and self._awaits_response())

    def _time_out(self, seconds: float) -> None:
        if self._waits_for_earlier_response():
            self._start_timer(seconds)
            return
        has_begun = self._head_bytes > 0 if self._in_head else self._awaits_response()
        if has_begun and not self._is_closing:
            message = f"The complete request must arrive within {seconds:g} seconds."
            error = ServiceError("too_slow", message)
            if self._is_stopping():
                error = ServiceError("unavailable", STOPPING, retry_after=1)
            self.transport.write(_response(error))
        self._close()

    def _refuse(self, error: ServiceError) -> None:
        """Answer a malformed request and accept no other."""
        self._is_deaf = True
        if self._is_closing:
            self._close()
            return
        self.transport.write(_response(error))
        if self._awaits_response():
            self._close()
        else:
            self._start_timer(_DISCARD_SECONDS)
            self._discard_rest()

    def _close_after_response(self) -> None:
        if self._timer is None and not self._is_terminating():
            self._close()
            return
        if self._timer is None:
            # The client does not know yet that this response is the last. If a further request is
            # here, closing resets the connection, and the client may lose the response.
            self._is_deaf = True
            self._start_timer(LAST_SECONDS)
        self._discard_rest()

    def _discard_rest(self) -> None:
        """End the response, and discard the rest of the request until it ends or times out."""
        self._is_closing = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close(self) -> None:
        self._stop_timer()
        self.transport.close()


class Server(uvicorn.Server):
    """Server that answers every connection that waits when it stops to listen.

    It leaves the signals of the process alone.
    """

    def capture_signals(self) -> Any:
        """Return a context without handlers of signals."""
        return contextlib.nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, answer the last requests, and close the connections."""
        copies = [listener.dup() for listener in sockets or ()]
        for server in self.servers:
            server.close()
        waiting = [connection for copy in copies for connection in listeners.close(copy)]
        loop = asyncio.get_running_loop()
        for connection in waiting:
            with contextlib.suppress(OSError):  # the client has gone
                await loop.connect_accepted_socket(self._protocol, connection, ssl=self.config.ssl)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        """Return the protocol of one connection, as uvicorn's `startup` does."""
        create = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return create(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class _ResponseTransport:
    """Transport that uvicorn's request cycle writes to, with a replaced `close`.

    It has only the methods that the request cycle calls.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, close


def _head_too_large() -> ServiceError:
    message = f"The head of a request must have at most {HEAD_BYTES} bytes."
    return ServiceError("head_too_large", message)


def _response(error: ServiceError) -> bytes:
    """Return a complete HTTP response after which the connection closes."""
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
