"""The writer thread: commands that share a transaction fail alone, and nothing is promised before its commit."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uuid_utils.compat

from dutiful.core.errors import ClaimLost, DataRefused, UsageError
from dutiful.core.job import Claim, NewJob, Token
from dutiful.core.transitions import State
from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.inbox import Command, Reply
from dutiful.working import Ask, Completion, Line

LEASE = timedelta(seconds=60)
ADA = UUID(int=0xADA)


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": uuid_utils.compat.uuid7(), "kind": "greet", "queue": "default", "payload": "{}", **fields})


@pytest.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_path)
    await store.open()
    yield store
    await store.close()


class Held:
    """The writer, kept busy until it is let go, so that what is asked meanwhile shares the next transaction."""

    def __init__(self, store: SqliteStore) -> None:
        self._began, self._go = threading.Event(), threading.Event()
        self._task = asyncio.ensure_future(store._submit(self._hold, transaction=False))

    def _hold(self, _: Connection) -> None:
        self._began.set()
        self._go.wait()

    async def began(self) -> None:
        await asyncio.to_thread(self._began.wait)

    async def let_go(self) -> None:
        self._go.set()
        await self._task


async def claim_one(store: SqliteStore) -> Claim:
    (claim,) = await store.claim(Ask(ADA, "lane", [Line("default", 100)], ["greet"], 1, LEASE))
    return claim


async def test_a_bad_command_fails_alone_among_those_of_its_transaction(store: SqliteStore) -> None:
    held = Held(store)
    await held.began()
    jobs = [new_job(priority=priority) for priority in (-1, 1, -1, 2, -1)]
    asked = [asyncio.ensure_future(store.insert([job])) for job in jobs]
    await asyncio.sleep(0)
    await held.let_go()

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert [isinstance(answer, DataRefused) for answer in answers] == [True, False, True, False, True]
    assert [await store.find(job.id) is not None for job in jobs] == [False, True, False, True, False]
    assert await store.check_places() == []


async def test_a_renewal_goes_before_work_that_waited_longer(store: SqliteStore) -> None:
    order: list[str] = []
    held = Held(store)
    await held.began()
    loop = asyncio.get_running_loop()
    writer = store._running().writer
    commands = [Command[None](_note(order, word), Reply(loop)) for word in ("work 1", "work 2", "renewal")]
    for command in commands:
        writer.submit(command, urgent=command is commands[-1])
    await held.let_go()
    await asyncio.gather(*(command.reply.future for command in commands if command.reply.future))

    assert order == ["renewal", "work 1", "work 2"]


def _note(order: list[str], word: str) -> Callable[[Connection], None]:
    return lambda _: order.append(word)


async def test_a_caller_that_gives_up_does_not_undo_the_others(store: SqliteStore) -> None:
    held = Held(store)
    await held.began()
    jobs = [new_job() for _ in range(3)]
    asked = [asyncio.ensure_future(store.insert([job])) for job in jobs]
    await asyncio.sleep(0)
    asked[1].cancel()
    await held.let_go()

    answers = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(answer) for answer in answers] == [list, asyncio.CancelledError, list]
    assert await store.find(jobs[0].id) is not None
    assert await store.find(jobs[2].id) is not None


async def test_a_claim_whose_caller_gave_up_goes_back_to_its_place_unspent(store: SqliteStore) -> None:
    await store.insert([first := new_job(), new_job()])
    held = Held(store)
    await held.began()
    asked = asyncio.ensure_future(claim_one(store))
    await asyncio.sleep(0)
    asked.cancel()
    await held.let_go()
    with pytest.raises(asyncio.CancelledError):
        await asked
    # The claim is made before the first of these is stored, and given back before the second.
    await store.insert([new_job()])
    await store.insert([new_job()])

    claim = await claim_one(store)

    assert (claim.job_id, claim.attempt, claim.seq) == (first.id, 1, 1)
    assert await store.attempts(first.id) == []


async def test_a_store_that_is_closed_finishes_what_it_was_asked(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    held = Held(store)
    await held.began()
    jobs = [new_job() for _ in range(10)]
    asked = [asyncio.ensure_future(store.insert([job])) for job in jobs]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await held.let_go()
    await asyncio.gather(closing, *asked)

    await store.open()
    assert all([await store.find(job.id) for job in jobs])
    await store.close()


# A handler's own transaction


@pytest.fixture
async def token(store: SqliteStore) -> Token:
    await store._write(lambda db: db.run("CREATE TABLE note (text TEXT)"))
    await store.insert([new_job()])
    claim = await claim_one(store)
    return Token(claim.job_id, claim.claim_id)


async def notes(store: SqliteStore) -> list[str]:
    return await store._read(lambda db: [text for (text,) in db.rows("SELECT text FROM note")])


async def test_writes_and_completion_are_applied_when_the_block_is_left(store: SqliteStore, token: Token) -> None:
    async with store.transaction(token, lambda: '"done"') as tx:
        await tx.execute("INSERT INTO note VALUES (?)", "hello")
        assert await notes(store) == []

    assert await notes(store) == ["hello"]
    record = await store.find(token.job_id)
    assert record is not None
    assert (record.state, record.result) == (State.COMPLETED, "done")


async def test_a_repeated_transaction_does_not_write_twice(store: SqliteStore, token: Token) -> None:
    for attempt in (1, 2):
        try:
            async with store.transaction(token, lambda: None) as tx:
                await tx.execute("INSERT INTO note VALUES (?)", "hello")
        except ClaimLost:
            assert attempt == 2

    assert await notes(store) == ["hello"]


@pytest.mark.parametrize(
    "statement", ["COMMIT", " -- out\n rollback ", "/* */ savepoint x", ";BEGIN", "PRAGMA synchronous=OFF", "END;"]
)
async def test_a_statement_that_would_end_the_transaction_is_refused(
    store: SqliteStore, token: Token, statement: str
) -> None:
    with pytest.raises(UsageError, match="cannot be used here"):
        async with store.transaction(token, lambda: None) as tx:
            await tx.execute(statement)

    record = await store.find(token.job_id)
    assert record is not None
    assert record.state is State.RUNNING


async def test_a_second_statement_cannot_hide_behind_the_first(store: SqliteStore, token: Token) -> None:
    with pytest.raises(UsageError, match="one statement at a time"):
        async with store.transaction(token, lambda: None) as tx:
            await tx.execute("INSERT INTO note VALUES ('hello'); COMMIT")

    assert await notes(store) == []
    await store.complete([Completion(token.job_id, token.claim_id)])
    assert await store.check_places() == []


async def test_the_connection_is_refused_with_the_way_out(store: SqliteStore, token: Token) -> None:
    with pytest.raises(UsageError, match="Use execute"):
        async with store.transaction(token, lambda: None) as tx:
            _ = tx.connection


async def test_a_statement_after_the_block_is_refused(store: SqliteStore, token: Token) -> None:
    async with store.transaction(token, lambda: None) as tx:
        pass

    with pytest.raises(UsageError, match="the transaction is over"):
        await tx.execute("INSERT INTO note VALUES ('late')")
