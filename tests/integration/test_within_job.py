"""A job's own writes and its completion: together or not at all."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import apsw
import django.db
import psycopg
import pytest
import sqlalchemy
from django.db import transaction as django_transaction
from drivers import dialect, django_connection, run
from running_workers import EVERYWHERE, final, working
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dutiful import ClaimLost, Context, Dutiful, Fixed, JobFailed, Retry, State, UsageError
from dutiful.core.outcome import Lost
from dutiful.core.settle import Policy, decide
from dutiful.store import Store

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
postgres = pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
AT_ONCE = Retry(max_attempts=2, backoff=Fixed(0))


class Notes:
    """A table of the user's own in the jobs' database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_sqlite = url.startswith("sqlite")
        self.insert = f"insert into notes values ({'?' if self._is_sqlite else '$1'})"
        if not self._is_sqlite:
            self.drop()
            self._run("create table notes (name text)")

    async def prepare(self, app: Dutiful) -> None:
        if self._is_sqlite:
            await app.client()
            self._run("create table notes (name text)")

    def drop(self) -> None:
        self._run("drop table if exists notes")

    def names(self) -> list[str]:
        return [name for (name,) in self._run("select name from notes order by name")]

    def _run(self, statement: str) -> list[Any]:
        if self._is_sqlite:
            # The library that the store uses, because a second one in this process would drop its locks.
            return list(apsw.Connection(self._url.removeprefix("sqlite:///")).execute(statement))
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
async def notes(app: Dutiful, app_url: str) -> AsyncIterator[Notes]:
    table = Notes(app_url)
    await table.prepare(app)
    yield table
    table.drop()


async def steal(store: Store, job_id: UUID) -> None:
    """Rescue the job as if its worker were dead, so that the claim is lost."""
    held = await store.claims.held(job_id)
    assert held is not None, "no worker holds a claim of it"
    assert await store.claims.settle([decide(held, Lost(), Policy(), 1, lambda low, high: low)]) == []


@everywhere
async def test_an_error_raised_in_a_transaction_keeps_its_meaning(app: Dutiful) -> None:
    @app.job(retry=Retry(max_attempts=3, per_error={FileNotFoundError: None, TimeoutError: None}))
    async def raises(ctx: Context, late: bool) -> None:
        async with ctx.transaction():
            raise TimeoutError("a slow service") if late else FileNotFoundError("no such invoice")

    async with working(app):
        records = [await final(app, await raises.enqueue(late=late)) for late in (False, True)]
    ends = [(r.state, r.errors[0]["type"], r.errors[0]["message"]) for r in records if r.errors]
    assert ends == [
        (State.FAILED, "FileNotFoundError", "no such invoice"),
        (State.FAILED, "TimeoutError", "a slow service"),
    ]


@everywhere
async def test_writes_and_completion_are_committed_together(app: Dutiful, notes: Notes) -> None:
    @app.job
    async def write(ctx: Context, name: str) -> Any:
        async with ctx.transaction() as tx:
            await tx.execute(notes.insert, name)
            tx.complete({"wrote": name})
            assert notes.names() == []
            record = await app.find(ctx.job_id)
            assert record is not None and record.state is State.RUNNING
        record = await app.find(ctx.job_id)
        assert record is not None and record.state is State.COMPLETED and notes.names() == [name]
        return "not this"

    async with working(app):
        job = await write.enqueue("ada")
        assert await job.result("20s") == {"wrote": "ada"}
    assert notes.names() == ["ada"] and (await final(app, job)).attempt == 1


@everywhere
async def test_a_lost_claim_takes_the_writes_back(app: Dutiful, notes: Notes) -> None:
    lost: list[str] = []

    @app.job
    async def write(ctx: Context) -> str | None:
        try:
            async with ctx.transaction() as tx:
                await tx.execute(notes.insert, f"crashes {len(lost)}")
                if not lost:
                    await steal((await app.client()).store, ctx.job_id)
                tx.complete("mine")
        except ClaimLost as error:
            lost.append(str(error))
            raise
        return None

    async with working(app):
        job = await write.enqueue()
        assert await job.result("20s") == "mine"
    assert notes.names() == ["crashes 1"] and len(lost) == 1 and job.public_id in lost[0]


