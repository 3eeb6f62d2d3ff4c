"""Request queue shared by HTTP and gRPC. It batches requests and runs them in threads.

engine = Engine()
async with engine.deadline(timeout):                   # in an event loop
    results = await engine.run(job, payloads, lengths)

onnxruntime releases Python's global lock while it computes. There are as many threads as cores, so
that as many batches run at once, and one more if they are all of long requests.
"""

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from keras_bahdanau_runtime.batch_sizes import BATCH_TOKENS
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.service.bodies import BodyMemory
from keras_bahdanau_runtime.service.errors import STOPPING, ServiceError
from keras_bahdanau_runtime.service.metrics import Metrics, ModelMetrics
from keras_bahdanau_runtime.service.request_log import RequestLog, WorkTimes
from keras_bahdanau_runtime.service.settings import Limits
from keras_bahdanau_runtime.session import available_cores, release_memory

logger = logging.getLogger("keras_bahdanau_runtime")

_Result = TypeVar("_Result")

# The longest payload of a batch is less than this many times as long as the shortest.
_MAX_LENGTH_RATIO = 4
# Largest cost of a short request, and of one batch of a long one: that of twelve sentences of 20
# tokens with 100 steps and a beam of 5, which take tens of milliseconds.
BATCH_COST = 120_000
# After the latest short request, long ones leave one thread to the next for this many seconds.
_SHORT_SECONDS = 1.0
# Batches of short requests that may start in a row while a long request waits.
_SHORT_BATCHES = 4
# Added to the nice value of the threads of long requests: on a shared core, a short one then gets
# about thirty times their time.
_LONG_NICE, _LOWEST_NICE = 15, 19
# Share of a queue that is not empty for requests of many texts. The rest is for short requests.
_SHARE_OF_LONG = 0.75


class Job(Protocol):
    """A computation on payloads.

    Attributes:
        metrics: `ModelMetrics` that record the batches.
        batches_requests: bool. Whether one batch may have payloads of several requests.
    """

    metrics: ModelMetrics
    batches_requests: bool

    def run(self, payloads: Sequence[Any]) -> Any:
        """Return the outputs of a batch; called in a thread."""
        ...

    def decode(self, payloads: Sequence[Any], outputs: Any) -> Sequence[Any]:
        """Return the result for each payload from the outputs of `run`; called in a thread."""
        ...

    def release_memory(self) -> None:
        """Return the memory that runs have left to the system; called in a thread."""
        ...

    def record_times(self, queued: float, computed: float) -> None:
        """Record the mean waiting and computing time of the payloads of one `Engine.run`.

        Args:
            queued: float, seconds in the queue.
            computed: float, seconds in a thread.
        """
        ...


@dataclass(eq=False)
class _Work:
    """One payload and its future result."""

    job: Job
    payload: Any
    length: int
    cost: int
    queued_at: float
    future: "asyncio.Future[Any]"
    group: Hashable
    started_at: float = 0.0
    ran_at: float = 0.0


@dataclass(eq=False)
class _LongRequest:
    """A request that runs in several batches, or in a long one.

    `credit` is the cost that it may run in its turn. It grows until it pays for the next payload
    (deficit round robin).
    """

    works: "deque[_Work]"
    credit: int = 0


