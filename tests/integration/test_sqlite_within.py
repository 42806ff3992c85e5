"""Enqueue and complete in a transaction of the user's own."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import django
import pytest
import sqlalchemy
import uuid_utils.compat
from django.conf import settings as django_settings
from sqlalchemy.orm import Session

from dutiful.core.errors import ClaimLost, StoreUnavailable, UsageError
from dutiful.core.job import ClaimToken, Insertion, NewJob, Unique
from dutiful.core.states import State
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.stores.sqlite import SqliteStore

LEASE = timedelta(seconds=60)
ADA = UUID(int=0xADA)


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": uuid_utils.compat.uuid7(), "kind": "greet", "queue": "default", "payload": "{}", **fields})


@pytest.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    """A store that shares the standard library's SQLite with its user."""
    store = SqliteStore(sqlite_path, driver="sqlite3", busy_timeout=timedelta(milliseconds=100))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def connection(store: SqliteStore, sqlite_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(sqlite_path)
    yield connection
    connection.close()


async def test_the_users_commit_stores_the_job(store: SqliteStore, connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE note (text TEXT)")
    connection.execute("INSERT INTO note VALUES ('hello')")

    (inserted,) = store.jobs.insert_within_sync(connection, [job := new_job()])

    assert (inserted.job_id, inserted.insertion) == (job.id, Insertion.MADE)
    assert await store.queries.job(job.id) is None
    connection.commit()
    assert await store.queries.job(job.id) is not None
    assert await store.queries.check_places() == []


async def test_the_users_rollback_takes_the_job_back(store: SqliteStore, connection: sqlite3.Connection) -> None:
    store.jobs.insert_within_sync(connection, [job := new_job()])

    connection.rollback()

    assert await store.queries.job(job.id) is None
    assert await store.queries.check_places() == []


async def test_a_refused_job_leaves_the_users_transaction_usable(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    store.jobs.insert_within_sync(connection, [job := new_job()])
    with pytest.raises(UsageError, match="there is no job"):
        store.jobs.insert_within_sync(connection, [new_job(), new_job(depends_on=(UUID(int=1),))])
    connection.commit()

    assert await store.queries.job(job.id) is not None
    assert (await store.queries.stats(LEASE)).live["ready"] == 1


async def test_a_connection_that_commits_by_itself_stores_the_job_whole(store: SqliteStore, sqlite_path: Path) -> None:
    connection = sqlite3.connect(sqlite_path, isolation_level=None)

    store.jobs.insert_within_sync(connection, [job := new_job()])

    assert not connection.in_transaction
    assert await store.queries.job(job.id) is not None
    connection.close()


async def test_rows_may_come_in_any_shape(store: SqliteStore, connection: sqlite3.Connection) -> None:
    connection.row_factory = lambda cursor, row: {"the first column": row[0]}
    unique = Unique("k")

    (first,) = store.jobs.insert_within_sync(connection, [new_job(unique=unique)])
    (second,) = store.jobs.insert_within_sync(connection, [new_job(unique=unique)])
    connection.commit()

    assert (second.job_id, second.insertion) == (first.job_id, Insertion.EXISTING)


async def test_an_sqlalchemy_session_carries_the_job(store: SqliteStore, sqlite_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_path}")
    with Session(engine) as session:
        store.jobs.insert_within_sync(session, [kept := new_job()])
        session.commit()
        store.jobs.insert_within_sync(session, [dropped := new_job()])
        session.rollback()
    with engine.begin() as bound:
        store.jobs.insert_within_sync(bound, [third := new_job()])
    engine.dispose()

    assert await store.queries.job(kept.id) is not None
    assert await store.queries.job(dropped.id) is None
    assert await store.queries.job(third.id) is not None


async def test_a_django_connection_carries_the_job(store: SqliteStore, sqlite_path: Path) -> None:
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    from django.db.utils import ConnectionHandler

    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(sqlite_path)}})

    def in_django() -> tuple[NewJob, NewJob]:
        connection = handler["default"]
        kept, dropped = new_job(), new_job()
        connection.set_autocommit(False)
        store.jobs.insert_within_sync(connection, [kept])
        connection.commit()
        store.jobs.insert_within_sync(connection, [dropped])
        connection.rollback()
        connection.close()
        return kept, dropped

    kept, dropped = await asyncio.to_thread(in_django)

    assert await store.queries.job(kept.id) is not None
    assert await store.queries.job(dropped.id) is None


