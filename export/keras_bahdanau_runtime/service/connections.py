"""A connection of HTTP that must say soon, and in few words, what it wants."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0
HEADER_BYTES = 64 * 2**10


class Connection(HttpToolsProtocol):
    """Closes where the head of a request takes too long or is too large.

    uvicorn bounds the time between two requests, but not that of a request which never ends.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock: asyncio.TimerHandle | None = None
        self._head = 0  # bytes since the request began

    def connection_made(self, transport: Any) -> None:
        """Called by the event loop."""
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._clock is not None:
            if self._head > HEADER_BYTES:
                self._leave()
                return
            self._head += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._end()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._head = 0
        if self._clock is None:
            self._clock = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._leave)

    def _end(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _leave(self) -> None:
        self._end()
        self.transport.close()
