"""How a worker shuts down: it leaves no claim behind, and no job spends an attempt."""

from pathlib import Path
from signal import SIGINT, SIGQUIT, SIGTERM, SIGTTIN
from typing import Any

import fault_jobs
import pytest
from fault_jobs import executions

from dutiful.client.client import JobHandle
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from faults import WorkerProcess, until

ONE_SLOT = ("--fast", "0", "--general", "1")


async def enqueued(kind: str, gate: Path) -> JobHandle[Any]:
    return await fault_jobs.app.enqueue(kind, {"gate": str(gate)})


async def started(folder: Path, *jobs: JobHandle[Any]) -> None:
    async def look() -> bool:
        return {job.id for job in jobs} <= set(executions(folder))

    await until(look, "the jobs run")


async def assert_given_back(store: Store, *jobs: JobHandle[Any]) -> None:
    """Each is ready with no attempt spent, and its claim is on record."""
    for job in jobs:
        record = await job.record()
        assert (record.state, record.attempt, record.crashes) == (State.READY, 0, 0)
        assert [attempt.outcome for attempt in await store.queries.attempts(job.id)] == ["released"]


@pytest.mark.req("L8", "L92", "S81")
async def test_a_stop_lets_running_jobs_finish_and_releases_those_claimed_ahead(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        # The quick ones make the worker claim ahead; then the only slot is taken.
        await fault_jobs.nothing.enqueue_many({} for _ in range(300))
        slow = await enqueued("wait", gate)
        await fault_jobs.nothing.enqueue_many({} for _ in range(300))
        worker = fleet.start(*ONE_SLOT)
        await started(tmp_path, slow)
        ahead = {held.job_id for held in await store.claims.held_by(worker.id)} - set(executions(tmp_path))
        assert ahead, "nothing was claimed ahead"
        worker.signal(SIGTERM)

        async def only_one_left() -> bool:
            return [held.job_id for held in await store.claims.held_by(worker.id)] == [slow.id]

        await until(only_one_left, "what was claimed ahead is given back")
        gate.touch()
        assert await worker.ended() == 0
        assert await slow.result(timeout="60s") == worker.pid
        jobs = {job.id: job for job in await store.queries.jobs(JobFilter(limit=1000))}
        assert {jobs[key].state for key in ahead} == {State.READY}
        assert {(job.attempt, job.crashes) for job in jobs.values() if job.state is State.READY} == {(0, 0)}
        assert set(executions(tmp_path)) == {job.id for job in jobs.values() if job.state is State.COMPLETED}
        claims = [[one.outcome for one in await store.queries.attempts(key)] for key in ahead]
        assert claims == [["released"]] * len(ahead), "every claim stays on record"
        assert await store.queries.check_places() == []


async def test_a_worker_stopped_in_full_flight_leaves_no_claim_behind(store: Store, tmp_path: Path) -> None:
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        handles = await fault_jobs.nothing.enqueue_many({} for _ in range(60_000))
        for _ in range(2):
            before = len(executions(tmp_path))
            worker = fleet.start("--log-level", "warning")

            async def in_full_flight(before: int = before) -> bool:
                return len(executions(tmp_path)) > before + 500

            await until(in_full_flight, "it has done some hundred jobs")
            worker.signal(SIGTERM)
            assert await worker.ended() == 0
            assert await store.claims.held_by(worker.id) == []
        assert len(executions(tmp_path)) < len(handles), "there was nothing left to claim"
        jobs = await store.queries.jobs(JobFilter(limit=len(handles) + 1))
        assert {job.id for job in jobs} == {handle.id for handle in handles}
        outcomes = {(job.state, job.attempt, job.crashes) for job in jobs}
        assert outcomes == {(State.COMPLETED, 1, 0), (State.READY, 0, 0)}
        assert await store.queries.check_places() == []


async def test_jobs_that_outlast_the_grace_period_are_interrupted_and_released(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = fleet.start("--grace", "200ms")
        job = await enqueued("wait", gate)
        await started(tmp_path, job)
        worker.signal(SIGTERM)
        assert await worker.ended() == 1
        assert gate.with_name("gate.interrupted").exists()
        await assert_given_back(store, job)
        assert await store.queries.check_places() == []


async def test_a_second_interrupt_does_not_wait_for_the_grace_period(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = fleet.start("--grace", "1h")
        job = await enqueued("wait", gate)
        await started(tmp_path, job)
        worker.signal(SIGINT)
        await until(lambda: said(worker, "interrupt again"), "the first interrupt is received")
        assert worker.running
        worker.signal(SIGINT)
        assert await worker.ended() == 1
        await assert_given_back(store, job)
        assert await store.queries.check_places() == []


async def test_quit_ends_a_worker_at_once_even_if_handlers_ignore_cancellation(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = fleet.start("--grace", "1h")
        jobs = [
            await enqueued(kind, gate) for kind in ("wait", "ignore_cancel_in_thread", "ignore_cancel", "await_thread")
        ]
        await started(tmp_path, *jobs)
        worker.signal(SIGQUIT)
        assert await worker.ended() == 1
        await assert_given_back(store, *jobs)
        assert await store.queries.check_places() == []


async def test_a_worker_dumps_its_stacks_even_if_its_event_loop_is_blocked(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = fleet.start()
        job = await enqueued("block_loop", gate)
        await started(tmp_path, job)
        worker.signal(SIGTTIN)
        await until(lambda: said(worker, 'fault_jobs.py", line'), "the stacks are printed")
        assert "most recent call first" in worker.output
        gate.touch()
        assert await job.result(timeout="60s") == worker.pid
        assert await store.queries.check_places() == []


async def said(worker: WorkerProcess, text: str) -> bool:
    return text in worker.output
