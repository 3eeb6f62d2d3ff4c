"""Request queue: batching, waiting, limits, draining, and disconnected clients."""

import asyncio
import functools
import threading

import pytest
from running_service import Echo, ask

from keras_bahdanau_runtime.service.engine import BATCH_COST, Engine
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.settings import Limits


def in_event_loop(test):
    """Run an `async` test in an event loop."""

    @functools.wraps(test)
    def run(**arguments):
        asyncio.run(test(**arguments))

    return run


def make_engine(**options):
    return Engine(**{"parallel_batches": 1, "max_wait": 60.0, **options})


async def start(engine, job, *payloads):
    """Submit payloads and wait until their batch runs; return the task."""
    task = asyncio.ensure_future(ask(engine, job, *payloads))
    await asyncio.to_thread(job.started.acquire)
    return task


async def run_queued(engine, job, *requests):
    """Queue requests while the only thread runs "x"; return their results or exceptions."""
    running = await start(engine, job, "x")
    queued = [asyncio.ensure_future(ask(engine, job, *payloads)) for payloads in requests]
    await asyncio.sleep(0)
    job.gate.set()
    first, *results = await asyncio.gather(running, *queued, return_exceptions=True)
    assert first == ["x"] and job.batches[0] == ["x"]
    return results


@in_event_loop
async def test_an_idle_engine_runs_a_request_immediately():
    engine, job = make_engine(), Echo()
    job.gate.set()
    assert await ask(engine, job, "a") == ["a"]
    assert await ask(engine, job, "b", "c") == ["b", "c"]
    assert job.batches == [["a"], ["b", "c"]]


@in_event_loop
async def test_queued_payloads_are_batched_by_length():
    engine, job = make_engine(batch_size=3), Echo()
    payloads = ("aaaa", "b" * 16, "ccc", "d" * 15, "eeeee", "f" * 14)
    await run_queued(engine, job, *([payload] for payload in payloads))
    assert job.batches[1:] == [["aaaa", "eeeee", "ccc"], ["b" * 16, "d" * 15, "f" * 14]]


@in_event_loop
async def test_lengths_in_a_batch_differ_by_less_than_a_factor_of_four():
    engine, job = make_engine(), Echo()
    lengths = [8, 40, 2, 9, 31, 3, 100, 4, 33, 12]
    await run_queued(engine, job, *(["y" * length] for length in lengths))
    for batch in job.batches:
        assert max(map(len, batch)) < 4 * min(map(len, batch))
    assert sorted(len(text) for batch in job.batches[1:] for text in batch) == sorted(lengths)


@in_event_loop
async def test_only_equal_groups_share_a_batch():
    engine, job = make_engine(), Echo()
    running = await start(engine, job, "x")
    groups = [None, (1, "a"), None, (2, "a"), (1, "a")]
    queued = [
        asyncio.ensure_future(engine.run(job, [f"{place}"], [1], group=group))
        for place, group in enumerate(groups)
    ]
    await asyncio.sleep(0)
    job.gate.set()
    await asyncio.gather(running, *queued)
    assert job.batches == [["x"], ["0", "2"], ["1", "4"], ["3"]]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([6] * 7 + [50], [3, 3, 1, 1]),
        ([6, 6, 6, 2], [3, 1]),  # padded to 6, the short one would be tokens 19 to 24
    ],
)
@in_event_loop
async def test_the_padded_tokens_of_a_batch_are_limited(lengths, sizes):
    engine, job = make_engine(batch_tokens=20), Echo()
    await run_queued(engine, job, ["y" * length for length in lengths])
    assert [len(batch) for batch in job.batches[1:]] == sizes


@in_event_loop
async def test_a_batch_waits_for_others_while_a_thread_is_free():
    engine, job = make_engine(parallel_batches=2, batch_size=2), Echo()
    first = await start(engine, job, "x")
    second = asyncio.ensure_future(ask(engine, job, "y"))
    third = await start(engine, job, "z")  # fills the batch
    job.gate.set()
    await asyncio.gather(first, second, third)
    assert sorted(job.batches) == [["x"], ["y", "z"]]


