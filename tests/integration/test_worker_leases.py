"""A job is its worker's for as long as the worker lives, and not a moment longer."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from running_workers import eventually, final, working

from dutiful import ClaimLost, Context, Dutiful, State
from dutiful.core.outcome import Lost
from dutiful.core.settle import Policy, decide
from dutiful.store.control import Pause, PauseScope
from dutiful.worker.leases import LeaseRenewalThread


class Observer:
    """Another process's view, from a thread with a loop of its own: a handler that blocks ours does not blind it."""

    def __init__(self, url: str) -> None:
        self._app = Dutiful(url)

    def renewals(self, job_id: UUID, wanted: int) -> list[datetime]:
        """The ends that the job's lease has had, once it was renewed `wanted` times."""
        return asyncio.run(self._renewals(job_id, wanted))

    async def _renewals(self, job_id: UUID, wanted: int) -> list[datetime]:
        ends: list[datetime] = []
        async with self._app:
            store = (await self._app.client()).store

            async def look() -> bool:
                assert await store.claims.expired(10) == []
                record = await self._app.find(job_id)
                if record is not None and record.expires_at is not None and record.expires_at not in ends:
                    ends.append(record.expires_at)
                return len(ends) > wanted

            await eventually(look)
        return ends


async def test_a_handler_that_blocks_the_event_loop_for_longer_than_its_lease_keeps_its_job(
    app: Dutiful, app_url: str
) -> None:
    app.configure(lease="1s")
    began, observed = threading.Event(), threading.Event()

    @app.job
    async def blocks() -> str:
        began.set()
        observed.wait(30)  # the loop stands still
        return "mine"

    def watch(job_id: UUID) -> list[datetime]:
        assert began.wait(20)
        try:
            return Observer(app_url).renewals(job_id, 3)
        finally:
            observed.set()

    async with working(app):
        job_id = app.new_id()
        watching = asyncio.create_task(asyncio.to_thread(watch, job_id))
        job = await blocks.options(id=job_id).enqueue()
        assert await job.result("20s") == "mine"
        ends = await watching
    assert ends[-1] - ends[0] > timedelta(seconds=1)
    record = await app.find(job.id)
    assert record is not None and (record.attempt, record.crashes) == (1, 0)


@pytest.mark.parametrize("mode", ["loop", "thread"])
async def test_a_job_whose_lease_was_lost_is_stopped_and_its_outcome_refused(app: Dutiful, mode: str) -> None:
    running, stopped = threading.Event(), threading.Event()

    @app.job(name="loop")
    async def on_loop() -> str:
        if begin():
            # For as long as this one runs, the job is held: only its own worker knows that the first one is lost.
            return "second" if await asyncio.to_thread(stopped.wait, 20) else "the first still runs"
        return await wait()

    async def wait() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    @app.job(name="thread")
    def in_thread(ctx: Context) -> str:
        if begin():
            return "second" if stopped.wait(20) else "the first still runs"
        try:
            while True:
                ctx.check()
        except ClaimLost:
            stopped.set()
            raise

    def begin() -> bool:
        again = running.is_set()
        running.set()
        return again

    client = await app.client()
    async with working(app) as worker:
        job = await app.enqueue(mode)
        await asyncio.to_thread(running.wait, 20)
        # What a rescuer does that believes the worker dead.
        (held,) = await client.store.claims.held_by(worker.id)
        change = decide(held, Lost(), Policy(), 1, lambda low, high: low)
        assert await client.store.claims.settle([change]) == []
        client.delivery.hint(frozenset())
        assert await asyncio.to_thread(stopped.wait, 20)
        record = await final(app, job)
    assert (record.state, record.result, record.crashes) == (State.COMPLETED, "second", 1)
    assert next(attempt.outcome for attempt in await client.store.queries.attempts(job.id)) == "lost"


async def test_a_dead_claim_does_not_take_the_living_claim_of_its_job_with_it(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.configure(lease="1s")
    running, looks, over = threading.Event(), threading.Semaphore(0), threading.Event()
    keep = LeaseRenewalThread._renew

    def counted(self: LeaseRenewalThread, *args: Any) -> None:
        keep(self, *args)
        looks.release()

    monkeypatch.setattr(LeaseRenewalThread, "_renew", counted)

    @app.job
    def crunch(ctx: Context) -> str:
        if running.is_set():
            for _ in range(6):  # it is checked with the dead one, and not asked to stop
                looks.acquire(timeout=20)
                ctx.check()
            return "second"
        running.set()
        over.wait(20)  # inside a C call, which no interrupt reaches
        return "first"

    client = await app.client()
    try:
        async with working(app) as worker:
            job = await crunch.enqueue()
            await asyncio.to_thread(running.wait, 20)
            (held,) = await client.store.claims.held_by(worker.id)
            assert await client.store.claims.settle([decide(held, Lost(), Policy(), 1, lambda low, high: low)]) == []
            client.delivery.hint(frozenset())
            record = await final(app, job)
            over.set()
    finally:
        over.set()
    assert (record.state, record.result, record.crashes) == (State.COMPLETED, "second", 1)


async def test_a_job_that_was_taken_away_is_stopped(app: Dutiful) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @app.job
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    store = (await app.client()).store
    async with working(app) as worker:
        job = await endless.enqueue()
        await began.wait()
        await store.control.pause(Pause(PauseScope.QUEUE, "default", datetime.now(UTC)))  # no worker takes it up again
        (held,) = await store.claims.held_by(worker.id)
        assert await store.claims.settle([decide(held, Lost(), Policy(), 1, lambda low, high: low)]) == []
        await asyncio.wait_for(stopped.wait(), 20)
    record = await app.find(job.id)
    assert record is not None and (record.state, record.attempt, record.crashes) == (State.READY, 0, 1)


async def test_a_worker_that_stops_lets_running_jobs_finish_and_gives_the_rest_back(app: Dutiful) -> None:
    app.configure(lanes="one=1:*")
    began, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow(n: int) -> int:
        began.set()
        await go.wait()
        return n

    jobs = await slow.enqueue_many([{"n": n} for n in range(5)])
    async with working(app) as worker:
        await began.wait()
        worker.stop()
        go.set()
    records = [await app.find(job.id) for job in jobs]
    assert [record.state for record in records if record] == [State.COMPLETED, *[State.READY] * 4]
    assert [record.attempt for record in records if record] == [1, 0, 0, 0, 0]
