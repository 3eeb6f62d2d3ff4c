"""A load balancer of TCP connections, like the Service of Kubernetes."""

import asyncio
import collections
import contextlib
import itertools
import threading


class LoadBalancer:
    """Passes each new connection on to one of the backends, in turn.

    A connection stays with its backend until one side closes it, even if the backend is removed.

    Attributes:
        backends: list of pairs of host and port, which may be replaced at any time.
        port: int, port of 127.0.0.1.
        open_connections: Number of open connections by backend.
        connections: Number of all connections so far, by backend.
    """

    def __init__(self, backends):
        self.backends = list(backends)
        self.open_connections, self.connections = collections.Counter(), collections.Counter()
        self._turns = itertools.count()
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader, writer):
        task, backends = asyncio.current_task(), self.backends
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        backend = backends[next(self._turns) % len(backends)]
        self.connections[backend] += 1
        self.open_connections[backend] += 1
        try:
            with contextlib.closing(writer), contextlib.suppress(asyncio.CancelledError):
                upstream = await asyncio.open_connection(*backend)
                with contextlib.closing(upstream[1]):
                    await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
        except OSError:
            writer.transport.abort()  # the backend does not listen
        finally:
            self.open_connections[backend] -= 1


async def _copy(reader, writer):
    """Copy the bytes of a connection and its end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


@contextlib.contextmanager
def balancing(backends):
    """Yield a `LoadBalancer` that runs in a thread."""
    loop, balancer = asyncio.new_event_loop(), LoadBalancer(backends)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(balancer.start(), loop).result()
        yield balancer
    finally:
        asyncio.run_coroutine_threadsafe(balancer.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