@in_event_loop
async def test_a_batch_that_is_not_full_runs_after_max_wait():
    engine, job = make_engine(parallel_batches=2, max_wait=0.001, batch_size=2), Echo()
    tasks = [await start(engine, job, "x"), await start(engine, job, "y")]
    job.gate.set()
    await asyncio.gather(*tasks)


@in_event_loop
async def test_the_work_of_a_disconnected_client_is_dropped():
    engine, job = make_engine(), Echo()
    running = await start(engine, job, "x")
    waiting = asyncio.ensure_future(ask(engine, job, "y", "z"))
    await asyncio.sleep(0)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert not engine._queue  # dropped although no thread is free
    assert engine.is_busy and await engine.drain(0.0)  # `drain` does not wait for the running batch
    engine.is_draining = False
    job.gate.set()
    assert await ask(engine, job, "w") == ["w"]
    assert not engine.is_busy
    assert job.batches == [["x"], ["w"]]


@in_event_loop
async def test_a_request_that_times_out_in_the_queue_never_runs():
    engine, job = make_engine(), Echo()
    for payload in ("x", "y"):
        with pytest.raises(ServiceError) as caught:
            await ask(engine, job, payload, timeout=0.001)
        assert caught.value.kind == "timeout"
    job.gate.set()
    assert await ask(engine, job, "z") == ["z"]
    assert job.batches == [["x"], ["z"]]


@pytest.mark.parametrize("limits", [Limits(queue=3), Limits(queued_tokens=3)])
@in_event_loop
async def test_a_full_queue_refuses_requests_until_it_empties(limits):
    engine, job = make_engine(limits=limits), Echo()
    running = await start(engine, job, "x", "y")
    with pytest.raises(ServiceError) as caught:
        await ask(engine, job, "z", "w")
    assert caught.value.kind == "overloaded" and caught.value.retry_after >= 1
    assert f"2 of {limits.queue} texts and 2 of {limits.queued_tokens} tokens" in str(caught.value)
    job.gate.set()
    assert await running == ["x", "y"]
    assert await ask(engine, job, "z", "w") == ["z", "w"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(queue=3), "at most 3 texts, .* Received: 4$"),
        (Limits(queued_tokens=7), "at most 7 tokens, .* Received: 8$"),
    ],
)
@in_event_loop
async def test_a_request_larger_than_the_queue_is_not_to_be_retried(limits, message):
    engine, job = make_engine(limits=limits), Echo()
    job.gate.set()
    assert await ask(engine, job, "xx", "yy", "zz") == ["xx", "yy", "zz"]
    with pytest.raises(ServiceError, match=message) as caught:
        await ask(engine, job, "xx", "yy", "zz", "ww")
    assert caught.value.kind == "too_large" and caught.value.retry_after is None


@in_event_loop
async def test_draining_finishes_accepted_work_and_refuses_more():
    engine, job = make_engine(), Echo()
    running = await start(engine, job, "x")
    assert not await engine.drain(0.001)
    with pytest.raises(ServiceError) as caught:
        await ask(engine, job, "y")
    assert caught.value.kind == "unavailable"
    job.gate.set()
    assert await engine.drain(60) and await running == ["x"]


