"""Workers that are stopped past their leases and then continue: their outcomes come too late."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import fault_jobs
import pytest
from fault_jobs import address, executions, gate_of

from dutiful.client.client import JobHandle
from dutiful.core.job import JobRecord
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from faults import Fleet, WorkerProcess, until


@dataclass(frozen=True)
class TakenOver:
    """A job that a second worker runs, while the first one was stopped running it."""

    job: JobHandle[Any]
    first: WorkerProcess
    second: WorkerProcess


async def taken_over(kind: str, gate: Path, fleet: Fleet, store: Store) -> TakenOver:
    first = await fleet.start("--no-services").ready(store)
    job = await fault_jobs.app.enqueue(kind, {"gate": str(gate)})

    async def running() -> bool:
        return len(executions(gate.parent)) == 1 and bool(await store.claims.held_by(first.id))

    await until(running, "the first worker runs the job")
    await stop_between_writes(store, first)
    second = fleet.start()

    async def running_again() -> bool:
        return len(executions(gate.parent)) == 2 and bool(await store.claims.held_by(second.id))

    await until(running_again, "the second worker runs the job")
    return TakenOver(job, first, second)


async def stop_between_writes(store: Store, worker: WorkerProcess) -> None:
    """Stop it just after a renewal, because on SQLite a process stopped in the middle of a write blocks all writers."""

    async def expiry() -> datetime | None:
        (held,) = await store.claims.held_by(worker.id)
        record = await store.queries.job(held.job_id)
        return record.expires_at if record else None

    before = await expiry()

    async def renewed() -> bool:
        return await expiry() != before

    await until(renewed, "its lease is renewed")
    worker.stop()


async def test_the_late_outcome_of_a_stopped_worker_is_refused(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path, lease="2s") as fleet:
        # Its handler blocks the event loop, so it has an outcome before it can learn that the claim is lost.
        taken = await taken_over("block_loop", gate, fleet, store)
        gate_of(gate, taken.first).touch()
        taken.first.resume()

        async def refused() -> bool:
            return "refused" in [attempt.outcome for attempt in await store.queries.attempts(taken.job.id)]

        await until(refused, "the late outcome is refused")
        assert [claim.job_id for claim in await store.claims.held_by(taken.second.id)] == [taken.job.id]
        gate.touch()
        assert await taken.job.result(timeout="60s") == taken.second.pid
        finished = await taken.job.record()
        assert (finished.state, finished.crashes) == (State.COMPLETED, 1)
        assert finished.worker_id == taken.second.id
        lost, late = await store.queries.attempts(taken.job.id)
        assert (lost.outcome, lost.worker_id, late.outcome) == ("lost", taken.first.id, "refused")
        assert lost.claim_id == late.claim_id
        assert await store.queries.check_places() == []


async def test_a_stopped_worker_learns_which_claims_it_has_lost(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path, lease="2s") as fleet:
        taken = await taken_over("wait", gate, fleet, store)
        taken.first.resume()

        async def interrupted() -> bool:
            return gate.with_name("gate.interrupted").exists()

        await until(interrupted, "the first worker's handler is interrupted")
        gate.touch()
        assert await taken.job.result(timeout="60s") == taken.second.pid
        finished = await taken.job.record()
    assert (finished.worker_id, finished.crashes) == (taken.second.id, 1)
    assert [attempt.outcome for attempt in await store.queries.attempts(taken.job.id)] == ["lost"]
    assert await store.queries.check_places() == []


def moments(jobs: Iterable[JobRecord]) -> list[datetime]:
    """The times that these jobs were scheduled for."""
    return sorted(datetime.fromisoformat(job.options["scheduled_for"]) for job in jobs if job.options)


FIRE = """
    with fired as (
        update dutiful.schedule set next_at = next_at + interval '1 second'
        returning next_at - interval '1 second' as at)
    select dutiful.insert_jobs(jsonb_build_array(jsonb_build_object(
        'id', dutiful.new_id(), 'kind', 'tick', 'options', jsonb_build_object('scheduled_for', at)))) from fired"""


@asynccontextmanager
async def locked(store: Store, table: str) -> AsyncIterator[asyncpg.Connection]:
    """Lock all rows of a table."""
    connection = await asyncpg.connect(address(store))
    try:
        async with connection.transaction():
            await connection.execute(f"select from {table} for update")
            yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_a_leader_stopped_in_the_middle_of_its_services_blocks_no_worker_and_repeats_nothing(
    store: Store, tmp_path: Path
) -> None:
    spread = 12.0
    admin = await asyncpg.connect(address(store))
    async with fault_jobs.fleet(store, tmp_path, of=fault_jobs.ticking, heartbeat="1s") as fleet:
        for worker in (fleet.start("--log-level", "warning"), fleet.start("--log-level", "warning")):
            await worker.ready(store)
        now = datetime.now(UTC)
        for step in range(100):
            due = now + timedelta(seconds=spread * step / 100)
            await fault_jobs.later.options(run_at=due).enqueue_many({} for _ in range(30))

        async def leading() -> WorkerProcess | None:
            leaders = {record.id for record in await store.workers.all() if record.leading}
            return next((worker for worker in fleet.workers if worker.id in leaders), None)

        async def firing() -> bool:
            waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%schedule%'"
            return bool(await admin.fetch(waits))

        old = await until(leading, "a worker leads")
        assert old is not None
        async with locked(store, "dutiful.schedule") as faster:
            await until(firing, "the leader is about to fire the schedule")
            await faster.execute(FIRE)
        async with locked(store, "dutiful.schedule"):
            await until(firing, "the leader is about to fire the schedule")
            old.stop()
        stopped_at = datetime.now(UTC)

        async def fired_after(moment: datetime) -> bool:
            jobs = await store.queries.jobs(JobFilter(kind="tick", limit=1000))
            return bool(jobs) and moments(jobs)[-1] > moment

        async def succeeded() -> bool:
            new = await leading()
            return new is not None and new is not old and await fired_after(stopped_at + timedelta(seconds=5))

        await until(succeeded, "another worker leads and fires the schedule")
        old.resume()

        async def awake() -> bool:
            return any(record.id == old.id and record.seen_at > stopped_at for record in await store.workers.all())

        await until(awake, "the old leader goes on")
        resumed_at = datetime.now(UTC)
        await until(lambda: fired_after(resumed_at + timedelta(seconds=1)), "the schedule fires on")

        async def drained() -> bool:
            return not await store.queries.queues()

        await until(drained, "no job is left")
    jobs = await store.queries.jobs(JobFilter(limit=10_000))
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert sum(1 for job in jobs if job.kind == "later") == 3_000
    fired = moments([job for job in jobs if job.kind == "tick"])
    assert fired == [fired[0] + timedelta(seconds=n) for n in range(len(fired))]
    assert len(executions(tmp_path)) == len(jobs)
    assert await store.queries.check_places() == []
    await admin.close()
