"""A service that runs in a thread of the tests, and what they ask it with."""

import asyncio
import contextlib
import threading

import httpx

from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.server import Service, Settings


class Echo:
    """Gives payloads back, in batches that it remembers; it waits for `gate`."""

    batches_requests = True

    def __init__(self):
        self.metrics = Metrics().for_model("echo")
        self.batches, self.alone = [], []
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)

    def run(self, payloads, alone):
        self.begun.release()
        self.gate.wait()
        self.batches.append(list(payloads))
        self.alone.append(alone)
        if "bad" in payloads:
            raise ArithmeticError("bad")
        return list(payloads)

    def record_times(self, queued, computed):
        pass


async def ask(engine, job, *payloads, timeout=None):
    """Asks for strings; each is as long as it has letters."""
    async with engine.deadline(timeout):
        return await engine.run(job, payloads, list(map(len, payloads)))


class Site:
    """A running service.

    Attributes:
        service: The `Service`.
        web: An `httpx.Client` of it.
    """

    def __init__(self, sources, **settings):
        settings = {"port": 0, "grpc_port": None, **settings}
        self.service = Service(Settings(sources, **settings))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.call(self.service.start())
        except BaseException:
            self._end()
            raise
        self.web = httpx.Client(base_url=self.service.url, timeout=30)

    def begin(self, coroutine):
        """Starts a coroutine in the service's event loop; its result is to come."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine):
        """The result of a coroutine in the service's event loop."""
        return self.begin(coroutine).result()

    def stop(self):
        self.web.close()
        finished = self.call(self.service.stop())
        self._end()
        return finished

    def _end(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def site(sources, **settings):
    made = Site(sources, **settings)
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def held(found):
    """Keeps one thread of a `Site` at work in the block; yields the `Echo`, whose gate frees it."""
    busy = Echo()
    holding = found.begin(found.service.engine.run(busy, ["x"], [1]))
    try:
        yield busy
    finally:
        busy.gate.set()
    assert holding.result() == ["x"]