@in_event_loop
async def test_a_request_accepted_before_its_run_is_finished_while_draining():
    engine, job = make_engine(), Echo()
    job.gate.set()
    with engine.reserve(2, 0):
        draining = asyncio.ensure_future(engine.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(ServiceError, match="about to stop"):
            await engine.run(job, ["b"], [1])
        assert await engine.run(job, ["a"], [1], reserved=2) == ["a"]  # the second text was blank
        assert not draining.done()
    assert await draining


@in_event_loop
async def test_a_job_gets_its_waiting_and_working_time():
    engine, job, times = make_engine(), Echo(), []
    job.record_times = lambda queued, computed: times.append((queued, computed))
    first = await start(engine, job, "a", "b")
    second = asyncio.ensure_future(ask(engine, job, "c"))
    while not engine._queue:
        await asyncio.sleep(0)
    job.gate.set()
    await asyncio.gather(first, second)
    (first_wait, first_work), (second_wait, _) = times
    assert 0 <= first_wait < first_work and second_wait > first_wait


@in_event_loop
async def test_a_payload_that_fails_does_not_fail_its_batch():
    engine, job = make_engine(), Echo()
    good, bad, fine = await run_queued(engine, job, ["good"], ["bad"], ["fine"])
    assert good == ["good"] and fine == ["fine"] and isinstance(bad, ArithmeticError)


@in_event_loop
async def test_a_failed_batch_is_not_retried_after_its_clients_left():
    engine, job = make_engine(), Echo()
    with pytest.raises(ServiceError) as caught:
        await ask(engine, job, "bad", "good", timeout=0.001)
    assert caught.value.kind == "timeout"
    job.gate.set()
    assert await ask(engine, job, "then") == ["then"]
    assert job.batches == [["bad", "good"], ["then"]]


@in_event_loop
async def test_jobs_take_turns_by_age_and_do_not_share_batches():
    engine, first_job, second_job = make_engine(), Echo(), Echo()
    second_job.gate.set()
    running = await start(engine, first_job, "x")
    jobs = (second_job, first_job, second_job)
    queued = [asyncio.ensure_future(ask(engine, job, "y")) for job in jobs]
    await asyncio.sleep(0)
    first_job.gate.set()
    await asyncio.gather(running, *queued)
    assert first_job.batches == [["x"], ["y"]] and second_job.batches == [["y", "y"]]


@pytest.mark.parametrize("name", ["texts", "queue", "timeout"])
def test_limits_must_be_positive(name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        Limits(**{name: 0})


@in_event_loop
async def test_a_request_cannot_extend_the_time_limit():
    engine, job = make_engine(limits=Limits(timeout=0.01)), Echo()
    try:
        with pytest.raises(ServiceError) as caught:
            await asyncio.wait_for(ask(engine, job, "x", timeout=60.0), 5)
        assert caught.value.kind == "timeout"
    finally:
        job.gate.set()


@in_event_loop
async def test_retry_after_is_the_expected_time_to_empty_the_queue():
    engine, job = make_engine(limits=Limits(queue=3)), Echo()
    engine._finished, engine._thread_seconds = 10, 50.0  # five seconds each
    running = await start(engine, job, "x", "y")
    with pytest.raises(ServiceError) as caught:
        await ask(engine, job, "z", "w")
    job.gate.set()
    await running
    assert caught.value.retry_after == 10


def ask_long(engine, job, payloads, cost=BATCH_COST):
    """Submit a long request, each payload of which costs `cost`; return its task."""
    costs = [cost] * len(payloads)
    return asyncio.ensure_future(engine.run(job, payloads, [1] * len(payloads), costs=costs))


@in_event_loop
async def test_a_request_that_costs_too_much_is_refused_before_it_runs():
    engine, job = make_engine(limits=Limits(cost=10)), Echo()
    job.gate.set()
    with pytest.raises(ServiceError, match=r"at most 10, .* Received: 12") as caught:
        await engine.run(job, ["x", "y"], [1, 1], costs=[6, 6])
    assert caught.value.kind == "too_costly" and caught.value.status == 413
    assert await engine.run(job, ["x", "y"], [1, 1], costs=[5, 5]) == ["x", "y"]
    assert job.batches == [["x", "y"]]
    metrics = engine.metrics.render().decode()
    assert "keras_bahdanau_max_request_cost 10.0" in metrics


@in_event_loop
async def test_long_requests_run_in_parts_that_take_turns():
    engine, job = make_engine(), Echo()
    running = await start(engine, job, "x")
    requests = [ask_long(engine, job, [f"{name}{k}" for k in range(3)]) for name in "ab"]
    requests.append(ask_long(engine, job, ["c0", "c1", "c2", "c3"], BATCH_COST // 2))
    requests.append(ask_long(engine, job, ["d"], 3 * BATCH_COST))  # waits for its third turn
    await asyncio.sleep(0)
    job.gate.set()
    assert await running == ["x"]
    assert [len(result) for result in await asyncio.gather(*requests)] == [3, 3, 4, 1]
    turns = [["a0"], ["b0"], ["c0", "c1"], ["a1"], ["b1"], ["c2", "c3"], ["a2"], ["b2"], ["d"]]
    assert sorted(job.batches[1:7]) == sorted(turns[:6])
    assert job.batches[1:] == turns[: len(job.batches) - 1]


@in_event_loop
async def test_a_short_request_runs_while_long_ones_use_every_thread():
    engine, long, short = make_engine(parallel_batches=2), Echo(), Echo()
    short.gate.set()
    tasks = [ask_long(engine, long, ["a", "b"]) for _ in range(2)]
    for _ in tasks:
        await asyncio.to_thread(long.started.acquire)
    try:
        for payload in ("x", "y"):
            assert await ask(engine, short, payload, timeout=10) == [payload]
        assert not long.batches
    finally:
        long.gate.set()
    await asyncio.gather(*tasks)


@in_event_loop
async def test_long_requests_leave_a_thread_free_while_short_ones_arrive():
    engine, long, short = make_engine(parallel_batches=2), Echo(), Echo()
    short.gate.set()
    assert await ask(engine, short, "x") == ["x"]
    tasks = [ask_long(engine, long, ["a", "b"]) for _ in range(2)]
    await asyncio.to_thread(long.started.acquire)
    await asyncio.sleep(0)
    assert engine._running_long == 1
    long.gate.set()
    await asyncio.gather(*tasks)


class Turns(Echo):
    """A job whose payload "5" waits for "a", whose thread has a lower priority."""

    def __init__(self):
        super().__init__()
        self.has_run_long = threading.Event()

    def run(self, payloads):
        if payloads == ["5"]:
            assert self.has_run_long.wait(60)
        outputs = super().run(payloads)
        if payloads == ["a"]:
            self.has_run_long.set()
        return outputs


@in_event_loop
async def test_short_requests_do_not_keep_long_ones_waiting_forever():
    engine, job = make_engine(batch_size=1), Turns()
    running = await start(engine, job, "x")
    long = ask_long(engine, job, ["a", "b"])
    short = [asyncio.ensure_future(ask(engine, job, name)) for name in "123456789"]
    await asyncio.sleep(0)
    job.gate.set()
    await asyncio.gather(running, long, *short)
    order = "".join(batch[0] for batch in job.batches)
    assert order.startswith("x1234a5") and sorted(order) == sorted("x123456789ab")


@in_event_loop
async def test_a_deadline_drops_the_parts_that_are_left():
    engine, job = make_engine(), Echo()
    with pytest.raises(ServiceError) as caught:
        async with engine.deadline(0.001):
            await ask_long(engine, job, ["a", "b", "c"])
    assert caught.value.kind == "timeout" and not engine._long
    job.gate.set()
    assert await ask(engine, job, "x") == ["x"]
    while engine.is_busy:
        await asyncio.sleep(0)
    assert sorted(job.batches) == [["a"], ["x"]]


@in_event_loop
async def test_long_requests_leave_room_in_the_queue_for_short_ones():
    engine, job = make_engine(limits=Limits(queued_tokens=8), batch_size=2), Echo()
    running = ask_long(engine, job, ["a"] * 6)
    await asyncio.sleep(0)
    with pytest.raises(ServiceError) as caught:
        await ask_long(engine, job, ["b"], BATCH_COST + 1)
    assert caught.value.kind == "overloaded"
    job.gate.set()
    assert await ask(engine, job, "x") == ["x"]
    await running


@in_event_loop
async def test_an_idle_engine_returns_the_memory_of_its_jobs():
    engine, job = make_engine(idle=0.0, max_wait=0.0, parallel_batches=2), Echo()
    running = await start(engine, job, "a")
    other = Echo()
    other.gate.set()
    assert await ask(engine, other, "b") == ["b"]
    await asyncio.sleep(0)  # the end of "b" starts the timer, and "a" is still running
    assert not other.released.is_set()
    job.gate.set()
    assert await running == ["a"]
    for each in (job, other):
        await asyncio.to_thread(each.released.wait)
    engine.close()
