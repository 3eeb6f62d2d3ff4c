"""A service in a thread of the test process, and a job for its queue."""

import asyncio
import contextlib
import threading

import httpx

from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.server import Service
from keras_bahdanau_runtime.service.settings import Settings


class Echo:
    """A job that returns its payloads and records its batches. It waits for `gate`."""

    batches_requests = True

    def __init__(self):
        self.metrics = Metrics().for_model("echo")
        self.batches = []
        self.gate, self.started = threading.Event(), threading.Semaphore(0)
        self.released = threading.Event()

    def run(self, payloads):
        self.started.release()
        self.gate.wait()
        self.batches.append(list(payloads))
        if "bad" in payloads:
            raise ArithmeticError("bad")
        return list(payloads)

    def decode(self, payloads, outputs):
        return outputs

    def record_times(self, queued, computed):
        pass

    def release_memory(self):
        self.released.set()


async def ask(engine, job, *payloads, timeout=None):
    """Submit strings. The length of a payload is its number of letters."""
    async with engine.deadline(timeout):
        return await engine.run(job, payloads, list(map(len, payloads)))


class Site:
    """A running service and a client.

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

    def submit(self, coroutine):
        """Start a coroutine in the service's event loop; return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine):
        """Run a coroutine in the service's event loop; return its result."""
        return self.submit(coroutine).result()

    def skip(self, seconds):
        """Advance the clock of the service's event loop."""
        now = self._loop.time
        self._loop.call_soon_threadsafe(setattr, self._loop, "time", lambda: now() + seconds)

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
    service = Site(sources, **settings)
    try:
        yield service
    finally:
        service.stop()


@contextlib.contextmanager
def one_busy_thread(site):
    """Keep one thread of a `Site` busy in the block; yield its job, whose `gate` ends it."""
    job = Echo()
    result = site.submit(site.service.engine.run(job, ["x"], [1]))
    try:
        yield job
    finally:
        job.gate.set()
    assert result.result() == ["x"]
