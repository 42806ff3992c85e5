"""Finished jobs are marked stale, then deleted, and a notice of each is sent."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import JobRecord
from dutiful.core.outcome import Cancelled, Failed, Partial
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.events import Tombstone
from dutiful.store.queries import JobFilter
from dutiful.store.retention import RetentionNotice, RetentionStep
from dutiful.store.webhooks import PostState
from suite.builders import (
    OOPS,
    PIPELINE,
    T0,
    at,
    claim,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    mark,
    new_job,
    progress,
    report_all,
    start_one,
    state,
    warm,
)
from suite.webhooks import settled, take_one, webhook

DAY, WEEK = timedelta(days=1), timedelta(days=7)
HOUR = timedelta(hours=1)
STALE, OLD = T0 + DAY + HOUR, T0 + WEEK + HOUR  # a day, and a week, after jobs that ended at T0


async def mark_stale(store: Store, *, sent: bool = True, limit: int = 10, now: datetime = STALE) -> list[UUID]:
    return [job.id for job in (await store.retention.mark_stale(DAY, limit, None, sent=sent, now=now)).jobs]


async def remove(store: Store, *, limit: int = 10, now: datetime = OLD, **fields: Any) -> list[UUID]:
    arguments = {"stale_only": True, "sent": True} | fields
    return [
        job.id for job in (await store.retention.delete(WEEK, limit, None, **arguments, now=now, tombstones=True)).jobs
    ]


async def finish(store: Store, count: int) -> list[UUID]:
    await enqueue(store, *(jobs := [new_job() for _ in range(count)]))
    assert await complete(store, *await claim(store, limit=count)) == []
    return [job.id for job in jobs]


async def record(store: Store, job_id: UUID) -> JobRecord:
    found = await store.queries.job(job_id)
    assert found is not None
    return found


async def tombstones(store: Store, since: datetime) -> list[Tombstone]:
    return (await store.events.changes_since(since, 100)).tombstones


class RetentionStaleSuite:
    @pytest.mark.req("J70")
    async def test_a_job_that_ended_long_ago_becomes_stale(self, store: Store) -> None:
        ends = [None, Failed(OOPS, final=True), Cancelled("no use"), Partial(None, (OOPS,))]
        old = [await finish_one(store, end) for end in ends]
        waiting = await enqueue_one(store)
        await store.control.cancel(waiting, "no use", now=T0)

        assert sorted(await mark_stale(store)) == sorted([*old, waiting])

        assert [(await record(store, job_id)).stale_at for job_id in [*old, waiting]] == [STALE] * 5
        assert [job.stale_at for job in await store.queries.outcomes(old)] == [STALE] * 4
        assert await state(store, old[0]) is State.COMPLETED

    async def test_marking_a_job_stale_returns_it_as_it_is_then(self, store: Store) -> None:
        job_id = await finish_one(store, Partial('{"n": 1}', (OOPS,)), payload='{"a": 1}', tenant="acme")

        (job,) = (await store.retention.mark_stale(DAY, 10, None, sent=False, now=STALE)).jobs

        assert job == await store.queries.job(job_id)
        assert (job.payload, job.result, job.stale_at) == ({"a": 1}, {"n": 1}, STALE)

    async def test_a_job_that_is_young_or_alive_does_not_become_stale(self, store: Store) -> None:
        running, ready = await start_one(store), await enqueue_one(store, run_at=at(60))
        young = await finish_one(store, now=STALE - HOUR)

        assert await mark_stale(store) == []

        for job_id in (running.job_id, ready, young):
            assert (await record(store, job_id)).stale_at is None
        assert await complete(store, running, now=STALE) == []

    async def test_a_job_becomes_stale_once(self, store: Store) -> None:
        job_id = await finish_one(store)
        await mark_stale(store)

        assert await mark_stale(store, sent=False, now=STALE + HOUR) == []

        assert (await record(store, job_id)).stale_at == STALE
        assert await store.retention.unsent(10) == []

    async def test_concurrent_steps_mark_each_job_once(self, store: Store) -> None:
        await warm(store)
        jobs = await finish(store, 100)

        answers = await asyncio.gather(*(mark_stale(store, limit=100) for _ in range(8)))

        assert sorted(job_id for answer in answers for job_id in answer) == sorted(jobs)

    async def test_steps_that_follow_the_cursor_mark_every_old_job(self, store: Store) -> None:
        old = []
        for _ in range(3):
            old.append(await finish_one(store))
            await enqueue_one(store, queue="slow")
            await finish_one(store, now=STALE)
        marked: list[UUID] = []
        step = RetentionStep(0, [], None)
        for _ in range(50):
            step = await store.retention.mark_stale(DAY, 1, step.cursor, sent=True, now=STALE)
            assert len(step.jobs) <= 1
            marked += [job.id for job in step.jobs]
            if step.cursor is None:
                break

        assert step.cursor is None
        assert marked == old

    async def test_a_stale_job_is_unsent_until_its_notice_was_sent(self, store: Store) -> None:
        first, second = await finish_one(store), await finish_one(store, now=at(HOUR.total_seconds() * 2))
        await mark_stale(store, sent=False)
        await mark_stale(store, sent=False, now=STALE + 2 * HOUR)

        assert await store.retention.unsent(10) == [
            RetentionNotice(await record(store, job_id), deleted=False) for job_id in (first, second)
        ]
        assert [notice.job.id for notice in await store.retention.unsent(1)] == [first]
        await store.retention.mark_sent([first], [], now=STALE + 3 * HOUR)
        assert [notice.job.id for notice in await store.retention.unsent(10)] == [second]


class RetentionAnnouncedSuite:
    @pytest.mark.req("J73", "J76")
    async def test_only_what_is_stale_is_deleted(self, store: Store) -> None:
        stale, fresh = await finish_one(store), await finish_one(store, now=at(2 * HOUR.total_seconds()))
        await mark_stale(store)

        assert await remove(store, now=OLD + DAY) == [stale]

        assert await store.queries.job(stale) is None
        assert await state(store, fresh) is State.COMPLETED
        assert await store.queries.check_places() == []

    @pytest.mark.req("J73")
    async def test_what_is_stale_is_kept_until_it_is_old_enough(self, store: Store) -> None:
        job_id = await finish_one(store)
        await mark_stale(store)

        assert await remove(store, now=OLD - 2 * HOUR) == []
        assert (await store.retention.delete(WEEK, 10, None, stale_only=True, now=OLD - 2 * HOUR)).count == 0
        assert await remove(store) == [job_id]

    @pytest.mark.req("J76")
    async def test_a_stale_job_is_deleted_only_after_its_notice_was_sent(self, store: Store) -> None:
        job_id = await finish_one(store)
        await mark_stale(store, sent=False)

        assert await remove(store) == []
        assert (await store.retention.delete(WEEK, 10, None, stale_only=True, now=OLD)).count == 0
        await store.retention.mark_sent([job_id], [], now=OLD)
        assert await remove(store) == [job_id]

    async def test_all_that_is_old_is_deleted_where_nothing_becomes_stale(self, store: Store) -> None:
        stale, fresh = await finish_one(store), await finish_one(store, now=at(2 * HOUR.total_seconds()))
        await mark_stale(store)

        assert await remove(store, stale_only=False, now=OLD + DAY) == [stale, fresh]
        assert (await store.queries.jobs(JobFilter())).jobs == []

    @pytest.mark.req("J76")
    async def test_retention_without_notices_deletes_only_stale_jobs_too(self, store: Store) -> None:
        stale, fresh = await finish_one(store), await finish_one(store, now=at(2 * HOUR.total_seconds()))
        await mark_stale(store)

        assert (await store.retention.delete(WEEK, 10, None, stale_only=True, now=OLD + DAY)).count == 1

        assert [job.id for job in await store.queries.jobs(JobFilter())] == [fresh]
        assert await store.queries.job(stale) is None
        assert await tombstones(store, T0) == []
        assert await store.queries.check_places() == []
        assert (await store.retention.delete(WEEK, 10, None, now=OLD + DAY)).count == 1

    async def test_a_deleted_job_leaves_only_its_notice(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE, tenant="acme", correlation_id="order-17")
        await report_all(store, mark(claimed, "download"), progress(claimed, percent=1.0))
        await complete(store, claimed, result='{"n": 1}')
        await mark_stale(store)
        before = await record(store, claimed.job_id)

        (job,) = (
            await store.retention.delete(WEEK, 10, None, stale_only=True, sent=False, now=OLD, tombstones=True)
        ).jobs

        assert job == before
        assert await store.queries.job(claimed.job_id) is None
        assert await store.progress.phases(claimed.job_id) == []
        assert await store.events.views([claimed.job_id]) == []
        assert await store.retention.unsent(10) == [RetentionNotice(before, deleted=True)]
        assert await store.queries.check_places() == []

    async def test_a_deletion_is_an_event_once_its_notice_was_sent(self, store: Store) -> None:
        job_id = await finish_one(store, kind="part", queue="slow", tenant="acme", correlation_id="order-17")
        alive = await enqueue_one(store)
        await remove(store, stale_only=False, sent=False)
        assert await tombstones(store, T0) == await store.events.tombstones([job_id]) == []

        await store.retention.mark_sent([], [job_id], now=OLD + HOUR)

        assert await store.retention.unsent(10) == []
        expected = Tombstone(
            job_id=job_id,
            kind="part",
            queue="slow",
            tenant="acme",
            correlation_id="order-17",
            deleted_at=OLD,
            sent_at=OLD + HOUR,
        )
        assert await tombstones(store, OLD + HOUR - timedelta(seconds=1)) == [expected]
        assert await store.events.tombstones([alive, job_id]) == [expected]
        assert await tombstones(store, OLD + 2 * HOUR) == []

    async def test_a_deletion_without_notice_is_an_event_at_once(self, store: Store) -> None:
        job_id = await finish_one(store)
        await remove(store, stale_only=False, sent=True)

        (tombstone,) = await tombstones(store, OLD - timedelta(seconds=1))

        assert (tombstone.job_id, tombstone.correlation_id) == (job_id, str(job_id))
        assert tombstone.deleted_at == tombstone.sent_at == OLD
        assert await store.retention.unsent(10) == []

    async def test_notices_of_stale_jobs_come_before_those_of_deleted_ones(self, store: Store) -> None:
        deleted = await finish_one(store)
        await remove(store, stale_only=False, sent=False)
        stale = await finish_one(store, now=OLD - DAY - HOUR)
        await mark_stale(store, sent=False, now=OLD + HOUR)

        assert [(notice.job.id, notice.deleted) for notice in await store.retention.unsent(10)] == [
            (stale, False), (deleted, True)
        ]  # fmt: skip
        assert [notice.deleted for notice in await store.retention.unsent(1)] == [False]
        await store.retention.mark_sent([stale], [deleted], now=OLD + HOUR)
        assert await store.retention.unsent(10) == []

    async def test_concurrent_steps_delete_each_job_once(self, store: Store) -> None:
        await warm(store)
        jobs = await finish(store, 100)

        answers = await asyncio.gather(*(remove(store, limit=100, stale_only=False, sent=False) for _ in range(8)))

        assert sorted(job_id for answer in answers for job_id in answer) == sorted(jobs)
        assert sorted(notice.job.id for notice in await store.retention.unsent(100)) == sorted(jobs)

    async def test_a_job_is_kept_while_another_depends_on_it(self, store: Store) -> None:
        need, other = await finish_one(store), await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need, other.job_id))

        assert await remove(store, stale_only=False) == []

        await complete(store, other, now=OLD)
        await store.promotion.sweep(10, now=OLD)
        assert await state(store, dependent) is State.READY

    async def test_a_dead_letter_outlives_its_job(self, store: Store) -> None:
        job_id = await finish_one(store, Failed(OOPS, final=True))

        assert await remove(store, stale_only=False) == [job_id]

        assert (await store.queries.stats(HOUR, now=OLD)).dead_letters == 1

    async def test_steps_that_follow_the_cursor_delete_every_old_job(self, store: Store) -> None:
        old = []
        for _ in range(3):
            old.append(await finish_one(store))
            await enqueue_one(store, queue="slow")
            await finish_one(store, now=OLD)
        removed: list[UUID] = []
        step = RetentionStep(0, [], None)
        for _ in range(50):
            step = await store.retention.delete(WEEK, 1, step.cursor, sent=True, now=OLD, tombstones=True)
            assert len(step.jobs) <= 1
            removed += [job.id for job in step.jobs]
            if step.cursor is None:
                break

        assert step.cursor is None
        assert removed == old

    async def test_posts_that_ended_long_ago_are_deleted_and_those_that_wait_are_not(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await finish_one(store)
        assert await settled(store, await take_one(store))
        recent = await finish_one(store, now=OLD - HOUR)
        assert await settled(store, await take_one(store, now=OLD - HOUR), PostState.FAILED, now=OLD - HOUR)
        waiting = await finish_one(store, now=at(1))

        await store.retention.delete_leftovers(WEEK, 10, now=OLD)

        assert {post.job_id for post in await store.webhooks.posts()} == {recent, waiting}

    async def test_leftovers_are_deleted_in_steps_and_jobs_are_not(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        jobs = []
        for _ in range(2):
            jobs.append(await finish_one(store))
            assert await settled(store, await take_one(store))

        assert await store.retention.delete_leftovers(WEEK, 1, now=OLD), "there is one more"
        assert len(await store.webhooks.posts()) == 1
        assert not await store.retention.delete_leftovers(WEEK, 10, now=OLD)

        assert await store.webhooks.posts() == []
        assert [await state(store, job_id) for job_id in jobs] == [State.COMPLETED] * 2

    async def test_a_tombstone_is_kept_for_an_hour_after_its_notice_was_sent(self, store: Store) -> None:
        sent, unsent = await finish_one(store), await finish_one(store)
        await remove(store, stale_only=False, sent=False)
        await store.retention.mark_sent([], [sent], now=OLD)

        await store.retention.delete_leftovers(WEEK, 10, now=OLD + HOUR - timedelta(seconds=1))
        assert [tombstone.job_id for tombstone in await tombstones(store, T0)] == [sent]
        await store.retention.delete_leftovers(WEEK, 10, now=OLD + HOUR + timedelta(seconds=1))

        assert await tombstones(store, T0) == []
        assert [notice.job.id for notice in await store.retention.unsent(10)] == [unsent]
