"""Several processes on one port. A process that dies is replaced."""

import dataclasses
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import tempfile
import threading
from types import FrameType
from typing import Any

from prometheus_client import multiprocess

from keras_bahdanau_runtime.service import listeners
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.logs import log_to_stderr
from keras_bahdanau_runtime.service.server import bind, listen, serve
from keras_bahdanau_runtime.service.settings import Settings
from keras_bahdanau_runtime.session import available_cores

logger = logging.getLogger("keras_bahdanau_runtime")

_CANNOT_SERVE = 3  # exit status of a process that has logged why it cannot serve
_MAX_FAILURES = 3  # processes in a row that end before they serve
_SHARED_MEMORY = "/dev/shm"


def supervise(settings: Settings) -> bool:
    """Run a service in `settings.processes` processes until SIGTERM or SIGINT.

    SIGHUP is forwarded to all processes. The operating system distributes the connections of HTTP
    and gRPC among them. A process that dies is replaced. If its replacement cannot start, for
    example because the artifact is corrupt, the others continue without it. The cores are divided
    among the processes unless `settings.parallel_batches` is set.

    Args:
        settings: `Settings`.

    Returns:
        Whether the processes started, and finished all accepted work.

    Raises:
        OSError: The port is in use.
    """
    if settings.processes == 1:
        serve(settings)
        return True
    log_to_stderr(settings.log_format)
    settings = _with_shared_cores(settings)
    # On a full disk, writing to a memory-mapped file would kill every process.
    folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    if settings.grpc_port is not None:
        # The processes share the gRPC port, so they would not notice that another service uses it.
        listen(settings.host, settings.grpc_port).close()
    with bind(settings) as listener, tempfile.TemporaryDirectory(dir=folder) as metrics:
        listeners.hold(listener)  # until the service stops, as a process may yet be replaced
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
        return _Supervisor(settings, listener).run()


def _with_shared_cores(settings: Settings) -> Settings:
    """Return settings that divide the cores among the processes."""
    parallel_batches, model_threads = settings.parallel_batches, settings.model_threads
    if parallel_batches is None:
        parallel_batches = max(1, available_cores() // settings.processes)
    if model_threads is None:
        model_threads = 1  # the other processes need the other cores
    return dataclasses.replace(
        settings, parallel_batches=parallel_batches, model_threads=model_threads
    )


class _Supervisor:
    """Parent of the processes of a service."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings, self._listener = settings, listener
        self._context = multiprocessing.get_context("spawn")
        # Semaphores by process; a process releases its semaphore when it serves.
        self._processes: dict[Any, Any] = {}
        self._is_stopping = self._is_starting = False
        self._failures = 0

    def run(self) -> bool:
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signal_number, self._forward)
        for _ in range(self._settings.processes):
            self._start()
        succeeded = True
        while self._processes:
            sentinels = [process.sentinel for process in self._processes]
            ended = multiprocessing.connection.wait(sentinels)
            for process in [other for other in self._processes if other.sentinel in ended]:
                process.join()
                served = _serves(self._processes.pop(process))
                if self._is_stopping:
                    # A process that does not serve yet is ended by the signal itself.
                    succeeded = succeeded and process.exitcode in (0, -signal.SIGTERM)
                else:
                    succeeded = self._replace(process, served)
        return succeeded

    def _start(self) -> None:
        if self._is_stopping:
            return
        # Not an `Event`: a process killed inside its lock would never release it.
        semaphore = self._context.Semaphore(0)
        arguments = (self._settings, self._listener, semaphore)
        process = self._context.Process(target=_serve, args=arguments)
        self._is_starting = True
        process.start()
        self._processes[process], self._is_starting = semaphore, False
        if self._is_stopping:  # the signal came before the process was registered
            self._send(process, signal.SIGTERM)
            self._listener.close()

    def _replace(self, process: Any, served: bool) -> bool:
        """Start another process if that may help, and return whether the service continues."""
        multiprocess.mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
        self._failures = 0 if served else self._failures + 1
        cannot_serve = not served and process.exitcode == _CANNOT_SERVE
        if not cannot_serve and self._failures < _MAX_FAILURES:
            message = "Process %d ended with status %s and is replaced."
            logger.error(message, process.pid, process.exitcode)
            self._start()
            return True
        if any(map(_serves, self._processes.values())):
            logger.error("Process %d cannot start. The others continue.", process.pid)
            return True
        logger.error("No process can start. The service stops.")
        self._forward(signal.SIGTERM, None)
        return False

    def _forward(self, signal_number: int, frame: FrameType | None) -> None:
        self._is_stopping = self._is_stopping or signal_number != signal.SIGHUP
        if self._is_stopping and not self._is_starting:
            # The processes accept every waiting connection before they close their copies. While
            # this one is open, the system would accept more.
            self._listener.close()
        forwarded = signal.SIGHUP if signal_number == signal.SIGHUP else signal.SIGTERM
        for process, semaphore in self._processes.items():
            # A process that does not serve yet has no handler for SIGHUP and would end. It opens
            # the new files anyway.
            if forwarded != signal.SIGHUP or _serves(semaphore):
                self._send(process, forwarded)

    def _send(self, process: Any, signal_number: int) -> None:
        if process.exitcode is None:
            os.kill(process.pid, signal_number)


def _serves(semaphore: Any) -> bool:
    """Return whether the process of this semaphore has started to serve."""
    if semaphore.acquire(block=False):
        semaphore.release()
        return True
    return False


def _serve(settings: Settings, listener: socket.socket, semaphore: Any) -> None:
    # A terminal sends SIGINT to all processes. The parent forwards it as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=_stop_with_parent, args=(parent,), daemon=True).start()
    try:
        serve(settings, listener, semaphore.release)
    except (ServiceError, ValueError, OSError) as error:
        logger.error("The process cannot serve: %s", error)
        sys.exit(_CANNOT_SERVE)


def _stop_with_parent(parent: Any) -> None:
    """Stop this process if its parent is killed, as it would otherwise keep the port."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
