"""Memory of request bodies, limited over all connections."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from prometheus_client import Gauge

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.session import release_memory

# Bytes of a body that are not counted, so that small requests are read next to many large ones.
_FREE_BYTES = 2**16
LARGE_BODY = 2**20  # after a body of this size memory is returned to the system
_RELEASE_SECONDS = 1.0


class BodyMemory:
    """Bytes of all bodies that are arriving or being parsed.

    Args:
        gauge: Gauge that shows those of HTTP.
        limit: int, bytes at once of HTTP, without the first 64 KiB of each body, and as many of
            gRPC, which does not show the size of an incomplete message.
    """

    def __init__(self, gauge: Gauge, limit: int = 256 * 2**20) -> None:
        self.limit, self._gauge = limit, gauge
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts further bytes of one body until the block ends.

        The function raises a `ServiceError` of kind "overloaded" above the limit.
        """
        total = counted = 0

        def add(count: int) -> None:
            nonlocal total, counted
            total += count
            added = max(0, total - _FREE_BYTES) - counted
            if added and self._bytes + added > self.limit:
                message = f"All bodies together must have at most {self.limit} bytes. Retry later."
                raise ServiceError("overloaded", message, retry_after=1)
            counted += added
            self._change(added)

        try:
            yield add
        finally:
            self._change(-counted)
            if total >= LARGE_BODY:
                self.release_soon()

    def release_soon(self) -> None:
        """Return free memory to the system soon; glibc would keep most of it for the process."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_RELEASE_SECONDS, self._release, loop)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        loop.run_in_executor(None, release_memory)

    def _change(self, count: int) -> None:
        if count:
            self._bytes += count
            self._gauge.set(self._bytes)
