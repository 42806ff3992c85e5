"""Within a queue level, the job that became due first is claimed first, however and whenever it became ready."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import Unique
from dutiful.core.outcome import Failed, Released, Snoozed
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.control import PauseScope
from dutiful.worker.lanes.fetcher import FetchCursors
from suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    enqueue_one,
    new_job,
    pause,
    settle,
    start_one,
)


async def claimed_order(
    store: Store, now: datetime, *levels: tuple[str, int], tenants: Sequence[str] = ()
) -> list[UUID]:
    """All jobs, one claim after the other, each beyond the last: as a worker does that drains a backlog."""
    order: list[UUID] = []
    beyond = {level: QueueLevel(*level) for level in levels or [("default", 100)]}
    while claims := await claim(
        store, levels=[*beyond.values()], kinds=[KIND, "other"], limit=2, suspects=0, now=now, tenants=tenants
    ):
        order += [claimed.job_id for claimed in claims]
        for one in claims:
            beyond[one.queue, one.priority] = QueueLevel(one.queue, one.priority, one.seq - 1, one.job_id)
    return order


class ClaimOrderSuite:
    @pytest.mark.req("W21", "W69")
    async def test_jobs_are_claimed_in_the_order_in_which_they_became_due(self, store: Store) -> None:
        """Scheduled ones are promoted late and beside new ones; one has a time that was over when it was enqueued."""
        third = await enqueue_one(store, run_at=at(30))
        first = await enqueue_one(store, run_at=at(10))
        fifth = await enqueue_one(store, run_at=at(50), tenant="acme")
        second = await enqueue_one(store, now=at(20))
        fourth = await enqueue_one(store, now=at(40), tenant="acme")
        sixth = await enqueue_one(store, now=at(60))
        before = await enqueue_one(store, run_at=at(5), now=at(61))

        for _ in range(3):
            await store.promotion.promote(1, now=at(70))

        assert await claimed_order(store, at(80)) == [before, first, second, third, fourth, fifth, sixth]

    @pytest.mark.req("W21", "W69")
    async def test_a_better_priority_comes_first_however_late_it_became_due(self, store: Store) -> None:
        due = {
            (priority, seconds): await enqueue_one(store, priority=priority, run_at=at(seconds))
            for seconds in (30, 10, 20)
            for priority in (2, 1)
        }
        await store.promotion.promote(4, now=at(31))
        await store.promotion.promote(4, now=at(32))

        order = await claimed_order(store, at(33), ("default", 1), ("default", 2))

        assert order == [due[priority, seconds] for priority in (1, 2) for seconds in (10, 20, 30)]

    @pytest.mark.req("W69")
    async def test_jobs_that_became_due_together_are_claimed_in_the_order_of_their_arrival(self, store: Store) -> None:
        jobs = [new_job(run_at=at(10)) for _ in range(7)]
        for job in jobs:
            await enqueue(store, job)
        for _ in range(4):
            await store.promotion.promote(2, now=at(11))

        assert await claimed_order(store, at(12)) == [job.id for job in jobs]

    @pytest.mark.req("W69")
    @pytest.mark.parametrize("tenants", [(), ("acme", "globex")], ids=["of all", "of tenants"])
    async def test_many_jobs_with_one_time_are_claimed_in_the_order_of_their_arrival(
        self, store: Store, tenants: Sequence[str]
    ) -> None:
        jobs = [new_job(run_at=at(10), tenant=["acme", "globex"][n % 3 // 2]) for n in range(30)]
        await enqueue(store, *jobs, now=at(20))
        last = await enqueue_one(store, tenant="acme", now=at(20))

        assert await claimed_order(store, at(30), tenants=tenants) == [*(job.id for job in jobs), last]

    @pytest.mark.req("W69")
    @pytest.mark.parametrize("tenants", [(), ("acme",)], ids=["of all", "of a tenant"])
    async def test_a_job_with_the_same_time_that_is_inserted_late_is_found_after_a_peek(
        self, store: Store, tenants: Sequence[str]
    ) -> None:
        late, *jobs = [new_job(run_at=at(10), tenant="acme") for _ in range(4)]
        await enqueue(store, *jobs, now=at(20))
        cursors = FetchCursors()
        asked: dict[str, Any] = {"tenants": tenants, "suspects": 0, "now": at(30)}
        cursors.lower(await store.claims.peek([KIND]), 0.0)
        cursors.advance(await claim(store, levels=cursors.levels(("*",)), **asked), time.monotonic())
        await enqueue(store, late, now=at(21))

        cursors.lower(await store.claims.peek([KIND]), 0.0)
        found = await claim(store, levels=cursors.levels(("*",)), **asked)

        assert [one.job_id for one in found] == [late.id]

    async def test_what_became_due_lately_is_searched_also_before_the_last_job_claimed(self, store: Store) -> None:
        late, first = [new_job(run_at=at(10)) for _ in range(2)]
        await enqueue(store, first, now=at(10))
        claimed = await claim_one(store, now=at(10.1))
        await enqueue(store, late, now=at(10.1))

        beyond = QueueLevel("default", 100, claimed.seq - 1, claimed.job_id)
        assert [one.job_id for one in await claim(store, levels=[beyond], now=at(10.2))] == [late.id]

    async def test_jobs_of_one_insert_keep_its_order_and_a_later_one_comes_behind_them(self, store: Store) -> None:
        batch = [new_job() for _ in range(100)]
        await enqueue(store, *batch)
        last = await enqueue_one(store, now=at(0.001))

        assert await claimed_order(store, at(1)) == [*(job.id for job in batch), last]

    @pytest.mark.req("W21", "W69")
    @pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
    async def test_jobs_of_one_insert_have_their_places_by_their_times(self, store: Store, keyed: bool) -> None:
        between = await enqueue_one(store, now=at(2))
        seconds = [9, 1, None, 5, 3]
        batch = [
            new_job(run_at=None if n is None else at(n), unique=Unique(str(n)) if keyed else None) for n in seconds
        ]
        await enqueue(store, *batch, now=at(7))
        await store.promotion.promote(10, now=at(9))

        due = {n: job.id for n, job in zip(seconds, batch, strict=True)}
        assert await claimed_order(store, at(10)) == [due[1], between, due[3], due[5], due[None], due[9]]

    @pytest.mark.req("W21", "W69")
    @pytest.mark.parametrize("together", [False, True], ids=["one at a time", "in one insert"])
    async def test_a_pause_changes_no_places_of_jobs_with_times(self, store: Store, together: bool) -> None:
        await pause(store, PauseScope.KIND, KIND)
        other = [await enqueue_one(store, kind="other", now=at(seconds)) for seconds in (4, 15, 25)]
        seconds = [30, 3, 20, 10, 5]  # two are over when they are enqueued, three become due during the pause
        jobs = [new_job(run_at=at(n)) for n in seconds]
        for some in [jobs] if together else [[job] for job in jobs]:
            await enqueue(store, *some, now=at(7))
        for now in (at(29), at(40)):
            await store.promotion.promote(10, now=now)
            await store.promotion.sweep(10, now=now)
        await store.control.resume(PauseScope.KIND, KIND)
        await store.promotion.sweep(10, now=at(41))

        due = {n: job.id for n, job in zip(seconds, jobs, strict=True)}
        expected = [due[3], other[0], due[5], due[10], other[1], due[20], other[2], due[30]]
        assert await claimed_order(store, at(42)) == expected

    async def test_a_retried_job_has_its_place_by_the_time_at_which_it_was_due_again(self, store: Store) -> None:
        failed = await start_one(store)
        earlier = await enqueue_one(store, now=at(8))
        later = await enqueue_one(store, now=at(30))
        await settle(store, failed, Snoozed(timedelta(seconds=10)), now=at(10))
        await store.promotion.promote(10, now=at(40))

        assert await claimed_order(store, at(41)) == [earlier, failed.job_id, later]

    @pytest.mark.req("S14", "W69")
    async def test_a_job_whose_worker_died_has_its_old_place(self, store: Store) -> None:
        await enqueue(store, lost := new_job(), second := new_job())
        claimed = await claim_one(store, now=at(1))

        now = await crash(store)

        (queue,) = await store.queries.queues()
        assert queue.oldest_ready_at == T0, "it has been due all along"
        again, other = sorted(await claim(store, suspects=1, now=now), key=lambda claim: claim.seq)
        assert (again.job_id, again.seq, other.job_id) == (lost.id, claimed.seq, second.id)

    async def test_a_released_job_has_its_old_place_and_a_failed_one_a_new_one(self, store: Store) -> None:
        jobs = [await enqueue_one(store, now=at(n)) for n in range(4)]
        released, failed = await claim_one(store, now=at(5)), await claim_one(store, now=at(5))
        await settle(store, failed, Failed(OOPS), now=at(6))
        await settle(store, released, Released(), now=at(7))
        await store.promotion.promote(10, now=at(60))

        assert await claimed_order(store, at(60)) == [jobs[0], jobs[2], jobs[3], jobs[1]]

    async def test_a_dependent_job_became_due_when_its_dependency_ended(self, store: Store) -> None:
        need = await start_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id,), run_at=at(-100))
        earlier, later = [await enqueue_one(store, now=at(seconds)) for seconds in (10, 30)]
        await complete(store, need, now=at(20))
        await store.promotion.sweep(10, now=at(20))

        assert await claimed_order(store, at(41)) == [earlier, dependent, later]

    async def test_a_time_long_before_1970_is_due_first(self, store: Store) -> None:
        now = await enqueue_one(store)
        old = await enqueue_one(store, run_at=datetime(1, 2, 3, tzinfo=at(0).tzinfo))

        assert await claimed_order(store, at(1)) == [old, now]