@everywhere
async def test_an_error_in_the_block_takes_the_writes_back_and_is_retried(app: Dutiful, notes: Notes) -> None:
    @app.job(retry=AT_ONCE)
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(notes.insert, f"attempt {ctx.attempt}")
            if ctx.attempt == 1:
                raise LookupError("no luck")

    async with working(app):
        job = await write.enqueue()
        await job.result("20s")
    assert notes.names() == ["attempt 2"]
    (failed,) = await (await app.client()).store.queries.attempts(job.id)
    assert failed.error is not None and failed.error["message"] == "no luck"


async def test_a_statement_that_the_database_refuses_is_the_jobs_error(app: Dutiful, notes: Notes) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(notes.insert, "first")
            await tx.execute("insert into nowhere values (1)")

    async with working(app):
        job = await write.enqueue()
        with pytest.raises(JobFailed, match="nowhere"):
            await job.result("20s")
    assert notes.names() == []


async def test_an_error_after_the_transaction_cannot_change_the_end(app: Dutiful, notes: Notes) -> None:
    @app.job(retry=AT_ONCE)
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(notes.insert, "once")
        with pytest.raises(UsageError, match="completed already"):
            async with ctx.transaction():
                pass
        raise LookupError("too late")

    async with working(app):
        job = await write.enqueue()
        await job.result("20s")
    assert notes.names() == ["once"] and (await final(app, job)).state is State.COMPLETED


