"""Server lifecycle: start, serve, reload, drain, stop.

`serve(Settings({"dates": Path("artifact")}, no_auth=True))` runs until SIGTERM or SIGINT.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.service import listeners
from keras_bahdanau_runtime.service.engine import Engine
from keras_bahdanau_runtime.service.logs import discard_unwritten, log_to_stderr
from keras_bahdanau_runtime.service.repository import Repository
from keras_bahdanau_runtime.service.settings import Settings
from keras_bahdanau_runtime.session import release_memory

logger = logging.getLogger("keras_bahdanau_runtime")

_RESERVED_FILES = 64  # descriptors kept free to open artifacts and to listen
_MIN_CONNECTIONS = 8
_MACOS_MAX_FILES = 10_240  # descriptors of a process, even if its limit is infinite
_FLUSH_SECONDS = 1.0  # for responses that are computed but not sent yet


@dataclass
class Service:
    """A service in an event loop; `serve` runs one in a process.

    Args:
        settings: `Settings`.

    Attributes:
        url: str, the address of HTTP once the service has started.
        grpc_address: str, the address of gRPC once the service has started.

    Raises:
        ValueError: The file of API keys is invalid.
        MissingDependencyError: Tracing needs the extra `tracing`.

    Example:

    >>> service = Service(Settings({"dates": Path("artifact")}))
    >>> await service.start()       # reachable at service.url
    >>> await service.stop()
    """

    settings: Settings
    url: str = field(default="", init=False)
    grpc_address: str = field(default="", init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.engine = Engine(
            settings.limits,
            settings.max_wait,
            settings.batch_size,
            parallel_batches=settings.parallel_batches,
        )
        self.repository = Repository(
            settings.sources, self.engine, settings.megabytes, settings.model_threads
        )
        self.tracing = _create_tracing() if settings.tracing else None
        self.keys = None if settings.api_key_file is None else _read_keys(settings.api_key_file)
        self._tasks: list[asyncio.Task[Any]] = []
        self._http: Any = None
        self._listener: socket.socket | None = None
        self._grpc: Any = None

    async def start(self, listener: socket.socket | None = None) -> None:
        """Open every model, then listen.

        Args:
            listener: A listening socket that other processes share; `None` to listen on `host` and
                `port`.

        Raises:
            ServiceError: A model cannot be opened.
            OSError: A port is in use.
            Exception: Any other error while the servers start.
        """
        settings = self.settings
        loading = asyncio.gather(*map(self.repository.load, settings.sources))
        self.repository.is_shared = is_shared = listener is not None
        await asyncio.sleep(0)
        from keras_bahdanau_runtime.service import http  # while threads open the models

        if settings.grpc_port is not None:
            # Imported only if needed, as it takes 20 MB.
            from keras_bahdanau_runtime.service import grpc as grpc_server

        await loading
        listener = self._listener = bind(settings) if listener is None else listener
        listeners.hold(listener)
        port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http{'s' if settings.tls_certificate else ''}://{host}:{port}"
        self._http = http.create_server(
            self.repository,
            self.keys,
            only_local_hosts=self.keys is None and not settings.no_auth,
            max_connections=max_connections(),
            certificate=settings.tls_certificate,
            key=settings.tls_key,
            tracer=self.tracing,
        )
        if settings.grpc_port is not None:
            self._grpc = await grpc_server.start(
                self.repository,
                f"{host}:{settings.grpc_port}",
                self.engine.metrics,
                max_message_bytes=settings.limits.body,
                bodies=self.engine.bodies,
                max_connections=max_connections(),
                share_port=is_shared,
                credentials=_grpc_credentials(settings),
                keys=self.keys,
                tracer=self.tracing,
            )
            self.grpc_address = f"{host}:{self._grpc.port}"
        self._tasks.append(asyncio.create_task(self._http.serve([listener])))
        if settings.watch:
            self._tasks.append(asyncio.create_task(self.repository.watch(settings.watch)))
        while not self._http.started and not self._tasks[0].done():
            await asyncio.sleep(0.001)
        if self._tasks[0].done():
            await self.stop()
        release_memory()  # frees about 4 MB that the imports left
        logger.info(
            "Serving %s at %s%s.",
            ", ".join(name for name, _ in self.repository.names()),
            self.url,
            f" and gRPC at {self.grpc_address}" if self.grpc_address else "",
        )

    async def reload(self) -> None:
        """Reload every model. A model that cannot be opened stays as it was."""
        for source in self.settings.sources:
            with contextlib.suppress(Exception):  # it is logged, and in the index
                await self.repository.load(source)

    async def stop(self) -> bool:
        """Stop after `drain_delay`, and return whether all accepted work finished.

        The service is not ready from now on. With a delay it accepts all requests until its
        connections are closed. Without one it refuses new work until the accepted work is finished.

        Raises:
            Exception: Raised by the HTTP server.
        """
        self.repository.is_terminating = True
        delay = self.settings.drain_delay if self._tasks else 0.0  # no tasks: the start failed
        if delay:
            await asyncio.wait(self._tasks[:1], timeout=delay)  # the HTTP server may fail
        end = time.monotonic() + self.settings.grace
        stopping = None
        if self._grpc is not None:  # its clients send until their connections are closed
            from keras_bahdanau_runtime.service import grpc as grpc_server

            seconds = self.settings.grace + _FLUSH_SECONDS
            stopping = await grpc_server.stop_accepting(self._grpc, seconds)
        if delay:
            self._http.should_exit = True
            await asyncio.wait(self._tasks[:1], timeout=max(0.0, end - time.monotonic()))
        finished = await self.engine.drain(max(0.0, end - time.monotonic()))
        for task in self._tasks[1:]:
            task.cancel()
        remaining = max(_FLUSH_SECONDS, end - time.monotonic())  # to send large responses
        if self._listener is not None and not self._tasks:  # the start failed
            self._listener.close()
        elif self._http is not None:
            self._http.should_exit = True
            self._http.force_exit = not finished
            await asyncio.wait(self._tasks[:1], timeout=remaining)
            finished = finished and self._tasks[0].done()
        if stopping is not None:
            await stopping
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close, remaining)
        self.engine.close()
        self.repository.close()
        for task in self._tasks[:1]:
            if task.done():
                task.result()
        return finished

    async def run(
        self,
        listener: socket.socket | None = None,
        on_started: Callable[[], object] | None = None,
    ) -> bool:
        """Start, call `on_started`, and stop after SIGTERM or SIGINT; SIGHUP reloads the models.

        Returns:
            Whether all accepted work finished.
        """
        loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = asyncio.ensure_future(self.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_requested.set)
        loop.add_signal_handler(signal.SIGHUP, reload)
        starting, stopping = map(
            asyncio.ensure_future, (self.start(listener), stop_requested.wait())
        )
        await asyncio.wait({starting, stopping}, return_when="FIRST_COMPLETED")
        if not starting.done():
            logger.info("Stopping before all models are open.")
            starting.cancel()
            await asyncio.wait({starting})
            return await self.stop()
        await starting
        if on_started is not None:
            on_started()
        await asyncio.wait({stopping, self._tasks[0]}, return_when="FIRST_COMPLETED")
        logger.info(
            "Stopping: accepting requests for %g seconds, then finishing them within %g seconds.",
            self.settings.drain_delay,
            self.settings.grace,
        )
        return await self.stop()


def serve(
    settings: Settings,
    listener: socket.socket | None = None,
    on_started: Callable[[], object] | None = None,
) -> None:
    """Run a service in this process until SIGTERM or SIGINT, and finish the accepted work.

    If accepted work does not finish in time, the process exits with status 1. Otherwise it exits
    with status 0, even if a thread still runs work of a disconnected client or opens an artifact.

    Args:
        settings: `Settings`.
        listener: As for `Service.start`.
        on_started: Function that is called once the service accepts requests.

    Raises:
        ServiceError: A model cannot be opened.
        OSError: A port is in use.
    """
    log_to_stderr(settings.log_format)
    _raise_file_limit()
    import uvloop

    service = Service(settings)
    finished = uvloop.run(service.run(listener, on_started))
    if not finished:
        logger.error("Accepted work did not finish within %g seconds.", settings.grace)
    logging.shutdown()
    discard_unwritten()
    if not finished or service.engine.is_busy or service.repository.is_opening:
        os._exit(0 if finished else 1)  # Python would wait for the threads that still run


def bind(settings: Settings) -> socket.socket:
    """Return the listening socket of HTTP.

    Raises:
        OSError: The port is in use.
    """
    return listen(settings.host, settings.port)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket that no other process shares.

    Raises:
        OSError: The port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY, which sends small packets immediately, only if the protocol of the
    # socket is explicitly IPPROTO_TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _read_keys(path: Path) -> Any:
    # Imported only if needed, as Starlette is otherwise imported while threads open the models.
    from keras_bahdanau_runtime.service.middleware import ApiKeys

    return ApiKeys.read(path)


def _create_tracing() -> Any:
    # Imported only if needed, as OpenTelemetry is.
    from keras_bahdanau_runtime.service.tracing import Tracing

    return Tracing()


def _grpc_credentials(settings: Settings) -> Any:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    import grpc

    pair = settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes()
    return grpc.ssl_server_credentials([pair])


def _raise_file_limit() -> None:
    """Raise the limit of open files, and so of connections, as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard
    if hard == resource.RLIM_INFINITY:  # macOS refuses it as a soft limit
        limit = soft if soft == resource.RLIM_INFINITY else max(soft, _MACOS_MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def max_connections() -> int | None:
    """Return the maximum number of connections for each of HTTP and gRPC.

    It follows from the limit of open files. Without it, clients that only connect could use up all
    files, and no model could be opened. `None` if open files are not limited.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    return max(_MIN_CONNECTIONS, (limit - _RESERVED_FILES) // 2)
