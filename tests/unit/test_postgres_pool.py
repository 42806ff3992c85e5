"""The pool lends connections that have a statement's plans, and no caller waits longer than it must."""

import asyncio

import pytest

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


async def test_a_statement_runs_where_it_has_been_planned() -> None:
    pool = Pool(connect, size=3, idle=20)
    async with pool.acquire("claim") as planned, pool.acquire("survey") as other:
        pass
    async with pool.acquire("claim") as again:  # though the other one was used last
        assert again is planned
    async with pool.acquire("survey") as again:
        assert again is other
    await pool.close(patience=0)


async def test_statements_gather_on_the_connection_with_most_plans() -> None:
    pool = Pool(connect, size=3, idle=20)
    async with pool.acquire("claim") as first:
        pass
    async with pool.acquire("complete") as again, pool.acquire("survey"):
        assert again is first
    async with pool.acquire("peek") as again:
        assert again is first
    await pool.close(patience=0)


async def test_repeated_statements_do_not_keep_a_connection_open_that_is_not_needed() -> None:
    pool = Pool(connect, size=3, idle=0.05)
    async with pool.acquire("claim") as first:
        pass
    async with pool.acquire("peek"), pool.acquire("survey") as other:
        assert other is not first
    async with asyncio.timeout(20):
        while not other.closed:
            async with pool.acquire("survey"):
                pass
            await asyncio.sleep(0)
    async with pool.acquire("survey") as again:
        assert again is first
    await pool.close(patience=0)


async def test_a_connection_that_is_given_back_serves_who_waits_for_a_new_one() -> None:
    answers = asyncio.Event()
    opened: list[Connection] = []

    async def slowly() -> Connection:
        if opened:
            await answers.wait()
        opened.append(Connection())
        return opened[-1]

    pool = Pool(slowly, size=2, idle=20)
    async with asyncio.timeout(20):
        async with pool.acquire() as first:
            waiting = asyncio.create_task(pool._take(""))
            await turn()
        assert await waiting is first
        answers.set()
        async with pool.acquire() as second:  # the new one is not lost
            assert second is not first
        assert len(opened) == 2
        pool._give_back(first)
        await pool.close(patience=0)


async def test_a_connection_that_cannot_be_opened_fails_the_caller_that_waits() -> None:
    attempts = 0

    async def refused() -> Connection:
        nonlocal attempts
        attempts += 1
        raise ConnectionRefusedError

    pool = Pool(refused, size=1, idle=20)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await pool._take("")
    results = await asyncio.gather(*(pool._take("") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionRefusedError] * 3
    assert attempts == 5
    await pool.close(patience=0)


async def test_a_pool_that_is_closed_fails_callers_whose_connection_is_still_being_opened() -> None:
    async def never() -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    pool = Pool(never, size=1, idle=20)
    waiting = [asyncio.create_task(pool._take("")) for _ in range(2)]
    await turn()
    await pool.close(patience=0)
    async with asyncio.timeout(20):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError] * 2
