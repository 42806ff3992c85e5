"""A connection that ends makes room for the next caller that waits."""

import asyncio

from dutiful.stores.postgres.engine.pool import Pool


class Connection:
    def __init__(self) -> None:
        self.closed = False
        self.ended = asyncio.Event()

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return False

    def terminate(self) -> None:
        self.closed = True
        self.ended.set()

    async def close(self) -> None:
        self.closed = True


async def connect() -> Connection:
    return Connection()


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_waiter_that_is_cancelled_when_it_gets_room_passes_it_on() -> None:
    pool = Pool(connect, size=1, idle=20)
    served: list[str] = []

    async def use(name: str) -> None:
        async with pool.acquire():
            served.append(name)
            await asyncio.Event().wait()

    first = asyncio.create_task(use("first"))
    await turn()
    second, third = asyncio.create_task(use("second")), asyncio.create_task(use("third"))
    await turn()
    first.cancel()  # its connection is ended, and the next caller gets its room
    await asyncio.sleep(0)
    second.cancel()  # in the same turn
    for _ in range(3):  # a connection is opened in a task of its own
        await turn()
    assert served == ["first", "third"]
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    await pool.close(patience=0)


async def test_a_pool_that_keeps_none_closes_all_that_are_idle() -> None:
    pool = Pool(connect, size=2, idle=0.01, keep=0)
    async with pool.acquire() as one, pool.acquire() as two:
        pass
    async with asyncio.timeout(20):
        await one.ended.wait()
        await two.ended.wait()
    async with pool.acquire() as fresh:
        assert not fresh.closed
    await pool.close(patience=0)
