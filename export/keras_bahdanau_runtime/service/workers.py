"""Several processes on one port: each one answers, and one that dies is replaced."""

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

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.logs import log_to_stderr
from keras_bahdanau_runtime.service.server import Settings, bind, listen, serve
from keras_bahdanau_runtime.session import available_cores

logger = logging.getLogger("keras_bahdanau_runtime")

_REFUSED = 3  # the status of a worker that has said what it cannot serve with
_MOST_FAILURES = 3  # ends before it began to serve, one after another, until it is given up
_MEMORY = "/dev/shm"


def supervise(settings: Settings, workers: int) -> bool:
    """Runs a service in several processes until SIGTERM or SIGINT.

    SIGHUP is passed on to all of them. The system hands each connection to one of them; the kernel
    keeps the port of gRPC apart for them in the same way. One that dies is replaced; where its
    successor cannot begin, as of an artifact that was damaged since, the others go on without it.
    They share the cores, unless the settings name threads.

    Args:
        settings: `Settings`; its `grpc_port` must not be 0 with several workers.
        workers: int, the number of processes.

    Returns:
        Whether they began to serve, and all accepted work was finished.

    Raises:
        ValueError: `workers` is not positive, or that port is 0.
        OSError: The port is taken.
    """
    check_positive(workers=workers)
    if workers > 1 and settings.grpc_port == 0:
        raise ValueError(
            "Argument `grpc_port` must be a number, or None, with several workers. Received: 0"
        )
    if workers == 1:
        serve(settings)
        return True
    log_to_stderr(settings.log_format)
    settings = _sharing(settings, workers)
    # On a disk that is full, writing to a mapped file would kill every worker.
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    if settings.grpc_port is not None:
        listen(settings.host, settings.grpc_port).close()  # another service may share it, too
    with bind(settings) as listening, tempfile.TemporaryDirectory(dir=folder) as counts:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # where processes add up what they count
        return _Crew(settings, listening).run(workers)


def _sharing(settings: Settings, workers: int) -> Settings:
    """Settings by which several processes share the cores: threads wait awake for each other."""
    threads = max(1, available_cores() // workers) if settings.threads is None else settings.threads
    alone = 1 if settings.alone_threads is None else settings.alone_threads
    return dataclasses.replace(settings, threads=threads, alone_threads=alone)


class _Crew:
    """The processes of a service."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[Any, Any] = {}  # processes, and what tells that they serve
        self._stopping = False
        self._failures = 0

    def run(self, count: int) -> bool:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        for _ in range(count):
            self._start()
        well = True
        while self._workers:
            ended = multiprocessing.connection.wait([one.sentinel for one in self._workers])
            for worker in [one for one in self._workers if one.sentinel in ended]:
                worker.join()
                served = _is_up(self._workers.pop(worker))
                if self._stopping:
                    # By the signal itself: it had not begun to serve.
                    well = well and worker.exitcode in (0, -signal.SIGTERM)
                else:
                    well = self._replace(worker, served)
        return well

    def _start(self) -> None:
        # No `Event`: a worker that is killed within its lock would keep it.
        serves = self._context.Semaphore(0)
        arguments = (self._settings, self._listening, serves)
        worker = self._context.Process(target=_work, args=arguments)
        worker.start()
        self._workers[worker] = serves
        if self._stopping:  # the signal came meanwhile, and this one does not know
            self._tell(worker, signal.SIGTERM)

    def _replace(self, worker: Any, served: bool) -> bool:
        """Starts another one where that may help; whether the service goes on."""
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
        self._failures = 0 if served else self._failures + 1
        refused = not served and worker.exitcode == _REFUSED
        if not refused and self._failures < _MOST_FAILURES:
            logger.error("Worker %d ended with %s and is replaced.", worker.pid, worker.exitcode)
            self._start()
            return True
        if any(map(_is_up, self._workers.values())):
            logger.error("Worker %d cannot begin; the others go on without it.", worker.pid)
            return True
        logger.error("Workers end before they begin to serve; giving up.")
        self._pass_on(signal.SIGTERM, None)
        return False

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stopping = self._stopping or number != signal.SIGHUP
        passed = signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM
        for worker, serves in self._workers.items():
            # One that does not serve yet opens what is there now, and would end of the signal.
            if passed != signal.SIGHUP or _is_up(serves):
                self._tell(worker, passed)

    def _tell(self, worker: Any, number: int) -> None:
        if worker.exitcode is None:
            os.kill(worker.pid, number)


def _is_up(serves: Any) -> bool:
    """Whether the worker that has this semaphore began to serve."""
    if serves.acquire(block=False):
        serves.release()
        return True
    return False


def _work(settings: Settings, listening: socket.socket, serves: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to all; the parent passes on
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        serve(settings, listening, serves.release)
    except (ServiceError, ValueError, OSError) as error:
        logger.error("The worker cannot serve: %s", error)
        sys.exit(_REFUSED)


def _end_with(parent: Any) -> None:
    """Ends this process as SIGTERM does where the parent was killed: it would keep the port."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
