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
from dutiful.store.jobs import Levels

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
        jobs: Sequence[NewJob], *, hint: Levels | None = None, now: datetime | None = None
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


@pytest.mark.parametrize("after", ["error", "cancel"])
@sqlite
async def test_those_who_wait_for_a_single_insert_are_stored_whatever_becomes_of_it(
    app: Dutiful, ping: Kind[[int], None], monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    client: Client = await app.client()
    insert = client.store.jobs.insert
    begun, go = asyncio.Event(), asyncio.Event()
    sizes: list[int] = []

    async def once_slowly(jobs: Sequence[NewJob], *, hint: Levels | None = None) -> list[Inserted]:
        sizes.append(len(jobs))
        if len(sizes) == 1:
            begun.set()
            await go.wait()
            raise TypeError("a fault of ours")
        return await insert(jobs, hint=hint)

    monkeypatch.setattr(client.store.jobs, "insert", once_slowly)
    first = asyncio.create_task(ping.enqueue(1))
    await begun.wait()
    others = [asyncio.create_task(ping.enqueue(n)) for n in (2, 3)]
    await asyncio.sleep(0)
    if after == "cancel":
        first.cancel()
    go.set()
    async with asyncio.timeout(20):
        answers = await asyncio.gather(first, *others, return_exceptions=True)
        await ping.enqueue(4)
    assert isinstance(answers[0], TypeError if after == "error" else asyncio.CancelledError)
    assert sizes == [1, 2, 1]
    assert [q.ready for q in await client.store.queries.queues()] == [3]


@sqlite
async def test_a_close_waits_for_an_insert_under_way(
    app: Dutiful, ping: Kind[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Client = await app.client()
    insert = client.store.jobs.insert
    begun, go = asyncio.Event(), asyncio.Event()

    async def slowly(jobs: Sequence[NewJob], *, hint: Levels | None = None) -> list[Inserted]:
        begun.set()
        await go.wait()
        return await insert(jobs, hint=hint)

    monkeypatch.setattr(client.store.jobs, "insert", slowly)
    enqueued = asyncio.create_task(ping.enqueue(1))
    await begun.wait()
    closing = asyncio.create_task(app.close())
    await asyncio.sleep(0)
    go.set()
    async with asyncio.timeout(20):
        await closing
        assert (await enqueued).created


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_job_whose_insert_was_interrupted_with_its_caller_is_stored_once(
    app: Dutiful, ping: Kind[[int], None], monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    client: Client = await app.client()
    insert = client.store.jobs.insert
    begun = asyncio.Event()

    async def interrupted_once(jobs: Sequence[NewJob], *, hint: Any = None) -> list[Inserted]:
        if begun.is_set():
            return await insert(jobs, hint=hint)
        if committed:
            await insert(jobs, hint=hint)
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr(client.store.jobs, "insert", interrupted_once)
    first = asyncio.create_task(ping.enqueue(1))
    await begun.wait()
    first.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({first})
        await ping.enqueue(2)
    assert first.cancelled()
    assert [q.ready for q in await client.store.queries.queues()] == [2]
