"""Locks held by other transactions, and signals at a bad moment, stall no worker."""

import asyncio
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from running_workers import eventually, final, state, working

from dutiful import Context, Dutiful, Retry, ShutdownTimeout, State
from dutiful.core.outcome import Lost
from dutiful.core.settle import Policy, decide
from dutiful.store.claims import ClaimRequest, QueueLevel, RefusalReason
from dutiful.worker import settler
from dutiful.worker import worker as worker_module
from dutiful.worker.supervisor import EXIT_UNAVAILABLE, Supervisor


async def test_a_rescue_does_not_wait_for_a_lease_that_is_locked(pg18_url: str) -> None:
    app = Dutiful(pg18_url)

    @app.job
    async def slow() -> None: ...

    async with app:
        store = (await app.client()).store
        await slow.enqueue()
        ask = ClaimRequest(uuid4(), "general", [QueueLevel("default", 100)], ["slow"], 1, timedelta(seconds=1))
        (claim,) = await store.claims.claim(ask)
        later = datetime.now(UTC) + timedelta(minutes=1)
        change = decide(claim, Lost(), Policy(), 5, lambda low, high: low)
        connection = await asyncpg.connect(pg18_url)
        try:
            async with connection.transaction():
                await connection.execute("select 1 from dutiful.lease where job_id = $1 for update", claim.job_id)
                # Bounded from outside: a rescue that waits for the lock would wait for this block to end.
                async with asyncio.timeout(1.5):
                    (refusal,) = await store.claims.settle([change], expired_only=True, now=later)
        finally:
            await connection.close()

        assert refusal.reason is RefusalReason.LOST
        assert await store.claims.settle([change], expired_only=True, now=later) == []
        assert await store.queries.check_places() == []


async def test_outcomes_do_not_wait_for_one_whose_lease_is_locked(
    pg18_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler, "RETRY_LOCKED", 0.1)
    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.5)
    app = Dutiful(pg18_url)
    leaked = await asyncpg.connect(pg18_url)

    @app.job(retry=Retry(max_attempts=1))
    async def rude(ctx: Context) -> None:
        await leaked.execute("begin")
        await ctx.complete_in(leaked)
        raise ValueError("its transaction stays open")

    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise RuntimeError("for good")

    @app.job
    async def works() -> None: ...

    async with app:
        client = await app.client()
        try:
            with pytest.raises(ShutdownTimeout, match="1 outcome could not be stored"):
                async with working(app):
                    held = await rude.enqueue()
                    others = [await kind.enqueue() for kind in (fails, works, fails)]
                    states = [(await final(app, job)).state for job in others]
                    assert states == [State.FAILED, State.COMPLETED, State.FAILED]
                    assert await state(app, held) is State.RUNNING
        finally:
            await leaked.close()
        assert await client.store.queries.check_places() == []


async def test_a_locked_outcome_is_stored_when_its_lease_is_free(
    pg18_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler, "RETRY_LOCKED", 0.1)
    app = Dutiful(pg18_url)
    running, go_on = asyncio.Event(), asyncio.Event()
    other = await asyncpg.connect(pg18_url)

    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        running.set()
        await go_on.wait()
        raise RuntimeError("for good")

    try:
        async with app, working(app) as own:
            job = await fails.enqueue()
            await running.wait()
            async with other.transaction():
                await other.execute("select 1 from dutiful.lease where job_id = $1 for update", job.id)
                go_on.set()

                async def put_aside() -> bool:  # its row is the same before the settler has tried
                    return bool(own._parts.settler._locked)

                await eventually(put_aside)
                assert await state(app, job) is State.RUNNING
            record = await final(app, job)
    finally:
        await other.close()
    assert (record.state, record.attempt, record.crashes) == (State.FAILED, 1, 0)


async def test_transactions_of_handlers_leave_the_engine_its_connections(pg18_url: str) -> None:
    app = Dutiful(pg18_url, pool_size=2, lanes="general=6:*")
    full, over = asyncio.Semaphore(0), asyncio.Event()

    @app.job
    async def long(ctx: Context) -> str:
        async with ctx.transaction():
            full.release()
            await over.wait()
        return "done"

    @app.job
    async def quick() -> str:
        return "done"

    async with app, working(app):
        jobs = [await long.enqueue() for _ in range(3)]
        for _ in range(2):
            await full.acquire()
        assert await (await quick.enqueue()).result("20s") == "done"
        over.set()
        assert [await job.result("20s") for job in jobs] == [None] * 3


async def test_a_worker_that_is_started_while_the_stop_arrives_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def start_late(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        child = await start(*args, **kwargs)
        supervisor._on_signal(signal.SIGTERM)  # before the supervisor knows of this child
        return child

    async def rescue(worker_id: UUID) -> None: ...

    async def is_stuck(worker_id: UUID, silent: float) -> bool:
        return False

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)
    supervisor = Supervisor([sys.executable, "-c", "import time; time.sleep(600)"], 1, rescue, is_stuck)

    async with asyncio.timeout(30):
        assert await supervisor.run() == 1  # the child ended by the signal, not of its own will


async def test_workers_that_ended_because_the_database_is_away_do_not_stay_away_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pause, seconds in {"FIRST_PAUSE": 0.01, "RETRY": 0.02, "LONGEST_PAUSE": 3600.0}.items():
        monkeypatch.setattr(f"dutiful.worker.supervisor.{pause}", seconds)
    ended = 0

    async def rescue(worker_id: UUID) -> None:
        nonlocal ended
        ended += 1
        if ended == 15:
            supervisor._on_signal(signal.SIGTERM)

    async def is_stuck(worker_id: UUID, silent: float) -> bool:
        return False

    supervisor = Supervisor(["sh", "-c", f"exit {EXIT_UNAVAILABLE}"], 1, rescue, is_stuck)
    async with asyncio.timeout(60):
        await supervisor.run()


async def test_a_worker_that_runs_again_before_it_would_be_killed_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One sign of life, then none; the print of its stacks ends its silence, and the second one the worker."""
    child = """
import os, signal
to = int(os.environ["DUTIFUL_PULSE"])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
os.write(to, b".")
signal.sigwait({signal.SIGTTIN})
os.write(to, b".")
signal.sigwait({signal.SIGTTIN})
"""
    rescued: list[UUID] = []

    async def rescue(worker_id: UUID) -> None:
        rescued.append(worker_id)
        supervisor._on_signal(signal.SIGTERM)

    async def is_stuck(worker_id: UUID, silent: float) -> bool:
        return True

    supervisor = Supervisor([sys.executable, "-c", child], 1, rescue, is_stuck)
    async with asyncio.timeout(60):
        await supervisor.run()
    assert len(rescued) == 1
    assert "ended with exit code 0" in caplog.text and "runs again: it is not killed" in caplog.text