async def test_a_job_is_completed_by_the_users_commit(store: SqliteStore, connection: sqlite3.Connection) -> None:
    token = await started(store)

    store.claims.complete_within_sync(connection, token, '"sent"')
    connection.commit()

    record = await store.queries.job(token.job_id)
    assert record is not None
    assert (record.state, record.result) == (State.COMPLETED, "sent")


async def test_a_lost_claim_cannot_be_completed_within(store: SqliteStore, connection: sqlite3.Connection) -> None:
    token = await started(store)

    with pytest.raises(ClaimLost):
        store.claims.complete_within_sync(connection, ClaimToken(token.job_id, token.claim_id + 1), None)
    connection.commit()

    record = await store.queries.job(token.job_id)
    assert record is not None
    assert record.state is State.RUNNING


async def started(store: SqliteStore) -> ClaimToken:
    await store.jobs.insert([new_job()])
    (claim,) = await store.claims.claim(ClaimRequest(ADA, "lane", [QueueLevel("default", 100)], ["greet"], 1, LEASE))
    return ClaimToken(claim.job_id, claim.claim_id)


async def test_another_writers_transaction_is_an_error_that_passes(
    store: SqliteStore, connection: sqlite3.Connection, sqlite_path: Path
) -> None:
    connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(sqlite_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="kept the database locked"):
        store.jobs.insert_within_sync(connection, [job := new_job()])
    other.execute("ROLLBACK")
    other.close()
    store.jobs.insert_within_sync(connection, [job])
    connection.commit()

    assert await store.queries.job(job.id) is not None


# What is refused


async def test_a_connection_to_another_file_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    for elsewhere in (tmp_path / "other.db", Path(":memory:")):
        connection = sqlite3.connect(elsewhere)
        with pytest.raises(UsageError, match="but this connection is to"):
            store.jobs.insert_within_sync(connection, [new_job()])
        connection.close()


async def test_what_is_no_connection_is_refused(store: SqliteStore) -> None:
    with pytest.raises(UsageError, match="is no connection to SQLite"):
        store.jobs.insert_within_sync("sqlite:///jobs.db", [new_job()])


async def test_an_asyncio_session_is_refused_with_the_way_out(store: SqliteStore) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession

    with pytest.raises(UsageError, match="run_sync"):
        await store.jobs.insert_within(AsyncSession(), [new_job()])


@pytest.mark.parametrize("kind", ["sqlite3", "sqlalchemy", "django"])
def test_with_apsw_a_connection_of_the_standard_library_is_refused_with_the_reason(
    sqlite_path: Path, tmp_path: Path, kind: str
) -> None:
    store = SqliteStore(sqlite_path)
    connection: Any
    match kind:
        case "sqlite3":
            connection = sqlite3.connect(tmp_path / "user.db")
        case "sqlalchemy":
            connection = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'user.db'}").connect()
        case _:
            from django.db.backends.sqlite3.base import DatabaseWrapper

            connection = DatabaseWrapper({**DJANGO_DEFAULTS, "NAME": str(tmp_path / "user.db")})

    with pytest.raises(UsageError, match=r'lose acknowledged commits.*driver="sqlite3"'):
        store.jobs.insert_within_sync(connection, [new_job()])
    with pytest.raises(UsageError, match=r'lose acknowledged commits.*driver="sqlite3"'):
        store.claims.complete_within_sync(connection, ClaimToken(ADA, 1), None)
    connection.close()


DJANGO_DEFAULTS: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3", "OPTIONS": {}, "TIME_ZONE": None, "CONN_MAX_AGE": 0, "AUTOCOMMIT": True,
    "CONN_HEALTH_CHECKS": False, "TEST": {"NAME": None}, "ATOMIC_REQUESTS": False, "USER": "", "PASSWORD": "",
    "HOST": "", "PORT": "",
}  # fmt: skip


async def test_with_apsw_a_connection_of_apsw_carries_the_job(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    connection = apsw.Connection(str(sqlite_path))
    with connection:
        store.jobs.insert_within_sync(connection, [kept := new_job()])
    connection.execute("BEGIN IMMEDIATE")
    store.jobs.insert_within_sync(connection, [dropped := new_job()])
    connection.execute("ROLLBACK")
    connection.close()

    assert await store.queries.job(kept.id) is not None
    assert await store.queries.job(dropped.id) is None
    await store.close()
