"""A commit whose reply is lost: repeating the call changes nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from fault_jobs import DIARY, address, executions
from operating import operator

from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import Claim, Insertion, NewJob
from dutiful.core.outcome import Failed
from dutiful.core.principal import Role
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.review.state import ReviewAct
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel, Refusal, RefusalReason
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import BulkState, DeadLetterFilter
from dutiful.store.queries import JobFilter
from dutiful.stores.postgres import PostgresStore
from faults import Fleet, WorkerProcess, until
from postgres_proxy import Look, Proxy
from suite.builders import ADA, OOPS, change, new_job
from suite.webhooks import webhook

pytestmark = pytest.mark.parametrize("backend", ["postgres18"])


@asynccontextmanager
async def through_proxy(store: Store) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    """A second store on the same database, behind a proxy."""
    async with Proxy(address(store)) as proxy:
        behind = PostgresStore(proxy.url)
        await behind.open()
        try:
            yield behind, proxy
        finally:
            await behind.close()


def once_stored(store: Store, job_id: UUID) -> Look:
    async def look(_: bytes) -> bool:
        return await store.queries.job(job_id) is not None

    return look


async def claimed(store: Store) -> Claim:
    await store.jobs.insert([new_job()])
    ask = ClaimRequest(ADA, "general", [QueueLevel("default", 100)], ["greet"], 1, timedelta(seconds=30))
    (claim,) = await store.claims.claim(ask)
    return claim


async def test_an_enqueue_whose_reply_is_lost_is_repeated_and_makes_one_job(store: Store) -> None:
    job = new_job()
    async with through_proxy(store) as (behind, proxy):
        proxy.cut(once_stored(store, job.id))
        (inserted,) = await behind.jobs.insert([job])
        assert proxy.cuts == 1
    assert inserted.job_id == job.id
    assert [found.id for found in await store.queries.jobs(JobFilter())] == [job.id]
    assert await store.queries.check_places() == []


async def test_an_enqueue_that_failed_after_its_commit_can_be_repeated(store: Store) -> None:
    job = new_job()
    async with through_proxy(store) as (behind, proxy):

        async def stored(data: bytes) -> bool:
            proxy.shut = await once_stored(store, job.id)(data)
            return proxy.shut

        proxy.cut(stored)
        with pytest.raises(StoreUnavailable):
            await behind.jobs.insert([job])
        proxy.shut = False
        (inserted,) = await behind.jobs.insert([job])
        assert proxy.cuts == 1
    assert (inserted.job_id, inserted.insertion) == (job.id, Insertion.EXISTING)
    assert [found.id for found in await store.queries.jobs(JobFilter())] == [job.id]
    assert await store.queries.check_places() == []


async def test_a_completion_whose_reply_is_lost_is_not_taken_for_a_lost_claim(store: Store) -> None:
    claim = await claimed(store)
    async with through_proxy(store) as (behind, proxy):

        async def final(_: bytes) -> bool:
            return bool(await store.queries.outcomes([claim.job_id]))

        proxy.cut(final)
        refused = await behind.claims.complete([Completion(claim.job_id, claim.claim_id, '"done"')])
        assert proxy.cuts == 1
    assert refused == [Refusal(claim.job_id, claim.claim_id, RefusalReason.REPEATED)]
    (record,) = await store.queries.outcomes([claim.job_id])
    assert (record.state, record.result) == (State.COMPLETED, "done")
    assert await store.queries.attempts(claim.job_id) == []
    assert await store.queries.check_places() == []


async def test_a_failure_whose_reply_is_lost_is_counted_once(store: Store) -> None:
    claim = await claimed(store)
    async with through_proxy(store) as (behind, proxy):

        async def scheduled(_: bytes) -> bool:
            record = await store.queries.job(claim.job_id)
            return record is not None and record.state is State.SCHEDULED

        proxy.cut(scheduled)
        refused = await behind.claims.settle([change(claim, Failed(OOPS))])
        assert proxy.cuts == 1
    assert refused == [Refusal(claim.job_id, claim.claim_id, RefusalReason.REPEATED)]
    assert [attempt.outcome for attempt in await store.queries.attempts(claim.job_id)] == ["failed"]
    assert await store.queries.check_places() == []


async def test_an_act_whose_reply_is_lost_is_never_reported_as_not_done(store: Store) -> None:
    ada = operator(store, role=Role.ADMIN)
    job = new_job()
    await ada.tokens.create("ci", Role.STAFF)
    await store.jobs.insert([job])
    await store.webhooks.put([webhook()])
    (token,), (hook,) = await store.tokens.all(), await store.webhooks.all()
    run = await ada.bulk.start(ReviewAct.DISCARD, DeadLetterFilter(), "old")

    async def cancelled() -> bool:
        return bool(await store.queries.outcomes([job.id]))

    async def paused() -> bool:
        return bool(await store.control.pauses())

    async def resumed() -> bool:
        return not await store.control.pauses()

    async def revoked() -> bool:
        return (await store.tokens.all())[0].revoked_at is not None

    async def disabled() -> bool:
        return (await store.webhooks.all())[0].disabled_at is not None

    async def removed() -> bool:
        return not await store.webhooks.all()

    async def stopped() -> bool:
        found = await store.dead_letters.bulk_run(run.id)
        return found is not None and found.state is BulkState.STOPPED

    async with through_proxy(store) as (behind, proxy):
        bob = operator(behind, "bob", role=Role.ADMIN)
        acts: list[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[bool]]]] = [
            (lambda: bob.jobs.cancel(job.id), cancelled),
            (lambda: bob.fleet.pause(PauseScope.QUEUE, "default"), paused),
            (lambda: bob.fleet.resume(PauseScope.QUEUE, "default"), resumed),
            (lambda: bob.tokens.revoke(token.id), revoked),
            (lambda: bob.webhooks.enable(hook.name, False), disabled),
            (lambda: bob.webhooks.remove(hook.name), removed),
            (lambda: bob.bulk.stop(run.id), stopped),
        ]
        for act, done in acts:

            async def look(_: bytes, done: Callable[[], Awaitable[bool]] = done) -> bool:
                return await done()

            proxy.cut(look)
            with pytest.raises(StoreUnavailable, match="it is unknown whether this was done; check"):
                await act()
            assert proxy.cuts == 1
    trail = await store.audit.search(AuditFilter(principal="bob"))
    assert [event.outcome for event in trail] == [AuditOutcome.REQUESTED] * len(acts)


@asynccontextmanager
async def worker_through_proxy(store: Store, folder: Path, *options: str) -> AsyncIterator[tuple[WorkerProcess, Proxy]]:
    async with Proxy(address(store)) as proxy:
        environment = {DIARY: str(folder / "diary"), "DUTIFUL_LEASE": "5m"}
        here = Path(__file__).parent
        async with Fleet("fault_jobs:app", proxy.url, folder=folder, path=here, environment=environment) as fleet:
            yield await fleet.start(*options).ready(store), proxy


async def assert_done_at_the_first_attempt(store: Store, folder: Path, *jobs: NewJob) -> None:
    async def final() -> bool:
        return len(await store.queries.outcomes([job.id for job in jobs])) == len(jobs)

    # Long before the five minutes of their leases are over.
    await until(final, "the jobs are done")
    for record in await store.queries.outcomes([job.id for job in jobs]):
        assert (record.state, record.attempt, record.crashes) == (State.COMPLETED, 1, 0)
        given_back = {attempt.outcome for attempt in await store.queries.attempts(record.id)}
        assert given_back <= {"released"}, "a claim whose reply was lost"
    assert sorted(executions(folder)) == sorted(job.id for job in jobs)
    assert await store.queries.check_places() == []


async def test_jobs_claimed_in_a_reply_that_is_lost_are_not_left_to_their_leases(store: Store, tmp_path: Path) -> None:
    job = new_job(kind="nothing")
    async with worker_through_proxy(store, tmp_path) as (worker, proxy):

        async def claims_it(data: bytes) -> bool:
            return job.id.bytes in data and bool(await store.claims.held_by(worker.id))

        proxy.cut(claims_it)
        await store.jobs.insert([job])
        await assert_done_at_the_first_attempt(store, tmp_path, job)
        assert proxy.cuts == 1


async def test_a_lane_whose_claim_got_no_reply_leaves_the_claim_of_another_lane_alone(
    store: Store, tmp_path: Path
) -> None:
    cut, slow = new_job(kind="nothing", queue="cut"), new_job(kind="nothing", queue="slow")
    reconciled = asyncio.Event()
    waiting = asyncio.Event()
    async with worker_through_proxy(store, tmp_path, "--lane", "cut=1:cut", "--lane", "slow=1:slow") as (worker, proxy):

        async def look(data: bytes) -> bool:
            if slow.id.bytes in data and not waiting.is_set():
                # The reply to the second lane's claim waits until the first lane has read this worker's claims.
                waiting.set()
                await reconciled.wait()

                async def given_back() -> bool:
                    return slow.id not in [held.job_id for held in await store.claims.held_by(worker.id)]

                with contextlib.suppress(AssertionError):  # as expected
                    await until(given_back, "the other lane gives it back", within=0.5)
            elif slow.id.bytes in data:
                reconciled.set()
            return cut.id.bytes in data

        proxy.cut(look)
        await store.jobs.insert([slow])
        await waiting.wait()
        await store.jobs.insert([cut])
        await assert_done_at_the_first_attempt(store, tmp_path, cut, slow)
        assert proxy.cuts == 1
