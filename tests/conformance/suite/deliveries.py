"""Jobs that a broker delivers by their ids: what was sent, what has to be sent, and claims of delivered jobs."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import Claim, OnConflict, Scope, Unique
from dutiful.core.outcome import Failed, Released
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import JobClaimRequest
from dutiful.store.control import EVERY_LANE, PauseScope
from dutiful.store.deliveries import Delivered, WaitingJob
from suite.builders import (
    ADA,
    BACKOFF,
    KIND,
    LEASE,
    OOPS,
    T0,
    at,
    claim,
    complete,
    crash,
    enqueue_one,
    finish_one,
    new_id,
    pause,
    settle,
    start_one,
    state,
)


async def claim_jobs(store: Store, *job_ids: UUID, now: datetime = T0, **fields: Any) -> list[Claim]:
    ask: dict[str, Any] = {"worker_id": ADA, "lane": "general", "kinds": [KIND], "lease": LEASE, "suspects": 100}
    return await store.claims.claim_jobs(JobClaimRequest(job_ids=job_ids, **ask | fields), now=now)


async def claimed_ids(store: Store, *job_ids: UUID, **fields: Any) -> list[UUID]:
    return [claimed.job_id for claimed in await claim_jobs(store, *job_ids, **fields)]


async def deliver(store: Store, job_id: UUID, number: int = 1, attempt: int = 0, *, now: datetime = T0) -> None:
    await store.deliveries.record([Delivered(job_id, f"{job_id}:{number}", number, attempt)], now=now)


async def waiting(store: Store) -> list[WaitingJob]:
    return await store.deliveries.waiting(None, 100)


async def outstanding(store: Store) -> list[UUID]:
    return [job.job_id for job in await waiting(store) if job.outstanding]


@pytest.mark.req("D34")
class DeliverySuite:
    async def test_a_job_has_the_id_of_its_last_delivery(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        never = await enqueue_one(store)
        await deliver(store, job_id, 1, now=at(1))
        await deliver(store, job_id, 2, now=at(2))
        await deliver(store, job_id, 1, now=at(3))

        record, other = await store.queries.job(job_id), await store.queries.job(never)

        assert record is not None
        assert other is not None
        assert (record.backend_job_id, other.backend_job_id) == (f"{job_id}:2", None)
        assert [(job.number, job.delivered_at) for job in await waiting(store)] == [(2, at(2)), (0, None)]

    async def test_a_delivery_whose_number_is_not_the_next_changes_nothing(self, store: Store) -> None:
        job_id, never = await enqueue_one(store), await enqueue_one(store)
        await deliver(store, job_id)
        for number in (-1, 0, 3, 2**31 - 1):
            await deliver(store, job_id, number, now=at(1))
        await deliver(store, never, 2)

        assert [(job.number, job.delivered_at) for job in await waiting(store)] == [(1, T0), (0, None)]

    async def test_ready_jobs_are_read_page_by_page_and_no_others(self, store: Store) -> None:
        late = await enqueue_one(store, priority=200)
        elsewhere = await enqueue_one(store, queue="elsewhere")
        first, second = [await enqueue_one(store, now=at(n)) for n in range(2)]
        await enqueue_one(store, run_at=at(60))
        await start_one(store, priority=1)

        pages, after = list[list[UUID]](), None
        while page := await store.deliveries.waiting(after, 2):
            pages.append([job.job_id for job in page])
            after = page[-1].cursor

        assert pages == [[first, second], [late, elsewhere]]
        assert [(job.kind, job.queue, job.priority) for job in (await waiting(store))[-2:]] == [
            (KIND, "default", 200),
            (KIND, "elsewhere", 100),
        ]

    async def test_a_delivery_is_outstanding_until_it_is_taken(self, store: Store) -> None:
        job_id, other = await enqueue_one(store), await enqueue_one(store)
        await deliver(store, job_id)
        await deliver(store, other)

        await store.deliveries.take([(job_id, f"{job_id}:1"), (other, "another message")])

        assert await outstanding(store) == [other]
        assert [await store.deliveries.find(one) for one in (job_id, other)] == await waiting(store)
        assert await store.deliveries.find(new_id()) is None

    async def test_the_same_delivery_sent_again_stays_taken_and_a_new_one_is_outstanding(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await deliver(store, job_id)
        await store.deliveries.take([(job_id, f"{job_id}:1")])

        await deliver(store, job_id, now=at(1))
        assert await outstanding(store) == []

        await deliver(store, job_id, 2, now=at(2))
        assert await outstanding(store) == [job_id]

    async def test_a_retry_has_to_be_delivered_again(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await deliver(store, job_id)
        (claimed,) = await claim(store)
        await settle(store, claimed, Failed(OOPS), now=at(1))
        later = at(2) + BACKOFF
        await store.promotion.promote(10, now=later)

        assert [(job.job_id, job.attempt, job.outstanding) for job in await waiting(store)] == [(job_id, 1, False)]

        await deliver(store, job_id, 2, attempt=1)
        assert await outstanding(store) == [job_id]

    async def test_a_released_job_has_to_be_delivered_again(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await deliver(store, job_id)
        (claimed,) = await claim_jobs(store, job_id)

        await settle(store, claimed, Released(), now=at(1))

        assert [(job.job_id, job.outstanding) for job in await waiting(store)] == [(job_id, False)]

    async def test_a_delivery_of_no_job_is_not_recorded(self, store: Store) -> None:
        await deliver(store, new_id())
        await store.deliveries.record([])
        await store.deliveries.take([])

        assert await store.queries.check_places() == []

    async def test_deliveries_are_deleted_with_their_jobs(self, store: Store) -> None:
        job_id = await finish_one(store)
        await deliver(store, job_id)

        await store.retention.delete(LEASE, 10, None, now=at(60))

        assert await store.queries.job(job_id) is None
        assert await store.queries.check_places() == []


@pytest.mark.req("D34", "D35")
class JobClaimSuite:
    async def test_delivered_jobs_are_claimed_in_the_order_of_their_delivery(self, store: Store) -> None:
        jobs = [await enqueue_one(store, payload=f'{{"n": {n}}}', queue=queue) for n, queue in enumerate("abc")]

        claims = await claim_jobs(store, jobs[2], jobs[0], now=at(1))

        assert [one.job_id for one in claims] == [jobs[2], jobs[0]]
        assert [(one.attempt, one.queue) for one in claims] == [(1, "c"), (1, "a")]
        assert [await state(store, job) for job in jobs] == [State.RUNNING, State.READY, State.RUNNING]
        record = await store.queries.job(jobs[0])
        assert record is not None
        assert record.expires_at == at(1) + LEASE
        assert await complete(store, *claims, now=at(2)) == []
        assert await store.queries.check_places() == []

    async def test_the_second_delivery_of_a_job_claims_nothing(self, store: Store) -> None:
        job_id = await enqueue_one(store)

        assert await claimed_ids(store, job_id, job_id) == [job_id]
        assert await claimed_ids(store, job_id) == []

    async def test_only_ready_jobs_are_claimed(self, store: Store) -> None:
        scheduled = await enqueue_one(store, run_at=at(60))
        done = await finish_one(store)

        assert await claimed_ids(store, scheduled, done, new_id()) == []
        assert await claimed_ids(store) == []

    @pytest.mark.parametrize(
        ("scope", "name"),
        [
            (PauseScope.KIND, KIND),
            (PauseScope.QUEUE, "default"),
            (PauseScope.LANE, "general"),
            (PauseScope.LANE, EVERY_LANE),
        ],
    )
    async def test_a_pause_holds_for_delivered_jobs(self, store: Store, scope: PauseScope, name: str) -> None:
        job_id = await enqueue_one(store)
        await deliver(store, job_id)
        await pause(store, scope, name)

        assert await claimed_ids(store, job_id) == []
        assert await state(store, job_id) is State.READY
        assert await outstanding(store) == [job_id]

        await store.control.resume(scope, name)
        assert await claimed_ids(store, job_id) == [job_id]

    async def test_a_worker_claims_only_its_kinds_and_tenants(self, store: Store) -> None:
        acme = await enqueue_one(store, tenant="acme")
        globex = await enqueue_one(store, tenant="globex")
        nobody = await enqueue_one(store)
        other = await enqueue_one(store, kind="other")

        assert await claimed_ids(store, acme, globex, nobody, other, tenants=["acme"]) == [acme]
        assert await claimed_ids(store, globex, nobody, other) == [globex, nobody]

    async def test_a_lane_claims_only_jobs_of_its_queues(self, store: Store) -> None:
        fast, slow = [await enqueue_one(store, queue=queue) for queue in ("fast", "slow")]
        await deliver(store, slow)

        assert await claimed_ids(store, slow, fast, queues=["fast", "faster"]) == [fast]
        assert await outstanding(store) == [slow]
        assert await claimed_ids(store, slow, queues=["slow"]) == [slow]

    async def test_suspects_are_claimed_only_as_many_as_wanted(self, store: Store) -> None:
        suspects = [(await start_one(store)).job_id for _ in range(2)]
        later = await crash(store)
        healthy = await enqueue_one(store)

        assert await claimed_ids(store, *suspects, healthy, now=later, suspects=1) == [suspects[0], healthy]
        assert await claimed_ids(store, *suspects, now=later, suspects=0) == []
        assert await claimed_ids(store, *suspects, now=later) == [suspects[1]]

    async def test_a_job_of_a_queued_key_frees_the_key(self, store: Store) -> None:
        unique = Unique(key="k", scope=Scope.QUEUED, on_conflict=OnConflict.REJECT)
        job_id = await enqueue_one(store, unique=unique)

        assert await claimed_ids(store, job_id) == [job_id]

        await enqueue_one(store, unique=unique)
        assert await store.queries.check_places() == []
