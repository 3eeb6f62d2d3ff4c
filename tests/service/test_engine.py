"""The queue: who goes with whom, who waits, and what becomes of those who leave."""

import asyncio

import pytest
from running_service import Echo, ask

from keras_bahdanau_runtime.service.engine import Engine, Limits
from keras_bahdanau_runtime.service.errors import ServiceError


async def begun(job, count=1):
    """Waits until so many batches are worked on."""
    for _ in range(count):
        await asyncio.to_thread(job.begun.acquire)


def engine(**options):
    return Engine(**{"threads": 1, "max_wait": 60.0, **options})


def test_an_idle_model_works_at_once():
    async def go():
        made, job = engine(), Echo()
        job.gate.set()
        assert await ask(made, job, "a") == ["a"]
        assert await ask(made, job, "b", "c") == ["b", "c"]
        assert job.batches == [["a"], ["b", "c"]]

    asyncio.run(go())


def test_a_batch_knows_whether_it_is_alone():
    async def go():
        made, job = engine(threads=2, max_wait=0.0), Echo()
        first = asyncio.ensure_future(ask(made, job, "a", "b"))
        await begun(job)
        second = asyncio.ensure_future(ask(made, job, "c"))
        await begun(job)
        job.gate.set()
        await asyncio.gather(first, second)
        await ask(made, job, "d")
        assert dict(zip(map(tuple, job.batches), job.alone, strict=True)) == {
            ("a", "b"): True,
            ("c",): False,
            ("d",): True,
        }

    asyncio.run(go())


def test_what_waits_goes_together_by_length():
    async def go():
        made, job = engine(batch_size=3), Echo()
        first = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        rest = [
            asyncio.ensure_future(ask(made, job, payload))
            for payload in ("aaaa", "b" * 16, "ccc", "d" * 15, "eeeee", "f" * 14)
        ]
        await asyncio.sleep(0)
        job.gate.set()
        await asyncio.gather(first, *rest)
        assert job.batches == [
            ["x"], ["aaaa", "eeeee", "ccc"], ["b" * 16, "d" * 15, "f" * 14]
        ]  # fmt: skip

    asyncio.run(go())


def test_no_length_of_a_batch_is_four_times_another():
    async def go():
        made, job = engine(), Echo()
        first = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        lengths = [8, 40, 2, 9, 31, 3, 100, 4, 33, 12]
        rest = [asyncio.ensure_future(ask(made, job, "y" * length)) for length in lengths]
        await asyncio.sleep(0)
        job.gate.set()
        await asyncio.gather(first, *rest)
        for batch in job.batches:
            assert max(map(len, batch)) < 4 * min(map(len, batch))
        assert sorted(len(one) for batch in job.batches[1:] for one in batch) == sorted(lengths)

    asyncio.run(go())


def test_a_batch_has_a_bound_of_padded_tokens():
    async def go():
        made, job = engine(batch_tokens=20), Echo()
        first = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        rest = asyncio.ensure_future(ask(made, job, *["y" * 6] * 7, "z" * 50))
        await asyncio.sleep(0)
        job.gate.set()
        await asyncio.gather(first, rest)
        assert [len(batch) for batch in job.batches] == [1, 3, 3, 1, 1]

    asyncio.run(go())


def test_with_a_free_thread_a_batch_waits_for_others_or_its_time():
    async def go(max_wait):
        made, job = engine(threads=2, max_wait=max_wait, batch_size=2), Echo()
        first = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        second = asyncio.ensure_future(ask(made, job, "y"))
        if max_wait == 60:  # the third makes it full
            third = asyncio.ensure_future(ask(made, job, "z"))
            await begun(job)
            job.gate.set()
            await asyncio.gather(first, second, third)
            assert sorted(job.batches) == [["x"], ["y", "z"]]
        else:
            await begun(job)  # when its time is up
            job.gate.set()
            await asyncio.gather(first, second)

    asyncio.run(go(60))
    asyncio.run(go(0.001))


def test_the_work_of_a_client_who_leaves_is_dropped():
    async def go():
        made, job = engine(), Echo()
        running = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        waiting = asyncio.ensure_future(ask(made, job, "y", "z"))
        await asyncio.sleep(0)
        for leaving in (running, waiting):
            leaving.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        assert not made._waiting  # nor is it kept until a thread is free
        assert made.busy and await made.drain(0.0)  # of one that nobody waits for
        made.draining = False
        job.gate.set()
        assert await ask(made, job, "w") == ["w"]
        assert not made.busy
        assert job.batches == [["x"], ["w"]]

    asyncio.run(go())


def test_time_is_up():
    async def go():
        made, job = engine(), Echo()
        with pytest.raises(ServiceError) as late:
            await ask(made, job, "x", seconds=0.001)
        assert late.value.kind == "timeout"
        with pytest.raises(ServiceError) as late:  # that one never began
            await ask(made, job, "y", seconds=0.001)
        job.gate.set()
        assert await ask(made, job, "z") == ["z"]
        assert job.batches == [["x"], ["z"]]

    asyncio.run(go())


