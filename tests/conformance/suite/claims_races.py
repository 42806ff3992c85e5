"""Concurrent calls: in any order, each job has one holder and one end."""

import asyncio
import itertools

import pytest

from dutiful.core.errors import UsageError
from dutiful.core.outcome import Failed, Lost
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from suite.builders import (
    ADA,
    BOB,
    EXPIRED,
    OOPS,
    T0,
    at,
    change,
    claim,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    made,
    new_job,
    outcomes,
    refusal,
    renewing,
    rescue,
    settle,
    start_one,
    state,
    warm,
)


@pytest.mark.req("W23", "W24", "W65")
class ClaimRaceSuite:
    async def test_claims_at_once_never_share_a_job(self, store: Store) -> None:
        await warm(store)
        jobs = [new_job() for _ in range(100)]
        await enqueue(store, *jobs)

        answers = await asyncio.gather(
            *(
                claim(store, limit=10, worker_id=worker)
                for _, worker in zip(range(20), itertools.cycle((ADA, BOB)), strict=False)
            )
        )

        taken = [c.job_id for claims in answers for c in claims]
        assert len(taken) == len(set(taken))
        rest = [c.job_id for c in await claim(store)]
        assert sorted([*taken, *rest]) == sorted(job.id for job in jobs)
        assert await store.queries.check_places() == []

    async def test_one_of_many_gets_the_only_job_and_the_others_nothing(self, store: Store) -> None:
        await warm(store)
        await enqueue_one(store)

        answers = await asyncio.gather(*(claim(store, limit=1) for _ in range(8)))

        assert sorted(len(claims) for claims in answers) == [0] * 7 + [1]

    async def test_jobs_enqueued_while_others_claim_are_all_claimed_once(self, store: Store) -> None:
        await warm(store)
        batches = [[new_job() for _ in range(10)] for _ in range(10)]

        answers = await asyncio.gather(
            *(store.jobs.insert(batch, now=T0) for batch in batches), *(claim(store, limit=7) for _ in range(10))
        )

        taken = [c.job_id for claims in answers[10:] for c in claims]  # type: ignore[attr-defined]
        taken += [c.job_id for c in await claim(store)]
        assert sorted(taken) == sorted(job.id for batch in batches for job in batch)

    @pytest.mark.parametrize("round_", range(5))
    async def test_a_completion_and_a_rescue_at_once_have_one_winner(self, store: Store, round_: int) -> None:
        await warm(store)
        claimed = await start_one(store)
        (expired,) = await store.claims.expired(1, now=at(EXPIRED))

        refused, rescue_refused = await asyncio.gather(
            complete(store, claimed, now=at(EXPIRED)),
            store.claims.settle([change(expired, Lost())], expired_only=True, now=at(EXPIRED)),
        )

        if await state(store, claimed.job_id) is State.COMPLETED:
            assert (refused, len(rescue_refused)) == ([], 1)
        else:
            assert await state(store, claimed.job_id) is State.READY
            assert (refused, rescue_refused) == ([refusal(claimed, RefusalReason.LOST)], [])
        assert await store.queries.check_places() == []

    async def test_a_renewal_and_a_rescue_at_once_agree_on_who_holds_the_claim(self, store: Store) -> None:
        await warm(store)
        async with renewing(store) as renewer:
            for n in range(5):
                claimed = await start_one(store, now=at(n * 100))
                now = at(n * 100 + EXPIRED)

                renewal, _ = await asyncio.gather(renewer.renew(claimed, now=now), rescue(store, now=now))

                if await complete(store, claimed, now=now) == []:
                    assert not renewal.lost
                else:
                    assert (await renewer.renew(claimed, now=now)).lost == {claimed.claim_id}

    async def test_a_completion_sent_twice_at_once_is_applied_once(self, store: Store) -> None:
        await warm(store)
        claimed = await start_one(store)

        answers = await asyncio.gather(complete(store, claimed), complete(store, claimed))

        assert sorted(map(len, answers)) == [0, 1]
        assert refusal(claimed, RefusalReason.REPEATED) in answers[0] + answers[1]

    async def test_rescues_at_once_count_one_crash(self, store: Store) -> None:
        await warm(store)
        claimed = await start_one(store)

        await asyncio.gather(*(rescue(store, now=at(EXPIRED)) for _ in range(4)))

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.crashes) == (State.READY, 1)
        assert (await outcomes(store, claimed.job_id)).count("lost") == 1

    async def test_a_cancel_and_a_claim_at_once_leave_no_job_running_without_a_request(self, store: Store) -> None:
        await warm(store)
        for _ in range(5):
            job_id = await enqueue_one(store)

            cancelled, claims = await asyncio.gather(store.control.cancel(job_id, "no use", now=T0), claim(store))

            assert cancelled is not None
            if claims:
                assert cancelled.requested
                assert await settle(store, claims[0], Failed(OOPS)) == [
                    refusal(claims[0], RefusalReason.CANCEL_REQUESTED)
                ]
            else:
                assert cancelled.state is State.CANCELLED
        assert await store.queries.check_places() == []

    async def test_promotions_at_once_move_each_job_once(self, store: Store) -> None:
        await warm(store)
        jobs = [new_job(run_at=at(1)) for _ in range(50)]
        await enqueue(store, *jobs)

        promotions = await asyncio.gather(*(store.promotion.promote(20, now=at(2)) for _ in range(6)))

        moved = sum(p.moved for p in promotions) + (await store.promotion.promote(50, now=at(2))).moved
        assert moved == 50
        assert len(await claim(store, now=at(2))) == 50
        assert await store.queries.check_places() == []

    async def test_sweeps_at_once_admit_each_job_once(self, store: Store) -> None:
        await warm(store)
        need = await start_one(store)
        await enqueue(store, *(new_job(depends_on=(need.job_id,)) for _ in range(20)))
        await complete(store, need)

        sweeps = await asyncio.gather(*(store.promotion.sweep(20, now=at(1)) for _ in range(4)))

        assert sum(p.moved for p in sweeps) + (await store.promotion.sweep(20, now=at(1))).moved == 20
        assert len(await claim(store, now=at(1))) == 20
        assert await store.queries.check_places() == []

    async def test_a_job_added_while_its_dependency_completes_is_released(self, store: Store) -> None:
        await warm(store)
        for _ in range(5):
            need = await start_one(store)
            dependent = new_job(depends_on=(need.job_id,))

            await asyncio.gather(store.jobs.insert([dependent], now=T0), complete(store, need))

            await store.promotion.sweep(10, now=T0)
            assert [c.job_id for c in await claim(store)] == [dependent.id]

    async def test_retention_and_a_new_dependent_at_once_leave_no_job_blocked_for_ever(self, store: Store) -> None:
        await warm(store)
        later = at(10**6)
        for _ in range(5):
            needs = [await finish_one(store) for _ in range(7)]
            dependents = [new_job(depends_on=(need,)) for need in needs]

            answers = await asyncio.gather(
                *(store.jobs.insert([job], now=later) for job in dependents),
                store.retention.delete(at(1) - T0, 10, None, now=later),
                return_exceptions=True,
            )

            await store.promotion.sweep(10, now=later)
            stored = {job.id for job, answer in zip(dependents, answers, strict=False) if answer == made(job)}
            assert all(isinstance(a, UsageError) or a == made(j) for a, j in zip(answers, dependents, strict=False))
            assert {c.job_id for c in await claim(store, now=later)} == stored
        assert await store.queries.check_places() == []
