"""Jobs enqueued inside the user's own SQLite transaction, through an app."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.orm import Session

from dutiful import Dutiful, State, UsageError
from dutiful.kind import Kind


@pytest.fixture
def own(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dutiful]:
    """An app whose process uses one SQLite library, chosen by the environment."""
    monkeypatch.setenv("DUTIFUL_SQLITE_DRIVER", "sqlite3")
    app = Dutiful(f"sqlite:///{sqlite_path}")
    yield app
    app.close_sync()


@pytest.fixture
def bill(own: Dutiful) -> Kind[[str], None]:
    @own.job
    async def bill(order: str) -> None: ...

    return bill


def states(app: Dutiful, *jobs: Any) -> list[State | None]:
    async def look() -> list[State | None]:
        async with app:
            records = [await app.find(job.id) for job in jobs]
            return [record.state if record else None for record in records]

    return asyncio.run(look())


Carry = Callable[[Any], Any]


def with_sqlite3(path: Path, carry: Carry) -> tuple[Any, Any]:
    with closing(sqlite3.connect(path)) as connection:
        kept = carry(connection)
        connection.commit()
        dropped = carry(connection)
        connection.rollback()
    return kept, dropped


def with_sqlalchemy(path: Path, carry: Carry) -> tuple[Any, Any]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        kept = carry(session)
        session.commit()
    with engine.connect() as connection:
        dropped = carry(connection)
        connection.rollback()
    engine.dispose()
    return kept, dropped


def with_django(path: Path, carry: Carry) -> tuple[Any, Any]:
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    from django.db.utils import ConnectionHandler

    connection = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}})["default"]
    connection.set_autocommit(False)
    kept = carry(connection)
    connection.commit()
    dropped = carry(connection)
    connection.rollback()
    connection.close()
    return kept, dropped


WAYS = [with_sqlite3, with_sqlalchemy, with_django]


@pytest.mark.parametrize("way", WAYS)
def test_the_users_commit_stores_the_job_and_a_rollback_takes_it_back(
    own: Dutiful, bill: Kind[[str], None], sqlite_path: Path, way: Callable[[Path, Carry], tuple[Any, Any]]
) -> None:
    bill.sync.options(delay="1h").enqueue("so that there is a file")
    kept, dropped = way(sqlite_path, lambda within: bill.sync.options(within=within).enqueue("42"))
    own.close_sync()
    assert states(own, kept, dropped) == [State.READY, None]


def test_the_first_job_of_a_process_may_be_enqueued_inside_a_transaction_that_writes(
    own: Dutiful, bill: Kind[[str], None], sqlite_path: Path
) -> None:
    bill.sync.enqueue("so that there is a file")
    own.close_sync()
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute("create table orders (name text)")
        connection.execute("insert into orders values ('42')")
        job = bill.sync.options(within=connection).enqueue("42")
        connection.commit()
    own.close_sync()
    assert states(own, job) == [State.READY]


@pytest.mark.parametrize("way", WAYS)
def test_with_the_default_driver_it_is_refused_with_the_way_out(
    sqlite_path: Path, tmp_path: Path, way: Callable[[Path, Carry], tuple[Any, Any]]
) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}")

    @app.job
    async def bill(order: str) -> None: ...

    def carry(within: Any) -> Any:
        with pytest.raises(UsageError, match=r"lose acknowledged commits.*DUTIFUL_SQLITE_DRIVER=sqlite3"):
            bill.sync.options(within=within).enqueue("42")

    # Another file, because this one must not be opened with a second library.
    way(tmp_path / "users.db", carry)
    app.close_sync()