@dataclass
class Engine:
    """Queue that batches payloads of similar length and runs the batches in threads.

    Short requests share batches. A batch starts when a thread is free and one of these is true: no
    other such batch runs, the batch is full, or its oldest payload has waited `max_wait`. The
    oldest payload of the queue goes first, with those payloads of its job and group whose lengths
    are nearest.

    A long request costs more than one batch may. It runs in batches of its own that take turns with
    those of other long requests, in threads of a lower priority. A short request never waits
    for them: one batch may always start, and long ones use one thread less while short ones arrive.
    If short requests keep all threads busy, every fifth batch is one of a long request.

    Args:
        limits: `Limits`.
        max_wait: float, seconds that a payload may wait for others while a thread is free.
        batch_size: int, payloads in a batch at most.
        batch_tokens: int, tokens in a batch at most, including padding. A longer payload runs in a
            batch of one.
        parallel_batches: int, batches that run at once, each in a thread; `None` for one per core.
        idle: float, seconds without a batch after which memory is returned to the system.
        metrics: `Metrics` that record the queue and the batches.
    """

    limits: Limits = field(default_factory=Limits)
    max_wait: float = 0.005
    batch_size: int = 12
    batch_tokens: int = BATCH_TOKENS
    parallel_batches: int | None = None
    idle: float = 5.0
    metrics: Metrics = field(default_factory=Metrics)
    is_draining: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.parallel_batches = (
            available_cores() if self.parallel_batches is None else self.parallel_batches
        )
        check_positive(
            batch_size=self.batch_size,
            batch_tokens=self.batch_tokens,
            parallel_batches=self.parallel_batches,
        )
        check_range("max_wait", self.max_wait, float, 0)
        check_range("idle", self.idle, float, 0)
        self.metrics.max_cost.set(self.limits.cost)
        self.bodies = BodyMemory(self.metrics.bodies, self.limits.bodies)
        self._pool = ThreadPoolExecutor(self.parallel_batches, "keras_bahdanau service")
        self._long_pool = ThreadPoolExecutor(
            self.parallel_batches, "keras_bahdanau long requests", _lower_priority
        )
        self._preparing = ThreadPoolExecutor(1, "keras_bahdanau preparing", _lower_priority)
        self._queue: deque[_Work] = deque()  # of short requests, the oldest first
        self._long: deque[_LongRequest] = deque()  # the one whose turn is next first
        self._running_short = self._running_long = 0  # batches
        self._short_in_a_row = 0  # batches that started while a long request waited
        self._latest_short = -math.inf  # time of arrival
        self._reserved, self._reserved_tokens = 0, 0  # payloads that wait or run
        self._finished, self._thread_seconds = 0, 0.0  # payloads, and the time of their batches
        self._timer: asyncio.TimerHandle | None = None
        # Jobs that ran since memory was returned. An unloaded model must not stay alive for them.
        self._used: weakref.WeakSet[Job] = weakref.WeakSet()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._latest_finish = 0.0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @contextlib.asynccontextmanager
    async def deadline(self, timeout: float | None = None) -> AsyncIterator[None]:
        """Cancel the block after a timeout.

        Args:
            timeout: float, seconds; at most and by default the timeout of the limits.

        Raises:
            ServiceError: "timeout".
        """
        maximum = self.limits.timeout
        seconds = maximum if timeout is None else min(timeout, maximum)
        try:
            async with asyncio.timeout(seconds) as scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            message = f"The request took longer than {seconds:g} seconds."
            raise ServiceError("timeout", message) from error

    async def run(
        self,
        job: Job,
        payloads: Sequence[Any],
        lengths: Sequence[int],
        reserved: int = 0,
        group: Hashable = None,
        costs: Sequence[int] | None = None,
    ) -> list[Any]:
        """Return the results for payloads, in their order.

        If the caller is cancelled, its waiting payloads are removed from the queue, and results of
        its running ones are discarded.

        Args:
            job: `Job`.
            payloads: Its input.
            lengths: Number of tokens of each payload.
            reserved: int, payloads that the caller has reserved with `reserve`.
            group: Only payloads with equal groups share a batch, such as those with equal options.
            costs: Cost of each payload, see `Limits`; `None` for its length.

        Raises:
            ServiceError: "too_costly", or as `reserve`.
            Exception: Raised by the job.
        """
        costs = lengths if costs is None else costs
        cost = sum(costs)
        job.metrics.cost.observe(cost)
        self.limits.check_cost(cost)
        is_short = cost <= BATCH_COST
        count = len(payloads) - reserved
        with self.reserve(count, sum(lengths), is_accepted=reserved > 0, is_short=is_short):
            loop = asyncio.get_running_loop()
            now = time.monotonic()
            works = [
                _Work(job, payload, length, cost, now, loop.create_future(), group)
                for payload, length, cost in zip(payloads, lengths, costs, strict=True)
            ]
            if is_short:
                self._queue.extend(works)
                self._latest_short = now
            else:
                self._long.append(_LongRequest(deque(works)))
            self._dispatch()
            try:
                results = [await work.future for work in works]
                if works:
                    queued = sum(work.started_at - now for work in works) / len(works)
                    job.record_times(queued, time.monotonic() - now - queued)
                return results
            finally:
                if works and (log := RequestLog.current()) is not None:
                    log.times = _work_times(works)
                for work in works:
                    if not work.future.done():
                        work.future.cancel()
                    elif not work.future.cancelled():
                        work.future.exception()  # asyncio would log one that is not retrieved
                if any(work.future.cancelled() for work in works):
                    self._drop_finished()

    async def prepare(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return the result of a function that prepares a part of a long request.

        One thread of a lower priority calls the functions of all requests in turn.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._preparing, function, *arguments)

    @contextlib.contextmanager
    def reserve(
        self, count: int, tokens: int, is_accepted: bool = False, is_short: bool = True
    ) -> Iterator[None]:
        """Reserve room in the queue while the block runs.

        Args:
            count: int, payloads. For an accepted request the number in addition to its first
                reservation, negative if it needs fewer.
            tokens: int, tokens of all payloads.
            is_accepted: bool. Whether the request already has a reservation. Such requests are
                completed while the service drains.
            is_short: bool. Whether the request may use the room that long ones leave.

        Raises:
            ServiceError: "too_large" for more than the queue can ever have, "overloaded" if it is
                full, "unavailable" while the service drains.
        """
        self._check_room(count, tokens, is_accepted, is_short and count <= self.batch_size)
        self._reserved += count
        self._reserved_tokens += tokens
        self.metrics.queue.set(self._reserved)
        self._is_idle.clear()
        try:
            yield
        finally:
            self._reserved -= count
            self._reserved_tokens -= tokens
            self.metrics.queue.set(self._reserved)
            if not self._reserved:
                self._is_idle.set()

    def _check_room(self, count: int, tokens: int, is_accepted: bool, is_short: bool) -> None:
        if self.is_draining and not is_accepted:
            raise ServiceError("unavailable", STOPPING, retry_after=1)
        max_texts, max_tokens = self.limits.queue, self.limits.queued_tokens
        for number, limit, name in ((count, max_texts, "texts"), (tokens, max_tokens, "tokens")):
            if number > limit:
                raise ServiceError(
                    "too_large",
                    f"A request must have at most {limit} {name}, as many as the queue. Send fewer "
                    f"or shorter texts. Received: {number}",
                )
        if not is_short:  # one of them may fill an empty queue
            max_texts = max(count, int(_SHARE_OF_LONG * max_texts))
            max_tokens = max(tokens, int(_SHARE_OF_LONG * max_tokens))
        has_room = count <= 0 or self._reserved + count <= max_texts
        if not has_room or self._reserved_tokens + tokens > max_tokens:
            raise ServiceError(
                "overloaded",
                f"The queue is full: {self._reserved} of {self.limits.queue} texts and "
                f"{self._reserved_tokens} of {self.limits.queued_tokens} tokens wait or run. Retry "
                "later.",
                retry_after=self._estimate_wait(),
            )

    def _estimate_wait(self) -> int:
        """Return the seconds until the current work is done, at the average speed so far."""
        average = self._thread_seconds / self._finished if self._finished else 0.0
        return max(1, math.ceil(self._reserved * average / (self.parallel_batches or 1)))

    async def drain(self, seconds: float) -> bool:
        """Refuse new work, wait for the accepted work, and return whether all of it finished."""
        self.is_draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_busy(self) -> bool:
        """Whether a batch runs, including one whose results will be discarded."""
        return self._running_short + self._running_long > 0

    def close(self) -> None:
        """Release the threads and drop waiting work."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for pool in (self._pool, self._long_pool, self._preparing):
            pool.shutdown(wait=False, cancel_futures=True)

    def _drop_finished(self) -> None:
        """Remove the waiting work of requests that were cancelled."""
        self._queue = deque(work for work in self._queue if not work.future.done())
        for request in self._long:
            request.works = deque(work for work in request.works if not work.future.done())
        self._long = deque(request for request in self._long if request.works)

    def _dispatch(self) -> None:
        """Start batches while a thread is free."""
        while (batch := self._next_batch()) is not None:
            self._start(*batch)

    def _next_batch(self) -> tuple[list[_Work], bool] | None:
        """Remove the next batch from the queue, and return it and whether its request is long."""
        if self._short_in_a_row >= _SHORT_BATCHES and (batch := self._next_long()):
            return batch, True
        if batch := self._next_short():
            self._short_in_a_row += bool(self._long)
            return batch, False
        if not self._queue and (batch := self._next_long()):
            return batch, True
        return None

    def _next_short(self) -> list[_Work] | None:
        """Remove and return a batch of short requests if it may start now."""
        threads = max(1, (self.parallel_batches or 1) - self._running_long)
        while self._queue and self._queue[0].future.done():
            self._queue.popleft()
        if self._running_short >= threads or not self._queue or self._cannot_fill_batch():
            return None
        batch, is_full = self._similar(self._queue)
        wait = batch[0].queued_at + self.max_wait - time.monotonic()
        may_wait = batch[0].job.batches_requests and self._running_short and not is_full
        if may_wait and wait > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(wait, self._end_wait)
            return None
        self._queue = _without(self._queue, batch)
        return batch

    def _next_long(self) -> list[_Work] | None:
        """Remove and return a batch of the long request whose turn it is, if a thread is free."""
        threads = max_long = self.parallel_batches or 1
        if time.monotonic() - self._latest_short < _SHORT_SECONDS:
            max_long = max(1, threads - 1)
        is_full = self._running_short + self._running_long >= threads
        if not self._long or is_full or self._running_long >= max_long:
            return None
        while True:  # a text that costs more than a batch waits for several turns
            request = self._long.popleft()
            request.credit += BATCH_COST
            if request.credit >= request.works[0].cost:
                break
            self._long.append(request)
        batch, _ = self._similar(request.works, request.credit)
        request.works, request.credit = _without(request.works, batch), 0
        if request.works:
            self._long.append(request)
        self._short_in_a_row = 0
        return batch

    def _cannot_fill_batch(self) -> bool:
        """Whether the queue is too short for a full batch and its oldest payload may still wait.

        This is cheaper than building the batch for each payload that arrives.
        """
        may_wait = (
            self._timer is not None and self._running_short and self._queue[0].job.batches_requests
        )
        if not may_wait or len(self._queue) >= self.batch_size:
            return False
        return _MAX_LENGTH_RATIO * sum(work.length for work in self._queue) <= self.batch_tokens

    def _end_wait(self) -> None:
        self._timer = None
        self._dispatch()

    def _similar(
        self, works: Iterable[_Work], max_cost: float = math.inf
    ) -> tuple[list[_Work], bool]:
        """Return the batch of the oldest of these payloads, and whether it is full."""
        oldest = next(iter(works))
        if not oldest.job.batches_requests:
            return [oldest], True
        center = math.log(max(1, oldest.length))
        job, group = oldest.job, oldest.group
        candidates = [
            work
            for work in works
            if work.job is job
            and (work.group is group or work.group == group)  # most are the same object
            and not work.future.done()
        ]
        # The sort is stable: among equally near lengths the older payload goes first.
        candidates.sort(key=lambda work: abs(math.log(max(1, work.length)) - center))
        batch, shortest, longest, cost = [oldest], oldest.length, oldest.length, oldest.cost
        for work in candidates:
            if work is oldest:
                continue
            shorter, longer = min(shortest, work.length), max(longest, work.length)
            if longer >= _MAX_LENGTH_RATIO * max(1, shorter):
                break
            is_full = len(batch) == self.batch_size or cost + work.cost > max_cost
            if is_full or longer * (len(batch) + 1) > self.batch_tokens:
                return batch, True
            batch.append(work)
            shortest, longest, cost = shorter, longer, cost + work.cost
        return batch, len(batch) == self.batch_size

    def _start(self, batch: list[_Work], is_long: bool) -> None:
        metrics, now = batch[0].job.metrics, time.monotonic()
        if is_long:
            self._running_long += 1
        else:
            self._running_short += 1
        for work in batch:
            work.started_at = now
            metrics.wait.observe(now - work.queued_at)
        metrics.tokens.inc(sum(work.length for work in batch))
        metrics.batches.observe(len(batch))
        loop = asyncio.get_running_loop()

        def compute() -> None:
            results = _compute(batch)
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._finish, batch, is_long, now, results)

        (self._long_pool if is_long else self._pool).submit(compute)

    def _finish(
        self, batch: list[_Work], is_long: bool, started_at: float, results: list[Any]
    ) -> None:
        if is_long:
            self._running_long -= 1
        else:
            self._running_short -= 1
        self._finished += len(batch)
        self._thread_seconds += time.monotonic() - started_at
        for work, result in zip(batch, results, strict=True):
            if work.future.done():
                continue
            if isinstance(result, Exception):
                work.future.set_exception(result)
            else:
                work.future.set_result(result)
        self._dispatch()
        self._used.add(batch[0].job)
        self._latest_finish = time.monotonic()
        if self._idle_timer is None:
            self._wait_for_idle(self.idle)

    def _wait_for_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(seconds, self._release_if_idle, loop)

    def _release_if_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return memory to the system if no batch has run for a while, else wait again."""
        self._idle_timer = None
        if self.is_busy:
            return  # the end of the batch starts the timer again
        rest = self._latest_finish + self.idle - time.monotonic()
        if rest > 0:
            self._wait_for_idle(rest)
            return
        jobs = list(self._used)
        self._used.clear()
        loop.run_in_executor(self._preparing, _release_memory, jobs)


