"""A Postgres that crashes and restarts: acknowledged writes are kept, and every worker works again."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import asyncpg
import fault_jobs
import pytest
from fault_jobs import address, executions

from dutiful.core.errors import StoreUnavailable
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.engine.connection import VANISHED_AFTER, connect
from faults import Fleet, until
from servers import PostgresServer

FOUR_SLOTS = ("--fast", "0", "--general", "4")
SELF = "select pid from pg_stat_activity where datname = current_database() and application_name = 'dutiful'"


@asynccontextmanager
async def producers(count: int) -> AsyncIterator[list[UUID]]:
    """Enqueue as fast as possible; acknowledged jobs are added to the list."""
    acknowledged: list[UUID] = []

    async def produce() -> None:
        while True:
            try:
                acknowledged.append((await fault_jobs.nothing.enqueue()).id)
            except StoreUnavailable:
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(produce()) for _ in range(count)]
    try:
        yield acknowledged
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def completed(store: Store) -> int:
    """Count exactly, because the shown count of so many jobs is what workers have reported so far."""
    try:
        connection = await asyncpg.connect(address(store))
    except (OSError, asyncpg.PostgresError):  # the server is restarting
        return 0
    try:
        return int(await connection.fetchval("select count(*) from dutiful.finished where state = 'completed'"))
    finally:
        await connection.close()


async def progress(store: Store, acknowledged: list[UUID], jobs: int = 100) -> None:
    """Wait until that many more jobs were accepted, and as many completed."""
    taken_in, done = len(acknowledged) + jobs, await until(lambda: completed(store), "a job is done") + jobs

    async def more() -> bool:
        return len(acknowledged) > taken_in and await completed(store) > done

    await until(more, "jobs are taken in and done")


async def assert_every_slot_works(store: Store, fleet: Fleet, folder: Path) -> None:
    """As many jobs as there are slots run at once, which takes all slots of all workers."""
    gate = folder / "gate"
    jobs = [await fault_jobs.app.enqueue("wait", {"gate": str(gate)}) for _ in range(4 * len(fleet.workers))]

    async def full() -> bool:
        return [len(await store.claims.held_by(worker.id)) for worker in fleet.workers] == [4] * len(fleet.workers)

    await until(full, "every slot of every worker is taken")
    gate.touch()
    for job in jobs:
        await job.result(timeout="60s")


async def assert_all_done(store: Store, acknowledged: list[UUID]) -> None:
    async def drained() -> bool:
        return not await store.queries.queues()

    await until(drained, "every job is final")
    jobs = await store.queries.jobs(JobFilter(limit=1_000_000))
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert set(acknowledged) <= {job.id for job in jobs}
    assert len(set(acknowledged)) == len(acknowledged)
    assert await store.queries.check_places() == []


async def test_acknowledged_writes_survive_crashes_of_the_server(own_server: PostgresServer, tmp_path: Path) -> None:
    store = PostgresStore(own_server.create_database("dutiful"))
    await store.migrate()
    await store.open()
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        for worker in (fleet.start(*FOUR_SLOTS), fleet.start(*FOUR_SLOTS)):
            await worker.ready(store)
        async with producers(8) as acknowledged:
            for _ in range(3):
                await progress(store, acknowledged)
                await asyncio.to_thread(own_server.restart, "immediate")
            await progress(store, acknowledged)
        await assert_all_done(store, acknowledged)
        await assert_every_slot_works(store, fleet, tmp_path)
        assert all(worker.running for worker in fleet.workers)
        print(f"\n{len(acknowledged)} acknowledged over 3 crashes, {len(executions(tmp_path))} executions")
        assert await store.queries.check_places() == []
    await store.close()


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_workers_recover_from_the_loss_of_any_connection(store: Store, tmp_path: Path) -> None:
    url = address(store)
    admin = await asyncpg.connect(url)
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        two_lanes = ("--lane", "one=2:default", "--lane", "two=2:default", "--poll", "1h")
        for worker in (fleet.start(*two_lanes), fleet.start(*two_lanes)):
            await worker.ready(store)

        async def listeners() -> bool:
            return len(await admin.fetch(f"{SELF} and query ilike 'listen%'")) == 2

        # Enough to keep every lane claiming throughout.
        backlog = await fault_jobs.nothing.enqueue_many({} for _ in range(10_000))
        killed = 0
        async with producers(4) as acknowledged:
            acknowledged += [job.id for job in backlog]
            for number in range(30):
                await progress(store, acknowledged, jobs=20)
                only = "and query ilike 'listen%'" if number % 5 == 0 else ""
                victims = [row[0] for row in await admin.fetch(f"{SELF} {only}")]
                chosen = victims if only else random.sample(victims, min(2, len(victims)))
                killed += len(await admin.fetch("select pg_terminate_backend(p) from unnest($1::int[]) p", chosen))
            await progress(store, acknowledged)
        await until(listeners, "both workers listen again")
        await assert_all_done(store, acknowledged)
        # They poll once an hour, so a job that starts now was announced by a hint.
        for _ in range(10):
            await (await fault_jobs.nothing.enqueue()).result(timeout="60s")
        await assert_every_slot_works(store, fleet, tmp_path)
        assert all(worker.running for worker in fleet.workers)
        runs = executions(tmp_path)
        print(f"\n{killed} connections ended, {len(acknowledged)} acknowledged, {len(runs)} executions")
        assert len(set(runs)) == len(runs), "no worker died and no lease ended, so no job had to run twice"
        assert await store.queries.check_places() == []
    await admin.close()


async def test_the_kernel_gives_up_a_server_that_has_vanished(pg18_url: str) -> None:
    """Its host has lost its power, or a firewall has dropped the connection: nothing tells."""
    connection = await connect(pg18_url)
    opened = connection._transport.get_extra_info("socket")
    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for name, value in {"TCP_KEEPIDLE": VANISHED_AFTER, "TCP_USER_TIMEOUT": VANISHED_AFTER * 1000}.items():
        if hasattr(socket, name):
            assert opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    await connection.close()