@pytest.mark.parametrize("limits", [Limits(queue=3), Limits(queued_tokens=3)])
def test_a_full_queue_is_said_and_empties(limits):
    async def go():
        made, job = engine(limits=limits), Echo()
        held = asyncio.ensure_future(ask(made, job, "x", "y"))
        await begun(job)
        with pytest.raises(ServiceError) as full:
            await ask(made, job, "z", "w")
        assert full.value.kind == "overloaded" and full.value.retry_after >= 1
        job.gate.set()
        assert await held == ["x", "y"]
        assert await ask(made, job, "z", "w") == ["z", "w"]

    asyncio.run(go())


@pytest.mark.parametrize("limits", [Limits(queue=3), Limits(queued_tokens=3)])
def test_what_no_queue_will_hold_is_not_to_be_tried_again(limits):
    async def go():
        made, job = engine(limits=limits), Echo()
        job.gate.set()
        assert await ask(made, job, "x", "y", "z") == ["x", "y", "z"]
        with pytest.raises(ServiceError, match="Received: 4 of 4") as large:
            await ask(made, job, "x", "y", "z", "w")
        assert large.value.kind == "too_large" and large.value.retry_after is None

    asyncio.run(go())


def test_draining_finishes_what_was_accepted():
    async def go():
        made, job = engine(), Echo()
        held = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        assert not await made.drain(0.001)
        with pytest.raises(ServiceError) as refused:
            await ask(made, job, "y")
        assert refused.value.kind == "unavailable"
        job.gate.set()
        assert await made.drain(60) and await held == ["x"]

    asyncio.run(go())


def test_what_was_accepted_in_parts_is_finished_while_draining():
    async def go():
        made, job = engine(), Echo()
        job.gate.set()
        with made.held(2, 0):
            draining = asyncio.ensure_future(made.drain(60))
            await asyncio.sleep(0)
            with pytest.raises(ServiceError, match="about to stop"):
                await made.run(job, ["b"], [1])
            assert await made.run(job, ["a"], [1], held=2) == ["a"]  # the other was blank
            assert not draining.done()
        assert await draining

    asyncio.run(go())


def test_a_job_is_told_what_it_took():
    async def go():
        made, job, told = engine(), Echo(), []
        job.spent = lambda waited, worked: told.append((waited, worked))
        first = asyncio.ensure_future(ask(made, job, "a", "b"))
        await begun(job)
        second = asyncio.ensure_future(ask(made, job, "c"))
        while not made._waiting:
            await asyncio.sleep(0)
        job.gate.set()
        await asyncio.gather(first, second)
        (early, worked), (late, _) = told
        assert 0 <= early < worked and late > early  # which waited for the first to be done

    asyncio.run(go())


def test_one_that_fails_does_not_fail_the_others():
    async def go():
        made, job = engine(), Echo()
        first = asyncio.ensure_future(ask(made, job, "x"))
        await begun(job)
        rest = [asyncio.ensure_future(ask(made, job, one)) for one in ("good", "bad", "fine")]
        await asyncio.sleep(0)
        job.gate.set()
        found = await asyncio.gather(first, *rest, return_exceptions=True)
        assert found[:2] == [["x"], ["good"]] and found[3] == ["fine"]
        assert isinstance(found[2], ArithmeticError)

    asyncio.run(go())


def test_a_batch_that_failed_is_not_tried_again_for_nobody():
    async def go():
        made, job = engine(), Echo()
        with pytest.raises(ServiceError) as late:
            await ask(made, job, "bad", "good", seconds=0.001)
        assert late.value.kind == "timeout"
        job.gate.set()
        assert await ask(made, job, "then") == ["then"]
        assert job.batches == [["bad", "good"], ["then"]]

    asyncio.run(go())


def test_jobs_take_turns_by_age_and_do_not_mix():
    async def go():
        made, one, other = engine(), Echo(), Echo()
        other.gate.set()
        first = asyncio.ensure_future(ask(made, one, "x"))
        await begun(one)
        rest = [asyncio.ensure_future(ask(made, job, "y")) for job in (other, one, other)]
        await asyncio.sleep(0)
        one.gate.set()
        await asyncio.gather(first, *rest)
        assert one.batches == [["x"], ["y"]] and other.batches == [["y", "y"]]

    asyncio.run(go())


@pytest.mark.parametrize("name", ["texts", "queue", "seconds"])
def test_limits_must_be_positive(name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        Limits(**{name: 0})


def test_nobody_has_more_time_than_the_limit():
    async def go():
        made, job = engine(limits=Limits(seconds=0.01)), Echo()
        try:
            with pytest.raises(ServiceError) as late:
                await asyncio.wait_for(ask(made, job, "x", seconds=60.0), 5)
            assert late.value.kind == "timeout"
        finally:
            job.gate.set()

    asyncio.run(go())


def test_who_is_told_to_wait_waits_as_long_as_it_takes():
    async def go():
        made, job = engine(limits=Limits(queue=3)), Echo()
        made._done, made._seconds = 10, 50.0  # five seconds each
        held = asyncio.ensure_future(ask(made, job, "x", "y"))
        await begun(job)
        with pytest.raises(ServiceError) as full:
            await ask(made, job, "z", "w")
        job.gate.set()
        await held
        assert full.value.retry_after == 10

    asyncio.run(go())
