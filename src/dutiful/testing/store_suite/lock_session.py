"""Locks that a connection of its own holds, where a store has such; nothing to test where it has none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dutiful.locking import LockName, LockSession
from dutiful.store import Store
from dutiful.testing.store_suite.locking import EDITION, ODD, OTHERS

Sessions = Callable[[], Awaitable[LockSession]]


@asynccontextmanager
async def sessions(store: Store) -> AsyncIterator[Sessions]:
    """Lock sessions that are closed in the end and must not have been lost; skips where there are none."""
    opened: list[LockSession] = []
    lost: list[str] = []

    async def another() -> LockSession:
        session = await store.lock_session(lambda: lost.append("lost"))
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

    async def test_waiting_in_vain_leaves_the_session_as_it_was(self, store: Store) -> None:
        async with sessions(store) as another:
            ada, bob = await another(), await another()
            assert await ada.acquire(EDITION, 1)
            assert await bob.acquire(OTHERS[0], 1)

            async with asyncio.timeout(30):  # no patience is not patience without end
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
