"""Clients of a server on this machine, which ask again as soon as they are answered."""

import asyncio
import time


class Client:
    """One connection that asks again as soon as it is answered, as cheaply as Python can.

    A request is sent once more, over a new connection, where the server closed the old one without
    a word, as a proxy does that was set anew.
    """

    def __init__(self, port, path, bodies, times, answers):
        self.port, self.path, self.bodies = port, path, bodies
        self.times, self.answers = times, answers

    async def run(self, until):
        await self._open()
        while time.perf_counter() < until and self.bodies:
            body = self.bodies.pop()
            began = time.perf_counter()
            try:
                content = await self._ask(body)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                await self._open()
                content = await self._ask(body)
            self.times.append(time.perf_counter() - began)
            if self.answers is not None:
                self.answers.append((body, content))
        self.writer.close()

    async def _open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def _ask(self, body):
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        answer = answer.lower()
        if b"transfer-encoding: chunked" not in answer:
            place = answer.index(b"content-length: ") + 16
            return await self.reader.readexactly(int(answer[place : answer.index(b"\r", place)]))
        content = b""
        while size := int(await self.reader.readline(), 16):
            content += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return content


def load(port, clients, path, bodies, seconds, answers=None):
    """Requests a second, and the times of all, by so many clients; in this process.

    Args:
        port: Of the server.
        clients: int, the connections at once.
        path: What they post to.
        bodies: list of bytes, the last of which is sent first; a load ends when all were sent.
        seconds: After so many no request is sent.
        answers: A list for the pairs of a body and what was answered, or `None`.
    """
    times, left = [], list(bodies)
    count = len(left)

    async def go():
        until = time.perf_counter() + seconds
        await asyncio.gather(
            *(Client(port, path, left, times, answers).run(until) for _ in range(clients))
        )

    began = time.perf_counter()
    asyncio.run(go())
    spent = time.perf_counter() - began
    assert len(times) == count - len(left)
    return len(times) / spent, sorted(times)


def percentile(times, share):
    """Milliseconds that such a share of sorted times does not exceed."""
    return 1000 * times[min(len(times) - 1, int(share * len(times)))]
