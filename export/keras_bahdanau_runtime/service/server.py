"""The life of the process: it opens, answers, opens anew, drains and ends.

`serve(Settings({"dates": Path("artifact")}, no_auth=True))` runs until it is told to stop.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.service.engine import Engine, Limits
from keras_bahdanau_runtime.service.keys import Keys
from keras_bahdanau_runtime.service.logs import give_up_unwritten, log_to_stderr
from keras_bahdanau_runtime.service.repository import Repository
from keras_bahdanau_runtime.session import release_memory

logger = logging.getLogger("keras_bahdanau_runtime")

_HERE = ("127.0.0.1", "::1", "localhost")
_KEPT = 64  # descriptors for what is no connection: models that are opened, the doors themselves
_LEAST = 8  # connections
_OPEN_MAX = 10_240  # descriptors of a process on macOS, whatever its limit
_LEFT = 1.0  # seconds for what is answered already to leave


@dataclass(frozen=True)
class Settings:
    """How the service runs.

    Args:
        sources: Folders by model name; see `Repository`.
        host: The address to listen on.
        port: Of HTTP; 0 for any that is free.
        grpc_port: Of gRPC; 0 for any that is free, `None` for no gRPC.
        api_key_file: File of the keys that open the service, one a line.
        no_auth: bool. Whether to listen on an address beyond this machine without keys.
        tls_certificate: File of the certificate chain; with `tls_key`, for both doors.
        tls_key: File of its key.
        watch: float, seconds between two looks whether an artifact was replaced; 0 for none.
        grace: float, seconds that accepted work has to end after SIGTERM.
        log_format: "text" or "json".
        max_wait: float, seconds; as for `Engine`.
        batch_size: int; as for `Engine`.
        threads: int; as for `Engine`.
        alone_threads: int; as for `Repository`.
        megabytes: float; as for `Translator`.
        limits: `Limits`.

    Raises:
        ValueError: A value is out of range, everybody could come in unasked, or the files for TLS
            are not a certificate and its key, not encrypted.
    """

    sources: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    api_key_file: Path | None = None
    no_auth: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    watch: float = 0.0
    grace: float = 30.0
    log_format: str = "text"
    max_wait: float = 0.005
    batch_size: int = 12
    threads: int | None = None
    alone_threads: int | None = None
    megabytes: float | None = 1024.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("Argument `sources` must name an artifact. Received: none")
        if self.host not in _HERE and self.api_key_file is None and not self.no_auth:
            raise ValueError(
                f"Argument `host` must be one of {_HERE} without keys. Received: {self.host!r}. "
                "Pass api_key_file, or no_auth=True where something else keeps strangers out."
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError(
                "Arguments `tls_certificate` and `tls_key` must be given together. "
                "Received: one of them"
            )
        if self.tls_certificate is not None and self.tls_key is not None:
            _check_pair(self.tls_certificate, self.tls_key)
        if self.log_format not in ("text", "json"):
            raise ValueError(
                f'Argument `log_format` must be "text" or "json". Received: {self.log_format!r}'
            )
        check_positive(batch_size=self.batch_size)
        for name in ("watch", "grace", "max_wait"):
            check_range(name, getattr(self, name), float, 0)
        for name in ("port", "grpc_port"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), int, 0, 65535)


@dataclass
class Service:
    """A service in an event loop; `serve` makes a process of it.

    Args:
        settings: `Settings`.

    Example:

    >>> service = Service(Settings({"dates": Path("artifact")}))
    >>> await service.start()       # reachable at service.url from here on
    >>> await service.stop()
    """

    settings: Settings
    url: str = field(default="", init=False)
    grpc_address: str = field(default="", init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.engine = Engine(
            settings.limits, settings.max_wait, settings.batch_size, threads=settings.threads
        )
        self.repository = Repository(
            settings.sources, self.engine, settings.megabytes, settings.alone_threads
        )
        path = settings.api_key_file
        self.keys = Keys() if path is None else Keys.read(path)
        self._tasks: list[asyncio.Task[Any]] = []
        self._web: Any = None
        self._listening: socket.socket | None = None
        self._grpc: Any = None

    async def start(self, listening: socket.socket | None = None) -> None:
        """Opens every model, and then both doors.

        Args:
            listening: A socket that is listened on; one for `host` and `port` if `None`.

        Raises:
            ServiceError: A model cannot be opened.
            OSError: A port is taken.
            Exception: What else a server cannot begin with.
        """
        settings = self.settings
        loading = asyncio.gather(*map(self.repository.load, settings.sources))
        self.repository.shared = shared = listening is not None  # with other processes
        await asyncio.sleep(0)
        from keras_bahdanau_runtime.service import http  # while threads open the models

        if settings.grpc_port is not None:
            from keras_bahdanau_runtime.service import grpc as rpc  # 20 MB that not all need
        await loading
        listening = self._listening = bind(settings) if listening is None else listening
        secure = settings.tls_certificate is not None
        port = listening.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http{'s' if secure else ''}://{host}:{port}"
        here = settings.api_key_file is None and not settings.no_auth
        self._web = http.server(
            self.repository,
            self.keys,
            here_alone=here,
            max_connections=most_connections(),
            certificate=settings.tls_certificate,
            key=settings.tls_key,
        )
        if settings.grpc_port is not None:
            self._grpc = await rpc.start(
                self.repository,
                f"{host}:{settings.grpc_port}",
                self.engine.metrics,
                max_message_bytes=settings.limits.body,
                max_connections=most_connections(),
                share_port=shared,
                credentials=_grpc_credentials(settings),
                authorize=self.keys.check if self.keys else None,
            )
            self.grpc_address = f"{host}:{self._grpc.port}"
        self._tasks.append(asyncio.create_task(self._web.serve([listening])))
        if settings.watch:
            self._tasks.append(asyncio.create_task(self.repository.watch(settings.watch)))
        while not self._web.started and not self._tasks[0].done():
            await asyncio.sleep(0.001)
        if self._tasks[0].done():
            await self.stop()
        release_memory()  # 4 MB that the imports have left
        logger.info(
            "Serving %s at %s%s.",
            ", ".join(name for name, _ in self.repository.names()),
            self.url,
            f" and gRPC at {self.grpc_address}" if self.grpc_address else "",
        )

    async def reload(self) -> None:
        """Opens every model anew; one that cannot be opened leaves the old one."""
        for source in self.settings.sources:
            with contextlib.suppress(Exception):  # it is logged, and stands in the index
                await self.repository.load(source)

    async def stop(self) -> bool:
        """Refuses new work, finishes what was accepted, and closes; whether all was finished.

        Raises:
            Exception: What the server of HTTP has failed with, if it has.
        """
        end = time.monotonic() + self.settings.grace
        done = await self.engine.drain(self.settings.grace)
        for task in self._tasks[1:]:
            task.cancel()
        left = max(_LEFT, end - time.monotonic())  # for answers that are large, or read slowly
        leaving = None if self._grpc is None else asyncio.ensure_future(self._grpc.stop(left))
        if self._listening is not None and not self._tasks:  # it could not start
            self._listening.close()
        elif self._web is not None:
            self._web.should_exit = True
            self._web.force_exit = not done
            await asyncio.wait(self._tasks[:1], timeout=left)
            done = done and self._tasks[0].done()
        if leaving is not None:
            await leaving
        self.engine.close()
        self.repository.close()
        for task in self._tasks[:1]:
            if task.done():
                task.result()
        return done

    async def run(
        self, listening: socket.socket | None = None, begun: Callable[[], object] | None = None
    ) -> bool:
        """Starts, calls `begun`, and stops after SIGTERM or SIGINT; SIGHUP opens models anew."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = asyncio.ensure_future(self.reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        loop.add_signal_handler(signal.SIGHUP, reload)
        starting, leaving = map(asyncio.ensure_future, (self.start(listening), told.wait()))
        await asyncio.wait({starting, leaving}, return_when="FIRST_COMPLETED")
        if not starting.done():
            logger.info("Told to end before all models are open.")
            starting.cancel()
            await asyncio.wait({starting})
            return await self.stop()
        await starting
        if begun is not None:
            begun()
        await asyncio.wait({leaving, self._tasks[0]}, return_when="FIRST_COMPLETED")
        logger.info("Draining: %g seconds for what was accepted.", self.settings.grace)
        return await self.stop()


