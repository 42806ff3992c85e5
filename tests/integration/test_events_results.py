"""Large results in events: read when their reader is ready for them, and no more often than that."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec
import pytest
from event_jobs import of_type, reaching, read_until
from running_workers import eventually

from dutiful import Dutiful, Snapshot
from dutiful.core.errors import DataRefused, StoreUnavailable
from dutiful.core.events import JobView, LeftOut
from dutiful.core.job import PhaseState
from dutiful.events import feeds, watcher
from dutiful.store import Store
from suite.builders import claim, complete, mark, new_job, report_all

LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
SIZE = 100_000
FINAL = of_type("completed")


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    with patch.object(watcher, "POLL_INTERVAL", 0.05), patch.object(feeds, "TOMBSTONE_WAIT", 0.1):
        yield


class Counted:
    """A store of events that counts the characters of results that it returns, and how often it was looked at."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.read = self.looks = self.refusals = 0
        self.refusal: Exception = StoreUnavailable("gone fishing")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def marks(self, job_ids: Sequence[UUID]) -> Any:
        self.looks += 1
        return await self._store.marks(job_ids)

    async def views(self, job_ids: Sequence[UUID], **more: Any) -> list[JobView]:
        found: list[JobView] = await self._store.views(job_ids, **more)
        for one in found:
            results = [one.job.result, *(phase.result for phase in one.phases)]
            self.read += sum(len(result) for result in results if isinstance(result, str))
        return found

    async def result(self, job_id: UUID, left_out: LeftOut) -> str | None:
        if self.refusals:
            self.refusals -= 1
            raise self.refusal
        found: str | None = await self._store.result(job_id, left_out)
        self.read += len(found or "")
        return found

    async def looked(self, times: int) -> None:
        until = self.looks + times

        async def enough() -> bool:
            return self.looks >= until

        await eventually(enough)


@asynccontextmanager
async def counting(app: Dutiful) -> AsyncIterator[Counted]:
    client = await app.client()
    counted = Counted(client.store.events)
    for part in (client.watcher, client.watcher._results, client.watcher._all):
        part._store = counted
    yield counted


def text_of(n: int) -> str:
    return f"{n} " + "x" * SIZE


async def done(store: Store, *jobs: UUID) -> None:
    """Completes these jobs, which are all that wait, each with a large result of its own."""
    for claimed in await claim(store, limit=len(jobs), now=datetime.now(UTC)):
        result = msgspec.json.encode(text_of(jobs.index(claimed.job_id))).decode()
        await complete(store, claimed, result=result, now=datetime.now(UTC))


async def made(store: Store, count: int) -> list[UUID]:
    jobs = [new_job() for _ in range(count)]
    await store.jobs.insert(jobs)
    return [job.id for job in jobs]


async def test_following_given_jobs_reads_each_result_once_and_only_for_a_reader(app: Dutiful) -> None:
    store = (await app.client()).store
    before = await made(store, 5)
    await done(store, *before)
    after = await made(store, 5)
    async with counting(app) as counted, app.events([*before, *after]) as stream:
        await done(store, *after)
        await counted.looked(4)
        assert counted.read == 0, "nobody was ready for a result yet"

        items: list[Any] = [await anext(stream) for _ in range(10)]
        items += await read_until(stream, reaching(5, FINAL))
        snapshots = {item.job.id: item.job.result for item in items if isinstance(item, Snapshot)}
        assert snapshots == {job_id: text_of(n) for n, job_id in enumerate(before)} | dict.fromkeys(after)
        assert {item.job_id: item.data["result"] for item in items if FINAL(item)} == {
            job_id: text_of(n) for n, job_id in enumerate(after)
        }
        await counted.looked(3)
        assert counted.read < 11 * SIZE, "of ten results"


async def test_a_burst_of_large_results_is_read_one_by_one(app: Dutiful) -> None:
    store = (await app.client()).store
    jobs = await made(store, 40)
    async with counting(app) as counted, app.events() as stream:
        await done(store, *jobs)
        items = await read_until(stream, of_type("started"))  # a poll has read some jobs
        assert counted.read == 0
        items += await read_until(stream, reaching(40, FINAL))
        assert {item.job_id: item.data["result"] for item in items if FINAL(item)} == {
            job_id: text_of(n) for n, job_id in enumerate(jobs)
        }
        assert counted.read < 41 * SIZE