def _release_memory(jobs: list[Job]) -> None:
    """Return the memory of jobs to the system; an error is logged, because no request waits."""
    try:
        for job in jobs:
            job.release_memory()
    except Exception:
        logger.exception("The memory of a model could not be returned to the system.")
    release_memory()


def _lower_priority() -> None:
    """Let the system prefer other threads of this machine to the current one."""
    if sys.platform == "linux":  # elsewhere the priority is that of the process
        thread = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(_LOWEST_NICE, nice + _LONG_NICE))


def _without(works: "deque[_Work]", batch: list[_Work]) -> "deque[_Work]":
    """Return the works that are not in a batch."""
    chosen = set(map(id, batch))
    return deque(work for work in works if id(work) not in chosen)


def _work_times(works: Sequence[_Work]) -> WorkTimes:
    """Return the times of the payloads of one request, which may have failed or been cancelled."""
    done = time.monotonic()
    started = min((work.started_at for work in works if work.started_at), default=done)
    ran = max(work.ran_at for work in works) if all(work.ran_at for work in works) else done
    return WorkTimes(works[0].queued_at, started, ran, done)


def _compute(batch: list[_Work]) -> list[Any]:
    """Return the result or exception of each payload.

    If a batch fails, its payloads run one by one, so that only those that fail get the exception.
    """
    job, payloads = batch[0].job, [work.payload for work in batch]
    try:
        outputs = job.run(payloads)
        ran_at = time.monotonic()
        for work in batch:
            work.ran_at = ran_at
        return list(job.decode(payloads, outputs))
    except Exception as error:
        if len(batch) == 1:
            return [error]
        logger.info("A batch of %d failed and is run one by one: %s", len(batch), error)
        # Payloads of cancelled requests are skipped, such as after a batch that timed out.
        return [None if work.future.done() else _compute([work])[0] for work in batch]
