"""Whatever goes wrong while a batch is stored, no caller waits for ever, and the other jobs are stored."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from dutiful import Dutiful
from dutiful.client.client import Client
from dutiful.core.job import Inserted, NewJob
from dutiful.kind import Kind

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
def ping(app: Dutiful) -> Kind[[int], None]:
    @app.job
    async def ping(n: int) -> None: ...

    return ping


@sqlite
async def test_a_job_that_cannot_be_written_fails_alone(
    app: Dutiful, ping: Kind[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = (await app.client()).store
    insert = store.jobs.insert

    async def insert_or_stumble(
        jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        if any(job.payload == '{"n":3}' for job in jobs):
            raise TypeError("a fault of ours")
        return await insert(jobs, hint=hint, now=now)

    monkeypatch.setattr(store.jobs, "insert", insert_or_stumble)
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*(ping.enqueue(n) for n in range(8)), return_exceptions=True)
        assert [n for n, answer in enumerate(answers) if isinstance(answer, TypeError)] == [3]
        await ping.enqueue(8)
    assert [q.ready for q in await store.queries.queues()] == [8]


@sqlite
async def test_no_caller_waits_for_a_batch_insert_that_was_cancelled(
    app: Dutiful, ping: Kind[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Client = await app.client()
    begun, go = asyncio.Event(), asyncio.Event()

    async def cancelled(*args: Any, **kwargs: Any) -> list[Inserted]:
        begun.set()
        await go.wait()
        raise asyncio.CancelledError

    monkeypatch.setattr(client.store.jobs, "insert", cancelled)
    first = asyncio.create_task(ping.enqueue(1))
    await begun.wait()
    second = asyncio.create_task(ping.enqueue(2))
    await asyncio.sleep(0)
    go.set()
    async with asyncio.timeout(20):
        await asyncio.wait({first, second})
    assert first.cancelled() and second.cancelled()