async def test_many_streams_read_a_result_once(app: Dutiful) -> None:
    store = (await app.client()).store
    (job_id,) = await made(store, 1)
    await done(store, job_id)
    async with counting(app) as counted:

        async def read() -> Any:
            async with app.events(job_id) as stream:
                item: Any = await anext(stream)
                return item.job.result

        assert set(await asyncio.gather(*(read() for _ in range(20)))) == {text_of(0)}
        assert counted.read < 2 * SIZE


async def test_results_of_phases_are_in_snapshots_and_events(app: Dutiful) -> None:
    store = (await app.client()).store
    (job_id,) = await made(store, 1)
    (claimed,) = await claim(store, limit=1)
    encoded = msgspec.json.encode(text_of(7)).decode()
    await report_all(store, mark(claimed, "download"))
    await report_all(store, mark(claimed, "download", PhaseState.COMPLETED, result=encoded))
    async with app.events(job_id, since=LONG_AGO) as stream:
        items = await read_until(stream, of_type("phase_completed"))
    assert [phase.result for phase in items[0].phases] == [text_of(7)] == [items[-1].data["result"]]


async def test_an_unread_result_of_a_deleted_job_is_left_out_and_its_deletion_comes(app: Dutiful) -> None:
    store = (await app.client()).store
    (deleted,) = await made(store, 1)
    async with counting(app) as counted, app.events(deleted) as stream:
        await done(store, deleted)
        await counted.looked(3)
        assert await (await app.operator("ada")).jobs.delete_finished(timedelta(0)) == 1
        items = await read_until(stream, of_type("deleted"))
    assert [item.type for item in items] == ["snapshot", "started", "deleted"]


async def test_a_store_that_is_away_costs_no_result_nor_does_a_read_that_is_given_up(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.events.stream.RETRY", 0.01)
    store = (await app.client()).store
    (job_id,) = await made(store, 1)
    await done(store, job_id)
    async with counting(app) as counted, app.events(job_id) as stream:
        counted.refusals = 2
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        async with asyncio.timeout(20):
            item = await anext(stream)
        assert isinstance(item, Snapshot) and item.job.result == text_of(0) and counted.refusals == 0


async def test_a_refusal_that_would_last_reaches_the_reader(app: Dutiful) -> None:
    store = (await app.client()).store
    (job_id,) = await made(store, 1)
    await done(store, job_id)
    async with counting(app) as counted, app.events(job_id) as stream:
        counted.refusals, counted.refusal = 1_000, DataRefused("no right to read it")
        async with asyncio.timeout(20):
            with pytest.raises(DataRefused):
                await anext(stream)


async def test_results_do_not_wait_for_the_history_of_their_tenant(app: Dutiful) -> None:
    client = await app.client()
    (job_id,) = await made(client.store, 1)
    await done(client.store, job_id)
    async with client.watcher._turns.turn(None), app.events(job_id) as stream, asyncio.timeout(20):
        item: Any = await anext(stream)
    assert item.job.result == text_of(0)


async def test_two_readers_of_a_stream_share_its_items(app: Dutiful) -> None:
    store = (await app.client()).store
    jobs = await made(store, 2)
    await done(store, *jobs)
    async with app.events(jobs) as stream, asyncio.timeout(20):
        items: list[Any] = [*await asyncio.gather(anext(stream), anext(stream))]
    assert {item.job.result for item in items} == {text_of(0), text_of(1)}


async def test_a_stream_that_is_closed_while_a_result_is_read_ends_for_its_reader(app: Dutiful) -> None:
    client = await app.client()
    (job_id,) = await made(client.store, 1)
    await done(client.store, job_id)

    async def read(stream: Any) -> list[Any]:
        return [item async for item in stream]

    async with client.watcher._turns.turn(None, "results"), asyncio.timeout(20):
        async with app.events(job_id) as stream:
            reading = asyncio.create_task(read(stream))
            await asyncio.sleep(0)
            assert stream._completing is not None
        assert await reading == []
