"""When a SQL worker rescues jobs of others: not at its start, and not after a break of the database."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.channels import Channels
from dutiful.channels import sql_worker as module
from dutiful.channels.database import ChannelDatabase, ChannelJob, Maintained
from dutiful.channels.dispatch import HeldJob
from dutiful.channels.sql_worker import SqlWorker, SqlWorkerConfig
from dutiful.core.errors import StoreAway

CONFIG = SqlWorkerConfig(UUID(int=1), 1, timedelta(minutes=5), timedelta(seconds=1), timedelta(seconds=2))


class ScriptedDatabase:
    """Answers nothing to do; fails while `away`. Each maintenance is noted."""

    schema, url, listens = "dutiful", "postgresql://nowhere", False

    def __init__(self) -> None:
        self.away = False
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.asked: asyncio.Queue[bool] = asyncio.Queue()
        self.seen: datetime | None = None  # as the last maintenance was given it

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def connect_direct(self) -> Any:
        raise AssertionError("it cannot listen")

    async def dequeue(self, *_: Any, **__: Any) -> Sequence[ChannelJob]:
        return []

    async def renew(self, *_: Any) -> dict[int, str]:
        raise StoreAway("away")

    async def report(self, *_: Any) -> None:
        if self.away:
            raise StoreAway("away")

    async def maintain(
        self, kinds: Sequence[str], *, rescue: bool, seen: datetime | None, within: timedelta
    ) -> Maintained:
        self.seen = seen
        self.asked.put_nowait(rescue)
        if self.away:
            raise StoreAway("away")
        return Maintained(0, 0, None, self.now)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.req("S27")
async def test_rescues_wait_until_workers_that_live_have_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, database = Clock(), ScriptedDatabase()
    monkeypatch.setattr(module, "time", clock)
    quick = SqlWorkerConfig(UUID(int=1), 1, timedelta(minutes=5), timedelta(seconds=1), timedelta(milliseconds=1))
    worker = SqlWorker(quick, database, Channels())  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())

    async def rescues() -> bool:
        """Whether the next maintenance but one rescues: the next may have begun."""
        while not database.asked.empty():
            database.asked.get_nowait()
        await database.asked.get()
        return await database.asked.get()

    assert not await rescues()
    clock.now += 24  # a renewal is due after 20 s, and 5 s more are given
    assert not await rescues()
    clock.now += 2
    assert await rescues()
    database.away = True
    assert not await rescues()
    clock.now += 100
    assert not await rescues()
    database.away = False
    assert not await rescues()
    clock.now += 26
    assert await rescues()
    assert database.seen == database.now
    database.now += timedelta(seconds=21)  # a maintenance hung in an outage that nothing else has noticed
    assert not await rescues()
    clock.now += 26
    assert await rescues()
    worker.stop()
    await running


async def test_a_renewal_that_failed_is_tried_again_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader rescues 5 s after a third of its own lease, which may be much shorter than this worker's."""
    pauses: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await asyncio.Event().wait()

    worker = SqlWorker(CONFIG, ScriptedDatabase(), Channels())  # type: ignore[arg-type]
    monkeypatch.setattr(asyncio, "sleep", sleep)
    held = HeldJob(ChannelJob(UUID(int=2), 1, "push", "{}", 1, 0, None, None))
    running = asyncio.create_task(asyncio.Event().wait())
    for jobs, pause in (({}, CONFIG.renewal), ({running: held}, 1.0)):
        worker._running = jobs  # type: ignore[assignment]
        renewals = asyncio.create_task(worker._repeat("renewals", worker._renew, lambda: CONFIG.renewal))
        assert await pauses.get() == pause
        renewals.cancel()
    running.cancel()


def test_a_lease_is_renewed_in_time_and_functions_end_before_it() -> None:
    assert (CONFIG.renewal, CONFIG.handler_timeout) == (20.0, timedelta(minutes=4))
    short = SqlWorkerConfig(UUID(int=1), 1, timedelta(seconds=6), timedelta(0), timedelta(0))
    assert (short.renewal, short.handler_timeout) == (2.0, timedelta(seconds=4.8))


async def test_a_renewal_that_hangs_counts_as_an_outage_before_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    database = ChannelDatabase(
        "postgresql://host/db", "dutiful", direct_dsn=None, pool_size=1, statement_timeout=timedelta(seconds=1)
    )
    monkeypatch.setattr(database, "_db", type("Hanging", (), {"fetch": staticmethod(hang)}))
    with pytest.raises(StoreAway, match=r"no answer in 0\.025 s"):
        await database.renew([], timedelta(milliseconds=100))
