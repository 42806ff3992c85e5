"""A database that is away for longer than a lease: no worker is taken for dead because of it, and the dead ones are."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from uuid import UUID

import apsw
import asyncpg
import fault_jobs
import pytest
from fault_jobs import address, executions
from outages import AWAY_LINE, BACK_LINE, logged, warnings
from test_faults_stop import stop_between_writes

from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from faults import Fleet, WorkerProcess, until
from servers import PostgresServer

LEASE, AWAY = 3.0, 5.0
TWO_SLOTS = ("--fast", "0", "--general", "2")
OUTAGES = pytest.mark.parametrize("outage", ["stopped", "frozen"])


@asynccontextmanager
async def away(server: PostgresServer, outage: str, seconds: float = AWAY) -> AsyncIterator[None]:
    """Take the server away for the block, and for at least so long."""
    begun = time.monotonic()
    await asyncio.to_thread(server.freeze if outage == "frozen" else server.stop)
    try:
        yield
        await asyncio.sleep(begun + seconds - time.monotonic())  # the length of the outage itself
    finally:
        await asyncio.to_thread(server.thaw if outage == "frozen" else server.start)


async def running(store: Store, fleet: Fleet, gate: Path, options: tuple[str, ...] = TWO_SLOTS) -> None:
    """Three workers, each with two jobs that wait for the gate."""
    for _ in range(3):
        await fleet.start(*options).ready(store)
    for _ in range(6):
        await fault_jobs.app.enqueue("wait", {"gate": str(gate)})

    async def full() -> bool:
        held = [len(await store.claims.held_by(worker.id)) for worker in fleet.workers]
        return held == [2, 2, 2] and len(executions(gate.parent)) == 6

    await until(full, "every slot is taken")


async def leader(store: Store, fleet: Fleet) -> WorkerProcess:
    async def leading() -> WorkerProcess | None:
        leaders = {record.id for record in await store.workers.all() if record.leading}
        return next((worker for worker in fleet.workers if worker.id in leaders), None)

    found = await until(leading, "a worker leads")
    assert found is not None
    return found


async def surveyed(store: Store, times: int = 2) -> None:
    """Wait until the leader has surveyed, and so ticked its services, since now."""
    seen = {await last_survey(store)}

    async def look() -> bool:
        seen.add(await last_survey(store))
        return len(seen) > times

    await until(look, "the leader has surveyed")


async def last_survey(store: Store) -> datetime:
    """On a connection of its own, because those of the store may be from before the outage."""

    async def ask() -> datetime | None:
        try:
            connection = await asyncpg.connect(address(store), timeout=5)
        except (OSError, asyncpg.PostgresError):
            return None
        try:
            found: datetime | None = await connection.fetchval("select max(expires_at) from dutiful.leader")
            return found
        finally:
            await connection.close()

    answer = await until(ask, "the database answers")
    assert answer is not None
    return answer


def open_gate(gate: Path) -> None:
    gate.touch()


async def assert_unharmed(store: Store, gate: Path, jobs: int = 6) -> None:
    """Every job ran once, to its end, and nothing was held against it."""
    open_gate(gate)

    async def drained() -> bool:
        return not await store.queries.queues()

    await until(drained, "every job is final")
    records = await store.queries.jobs(JobFilter(limit=1000))
    assert [(job.state, job.attempt, job.crashes) for job in records] == [(State.COMPLETED, 1, 0)] * jobs
    attempts = [one.outcome for job in records for one in await store.queries.attempts(job.id)]
    assert set(attempts) <= {"released"}, "given back before it began, if at all"
    assert len(executions(gate.parent)) == jobs
    assert not gate.with_name("gate.interrupted").exists()
    assert await store.queries.check_places() == []


@OUTAGES
async def test_an_outage_longer_than_the_lease_is_no_crash_of_any_job(
    own_server: PostgresServer, own_store: Store, tmp_path: Path, outage: str
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(own_store, tmp_path, lease=f"{LEASE:g}s", heartbeat="1s") as fleet:
        await running(own_store, fleet, gate)
        leads = await leader(own_store, fleet)
        late = [worker for worker in fleet.workers if worker is not leads]
        async with away(own_server, outage):
            for worker in late:  # so that the leader is back before they can renew
                worker.stop()
        await surveyed(own_store)
        for worker in late:
            worker.resume()
        await surveyed(own_store, 6)
        await assert_unharmed(own_store, gate)
        assert all(worker.running for worker in fleet.workers)


@OUTAGES
async def test_a_worker_killed_in_an_outage_is_rescued_after_it(
    own_server: PostgresServer, own_store: Store, tmp_path: Path, outage: str
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(own_store, tmp_path, lease=f"{LEASE:g}s", heartbeat="1s") as fleet:
        await running(own_store, fleet, gate)
        leads = await leader(own_store, fleet)
        await fleet.start(*TWO_SLOTS).ready(own_store)
        dead = next(worker for worker in fleet.workers if worker is not leads)
        lost: set[UUID] = {claim.job_id for claim in await own_store.claims.held_by(dead.id)}
        async with away(own_server, outage):
            dead.kill()
        back = time.monotonic()

        async def rescued() -> bool:
            return len(executions(tmp_path)) == 7  # one at a time, because they are suspects now

        await until(rescued, "a job of the dead worker runs again")
        print(f"\nrescued {time.monotonic() - back:.1f} s after the return")
        gate.touch()

        async def drained() -> bool:
            return not await own_store.queries.queues()

        await until(drained, "every job is final")
        records = await own_store.queries.jobs(JobFilter(limit=1000))
        assert {job.id: job.crashes for job in records} == {job.id: int(job.id in lost) for job in records}
        assert {job.state for job in records} == {State.COMPLETED}
        assert await own_store.queries.check_places() == []


@OUTAGES
async def test_a_leader_that_starts_after_an_outage_lets_the_others_renew_first(
    own_server: PostgresServer, own_store: Store, tmp_path: Path, outage: str
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(own_store, tmp_path, lease=f"{LEASE:g}s", heartbeat="1s") as fleet:
        await running(own_store, fleet, gate, (*TWO_SLOTS, "--no-services"))
        old = await fleet.start("--fast", "0", "--general", "1", "--kinds", "inert").ready(own_store)
        assert await leader(own_store, fleet) is old
        workers = fleet.workers[:3]
        async with away(own_server, outage, 10):  # longer than the term of the old leader
            old.kill()
            for worker in workers:
                worker.stop()
        new = fleet.start("--fast", "0", "--general", "1", "--kinds", "inert")
        await surveyed(own_store, 2)
        for worker in workers:
            worker.resume()
        assert await leader(own_store, fleet) is new
        await surveyed(own_store, 6)
        await assert_unharmed(own_store, gate)


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_a_file_locked_for_longer_than_the_lease_is_no_crash_of_any_job(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    file = apsw.Connection(store.url.removeprefix("sqlite:///"))
    async with fault_jobs.fleet(store, tmp_path, lease=f"{LEASE:g}s", heartbeat="1s") as fleet:
        late = await fleet.start(*TWO_SLOTS, "--no-services").ready(store)
        await fault_jobs.app.enqueue("wait", {"gate": str(gate)})

        async def running() -> bool:
            return len(executions(tmp_path)) == 1

        await until(running, "the job runs")
        await fleet.start(*TWO_SLOTS, "--kinds", "inert").ready(store)

        async def noted() -> int:
            """Until when the next survey has to come; 0 before the first."""
            ((next_by,),) = file.execute("SELECT coalesce(max(next_by), 0) FROM dutiful_survey").fetchall()
            return next_by if isinstance(next_by, int) else 0

        await until(noted, "the leader has surveyed")
        await stop_between_writes(store, late)  # so that the leader is back before it can renew
        file.execute("BEGIN IMMEDIATE")
        before = await noted()
        await asyncio.sleep(AWAY)  # the length of the outage itself
        file.execute("ROLLBACK")

        async def surveyed() -> bool:
            return await noted() > before

        await until(surveyed, "the leader has surveyed again")
        late.resume()
        after = await noted()

        async def held() -> bool:
            return await noted() > after + 6_000_000

        await until(held, "nothing is held back any more")
        await assert_unharmed(store, gate, jobs=1)
    file.close()


async def test_an_outage_is_two_lines_in_the_log_of_a_worker(
    own_server: PostgresServer, own_store: Store, tmp_path: Path
) -> None:
    """Of all its parts: while the database is away, jobs end, leases are to be renewed, lanes want to claim."""
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(own_store, tmp_path, lease=f"{LEASE:g}s", heartbeat="1s") as fleet:
        worker = await fleet.start("--lane", "more=4").ready(own_store)
        for kind in ("wait", "wait", "ignore_cancel_in_thread"):
            await fault_jobs.app.enqueue(kind, {"gate": str(gate)})

        async def running() -> bool:
            return len(executions(tmp_path)) == 3

        await until(running, "all jobs run")
        await leader(own_store, fleet)
        async with away(own_server, "stopped"):
            await until(lambda: logged(worker, AWAY_LINE), "the worker has noticed")
            gate.touch()
        await until(lambda: logged(worker, BACK_LINE), "the outage is over")
        await assert_unharmed(own_store, gate, jobs=3)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    assert warnings(worker) == [AWAY_LINE, BACK_LINE]


@pytest.mark.soak
@pytest.mark.timeout(600)
@OUTAGES
async def test_forty_jobs_outlast_an_outage_of_thirty_six_seconds(
    own_server: PostgresServer, own_store: Store, tmp_path: Path, outage: str
) -> None:
    """With the settings of production: a lease of 30 s, and a heartbeat every 10 s."""
    async with fault_jobs.fleet(own_store, tmp_path) as fleet:
        for _ in range(8):
            fleet.start("--fast", "0", "--general", "5")
        for worker in fleet.workers:
            await worker.ready(own_store)
        for _ in range(40):
            await fault_jobs.app.enqueue("lengthy", {"seconds": 50})

        async def full() -> bool:
            return len(executions(tmp_path)) == 40

        await until(full, "all jobs run")
        async with away(own_server, outage, 36):
            pass
        back = time.monotonic()

        async def alive() -> bool:
            return [record.alive for record in await own_store.workers.all()] == [True] * 8

        await until(alive, "all workers have sent a heartbeat again")
        print(f"\nall heartbeats are back after {time.monotonic() - back:.1f} s")
        await assert_unharmed(own_store, tmp_path / "gate", jobs=40)
        if outage == "stopped":
            assert [warnings(worker) for worker in fleet.workers] == [[AWAY_LINE, BACK_LINE]] * 8
