"""How long a claim is held, when it is lost, and how it is released."""

from datetime import timedelta

import pytest

from dutiful.core.job import HeldClaim
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import RefusalReason, Renewal
from suite.builders import (
    ADA,
    BOB,
    EXPIRED,
    KIND,
    LEASE,
    T0,
    at,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    enqueue_one,
    history,
    new_job,
    refusal,
    renewing,
    rescue,
    start_one,
    state,
)


class ClaimLeaseSuite:
    async def test_a_claim_expires_when_its_lease_ends(self, store: Store) -> None:
        claimed = await start_one(store, tenant="acme", correlation_id="order 7")
        whose = {"tenant": "acme", "correlation_id": "order 7"}

        assert await store.claims.expired(10, now=at(LEASE.total_seconds() - 1)) == []
        expired = HeldClaim(claimed.job_id, claimed.claim_id, 1, 0, KIND, ADA, cancel_requested=False, **whose)
        assert await store.claims.expired(10, now=at(EXPIRED)) == [expired]
        assert await store.claims.held_by(ADA) == [expired]

    async def test_an_expired_claim_shows_a_cancel_request(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no use", now=T0)

        (expired,) = await store.claims.expired(10, now=at(EXPIRED))

        assert expired.cancel_requested

    async def test_no_more_expired_claims_are_returned_than_the_limit(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(3)))
        await claim(store)

        assert len(await store.claims.expired(2, now=at(EXPIRED))) == 2

    async def test_the_claims_of_a_dead_worker_are_found_before_they_expire(self, store: Store) -> None:
        mine = await start_one(store)
        await enqueue_one(store)
        await claim_one(store, worker_id=BOB)

        assert [expired.job_id for expired in await store.claims.held_by(ADA)] == [mine.job_id]

    async def test_a_renewed_lease_does_not_expire(self, store: Store) -> None:
        claimed = await start_one(store)
        async with renewing(store) as renewer:
            assert await renewer.renew(claimed, now=at(20)) == Renewal()

        assert await store.claims.expired(10, now=at(49)) == []
        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert record.expires_at == at(20) + LEASE
        assert len(await store.claims.expired(10, now=at(51))) == 1

    async def test_a_rescue_that_was_decided_before_a_renewal_changes_nothing(self, store: Store) -> None:
        claimed = await start_one(store)
        async with renewing(store) as renewer:
            await renewer.renew(claimed, now=at(EXPIRED), lease=timedelta(minutes=5))

        await rescue(store, now=at(EXPIRED))

        assert await state(store, claimed.job_id) is State.RUNNING
        assert await complete(store, claimed, now=at(EXPIRED)) == []

    async def test_a_renewal_returns_the_claims_that_are_lost(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        again = await claim_one(store, limit=0, suspects=1, now=now)
        done, held = await start_one(store, now=now), await start_one(store, now=now)
        await complete(store, done, now=now)

        async with renewing(store) as renewer:
            assert await renewer.renew(lost, done, held, now=now) == Renewal(frozenset({lost.claim_id, done.claim_id}))
            assert await renewer.renew(again, now=now) == Renewal()
            # Of one job, the old claim is lost and the current one is not.
            assert await renewer.renew(lost, again, now=now) == Renewal(frozenset({lost.claim_id}))

    async def test_a_lost_claim_does_not_renew_the_lease_of_its_successor(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        await claim_one(store, limit=0, suspects=1, now=now)

        async with renewing(store) as renewer:
            await renewer.renew(lost, now=now, lease=timedelta(hours=1))

        assert len(await store.claims.expired(10, now=now + timedelta(seconds=EXPIRED))) == 1

    async def test_a_renewal_returns_the_jobs_with_a_cancel_request(self, store: Store) -> None:
        wanted, unwanted = await start_one(store), await start_one(store)
        await store.control.cancel(unwanted.job_id, "no use", now=T0)

        async with renewing(store) as renewer:
            assert await renewer.renew(wanted, unwanted, now=at(1)) == Renewal(cancel=frozenset({unwanted.job_id}))

    @pytest.mark.req("S81")
    async def test_a_released_job_keeps_its_attempt_and_its_place(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(2)))
        first, second = await claim(store)
        async with renewing(store) as renewer:
            await renewer.release(second, first)

        assert [await history(store, one.job_id) for one in (first, second)] == [[(1, "released")]] * 2
        assert await store.queries.check_places() == []
        again = await claim(store)
        assert [(c.job_id, c.seq, c.attempt) for c in again] == [(c.job_id, c.seq, 1) for c in (first, second)]
        assert await complete(store, first) == [refusal(first, RefusalReason.LOST)]

    async def test_a_lost_claim_releases_nothing(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        await claim_one(store, limit=0, suspects=1, now=now)

        async with renewing(store) as renewer:
            await renewer.release(lost)

        assert await state(store, lost.job_id) is State.RUNNING
