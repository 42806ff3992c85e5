"""Locks between worker processes, and when a worker or the server dies."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import lock_jobs
import pytest
from fault_jobs import address
from lock_jobs import DIARY, lines, until_locks

from dutiful.core.states import State
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from faults import Fleet, until
from servers import PostgresServer

SLOTS = ("--fast", "0", "--general", "6")


@pytest.fixture
def own_server(postgres18: object) -> Iterator[PostgresServer]:
    if reason := PostgresServer.available(18):
        pytest.skip(f"the server that the environment offers is not ours to crash, and {reason}")
    with PostgresServer(18, {"fsync": "off"}) as server:
        yield server


@asynccontextmanager
async def fleet(store: Store, folder: Path) -> AsyncIterator[Fleet]:
    url = address(store)
    lock_jobs.app.configure(database_url=url)
    environment = {DIARY: str(folder / "diary")}
    path = Path(__file__).parent
    async with (
        lock_jobs.app,
        Fleet("lock_jobs:app", url, folder=folder, path=path, environment=environment) as started,
    ):
        yield started


@pytest.mark.req("D51", "D56", "D57")
async def test_two_processes_never_hold_one_lock_at_once(store: Store, tmp_path: Path) -> None:
    async with fleet(store, tmp_path) as workers:
        for worker in (workers.start(*SLOTS), workers.start(*SLOTS)):
            await worker.ready(store)
        jobs = await lock_jobs.update.enqueue_many({"who": str(n), "key": 1} for n in range(30))
        for job in jobs:
            await job.result("60s")

    diary = lines(tmp_path / "diary")
    assert len(diary) == 60
    for came, left in zip(diary[::2], diary[1::2], strict=True):
        assert (came[:3], left[:4]) == ("in ", "out ") and came[3:] == left[4:]


@pytest.mark.req("D55")
async def test_a_killed_worker_frees_its_lock(store: Store, tmp_path: Path) -> None:
    """On Postgres long before its lease ends; on SQLite with it."""
    lease = "2s" if store.url.startswith("sqlite") else "10m"
    async with fleet(store, tmp_path) as workers:
        doomed = await workers.start(*SLOTS, "--lease", lease).ready(store)
        await lock_jobs.hold.enqueue(gate=str(tmp_path / "never"))
        await until_locks(address(store), 1, 0)
        await workers.start(*SLOTS, "--lease", lease).ready(store)
        doomed.stop()  # so that it is the other one who contends
        contender = await lock_jobs.update.enqueue(who="contender", key=1)
        if lease == "10m":
            await until_locks(address(store), 1, 1)
        doomed.kill()
        await contender.result("60s")

    # The dead holder's job may have been taken up again by now, and wait or hold in its turn.
    diary = lines(tmp_path / "diary")
    assert diary[0] == "in 1" and diary[1:3] == ["in contender", "out contender"]


async def test_a_lock_lost_with_the_server_is_taken_again_by_the_next_attempt(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    store = PostgresStore(own_server.create_database("dutiful"))
    await store.migrate()
    await store.open()
    gate = tmp_path / "gate"
    async with fleet(store, tmp_path) as workers:
        await workers.start(*SLOTS).ready(store)
        job = await lock_jobs.hold.enqueue(gate=str(gate))
        await until_locks(address(store), 1, 0)
        await asyncio.to_thread(own_server.restart, "immediate")

        async def again() -> bool:
            return lines(tmp_path / "diary") == ["in 1", "in 2"]

        await until(again, "the second attempt holds the lock")
        gate.touch()
        assert await job.result("60s") == 2
        (attempt,) = await store.queries.attempts(job.id)
        record = await store.queries.job(job.id)
    await store.close()

    assert attempt.error is not None and attempt.error["type"] == "LockLost"
    assert record is not None and record.state is State.COMPLETED
