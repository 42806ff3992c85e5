"""Workers in this process, and waits for what they do."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import patch

from dutiful import Dutiful, JobRecord, ShutdownTimeout, State
from dutiful.client.client import Client
from dutiful.kind import Handle
from dutiful.maintenance import runner
from dutiful.testing import Clock, ClockedStore
from dutiful.worker import Worker, leases

EVERYWHERE = ["sqlite", "postgres18", "pgbouncer"]
DEADLINE = 60.0


@asynccontextmanager
async def working(app: Dutiful, client: Client | None = None, *, services: bool = True) -> AsyncIterator[Worker]:
    """A worker while the block runs, on a client of its own unless given; it stops as after a signal.

    It polls more often than in production, so that tests need not wait for a second.
    """
    with patch.multiple(runner, LEADER_POLL=0.1, FOLLOWER_POLL=0.2), patch.object(leases, "CHECK_EVERY", 0.2):
        async with running(app, client, services=services) as worker:
            yield worker


@asynccontextmanager
async def running(app: Dutiful, client: Client | None = None, *, services: bool = True) -> AsyncIterator[Worker]:
    """A worker as in production while the block runs."""
    async with app.opened() as own:
        worker = app.make_worker(client or own, services=services)
        work = asyncio.create_task(worker.run())
        starting = asyncio.create_task(worker.started.wait())
        await asyncio.wait({work, starting}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if work.done():
                work.result()
            yield worker
        except BaseException:
            worker.abort(cleanup=0.1)
            with suppress(ShutdownTimeout):
                await work
            raise
        finally:
            starting.cancel()
        worker.stop()
        await work


@asynccontextmanager
async def clocked(app: Dutiful, clock: Clock) -> AsyncIterator[Client]:
    """A client whose store uses the given clock."""
    store = app.make_store()
    await store.open()
    client = Client(ClockedStore(store, clock), app.make_delivery(store))
    try:
        yield client
    finally:
        await client.close()
        await client.delivery.close()
        await store.close()


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:
    """Call `look` until its answer is true; returns the answer."""
    until, pause = time.monotonic() + DEADLINE, 0.01
    while not (answer := await look()):
        assert time.monotonic() < until, "it was not true in time"
        await asyncio.sleep(pause)
        pause = min(pause * 1.1, 0.05)
    return answer


async def final(app: Dutiful, job: Handle[Any]) -> JobRecord:
    """The job's record once it is final."""

    async def look() -> JobRecord | None:
        record = await app.find(job.id)
        return record if record is not None and record.state.final else None

    record: JobRecord = await eventually(look)
    return record


async def state(app: Dutiful, job: Handle[Any]) -> State:
    record = await app.find(job.id)
    assert record is not None
    return record.state
