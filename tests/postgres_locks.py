"""Races on Postgres, forced: another connection holds a lock, and a test sees whether a call waits for it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")

_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

_CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE client_port = ANY ($1)"


async def disconnected(url: str, ports: list[int]) -> None:
    """Returns when the server has done all that a killed process had sent on its connections, and has closed them."""
    await _until(url, lambda open_ones: open_ones == 0, _CONNECTED, ports)


async def blocked(url: str, count: int = 1) -> None:
    """Returns when so many statements in the database wait for a lock."""
    await _until(url, lambda waiting: waiting >= count, _BLOCKED)


async def _until(url: str, enough: Callable[[int], bool], statement: str, *args: Any) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(30):
            while not enough(await connection.fetchval(statement, *args)):
                await connection.execute("SELECT pg_sleep(0.01)")
    finally:
        connection.terminate()


async def not_blocked(url: str, call: Coroutine[Any, Any, T]) -> T:
    """The answer of a call that must wait for no lock; fails as soon as it does."""
    work, watch = asyncio.create_task(call), asyncio.create_task(blocked(url))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        assert work.done(), "it waits for a lock"
        return await work
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def after_a_wait(url: str, call: Awaitable[T], commit: Coroutine[Any, Any, Any]) -> T:
    """The answer of a call that waits for a lock, which `commit` releases."""
    work = asyncio.ensure_future(call)
    waiting = asyncio.create_task(blocked(url))
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await commit
    return await work
