"""Enqueues on SQLite: one alone goes straight to the writer, those that come meanwhile share the next commit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uuid_utils.compat

from dutiful.client.batch_inserter import BatchInserter
from dutiful.core.errors import DataRefused
from dutiful.core.job import Inserted, NewJob
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.stores.sqlite import SqliteStore


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": uuid_utils.compat.uuid7(), "kind": "greet", "queue": "default", "payload": "{}", **fields})


class Gate:
    """Counts the inserts of a store; while it is closed, they have begun and do not return."""

    def __init__(self, store: SqliteStore) -> None:
        self.sizes: list[int] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self._insert = store.jobs.insert

    async def insert(self, jobs: Sequence[NewJob], **rest: Any) -> list[Inserted]:
        self.sizes.append(len(jobs))
        self.begun.set()
        inserted = await self._insert(jobs, **rest)
        await self.open.wait()
        return inserted


@pytest.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def gate(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(store)
    monkeypatch.setattr(store.jobs, "insert", gate.insert)
    return gate


async def test_callers_at_once_share_their_commits(store: SqliteStore, gate: Gate) -> None:
    inserter = BatchInserter(store, InProcessDelivery())

    async def enqueue() -> None:
        for _ in range(3):
            await inserter.insert(new_job())

    await asyncio.gather(*(enqueue() for _ in range(50)))

    assert gate.sizes == [50, 50, 50]


async def test_one_caller_starts_no_task(store: SqliteStore, gate: Gate) -> None:
    inserter = BatchInserter(store, InProcessDelivery())
    gate.open.clear()
    enqueueing = asyncio.create_task(inserter.insert(new_job()))
    await gate.begun.wait()
    others = asyncio.all_tasks() - {asyncio.current_task(), enqueueing}

    assert [task for task in others if task.get_name() == "dutiful batch insert"] == []
    gate.open.set()
    await enqueueing


async def test_a_cancelled_caller_leaves_its_job_and_those_that_wait_behind_it(store: SqliteStore, gate: Gate) -> None:
    delivery = InProcessDelivery()
    hints = delivery.listen()
    hinted = asyncio.ensure_future(anext(hints))
    inserter = BatchInserter(store, delivery)
    gate.open.clear()
    first, second = new_job(queue="first"), new_job(queue="second")
    cancelled = asyncio.create_task(inserter.insert(first))
    await gate.begun.wait()
    waiting = asyncio.create_task(inserter.insert(second))
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.open.set()
    await waiting

    assert cancelled.cancelled()
    assert await store.queries.job(first.id) is not None
    assert await store.queries.job(second.id) is not None
    assert ("first", first.priority) in await asyncio.wait_for(hinted, 30)


async def test_a_refused_job_fails_alone(store: SqliteStore) -> None:
    inserter = BatchInserter(store, InProcessDelivery())
    fates = await asyncio.gather(
        *(inserter.insert(new_job(kind=kind)) for kind in ("\ud800", "greet", "\ud800", "greet")),
        return_exceptions=True,
    )

    assert [isinstance(fate, DataRefused) for fate in fates] == [True, False, True, False]


async def test_close_stores_what_waits_behind_a_job_that_is_being_stored(store: SqliteStore, gate: Gate) -> None:
    inserter = BatchInserter(store, InProcessDelivery())
    gate.open.clear()
    enqueueing = [asyncio.create_task(inserter.insert(new_job()))]
    await gate.begun.wait()
    enqueueing += [asyncio.create_task(inserter.insert(new_job())) for _ in range(2)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(inserter.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing

    assert gate.sizes == [1, 2]
    await asyncio.wait_for(asyncio.gather(*enqueueing), 30)
