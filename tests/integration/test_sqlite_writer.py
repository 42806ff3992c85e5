"""The writer thread: commands that share a transaction fail alone, and nothing is promised before its commit."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uuid_utils.compat

from dutiful.core.errors import ClaimLost, DataRefused, UsageError
from dutiful.core.job import Claim, ClaimToken, NewJob
from dutiful.core.states import State
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel
from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite.engine.codec import micros
from dutiful.stores.sqlite.engine.driver import Connection
from dutiful.stores.sqlite.engine.threads import Command

LEASE = timedelta(seconds=60)
ADA = UUID(int=0xADA)


T0 = datetime(2024, 1, 1, tzinfo=UTC)


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": uuid_utils.compat.uuid7(), "kind": "greet", "queue": "default", "payload": "{}", **fields})


@pytest.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_path)
    await store.open()
    yield store
    await store.close()


class BusyWriter:
    """The writer thread, kept busy until it is released, so that calls made meanwhile share the next transaction."""

    def __init__(self, store: SqliteStore) -> None:
        self._began, self._go = threading.Event(), threading.Event()
        self._task = asyncio.ensure_future(store.engine.submit(self._hold, transaction=False))

    def _hold(self, _: Connection) -> None:
        self._began.set()
        self._go.wait()

    async def began(self) -> None:
        await asyncio.to_thread(self._began.wait)

    async def let_go(self) -> None:
        self._go.set()
        await self._task


async def claim_one(store: SqliteStore) -> Claim:
    (claim,) = await store.claims.claim(ClaimRequest(ADA, "lane", [QueueLevel("default", 100)], ["greet"], 1, LEASE))
    return claim


async def test_a_bad_command_fails_alone_among_those_of_its_transaction(store: SqliteStore) -> None:
    held = BusyWriter(store)
    await held.began()
    jobs = [new_job(priority=priority) for priority in (-1, 1, -1, 2, -1)]
    calls = [asyncio.ensure_future(store.jobs.insert([job])) for job in jobs]
    await asyncio.sleep(0)
    await held.let_go()

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [isinstance(answer, DataRefused) for answer in answers] == [True, False, True, False, True]
    assert [await store.queries.job(job.id) is not None for job in jobs] == [False, True, False, True, False]
    assert await store.queries.check_places() == []


async def test_a_renewal_goes_before_work_that_waited_longer(store: SqliteStore) -> None:
    order: list[str] = []
    held = BusyWriter(store)
    await held.began()
    loop = asyncio.get_running_loop()
    writer = store.engine.threads.writer
    commands = [Command[None](_note(order, name), loop) for name in ("work 1", "work 2", "renewal")]
    for command in commands:
        writer.submit(command, urgent=command is commands[-1])
    await held.let_go()
    await asyncio.gather(*(command.future for command in commands if command.future))

    assert order == ["renewal", "work 1", "work 2"]


def _note(order: list[str], name: str) -> Callable[[Connection], None]:
    return lambda _: order.append(name)


async def test_a_caller_that_gives_up_does_not_undo_the_others(store: SqliteStore) -> None:
    held = BusyWriter(store)
    await held.began()
    jobs = [new_job() for _ in range(3)]
    calls = [asyncio.ensure_future(store.jobs.insert([job])) for job in jobs]
    await asyncio.sleep(0)
    calls[1].cancel()
    await held.let_go()

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(answer) for answer in answers] == [list, asyncio.CancelledError, list]
    assert await store.queries.job(jobs[0].id) is not None
    assert await store.queries.job(jobs[2].id) is not None


async def test_a_claim_whose_caller_gave_up_is_released_to_its_place(store: SqliteStore) -> None:
    await store.jobs.insert([first := new_job(), new_job()], now=T0)
    held = BusyWriter(store)
    await held.began()
    calls = asyncio.ensure_future(claim_one(store))
    await asyncio.sleep(0)
    calls.cancel()
    await held.let_go()
    with pytest.raises(asyncio.CancelledError):
        await calls
    # The claim is made before the first of these is stored, and given back before the second.
    await store.jobs.insert([new_job()])
    await store.jobs.insert([new_job()])

    claim = await claim_one(store)

    assert (claim.job_id, claim.attempt, claim.seq) == (first.id, 1, micros(T0))
    assert [attempt.outcome for attempt in await store.queries.attempts(first.id)] == ["released"]


async def test_a_store_that_is_closed_finishes_open_calls(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    held = BusyWriter(store)
    await held.began()
    jobs = [new_job() for _ in range(10)]
    calls = [asyncio.ensure_future(store.jobs.insert([job])) for job in jobs]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await held.let_go()
    await asyncio.gather(closing, *calls)

    await store.open()
    assert [await store.queries.job(job.id) is not None for job in jobs] == [True] * 10
    await store.close()


# A handler's own transaction


@pytest.fixture
async def token(store: SqliteStore) -> ClaimToken:
    await store.engine.write(lambda db: db.run("CREATE TABLE note (text TEXT)"))
    await store.jobs.insert([new_job()])
    claim = await claim_one(store)
    return ClaimToken(claim.job_id, claim.claim_id)


async def notes(store: SqliteStore) -> list[str]:
    return await store.engine.read(lambda db: [text for (text,) in db.rows("SELECT text FROM note")])


async def test_writes_and_completion_are_applied_when_the_block_is_left(store: SqliteStore, token: ClaimToken) -> None:
    async with store.claims.transaction(token, lambda: '"done"') as tx:
        await tx.execute("INSERT INTO note VALUES (?)", "hello")
        assert await notes(store) == []

    assert await notes(store) == ["hello"]
    record = await store.queries.job(token.job_id)
    assert record is not None
    assert (record.state, record.result) == (State.COMPLETED, "done")


async def test_a_repeated_transaction_does_not_write_twice(store: SqliteStore, token: ClaimToken) -> None:
    async def write() -> None:
        async with store.claims.transaction(token, lambda: None) as tx:
            await tx.execute("INSERT INTO note VALUES (?)", "hello")

    await write()
    with pytest.raises(ClaimLost):
        await write()

    assert await notes(store) == ["hello"]


@pytest.mark.parametrize(
    "statement", ["COMMIT", " -- out\n rollback ", "/* */ savepoint x", ";BEGIN", "PRAGMA synchronous=OFF", "END;"]
)
async def test_a_statement_that_would_end_the_transaction_is_refused(
    store: SqliteStore, token: ClaimToken, statement: str
) -> None:
    with pytest.raises(UsageError, match="cannot be used here"):
        async with store.claims.transaction(token, lambda: None) as tx:
            await tx.execute(statement)

    record = await store.queries.job(token.job_id)
    assert record is not None
    assert record.state is State.RUNNING


async def test_a_second_statement_cannot_hide_behind_the_first(store: SqliteStore, token: ClaimToken) -> None:
    with pytest.raises(UsageError, match="one statement at a time"):
        async with store.claims.transaction(token, lambda: None) as tx:
            await tx.execute("INSERT INTO note VALUES ('hello'); COMMIT")

    assert await notes(store) == []
    await store.claims.complete([Completion(token.job_id, token.claim_id)])
    assert await store.queries.check_places() == []


async def test_the_connection_is_refused_with_the_way_out(store: SqliteStore, token: ClaimToken) -> None:
    with pytest.raises(UsageError, match="Use execute"):
        async with store.claims.transaction(token, lambda: None) as tx:
            _ = tx.connection


async def test_a_statement_after_the_block_is_refused(store: SqliteStore, token: ClaimToken) -> None:
    async with store.claims.transaction(token, lambda: None) as tx:
        pass

    with pytest.raises(UsageError, match="the transaction is over"):
        await tx.execute("INSERT INTO note VALUES ('late')")
