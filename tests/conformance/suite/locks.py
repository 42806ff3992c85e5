"""Named locks: one live holder at a time, in the order of requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from dutiful.core.errors import ClaimLost
from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Outcome, Snoozed
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from dutiful.store.leadership import DEFAULT_PATIENCE
from dutiful.store.locks import LockName, LockSession
from suite.builders import (
    ADA,
    BACKOFF,
    EXPIRED,
    LEASE,
    OOPS,
    T0,
    at,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    new_job,
    refusal,
    renewing,
    rescue,
    settle,
    start_one,
    token,
    warm,
)

EDITION = LockName("edition", 7)
OTHERS = [LockName("edition", 8), LockName("project", 7), LockName("edition", "7"), LockName("edition:7", "")]
ODD = [LockName("n", "ü" * 200), LockName("n", 2**63 - 1), LockName("n", -(2**63)), LockName("n", "a b:c'%\\")]
LEADER_TTL = timedelta(seconds=10)
SOON = LEASE.total_seconds() - 1  # just before the leases of T0 expire


async def claims(store: Store, count: int) -> list[Claim]:
    await enqueue(store, *(new_job() for _ in range(count)))
    return await claim(store)


class LockSuite:
    async def test_a_free_lock_is_ours_and_stays_ours(self, store: Store) -> None:
        (ada,) = await claims(store, 1)

        assert await try_lock(store, ada)
        assert await try_lock(store, ada)

    @pytest.mark.req("D56")
    async def test_a_contender_waits_until_the_lock_is_freed(self, store: Store) -> None:
        ada, bob = await claims(store, 2)
        assert await try_lock(store, ada)

        assert not await try_lock(store, bob)
        assert not await try_lock(store, bob)
        await store.locks.free(token(ada), EDITION)

        assert await try_lock(store, bob)
        assert not await try_lock(store, ada)

    async def test_waiters_get_the_lock_in_the_order_of_requests(self, store: Store) -> None:
        first, *line = await claims(store, 5)
        assert await try_lock(store, first)
        for waiter in line:
            assert not await try_lock(store, waiter)

        for holder, following in zip([first, *line[:-1]], line, strict=True):
            await store.locks.free(token(holder), EDITION)
            for waiter in reversed(line[line.index(following) + 1 :]):
                assert not await try_lock(store, waiter)  # the lock is free, but it is not their turn
            assert await try_lock(store, following)

    async def test_a_waiter_that_leaves_and_returns_is_last(self, store: Store) -> None:
        ada, bob, eve = await claims(store, 3)
        await try_lock(store, ada)
        for waiter in (bob, eve):
            await try_lock(store, waiter)

        await store.locks.free(token(bob), EDITION)
        assert not await try_lock(store, bob)
        await store.locks.free(token(ada), EDITION)

        assert not await try_lock(store, bob)
        assert await try_lock(store, eve)

    @pytest.mark.req("D56")
    async def test_one_of_twenty_gets_the_lock_and_then_each_in_turn(self, store: Store) -> None:
        await warm(store)
        waiting, served = await claims(store, 20), 0
        while waiting:
            answers = await asyncio.gather(*(try_lock(store, one) for one in waiting))

            (holder,) = [one for one, got in zip(waiting, answers, strict=True) if got]
            waiting.remove(holder)
            served += 1
            # While the holder leaves and all others ask, at most one of them gets the lock.
            _, *asked = await asyncio.gather(
                store.locks.free(token(holder), EDITION), *(try_lock(store, one) for one in waiting)
            )
            assert sum(map(bool, asked)) <= 1
        assert served == 20

    @pytest.mark.parametrize("other", OTHERS, ids=str)
    async def test_another_name_is_another_lock(self, store: Store, other: LockName) -> None:
        ada, bob = await claims(store, 2)
        assert await try_lock(store, ada)

        assert await try_lock(store, bob, other)
        assert not await try_lock(store, ada, other)

    @pytest.mark.parametrize("odd", ODD, ids=["long", "largest", "smallest", "odd"])
    async def test_any_name_can_be_locked(self, store: Store, odd: LockName) -> None:
        ada, bob = await claims(store, 2)

        assert await try_lock(store, ada, odd)
        assert not await try_lock(store, bob, odd)
        await store.locks.free(token(ada), odd)
        assert await try_lock(store, bob, odd)

    async def test_a_lock_is_freed_by_its_name_only(self, store: Store) -> None:
        ada, bob = await claims(store, 2)
        for name in (EDITION, OTHERS[0]):
            assert await try_lock(store, ada, name)
            assert not await try_lock(store, bob, name)

        await store.locks.free(token(ada), OTHERS[0])

        assert not await try_lock(store, bob)
        assert await try_lock(store, bob, OTHERS[0])

    async def test_only_its_holder_frees_a_lock(self, store: Store) -> None:
        ada, bob, eve = await claims(store, 3)
        await try_lock(store, ada)
        await try_lock(store, bob)

        await store.locks.free(token(bob), EDITION)
        await store.locks.free(token(eve), EDITION)

        assert not await try_lock(store, eve)
        assert await try_lock(store, ada)

    @pytest.mark.parametrize("end", [None, Failed(OOPS, final=True), Failed(OOPS), Snoozed(BACKOFF)])
    async def test_a_job_that_ends_frees_its_locks(self, store: Store, end: Outcome | None) -> None:
        ada, bob = await claims(store, 2)
        await try_lock(store, ada)
        assert not await try_lock(store, bob)

        assert await (complete(store, ada) if end is None else settle(store, ada, end)) == []

        assert await try_lock(store, bob)

    async def test_a_lock_is_freed_when_its_holders_lease_is_over(self, store: Store) -> None:
        ada = await start_one(store)
        await try_lock(store, ada)
        bob = await start_one(store, now=at(SOON))

        assert not await try_lock(store, bob, now=at(SOON))
        assert await try_lock(store, bob, now=at(EXPIRED))

    async def test_after_an_outage_a_lock_is_not_freed_before_its_holder_could_renew(self, store: Store) -> None:
        ada = await start_one(store)
        await try_lock(store, ada)
        await store.leadership.survey(ADA, LEADER_TTL, now=T0)
        back, hold = EXPIRED + 10, DEFAULT_PATIENCE.hold.total_seconds()
        bob = await start_one(store, now=at(back))

        assert not await try_lock(store, bob, now=at(back)), "the first survey after the outage is yet to come"
        for second in (back, back + 9, back + hold - 1):
            await store.leadership.survey(ADA, LEADER_TTL, now=at(second))
            assert not await try_lock(store, bob, now=at(second))
        assert await try_lock(store, bob, now=at(back + hold))

    async def test_a_waiter_whose_lease_is_over_waits_until_it_is_renewed(self, store: Store) -> None:
        ada, waiter = await claims(store, 2)
        await try_lock(store, ada)
        assert not await try_lock(store, waiter)

        assert not await try_lock(store, waiter, now=at(EXPIRED))
        async with renewing(store) as renewer:
            await renewer.renew(waiter, now=at(EXPIRED))
        await store.locks.free(token(ada), EDITION)

        assert await try_lock(store, waiter, now=at(EXPIRED))

    async def test_a_claim_whose_lock_went_to_another_cannot_renew_its_lease(self, store: Store) -> None:
        ada, unlocked = await claims(store, 2)
        await try_lock(store, ada)
        bob = await start_one(store, now=at(SOON))
        assert await try_lock(store, bob, now=at(EXPIRED))

        async with renewing(store) as renewer:
            assert (await renewer.renew(ada, unlocked, now=at(EXPIRED))).lost == {ada.claim_id}

        assert await complete(store, ada, now=at(EXPIRED)) == [refusal(ada, RefusalReason.LOST)]
        assert [held.job_id for held in await store.claims.expired(10, now=at(EXPIRED))] == [ada.job_id]
        assert await rescue(store, now=at(EXPIRED)) == []
        assert await store.queries.check_places() == []

    async def test_a_lock_is_held_for_as_long_as_the_lease_is_renewed(self, store: Store) -> None:
        ada, waiter = await claims(store, 2)
        await try_lock(store, ada)
        await try_lock(store, waiter)
        async with renewing(store) as renewer:
            await renewer.renew(ada, waiter, now=at(SOON))
        eve = await start_one(store, now=at(SOON))

        assert not await try_lock(store, eve, now=at(EXPIRED))
        await store.locks.free(token(ada), EDITION)
        assert not await try_lock(store, eve, now=at(EXPIRED))
        assert await try_lock(store, waiter, now=at(EXPIRED))

    @pytest.mark.parametrize("ended", [True, False], ids=["ended", "dead"])
    async def test_a_waiter_that_is_gone_does_not_block_the_others(self, store: Store, ended: bool) -> None:
        gone = await start_one(store)
        ada, eve = await start_one(store, now=at(SOON)), await start_one(store, now=at(SOON))
        await try_lock(store, ada, now=at(SOON))
        assert not await try_lock(store, gone, now=at(SOON))
        assert not await try_lock(store, eve, now=at(SOON))
        if ended:
            await settle(store, gone, Failed(OOPS), now=at(SOON))

        await store.locks.free(token(ada), EDITION)

        assert await try_lock(store, eve, now=at(SOON if ended else EXPIRED))

    async def test_a_lost_claim_gets_no_lock(self, store: Store) -> None:
        lost, done = await claims(store, 2)
        await complete(store, done)
        await try_lock(store, lost)
        now = await crash(store)

        for claimed in (lost, done):
            with pytest.raises(ClaimLost):
                await try_lock(store, claimed, now=now)

    async def test_a_job_that_runs_again_does_not_have_the_lock_of_its_lost_attempt(self, store: Store) -> None:
        lost = await start_one(store)
        await try_lock(store, lost)
        now = await crash(store)
        again = await claim_one(store, limit=0, suspects=1, now=now)
        other = await start_one(store, now=now)
        assert await try_lock(store, other, now=now)

        assert not await try_lock(store, again, now=now)
        await store.locks.free(token(lost), EDITION)  # the lock that it held belongs to another now
        assert not await try_lock(store, again, now=now)
        await store.locks.free(token(other), EDITION)
        assert await try_lock(store, again, now=now)


async def try_lock(store: Store, claimed: Claim, name: LockName = EDITION, *, now: datetime = T0) -> bool:
    return await store.locks.try_acquire(token(claimed), name, now=now)


Sessions = Callable[[], Awaitable[LockSession]]


@asynccontextmanager
async def sessions(store: Store) -> AsyncIterator[Sessions]:
    """Lock sessions that are closed in the end and must not have been lost; skips where there are none."""
    opened: list[LockSession] = []
    lost: list[str] = []

    async def another() -> LockSession:
        session = await store.locks.session(lambda: lost.append("lost"))
        if session is None:
            pytest.skip("this store keeps locks as rows")
        opened.append(session)
        return session

    try:
        yield another
    finally:
        for session in opened:
            await session.close()
    assert lost == []


class LockSessionSuite:
    @pytest.mark.req("D56")
    async def test_a_contender_gets_the_lock_when_it_is_released(self, store: Store) -> None:
        async with sessions(store) as another:
            ada, bob = await another(), await another()
            assert await ada.acquire(EDITION, 1)
            assert not await bob.acquire(EDITION, 0.01)

            waiting = asyncio.create_task(bob.acquire(EDITION, 30))
            await ada.release(EDITION)

            assert await waiting
            assert not await ada.acquire(EDITION, 0.01)

    async def test_a_session_that_ends_frees_all_that_it_held(self, store: Store) -> None:
        async with sessions(store) as another:
            ada, bob = await another(), await another()
            for name in (EDITION, *OTHERS):
                assert await ada.acquire(name, 1)

            await ada.close()
            await ada.close()

            for name in (EDITION, *OTHERS):
                assert await bob.acquire(name, 30)

    async def test_locks_are_counted(self, store: Store) -> None:
        async with sessions(store) as another:
            ada, bob = await another(), await another()
            for _ in range(2):
                assert await ada.acquire(EDITION, 1)

            await ada.release(EDITION)
            assert not await bob.acquire(EDITION, 0.01)
            await ada.release(EDITION)
            assert await bob.acquire(EDITION, 1)

    async def test_a_session_that_waited_without_success_is_unchanged(self, store: Store) -> None:
        async with sessions(store) as another:
            ada, bob = await another(), await another()
            assert await ada.acquire(EDITION, 1)
            assert await bob.acquire(OTHERS[0], 1)

            async with asyncio.timeout(30):  # 0 seconds must not mean for ever
                assert not await bob.acquire(EDITION, 0)
                assert not await ada.acquire(OTHERS[0], 0)

            assert await bob.acquire(OTHERS[1], 1)

    @pytest.mark.parametrize("name", [*OTHERS, *ODD], ids=[*map(str, OTHERS), "long", "largest", "smallest", "odd"])
    async def test_another_name_is_another_lock(self, store: Store, name: LockName) -> None:
        async with sessions(store) as another:
            ada, bob = await another(), await another()
            assert await ada.acquire(EDITION, 1)

            assert await bob.acquire(name, 1)
            assert not await ada.acquire(name, 0.01)
