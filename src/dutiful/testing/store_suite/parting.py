"""How finished jobs part: stale first, then deleted, and whoever has to be told is told of each."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import JobRecord
from dutiful.core.outcome import Cancelled, Failed, Partial
from dutiful.core.transitions import State
from dutiful.duties import Parted, Tidings
from dutiful.outbox import PostState
from dutiful.reading import JobFilter
from dutiful.store import Store
from dutiful.testing.store_suite.builders import (
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
    start_one,
    state,
    track,
    warm,
)
from dutiful.testing.store_suite.outbox import settled, take_one, webhook
from dutiful.watching import Tombstone

DAY, WEEK = timedelta(days=1), timedelta(days=7)
HOUR = timedelta(hours=1)
STALE, OLD = T0 + DAY + HOUR, T0 + WEEK + HOUR  # when what ended at T0 has been so for a day, for a week


async def mark_stale(store: Store, *, told: bool = True, limit: int = 10, now: datetime = STALE) -> list[UUID]:
    return [job.id for job in (await store.mark_stale(DAY, limit, None, told=told, now=now)).jobs]


async def remove(store: Store, *, limit: int = 10, now: datetime = OLD, **fields: Any) -> list[UUID]:
    arguments = {"stale_only": True, "told": True} | fields
    return [job.id for job in (await store.remove(WEEK, limit, None, **arguments, now=now)).jobs]


async def finish(store: Store, count: int) -> list[UUID]:
    await enqueue(store, *(jobs := [new_job() for _ in range(count)]))
    assert await complete(store, *await claim(store, limit=count)) == []
    return [job.id for job in jobs]


async def record(store: Store, job_id: UUID) -> JobRecord:
    found = await store.find(job_id)
    assert found is not None
    return found


async def tombstones(store: Store, since: datetime) -> list[Tombstone]:
    return (await store.stirred(since, 100)).tombstones


class StaleSuite:
    @pytest.mark.req("J70")
    async def test_a_job_that_has_been_over_for_long_becomes_stale(self, store: Store) -> None:
        ends = [None, Failed(OOPS, final=True), Cancelled("no use"), Partial(None, (OOPS,))]
        old = [await finish_one(store, end) for end in ends]
        waiting = await enqueue_one(store)
        await store.cancel(waiting, "no use", now=T0)

        assert sorted(await mark_stale(store)) == sorted([*old, waiting])

        assert [(await record(store, job_id)).stale_at for job_id in [*old, waiting]] == [STALE] * 5
        assert [job.stale_at for job in await store.outcomes(old)] == [STALE] * 4
        assert await state(store, old[0]) is State.COMPLETED

    async def test_who_marks_a_job_gets_it_as_it_is_then(self, store: Store) -> None:
        job_id = await finish_one(store, Partial('{"n": 1}', (OOPS,)), payload='{"a": 1}', tenant="acme")

        (parted,) = (await store.mark_stale(DAY, 10, None, told=False, now=STALE)).jobs

        assert parted == await store.find(job_id)
        assert (parted.payload, parted.result, parted.stale_at) == ({"a": 1}, {"n": 1}, STALE)

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

        assert await mark_stale(store, told=False, now=STALE + HOUR) == []

        assert (await record(store, job_id)).stale_at == STALE
        assert await store.untold(10) == []

    async def test_each_job_is_marked_by_one_of_many(self, store: Store) -> None:
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
        parted = Parted([], None)
        for _ in range(50):
            parted = await store.mark_stale(DAY, 1, parted.cursor, told=True, now=STALE)
            assert len(parted.jobs) <= 1
            marked += [job.id for job in parted.jobs]
            if parted.cursor is None:
                break

        assert parted.cursor is None
        assert marked == old

    async def test_a_stale_job_is_untold_until_somebody_has_been_told(self, store: Store) -> None:
        first, second = await finish_one(store), await finish_one(store, now=at(HOUR.total_seconds() * 2))
        await mark_stale(store, told=False)
        await mark_stale(store, told=False, now=STALE + 2 * HOUR)

        assert await store.untold(10) == [
            Tidings(await record(store, job_id), deleted=False) for job_id in (first, second)
        ]
        assert [tidings.job.id for tidings in await store.untold(1)] == [first]
        await store.tell([first], [], now=STALE + 3 * HOUR)
        assert [tidings.job.id for tidings in await store.untold(10)] == [second]


class RemovalSuite:
    @pytest.mark.req("J73", "J76")
    async def test_only_what_is_stale_is_deleted(self, store: Store) -> None:
        stale, fresh = await finish_one(store), await finish_one(store, now=at(2 * HOUR.total_seconds()))
        await mark_stale(store)

        assert await remove(store, now=OLD + DAY) == [stale]

        assert await store.find(stale) is None
        assert await state(store, fresh) is State.COMPLETED
        assert await store.check_places() == []

    @pytest.mark.req("J73")
    async def test_what_is_stale_is_kept_until_it_is_old_enough(self, store: Store) -> None:
        job_id = await finish_one(store)
        await mark_stale(store)

        assert await remove(store, now=OLD - 2 * HOUR) == []
        assert (await store.retain(WEEK, 10, None, stale_only=True, now=OLD - 2 * HOUR)).deleted == 0
        assert await remove(store) == [job_id]

    @pytest.mark.req("J76")
    async def test_what_is_stale_is_deleted_only_once_it_has_been_told(self, store: Store) -> None:
        job_id = await finish_one(store)
        await mark_stale(store, told=False)

        assert await remove(store) == []
        assert (await store.retain(WEEK, 10, None, stale_only=True, now=OLD)).deleted == 0
        await store.tell([job_id], [], now=OLD)
        assert await remove(store) == [job_id]

    async def test_all_that_is_old_is_deleted_where_nothing_becomes_stale(self, store: Store) -> None:
        stale, fresh = await finish_one(store), await finish_one(store, now=at(2 * HOUR.total_seconds()))
        await mark_stale(store)

        assert await remove(store, stale_only=False, now=OLD + DAY) == [stale, fresh]
        assert (await store.jobs(JobFilter())).jobs == []

    @pytest.mark.req("J76")
    async def test_retention_without_tidings_deletes_only_what_is_stale_too(self, store: Store) -> None:
        stale, fresh = await finish_one(store), await finish_one(store, now=at(2 * HOUR.total_seconds()))
        await mark_stale(store)

        assert (await store.retain(WEEK, 10, None, stale_only=True, now=OLD + DAY)).deleted == 1

        assert [job.id for job in await store.jobs(JobFilter())] == [fresh]
        assert await store.find(stale) is None
        assert await tombstones(store, T0) == []
        assert await store.check_places() == []
        assert (await store.retain(WEEK, 10, None, now=OLD + DAY)).deleted == 1

    async def test_a_deleted_job_leaves_nothing_but_what_is_told_of_it(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE, tenant="acme", correlation_id="order-17")
        await track(store, mark(claimed, "download"), progress(claimed, percent=1.0))
        await complete(store, claimed, result='{"n": 1}')
        await mark_stale(store)
        before = await record(store, claimed.job_id)

        (parted,) = (await store.remove(WEEK, 10, None, stale_only=True, told=False, now=OLD)).jobs

        assert parted == before
        assert await store.find(claimed.job_id) is None
        assert await store.phases(claimed.job_id) == []
        assert await store.views([claimed.job_id]) == []
        assert await store.untold(10) == [Tidings(before, deleted=True)]
        assert await store.check_places() == []

    async def test_a_deletion_is_news_once_somebody_has_been_told(self, store: Store) -> None:
        job_id = await finish_one(store, kind="part", queue="slow", tenant="acme", correlation_id="order-17")
        alive = await enqueue_one(store)
        await remove(store, stale_only=False, told=False)
        assert await tombstones(store, T0) == await store.tombstones([job_id]) == []

        await store.tell([], [job_id], now=OLD + HOUR)

        assert await store.untold(10) == []
        told = Tombstone(
            job_id=job_id,
            kind="part",
            queue="slow",
            tenant="acme",
            correlation_id="order-17",
            deleted_at=OLD,
            told_at=OLD + HOUR,
        )
        assert await tombstones(store, OLD + HOUR - timedelta(seconds=1)) == [told]
        assert await store.tombstones([alive, job_id]) == [told]
        assert await tombstones(store, OLD + 2 * HOUR) == []

    async def test_a_deletion_that_nobody_has_to_be_told_of_is_news_at_once(self, store: Store) -> None:
        job_id = await finish_one(store)
        await remove(store, stale_only=False, told=True)

        (tombstone,) = await tombstones(store, OLD - timedelta(seconds=1))

        assert (tombstone.job_id, tombstone.correlation_id) == (job_id, str(job_id))
        assert tombstone.deleted_at == tombstone.told_at == OLD
        assert await store.untold(10) == []

    async def test_what_became_stale_is_told_before_what_was_deleted(self, store: Store) -> None:
        deleted = await finish_one(store)
        await remove(store, stale_only=False, told=False)
        stale = await finish_one(store, now=OLD - DAY - HOUR)
        await mark_stale(store, told=False, now=OLD + HOUR)

        assert [(tidings.job.id, tidings.deleted) for tidings in await store.untold(10)] == [
            (stale, False), (deleted, True)
        ]  # fmt: skip
        assert [tidings.deleted for tidings in await store.untold(1)] == [False]
        await store.tell([stale], [deleted], now=OLD + HOUR)
        assert await store.untold(10) == []

    async def test_each_job_is_deleted_by_one_of_many(self, store: Store) -> None:
        await warm(store)
        jobs = await finish(store, 100)

        answers = await asyncio.gather(*(remove(store, limit=100, stale_only=False, told=False) for _ in range(8)))

        assert sorted(job_id for answer in answers for job_id in answer) == sorted(jobs)
        assert sorted(tidings.job.id for tidings in await store.untold(100)) == sorted(jobs)

    async def test_a_job_is_kept_while_another_depends_on_it(self, store: Store) -> None:
        need, other = await finish_one(store), await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need, other.job_id))

        assert await remove(store, stale_only=False) == []

        await complete(store, other, now=OLD)
        await store.sweep(10, now=OLD)
        assert await state(store, dependent) is State.READY

    async def test_a_dead_letter_outlives_its_job(self, store: Store) -> None:
        job_id = await finish_one(store, Failed(OOPS, final=True))

        assert await remove(store, stale_only=False) == [job_id]

        assert (await store.stats(HOUR, now=OLD)).dead_letters == 1

    async def test_steps_that_follow_the_cursor_delete_every_old_job(self, store: Store) -> None:
        old = []
        for _ in range(3):
            old.append(await finish_one(store))
            await enqueue_one(store, queue="slow")
            await finish_one(store, now=OLD)
        removed: list[UUID] = []
        parted = Parted([], None)
        for _ in range(50):
            parted = await store.remove(WEEK, 1, parted.cursor, stale_only=False, told=True, now=OLD)
            assert len(parted.jobs) <= 1
            removed += [job.id for job in parted.jobs]
            if parted.cursor is None:
                break

        assert parted.cursor is None
        assert removed == old

    async def test_posts_that_ended_long_ago_are_deleted_and_those_that_wait_are_not(self, store: Store) -> None:
        await store.put_webhooks([webhook()])
        await finish_one(store)
        assert await settled(store, await take_one(store))
        recent = await finish_one(store, now=OLD - HOUR)
        assert await settled(store, await take_one(store, now=OLD - HOUR), PostState.FAILED, now=OLD - HOUR)
        waiting = await finish_one(store, now=at(1))

        await store.retain(WEEK, 10, None, now=OLD)

        assert {post.job_id for post in await store.posts()} == {recent, waiting}

    async def test_to_tidy_deletes_what_belongs_to_no_job_step_by_step_and_no_job(self, store: Store) -> None:
        await store.put_webhooks([webhook()])
        jobs = []
        for _ in range(2):
            jobs.append(await finish_one(store))
            assert await settled(store, await take_one(store))

        assert await store.tidy(WEEK, 1, now=OLD), "there is one more"
        assert len(await store.posts()) == 1
        assert not await store.tidy(WEEK, 10, now=OLD)

        assert await store.posts() == []
        assert [await state(store, job_id) for job_id in jobs] == [State.COMPLETED] * 2

    async def test_a_tombstone_stands_for_an_hour_after_it_was_told(self, store: Store) -> None:
        told, untold = await finish_one(store), await finish_one(store)
        await remove(store, stale_only=False, told=False)
        await store.tell([], [told], now=OLD)

        await store.retain(WEEK, 10, None, now=OLD + HOUR - timedelta(seconds=1))
        assert [tombstone.job_id for tombstone in await tombstones(store, T0)] == [told]
        await store.retain(WEEK, 10, None, now=OLD + HOUR + timedelta(seconds=1))

        assert await tombstones(store, T0) == []
        assert [tidings.job.id for tidings in await store.untold(10)] == [untold]
