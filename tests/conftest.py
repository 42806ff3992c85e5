"""Real servers for everyone: started once a session, and a clean, migrated database for each test.

A part that is missing here is a failure in CI and a skip elsewhere. The reset deletes rows instead of creating
databases: 2 ms against 100 ms or more.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.servers import PgBouncer, PostgresServer, database_url

pytest.register_assert_rewrite("dutiful.testing.store_suite")

DATABASE = "dutiful_test"


class Postgres(Protocol):
    """What tests need of a server, be it ours or one that the environment offers."""

    def dsn(self, database: str = ...) -> str: ...
    def create_database(self, name: str) -> str: ...
    def drop_database(self, name: str) -> None: ...


class GivenPostgres:
    """A server that the environment offers; its role must be a superuser."""

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

    def __init__(self, server: Postgres) -> None:
        server.drop_database(DATABASE)
        self.url = server.create_database(DATABASE)
        asyncio.run(PostgresStore(self.url).migrate())
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._reset = self._reset_statement()

    def reset(self, *, alone: bool = True) -> str:
        """Take all rows out; `alone` also ends whatever sessions a test left behind, for they could hold locks or write."""
        if alone:
            self._connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        self._connection.execute(self._reset)
        return self.url

    def close(self) -> None:
        self._connection.close()

    def _reset_statement(self) -> sql.Composed:
        """Empty every table, and fill those again that the migrations filled."""
        self._connection.execute("CREATE SCHEMA pristine")
        rows = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'dutiful'").fetchall()
        deletes, inserts = [], []
        for (name,) in rows:
            table, copy = sql.Identifier("dutiful", name), sql.Identifier("pristine", name)
            deletes.append(sql.SQL("DELETE FROM {};").format(table))
            if self._connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(table)).fetchone() is not None:
                self._connection.execute(sql.SQL("CREATE TABLE {} AS TABLE {}").format(copy, table))
                inserts.append(sql.SQL("INSERT INTO {} TABLE {};").format(table, copy))
        body = sql.SQL("").join([*deletes, *inserts])
        return sql.SQL("BEGIN; SET LOCAL session_replication_role = replica; {} COMMIT").format(body)


def missing(reason: str) -> None:
    """Fail in CI, where every part has to be there; skip elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _postgres(version: int) -> Iterator[Postgres]:
    if url := database_url(version):
        yield GivenPostgres(url)
        return
    if reason := PostgresServer.available(version):
        missing(reason)
    # Crash safety needs no fsync here: it is the server that tests kill, not the machine.
    with PostgresServer(version, {"fsync": "off", "full_page_writes": "off"}) as server:
        yield server


def _cleaned(server: Postgres) -> Iterator[CleanDatabase]:
    database = CleanDatabase(server)
    yield database
    database.close()
    server.drop_database(DATABASE)


@pytest.fixture(scope="session")
def postgres18() -> Iterator[Postgres]:
    yield from _postgres(18)


@pytest.fixture(scope="session")
def postgres16() -> Iterator[Postgres]:
    yield from _postgres(16)


@pytest.fixture(scope="session")
def clean18(postgres18: Postgres) -> Iterator[CleanDatabase]:
    yield from _cleaned(postgres18)


@pytest.fixture(scope="session")
def clean16(postgres16: Postgres) -> Iterator[CleanDatabase]:
    yield from _cleaned(postgres16)


@pytest.fixture
def pg18_url(clean18: CleanDatabase) -> str:
    """A migrated, empty database on Postgres 18; tests that change the schema create their own on `postgres18`."""
    return clean18.reset()


@pytest.fixture
def pg16_url(clean16: CleanDatabase) -> str:
    return clean16.reset()


@pytest.fixture(scope="session")
def _pgbouncer(postgres18: Postgres) -> Iterator[PgBouncer]:
    if not isinstance(postgres18, PostgresServer):
        missing("PgBouncer is tested in front of a bundled server only: unset DUTIFUL_TEST_PG18_URL")
    assert isinstance(postgres18, PostgresServer)
    if reason := PgBouncer.available():
        missing(reason)
    with PgBouncer(postgres18) as bouncer:
        yield bouncer


@pytest.fixture
def pgbouncer(_pgbouncer: PgBouncer, pg18_url: str) -> str:
    """The URL of `pg18_url`'s database through PgBouncer in transaction mode."""
    return _pgbouncer.dsn(DATABASE)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "dutiful.db"


@pytest.fixture(params=["sqlite", "postgres18"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def closed_store(backend: str, request: pytest.FixtureRequest) -> Store:
    match backend:
        case "sqlite":
            return SqliteStore(request.getfixturevalue("sqlite_path"))
        case "postgres18":
            return PostgresStore(request.getfixturevalue("pg18_url"))
        case _:
            return PostgresStore(request.getfixturevalue("pg16_url"))


@pytest.fixture
async def store(closed_store: Store) -> AsyncIterator[Store]:
    """An open, empty store; a test that takes it runs on both backends."""
    await closed_store.open()
    yield closed_store
    await closed_store.close()
