"""How a worker ends when it is told to."""

from pathlib import Path
from signal import SIGINT, SIGQUIT, SIGTERM, SIGTTIN
from typing import Any

import fault_jobs
from dutiful.client import JobHandle
from dutiful.core.transitions import State
from dutiful.store import Store
from dutiful.testing.faults import until
from fault_jobs import executions


async def enqueued(kind: str, gate: Path, count: int) -> list[JobHandle[Any]]:
    return [await fault_jobs.app.enqueue(kind, {"gate": str(gate)}) for _ in range(count)]


async def started(folder: Path, count: int) -> None:
    async def look() -> bool:
        return len(executions(folder)) == count

    await until(look, f"{count} jobs run")


async def given_back(store: Store, jobs: list[JobHandle[Any]]) -> bool:
    """Whether each waits in its line as if nobody had claimed it."""
    records = [await job.record() for job in jobs]
    attempts = [attempt for job in jobs for attempt in await store.attempts(job.id)]
    return [(r.state, r.attempt, r.crashes) for r in records] == [(State.READY, 0, 0)] * len(jobs) and attempts == []


async def test_a_worker_told_to_stop_finishes_what_runs_and_gives_back_what_it_claimed_ahead(
    store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = await fleet.start("--general", "4").ready(store)
        running = await enqueued("patient", gate, 4)
        await started(tmp_path, 4)
        waiting = await enqueued("patient", gate, 4)
        worker.signal(SIGTERM)
        gate.touch()
        assert await worker.ended() == 0
        assert [(await job.record()).state for job in running] == [State.COMPLETED] * 4
        assert await given_back(store, waiting)
        assert len(executions(tmp_path)) == 4
    assert await store.check_places() == []