def serve(
    settings: Settings,
    listening: socket.socket | None = None,
    begun: Callable[[], object] | None = None,
) -> None:
    """Runs a service until SIGTERM or SIGINT, and returns when all accepted work is finished.

    What is not finished in time ends the process, with status 1; so does, with status 0, a run
    that nobody waits for any longer, or an artifact that is being opened.

    Args:
        settings: `Settings`.
        listening: As for `Service.start`.
        begun: Called once it answers.

    Raises:
        ServiceError: A model cannot be opened.
        OSError: A port is taken.
    """
    log_to_stderr(settings.log_format)
    _allow_connections()
    import uvloop

    service = Service(settings)
    finished = uvloop.run(service.run(listening, begun))
    if not finished:
        logger.error("What was accepted is not finished; %g seconds are over.", settings.grace)
    logging.shutdown()
    give_up_unwritten()
    if not finished or service.engine.busy or service.repository.opening:
        os._exit(0 if finished else 1)  # Python would wait for the threads that are still at it


def bind(settings: Settings) -> socket.socket:
    """The socket of HTTP.

    Raises:
        OSError: The port is taken.
    """
    return listen(settings.host, settings.port)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, alone.

    Raises:
        OSError: The port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on the connections of sockets that name this protocol.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return made


def _check_pair(certificate: Path, key: Path) -> None:
    """Raises a `ValueError` unless the files are a certificate chain and its key."""
    try:
        # Without a password for it, OpenSSL would ask at the terminal for that of a key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ValueError(
            "Arguments `tls_certificate` and `tls_key` must be PEM files of a certificate chain "
            f"and of its key, not encrypted. Received: {certificate} and {key}, {error}"
        ) from error


def _grpc_credentials(settings: Settings) -> Any:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    import grpc

    pair = settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes()
    return grpc.ssl_server_credentials([pair])


def _allow_connections() -> None:
    """Lets the process hold as many connections as the system allows it."""
    import resource

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:  # as on macOS, which refuses it as the limit of now
        wanted = now if now == resource.RLIM_INFINITY else max(now, _OPEN_MAX)
    else:
        wanted = most
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def most_connections() -> int | None:
    """The most connections of each of two doors, by the descriptors that a process may have.

    Without a bound, clients that only connect would take all of them, and neither a model nor the
    page could be read. `None` where there is no limit.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else max(_LEAST, (limit - _KEPT) // 2)
