"""What somebody else holds, or sends at a bad moment, stalls nobody."""

import asyncio
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from dutiful import Dutiful
from dutiful.core.outcome import Lost
from dutiful.core.settle import Policy, decide
from dutiful.store import Ask, Line, Verdict
from dutiful.worker.supervisor import Supervisor


async def test_a_rescue_does_not_wait_for_a_lease_that_is_locked(pg18_url: str) -> None:
    app = Dutiful(pg18_url)

    @app.job
    async def slow() -> None: ...

    async with app:
        store = (await app.client()).store
        await slow.enqueue()
        ask = Ask(uuid4(), "general", [Line("default", 100)], ["slow"], 1, timedelta(seconds=1))
        (claim,) = await store.claim(ask)
        later = datetime.now(UTC) + timedelta(minutes=1)
        change = decide(claim, Lost(), Policy(), 5, lambda low, high: low)
        connection = await asyncpg.connect(pg18_url)
        try:
            async with connection.transaction():
                await connection.execute("select 1 from dutiful.lease where job_id = $1 for update", claim.job_id)
                # Bounded from outside: a rescue that waits for the lock would wait for this block to end.
                async with asyncio.timeout(1.5):
                    (refusal,) = await store.settle([change], lapsed_only=True, now=later)
        finally:
            await connection.close()

        assert refusal.verdict is Verdict.LOST
        assert await store.settle([change], lapsed_only=True, now=later) == []
        assert await store.check_places() == []


async def test_a_worker_that_is_started_while_the_stop_arrives_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def start_late(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        child = await start(*args, **kwargs)
        supervisor._on_signal(signal.SIGTERM)  # before the supervisor knows of this child
        return child

    async def reclaim(worker_id: UUID) -> None: ...

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)
    supervisor = Supervisor([sys.executable, "-c", "import time; time.sleep(600)"], 1, reclaim)

    async with asyncio.timeout(30):
        assert await supervisor.run() == 1  # the child ended by the signal, not of its own will
