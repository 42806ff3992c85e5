"""Which jobs have changed since a time, and whether there are listeners."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.ids import from_parts
from dutiful.core.job import Claim, NewJob, PhaseState
from dutiful.core.outcome import Failed
from dutiful.store import Store
from dutiful.store.events import JobChange, JobChanges
from dutiful.store.webhooks import PostState
from suite.builders import (
    ADA,
    BOB,
    OOPS,
    PIPELINE,
    T0,
    at,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    mark,
    new_id,
    new_job,
    progress,
    report_all,
    settle,
    start_one,
)
from suite.webhooks import settled, take_one, webhook

MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)
LATER = T0 + WEEK + timedelta(hours=1)


class EventSuite:
    """The suite's jobs are of 2024, so each test asks for changes since a time of 2024."""

    async def test_each_change_is_found_by_its_time_with_a_new_mark(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        seen: set[JobChange] = set()

        async def look(since: float) -> bool:
            """Whether the job has changed since then, with a mark that is new."""
            changes = set((await store.events.changes_since(at(since), 100)).changes) - seen
            seen.update(changes)
            return job_id in {change.job_id for change in changes}

        job_id = await enqueue_one(store, options=PIPELINE)
        assert await look(0)
        assert not await look(0)
        first = await claim_one(store, now=at(100))
        assert await look(99)
        for n in (200, 201):
            await report_all(store, progress(first, percent=1.0), now=at(n))
            assert await look(n - 1)
        await report_all(store, mark(first, "download"), mark(first, "download", PhaseState.COMPLETED), now=at(300))
        assert await look(299)
        await settle(store, first, Failed(OOPS), now=at(400))
        assert await look(399)
        await store.promotion.promote(10, now=at(500))
        second = await claim_one(store, now=at(500))
        assert await look(499)
        await complete(store, second, now=at(600))
        assert await look(599)
        post = await take_one(store, now=at(700))
        await settled(store, post, PostState.FAILED, now=at(701))
        assert await look(700)
        await store.webhooks.redeliver(post.id, now=at(800))
        await settled(store, await take_one(store, now=at(801)), now=at(802))
        assert await look(801)
        await store.retention.mark_stale(WEEK, 10, None, sent=True, now=LATER)
        assert await look((LATER - T0).total_seconds() - 1)
        assert not await look(0)

    async def test_a_waiting_job_that_is_cancelled_is_found(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await store.control.cancel(job_id, "no use", now=at(100))

        assert [change.job_id for change in (await store.events.changes_since(at(99), 10)).changes] == [job_id]

    async def test_earlier_changes_are_not_found(self, store: Store) -> None:
        await finish_one(store)
        recent = await finish_one(store, now=at(100))

        found_changes = await store.events.changes_since(at(99), 10)

        assert {change.job_id for change in found_changes.changes} == {recent}
        assert not found_changes.more

    async def test_the_first_call_begins_now(self, store: Store) -> None:
        await finish_one(store)
        first = await store.events.changes_since(None, 100)
        assert first.changes == []

        job = new_job(id=_id_of_now())
        await store.jobs.insert([job])

        found_changes = await store.events.changes_since(first.until, 100)
        assert [change.job_id for change in found_changes.changes] == [job.id]
        assert found_changes.until >= first.until
        assert found_changes.tombstones == []

    @pytest.mark.parametrize("apart", [0.0, 0.05, 1.0], ids=["at once", "quickly", "slowly"])
    @pytest.mark.parametrize("ended", [True, False], ids=["ended", "made"])
    async def test_a_long_backlog_is_read_without_loss(self, store: Store, apart: float, ended: bool) -> None:
        running = [await start_one(store) for _ in range(3)]
        jobs = [_job_of(100 + n * apart) for n in range(40)]
        if apart == 1.0:
            for n, job in enumerate(jobs):
                await enqueue(store, job, now=at(100 + n))
        else:  # ids are made before their jobs are stored, and a batch is stored at one moment
            await enqueue(store, *jobs, now=at(100 + 40 * apart))
        if ended:
            for n, claimed in enumerate(await claim(store, now=at(150))):
                await complete(store, claimed, now=at(200 + n * apart))

        found = await walk(store, at(160 if ended else 100), limit=7)

        assert {job.id for job in jobs} <= {change.job_id for change in found}
        assert {change.job_id for change in found} <= {job.id for job in jobs} | {one.job_id for one in running}

    async def test_changes_after_a_moment_that_fills_a_call_are_not_skipped(self, store: Store) -> None:
        batches = [[_job_of(n) for _ in range(12)] for n in (100, 200)]
        for n, batch in zip((100, 200), batches, strict=True):
            await enqueue(store, *batch, now=at(n))

        found = await walk(store, at(100), limit=7)

        assert {change.job_id for change in found} == {job.id for batch in batches for job in batch}

    async def test_changes_of_one_tenant_are_found_among_those_of_all(self, store: Store) -> None:
        jobs = [_job_of(100 + n, tenant="acme" if n % 9 == 0 else "globex") for n in range(40)]
        for n, job in enumerate(jobs):
            await enqueue(store, job, now=at(100 + n))
        for n, claimed in enumerate(await claim(store, now=at(150))):
            await complete(store, claimed, now=at(200 + n))

        for since in (at(100), at(160)):
            found = await walk(store, since, limit=7, tenant="acme")
            assert {change.job_id for change in found} == {job.id for job in jobs if job.tenant == "acme"}
        assert await walk(store, at(100), limit=7, tenant="nobody") == set()

    async def test_a_listener_is_known_until_its_time_is_over(self, store: Store) -> None:
        assert not await store.events.has_listeners(now=T0)

        await store.events.listen(ADA, MINUTE, now=T0)
        await store.events.listen(BOB, MINUTE, now=T0)
        await store.events.listen(ADA, MINUTE, now=at(50))

        assert await store.events.has_listeners(now=at(59))
        assert await store.events.has_listeners(now=at(109))
        assert not await store.events.has_listeners(now=at(111))

    async def test_there_is_no_listener_when_the_last_has_left(self, store: Store) -> None:
        for listener in (ADA, BOB):
            await store.events.listen(listener, MINUTE, now=T0)

        await store.events.unlisten(ADA)
        assert await store.events.has_listeners(now=at(1))
        await store.events.unlisten(BOB)
        await store.events.unlisten(BOB)
        assert not await store.events.has_listeners(now=at(1))


async def walk(store: Store, since: datetime, *, limit: int, tenant: str | None = None) -> set[JobChange]:
    """Calls until all changes are found; a call that was cut short must be continued where it ended."""
    found: set[JobChange] = set()
    for _ in range(100):
        found_changes = await store.events.changes_since(since, limit, tenant=tenant)
        assert found_changes.until >= since
        found.update(found_changes.changes)
        if not found_changes.more:
            return found
        since = found_changes.until
    raise AssertionError("the calls do not come to an end")


async def check_a_late_commit_is_found(store: Store, begin: Callable[[Claim], Any]) -> None:
    """`begin` completes the job on a connection of its own, and returns how to commit that."""
    claimed = await start_one(store, now=datetime.now(UTC), id=_id_of_now())
    before: JobChanges = await store.events.changes_since(None, 100)
    commit = await begin(claimed)
    while_open = await store.events.changes_since(before.until, 100)

    await commit()

    seen = {*before.changes, *while_open.changes}
    assert await store.queries.outcomes([claimed.job_id]) != []
    after = await store.events.changes_since(while_open.until, 100)
    assert claimed.job_id in {change.job_id for change in set(after.changes) - seen}


def _job_of(seconds: float, **more: Any) -> NewJob:
    """A job whose id was made then."""
    job = new_job()
    return new_job(id=from_parts(int(at(seconds).timestamp() * 1000), job.id.bytes[6:]), **more)


def _id_of_now() -> UUID:
    return from_parts(int(datetime.now(UTC).timestamp() * 1000), new_id().bytes[6:])
