"""How long a claim is ours, who loses it, and how it is given back."""

from datetime import timedelta

from dutiful.core.job import Lapsed
from dutiful.core.transitions import State
from dutiful.store import Store
from dutiful.testing.store_suite.builders import (
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
    keeping,
    new_job,
    refusal,
    rescue,
    start_one,
    state,
)
from dutiful.working import Renewal, Verdict


class LeaseSuite:
    async def test_a_claim_lapses_when_its_lease_ends(self, store: Store) -> None:
        claimed = await start_one(store, tenant="acme", correlation_id="order 7")
        whose = {"tenant": "acme", "correlation_id": "order 7"}

        assert await store.lapsed(10, now=at(LEASE.total_seconds() - 1)) == []
        lapsed = Lapsed(claimed.job_id, claimed.claim_id, 1, 0, KIND, ADA, cancel_requested=False, **whose)
        assert await store.lapsed(10, now=at(EXPIRED)) == [lapsed]
        assert await store.held_by(ADA) == [lapsed]

    async def test_a_lapsed_claim_tells_of_a_cancel(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.cancel(claimed.job_id, "no use", now=T0)

        (lapsed,) = await store.lapsed(10, now=at(EXPIRED))

        assert lapsed.cancel_requested

    async def test_no_more_lapsed_claims_are_told_than_asked_for(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(3)))
        await claim(store)

        assert len(await store.lapsed(2, now=at(EXPIRED))) == 2

    async def test_the_claims_of_a_worker_that_died_are_found_at_once(self, store: Store) -> None:
        mine = await start_one(store)
        await enqueue_one(store)
        await claim_one(store, worker_id=BOB)

        assert [lapsed.job_id for lapsed in await store.held_by(ADA)] == [mine.job_id]

    async def test_a_renewed_lease_does_not_lapse(self, store: Store) -> None:
        claimed = await start_one(store)
        async with keeping(store) as keeper:
            assert await keeper.renew(claimed, now=at(20)) == Renewal()

        assert await store.lapsed(10, now=at(49)) == []
        record = await store.find(claimed.job_id)
        assert record is not None
        assert record.expires_at == at(20) + LEASE
        assert len(await store.lapsed(10, now=at(51))) == 1

    async def test_a_rescue_that_was_decided_before_a_renewal_changes_nothing(self, store: Store) -> None:
        claimed = await start_one(store)
        async with keeping(store) as keeper:
            await keeper.renew(claimed, now=at(EXPIRED), lease=timedelta(minutes=5))

        await rescue(store, now=at(EXPIRED))

        assert await state(store, claimed.job_id) is State.RUNNING
        assert await complete(store, claimed, now=at(EXPIRED)) == []

    async def test_a_renewal_tells_which_claims_are_lost(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        again = await claim_one(store, limit=0, suspects=1, now=now)
        done, held = await start_one(store, now=now), await start_one(store, now=now)
        await complete(store, done, now=now)

        async with keeping(store) as keeper:
            assert await keeper.renew(lost, done, held, now=now) == Renewal(frozenset({lost.claim_id, done.claim_id}))
            assert await keeper.renew(again, now=now) == Renewal()
            # Of one job, the dead claim is lost and the living one is not.
            assert await keeper.renew(lost, again, now=now) == Renewal(frozenset({lost.claim_id}))

    async def test_a_lost_claim_does_not_renew_the_lease_of_its_successor(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        await claim_one(store, limit=0, suspects=1, now=now)

        async with keeping(store) as keeper:
            await keeper.renew(lost, now=now, lease=timedelta(hours=1))

        assert len(await store.lapsed(10, now=now + timedelta(seconds=EXPIRED))) == 1

    async def test_a_renewal_tells_which_jobs_are_to_be_cancelled(self, store: Store) -> None:
        wanted, unwanted = await start_one(store), await start_one(store)
        await store.cancel(unwanted.job_id, "no use", now=T0)

        async with keeping(store) as keeper:
            assert await keeper.renew(wanted, unwanted, now=at(1)) == Renewal(cancel=frozenset({unwanted.job_id}))

    async def test_a_released_claim_is_given_back_unspent_in_its_old_place(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(2)))
        first, second = await claim(store)
        async with keeping(store) as keeper:
            await keeper.release(second, first)

        assert await history(store, first.job_id) == []
        assert await store.check_places() == []
        again = await claim(store)
        assert [(c.job_id, c.seq, c.attempt) for c in again] == [(c.job_id, c.seq, 1) for c in (first, second)]
        assert await complete(store, first) == [refusal(first, Verdict.LOST)]

    async def test_a_lost_claim_releases_nothing(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        await claim_one(store, limit=0, suspects=1, now=now)

        async with keeping(store) as keeper:
            await keeper.release(lost)

        assert await state(store, lost.job_id) is State.RUNNING
