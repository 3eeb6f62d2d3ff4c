"""HTTP clients for load tests: each sends its next request as soon as the last is answered."""

import asyncio
import time


class Client:
    """One keep-alive connection of a load test, with as little work per request as possible.

    If the server closes the connection without a response, as a proxy does after it reloads, the
    request is sent again over a new connection.
    """

    def __init__(self, port, path, bodies, seconds, responses):
        self.port, self.path, self.bodies = port, path, bodies
        self.seconds, self.responses = seconds, responses

    async def run(self, deadline):
        await self._open()
        while time.perf_counter() < deadline and self.bodies:
            body = self.bodies.pop()
            began = time.perf_counter()
            try:
                content = await self._post(body)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                await self._open()
                content = await self._post(body)
            self.seconds.append(time.perf_counter() - began)
            if self.responses is not None:
                self.responses.append((body, content))
        self.writer.close()

    async def _open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def _post(self, body):
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        head = head.lower()
        if b"transfer-encoding: chunked" not in head:
            start = head.index(b"content-length: ") + 16
            return await self.reader.readexactly(int(head[start : head.index(b"\r", start)]))
        content = b""
        while size := int(await self.reader.readline(), 16):
            content += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return content


def run_load(port, clients, path, bodies, seconds, responses=None):
    """Send requests from this process with several concurrent clients.

    Args:
        port: HTTP port of the server.
        clients: int, number of concurrent connections.
        path: Path of the requests.
        bodies: list of bytes, sent from the last to the first. The load ends when all are sent.
        seconds: No request is sent after this time.
        responses: A list that receives pairs of request body and response body, or `None`.

    Returns:
        Requests per second, and the sorted seconds of all requests.
    """
    request_seconds, unsent = [], list(bodies)
    count = len(unsent)

    async def run_clients():
        deadline = time.perf_counter() + seconds
        await asyncio.gather(
            *(
                Client(port, path, unsent, request_seconds, responses).run(deadline)
                for _ in range(clients)
            )
        )

    began = time.perf_counter()
    asyncio.run(run_clients())
    elapsed = time.perf_counter() - began
    assert len(request_seconds) == count - len(unsent)
    return len(request_seconds) / elapsed, sorted(request_seconds)


def percentile_ms(seconds, fraction):
    """Return a percentile of sorted seconds, in milliseconds."""
    return 1000 * seconds[min(len(seconds) - 1, int(fraction * len(seconds)))]