@postgres
async def test_the_drivers_connection_is_there_for_everything_else(app: Dutiful, notes: Notes) -> None:
    @app.job
    async def write(ctx: Context) -> Any:
        async with ctx.transaction() as tx:
            await tx.connection.executemany(notes.insert, [("a",), ("b",)])
            tx.complete(await tx.connection.fetchval("select count(*) from notes"))

    async with working(app):
        assert await (await write.enqueue()).result("20s") == 2


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_on_sqlite_the_connection_is_refused_with_the_remedy(app: Dutiful, notes: Notes) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def write(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.connection.execute("select 1")

    async with working(app):
        with pytest.raises(JobFailed, match=r"Use execute\(\)"):
            await (await write.enqueue()).result("20s")


# --- in a transaction of the user's own


def completing(app: Dutiful, url: str, driver: str) -> None:
    """Registers a kind `write` that completes in the driver's own transaction, and fails its first attempt."""
    engine, async_engine = (
        sqlalchemy.create_engine(dialect(url, "psycopg")),
        create_async_engine(dialect(url, "asyncpg")),
    )
    statement = "insert into notes values ('attempt {}')"

    def check(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise LookupError("no luck")

    async def with_async_session(ctx: Context) -> None:
        async with AsyncSession(async_engine) as session:
            await session.execute(sqlalchemy.text(statement.format(ctx.attempt)))
            await ctx.complete_in(session, {"attempt": ctx.attempt})
            check(ctx)
            await session.commit()

    async def with_psycopg(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute(statement.format(ctx.attempt))
            await ctx.complete_in(connection, {"attempt": ctx.attempt})
            check(ctx)

    def with_session(ctx: Context) -> None:
        with Session(engine) as session:
            session.execute(sqlalchemy.text(statement.format(ctx.attempt)))
            ctx.complete_in_sync(session, {"attempt": ctx.attempt})
            check(ctx)
            session.commit()

    def with_django(ctx: Context) -> None:
        django.db.connections["notes"] = connection = django_connection(url, "notes")
        try:
            with django_transaction.atomic(using="notes"):
                run(connection, statement.format(ctx.attempt))
                ctx.complete_in_sync(connection, {"attempt": ctx.attempt})
                check(ctx)
        finally:
            connection.close()
            del django.db.connections["notes"]

    functions = {f.__name__: f for f in (with_async_session, with_psycopg, with_session, with_django)}
    app.job(name="write", retry=AT_ONCE)(functions[driver])


@pytest.mark.parametrize("driver", ["with_async_session", "with_psycopg", "with_session", "with_django"])
@postgres
async def test_the_users_commit_completes_the_job_and_a_rollback_does_not(
    app: Dutiful, notes: Notes, app_url: str, driver: str
) -> None:
    completing(app, app_url, driver)
    async with working(app):
        job = await app.enqueue("write")
        assert await job.result("20s") == {"attempt": 2}
    assert notes.names() == ["attempt 2"]
    (failed,) = await (await app.client()).store.queries.attempts(job.id)
    assert failed.outcome == "failed" and failed.error is not None and failed.error["message"] == "no luck"


@postgres
async def test_a_lost_claim_cannot_be_completed_in_the_users_transaction(
    app: Dutiful, notes: Notes, app_url: str
) -> None:
    lost: list[str] = []

    @app.job
    async def write(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(app_url) as connection:
            await connection.execute(f"insert into notes values ('crashes {len(lost)}')")
            if not lost:
                await steal((await app.client()).store, ctx.job_id)
            try:
                await ctx.complete_in(connection, "mine")
            except ClaimLost as error:
                lost.append(str(error))
                raise

    async with working(app):
        job = await write.enqueue()
        record = await final(app, job)
    assert (record.result, notes.names(), len(lost)) == ("mine", ["crashes 1"], 1)


@postgres
async def test_an_error_after_the_users_commit_changes_nothing(app: Dutiful, notes: Notes, app_url: str) -> None:
    @app.job(retry=AT_ONCE)
    async def write(ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(app_url) as connection:
            await connection.execute("insert into notes values ('once')")
            await ctx.complete_in(connection)
        raise LookupError("too late")

    async with working(app):
        job = await write.enqueue()
        await job.result("20s")
    record = await final(app, job)
    assert (record.state, record.attempt, notes.names()) == (State.COMPLETED, 1, ["once"])


@pytest.mark.parametrize("app_url", ["sqlite", "postgres18"], indirect=True)
async def test_a_job_is_counted_as_the_users_transaction_ended(app: Dutiful, app_url: str) -> None:
    """Neither is a rollback counted as a completion, nor does an error after the commit hide one."""

    def complete(ctx: Context, commit: bool) -> None:
        if app_url.startswith("sqlite"):
            connection = sqlite3.connect(app_url.removeprefix("sqlite:///"), isolation_level=None)
            connection.execute("begin immediate")
            ctx.complete_in_sync(connection)
            connection.execute("commit" if commit else "rollback")
            connection.close()
        else:
            with psycopg.connect(app_url) as session:
                ctx.complete_in_sync(session)
                session.commit() if commit else session.rollback()

    @app.job(retry=AT_ONCE)
    def rolled_back(ctx: Context) -> None:
        complete(ctx, commit=ctx.attempt == 2)  # and it returns as if all were well

    @app.job(retry=AT_ONCE)
    def fails_afterwards(ctx: Context) -> None:
        complete(ctx, commit=True)
        raise LookupError("too late")

    app.configure(sqlite_driver="sqlite3")
    async with working(app):
        records = [await final(app, await kind.enqueue()) for kind in (rolled_back, fails_afterwards)]
    store = (await app.client()).store
    assert [(one.state, one.attempt, one.crashes) for one in records] == [
        (State.COMPLETED, 2, 0),
        (State.COMPLETED, 1, 0),
    ]
    (first,) = await store.queries.attempts(records[0].id)
    assert first.outcome == "failed" and first.error is not None and first.error["type"] == "RolledBack"
    counts = {(one.kind, one.outcome): one.count for one in await store.metrics.recent(timedelta(minutes=5))}
    assert counts == {
        ("rolled_back", "retried"): 1,
        ("rolled_back", "completed"): 1,
        ("fails_afterwards", "completed"): 1,
    }
