"""A service that runs in a thread of the tests, and what they ask it with."""

import asyncio
import contextlib
import threading

import httpx

from keras_bahdanau_runtime.service.server import Service, Settings


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

    def call(self, coroutine):
        """The result of a coroutine in the service's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

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
