"""The one queue behind every door: work waits here, leaves in batches, and comes back.

engine = Engine()
async with engine.timely(seconds):                     # in an event loop
    results = await engine.run(job, payloads, lengths)

A job computes in a thread; onnxruntime holds no lock of Python's meanwhile. There are as many
threads as cores, and a job takes one core, so batches and requests do not fight; but for a batch
that is all there is to do, which may have all of them, at most four.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.session import available_cores
from keras_bahdanau_runtime.translation import BATCH_TOKENS

logger = logging.getLogger("keras_bahdanau_runtime")

_ALIKE = 4  # lengths in a batch differ by less than this factor


class Job(Protocol):
    """What works on payloads, in a thread.

    Attributes:
        name: Of the model, for the metrics.
        shared: bool. Whether payloads of several requests may be worked on together.
    """

    name: str
    shared: bool

    def run(self, payloads: Sequence[Any], alone: bool) -> Sequence[Any]:
        """The result for each payload; `alone` where nothing else waits or is worked on."""
        ...

    def spent(self, waited: float, worked: float) -> None:
        """Told of each call of `Engine.run`: seconds that its payloads waited, and the rest."""
        ...


@dataclass(frozen=True)
class Limits:
    """How much a service takes on.

    Args:
        characters: int. Most characters in a text.
        tokens: int. Most tokens in a text, end of sentence included.
        texts: int. Most texts in a request.
        queue: int. Most texts that wait or are worked on.
        queued_tokens: int. Most tokens of these.
        body: int. Most bytes of a request, before and after it is unpacked.
        seconds: float. Longest time for a request that names none, and the longest it may name.

    Raises:
        ValueError: One of them is not positive.
    """

    characters: int = 5000
    tokens: int = 1024
    texts: int = 256
    queue: int = 4096
    queued_tokens: int = 500_000
    body: int = 16 * 2**20
    seconds: float = 60.0

    def __post_init__(self) -> None:
        counts = {name: value for name, value in vars(self).items() if name != "seconds"}
        check_positive(**counts)
        check_range("seconds", self.seconds, float, 0, open_low=True)

    def check_texts(self, count: int) -> None:
        """Raises a `ServiceError`, "too_large", for more texts than a request may have."""
        if count > self.texts:
            raise ServiceError(
                "too_large",
                f"Argument `text` must be at most {self.texts} texts. Received: {count}",
                "text",
            )


@dataclass(eq=False)
class _Work:
    """One payload on its way."""

    job: Job
    payload: Any
    length: int
    arrived: float
    future: "asyncio.Future[Any]"
    left: float = 0.0  # when it was sent to a thread


@dataclass
class Engine:
    """Gathers payloads into batches of like length and has them worked on.

    A batch leaves when nothing is worked on, when it is full, or when its oldest payload has waited
    `max_wait`; and it leaves only when a thread is free. The oldest payload goes first, and takes
    along those of its job whose lengths are nearest to its own.

    Args:
        limits: `Limits`.
        max_wait: float, seconds that a payload may wait for others while a thread is free.
        batch_size: int. Most payloads in a batch.
        batch_tokens: int. Most tokens in a batch, padding included; a longer one goes alone.
        threads: int, the batches at once; `None` for the cores that this process may use.
        metrics: `Metrics` to count in.
    """

    limits: Limits = field(default_factory=Limits)
    max_wait: float = 0.005
    batch_size: int = 12
    batch_tokens: int = BATCH_TOKENS
    threads: int | None = None
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.threads = available_cores() if self.threads is None else self.threads
        check_positive(
            batch_size=self.batch_size, batch_tokens=self.batch_tokens, threads=self.threads
        )
        check_range("max_wait", self.max_wait, float, 0)
        self._pool = ThreadPoolExecutor(self.threads, "keras_bahdanau service")
        self._waiting: deque[_Work] = deque()
        self._running = 0  # batches
        self._held, self._held_tokens = 0, 0  # payloads that wait or are worked on
        self._done, self._seconds = 0, 0.0  # payloads, and the time of threads for them
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def timely(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Ends the block when its time is up.

        Args:
            seconds: The longest that it may take; the limit's if `None`, and never more.

        Raises:
            ServiceError: "timeout".
        """
        most = self.limits.seconds
        limit = most if seconds is None else min(seconds, most)
        try:
            async with asyncio.timeout(limit) as scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            message = f"The answer took longer than {limit:g} seconds."
            raise ServiceError("timeout", message) from error

    async def run(
        self, job: Job, payloads: Sequence[Any], lengths: Sequence[int], held: int = 0
    ) -> list[Any]:
        """The results for payloads, in their order.

        A caller that is cancelled takes its payloads back: those that wait are dropped, and results
        of those that are worked on are thrown away.

        Args:
            job: A `Job`.
            payloads: What it works on.
            lengths: Number of tokens of each.
            held: How many of them were taken on already, by `held`.

        Raises:
            ServiceError: As of `held`.
            Exception: What the job raises.
        """
        with self.held(len(payloads) - held, sum(lengths), accepted=held > 0):
            loop = asyncio.get_running_loop()
            now = time.monotonic()
            works = [
                _Work(job, payload, length, now, loop.create_future())
                for payload, length in zip(payloads, lengths, strict=True)
            ]
            self._waiting.extend(works)
            self._dispatch()
            try:
                results = [await work.future for work in works]
                if works:
                    waited = sum(work.left - now for work in works) / len(works)
                    job.spent(waited, time.monotonic() - now - waited)
                return results
            finally:
                for work in works:
                    if not work.future.done():
                        work.future.cancel()
                    elif not work.future.cancelled():
                        work.future.exception()  # seen, though a sibling's was raised
                if any(work.future.cancelled() for work in works):
                    self._waiting = deque(w for w in self._waiting if not w.future.done())

    @contextlib.contextmanager
    def held(self, count: int, tokens: int, accepted: bool = False) -> Iterator[None]:
        """Counts so many payloads, of so many tokens in all, as taken on while the block runs.

        Args:
            count: int; of a request that was `accepted` already, how many more or less.
            tokens: int.
            accepted: bool. Whether it is finished though the service is about to stop.

        Raises:
            ServiceError: "too_large" for more than the queue ever holds, "overloaded" if it is
                full, "unavailable" while draining.
        """
        self._admit(count, tokens, accepted)
        self._held += count
        self._held_tokens += tokens
        self.metrics.queue.set(self._held)
        self._idle.clear()
        try:
            yield
        finally:
            self._held -= count
            self._held_tokens -= tokens
            self.metrics.queue.set(self._held)
            if not self._held:
                self._idle.set()

    def _admit(self, count: int, tokens: int, accepted: bool) -> None:
        """Raises a `ServiceError`, as `held`, unless there is room for so many payloads."""
        if self.draining and not accepted:
            raise ServiceError("unavailable", "The service is about to stop.", retry_after=1)
        texts, most = self.limits.queue, self.limits.queued_tokens
        if count > texts or tokens > most:
            raise ServiceError(
                "too_large",
                f"A request must be at most {texts} texts of {most} tokens in all. "
                f"Received: {count} of {tokens}",
            )
        if self._held + count > texts or self._held_tokens + tokens > most:
            raise ServiceError(
                "overloaded",
                f"The queue is full: {self._held} texts of {self._held_tokens} tokens.",
                retry_after=self._wait(),
            )

    def _wait(self) -> int:
        """Seconds until what is held now will be done, at the speed so far."""
        each = self._seconds / self._done if self._done else 0.0
        return max(1, math.ceil(self._held * each / (self.threads or 1)))

    async def drain(self, seconds: float) -> bool:
        """Refuses new work and waits for what was accepted; says whether all of it was done."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @property
    def busy(self) -> bool:
        """Whether a batch is worked on, be it one that nobody waits for any longer."""
        return self._running > 0

    def close(self) -> None:
        """Lets the threads go; what waits is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _dispatch(self) -> None:
        """Sends as many batches as there are threads free."""
        while self._running < (self.threads or 1):
            while self._waiting and self._waiting[0].future.done():
                self._waiting.popleft()
            if not self._waiting or self._must_wait():
                return
            batch, full = self._gather()
            left = batch[0].arrived + self.max_wait - time.monotonic()
            if batch[0].job.shared and self._running and not full and left > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(left, self._time_is_up)
                return
            chosen = set(map(id, batch))
            self._waiting = deque(work for work in self._waiting if id(work) not in chosen)
            self._send(batch)

    def _must_wait(self) -> bool:
        """Whether what waits can fill no batch, seen without gathering one for each that comes."""
        waits = self._timer is not None and self._running and self._waiting[0].job.shared
        if not waits or len(self._waiting) >= self.batch_size:
            return False
        return _ALIKE * sum(work.length for work in self._waiting) <= self.batch_tokens

    def _time_is_up(self) -> None:
        self._timer = None
        self._dispatch()

    def _gather(self) -> tuple[list[_Work], bool]:
        """The batch of the oldest payload, and whether there is no room for more."""
        oldest = self._waiting[0]
        if not oldest.job.shared:
            return [oldest], True
        middle = math.log(max(1, oldest.length))
        near = [work for work in self._waiting if work.job is oldest.job and not work.future.done()]
        # Stable: of two that are as near, the older one goes first.
        near.sort(key=lambda work: abs(math.log(max(1, work.length)) - middle))
        batch, short, long = [oldest], oldest.length, oldest.length
        for work in near:
            if work is oldest:
                continue
            shorter, longer = min(short, work.length), max(long, work.length)
            if longer >= _ALIKE * max(1, shorter):
                break
            if len(batch) == self.batch_size or longer * (len(batch) + 1) > self.batch_tokens:
                return batch, True
            batch.append(work)
            short, long = shorter, longer
        return batch, len(batch) == self.batch_size

    def _send(self, batch: list[_Work]) -> None:
        job, now = batch[0].job, time.monotonic()
        counted = self.metrics.of(job.name)
        self._running += 1
        for work in batch:
            work.left = now
            counted.wait.observe(now - work.arrived)
        counted.tokens.inc(sum(work.length for work in batch))
        counted.batches.observe(len(batch))
        alone = self._held == len(batch)
        loop = asyncio.get_running_loop()

        def work_on() -> None:
            results = _results(batch, alone)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._arrive, batch, now, results)

        self._pool.submit(work_on)

    def _arrive(self, batch: list[_Work], began: float, results: list[Any]) -> None:
        self._running -= 1
        self._done += len(batch)
        self._seconds += time.monotonic() - began
        for work, result in zip(batch, results, strict=True):
            if work.future.done():
                continue
            if isinstance(result, Exception):
                work.future.set_exception(result)
            else:
                work.future.set_result(result)
        self._dispatch()


def _results(batch: list[_Work], alone: bool) -> list[Any]:
    """The result for each payload, or why there is none: one that fails does not fail others."""
    try:
        return list(batch[0].job.run([work.payload for work in batch], alone))
    except Exception as error:  # it is raised again where the result is awaited
        if len(batch) == 1:
            return [error]
        logger.info("A batch of %d failed, and is tried one by one: %s", len(batch), error)
        # One that nobody waits for any longer, as after a run that took all the time, is no work.
        return [None if work.future.done() else _results([work], alone)[0] for work in batch]
