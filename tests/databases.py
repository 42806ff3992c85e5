"""Where tests find Postgres, and how they get a clean database quickly."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
from psycopg import sql

from dutiful.core.job import Claim, ClaimToken
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore

DATABASE = "dutiful_test"


class Postgres(Protocol):
    """What tests need of a server: one of ours, or one from the environment."""

    def dsn(self, database: str = ...) -> str: ...
    def create_database(self, name: str) -> str: ...
    def drop_database(self, name: str) -> None: ...


class GivenPostgres:
    """A server from the environment; its role must be a superuser."""

    def __init__(self, url: str) -> None:
        self._url = url

    def dsn(self, database: str = "postgres") -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    def create_database(self, name: str) -> str:
        self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        self._run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement)


class CleanDatabase:
    """One migrated database, set back to how the migrations left it before each test."""

    def __init__(self, server: Postgres, name: str = DATABASE, schema: str = "dutiful") -> None:
        server.drop_database(name)
        self.url = server.create_database(name)
        asyncio.run(PostgresStore(self.url, schema=schema).migrate())
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._reset = reset_statement(self._connection, schema)

    def reset(self, *, alone: bool = True) -> str:
        """Delete all rows; `alone` also ends the sessions that a test left open, because they could lock or write."""
        if alone:
            self._connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        self._connection.execute(self._reset)
        return self.url

    def close(self) -> None:
        self._connection.close()


def reset_statement(connection: psycopg.Connection[Any], *schemas: str) -> sql.Composed:
    """Empties every table of these schemas, and fills those again that have rows now."""
    connection.execute("CREATE SCHEMA pristine")
    tables = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY (%s)"
    deletes, inserts = [], []
    for schema, name in connection.execute(tables, [list(schemas)]).fetchall():
        table, copy = sql.Identifier(schema, name), sql.Identifier("pristine", f"{schema}_{name}")
        deletes.append(sql.SQL("DELETE FROM {};").format(table))
        if connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(table)).fetchone() is not None:
            connection.execute(sql.SQL("CREATE TABLE {} AS TABLE {}").format(copy, table))
            inserts.append(sql.SQL("INSERT INTO {} TABLE {};").format(table, copy))
    body = sql.SQL("").join([*deletes, *inserts])
    return sql.SQL("BEGIN; SET LOCAL session_replication_role = replica; {} COMMIT").format(body)


class OwnTransaction:
    """A transaction on a user's own connection in which a job was completed, and which is still open."""

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self._url = url

    async def begin(self, claimed: Claim) -> Callable[[], Awaitable[None]]:
        """Complete the job; returns the function that commits."""
        connection = await asyncpg.connect(self._url)
        transaction = connection.transaction()
        await transaction.start()
        await self._store.claims.complete_within(connection, ClaimToken(claimed.job_id, claimed.claim_id), None)

        async def commit() -> None:
            await transaction.commit()
            await connection.close()

        return commit

    async def wait_for_a_lock(self) -> None:
        """Return when some statement waits for a lock."""
        connection = await asyncpg.connect(self._url)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        async with asyncio.timeout(10):
            while not await connection.fetchval(waiting):
                await connection.execute("SELECT pg_sleep(0.01)")
        await connection.close()


def missing(reason: str) -> NoReturn:
    """Fail in CI, where every part has to be there; skip elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
