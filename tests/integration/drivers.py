"""One interface for every way in which a user may have a Postgres transaction open."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

ASYNC = ["asyncpg", "sqlalchemy connection", "sqlalchemy session", "sqlalchemy session on psycopg", "psycopg"]
BLOCKING = ["psycopg", "sqlalchemy connection", "sqlalchemy session", "django"]


@dataclass
class OpenTransaction:
    """An open transaction; `within` is the user's connection or session."""

    within: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


def dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def open_transaction(driver: str, url: str) -> AsyncIterator[OpenTransaction]:
    match driver:
        case "asyncpg":
            connection = await asyncpg.connect(url, statement_cache_size=0)  # as behind a pooler
            transaction = connection.transaction()
            await transaction.start()
            yield OpenTransaction(connection, connection.execute, transaction.commit, transaction.rollback)
            await connection.close()
        case "psycopg":
            async with await psycopg.AsyncConnection.connect(url) as own:
                yield OpenTransaction(own, own.execute, own.commit, own.rollback)
        case _:
            engine = create_async_engine(dialect(url, "psycopg" if "psycopg" in driver else "asyncpg"))
            held: Any = engine.connect() if "connection" in driver else AsyncSession(engine)
            async with held as opened:

                def execute(statement: str) -> Awaitable[Any]:
                    answer: Awaitable[Any] = opened.execute(sqlalchemy.text(statement))
                    return answer

                yield OpenTransaction(opened, execute, opened.commit, opened.rollback)
            await engine.dispose()


@contextmanager
def open_transaction_sync(driver: str, url: str) -> Iterator[OpenTransaction]:
    match driver:
        case "psycopg":
            with psycopg.connect(url) as own:
                yield OpenTransaction(own, own.execute, own.commit, own.rollback)
        case "django":
            wrapper = django_connection(url)
            wrapper.set_autocommit(False)
            yield OpenTransaction(wrapper, lambda statement: run(wrapper, statement), wrapper.commit, wrapper.rollback)
            wrapper.close()
        case _:
            engine = sqlalchemy.create_engine(dialect(url, "psycopg"))
            held: Any = engine.connect() if "connection" in driver else Session(engine)
            with held as opened:
                execute_sync = lambda statement: opened.execute(sqlalchemy.text(statement))  # noqa: E731
                yield OpenTransaction(opened, execute_sync, opened.commit, opened.rollback)
            engine.dispose()


def django_connection(url: str, alias: str = "default") -> Any:
    """A connection as `django.db.connections` makes it, without a Django project."""
    if not django_settings.configured:
        django_settings.configure(DATABASES={})
        django.setup()
    from django.db.utils import ConnectionHandler

    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "NAME": parts.path.lstrip("/"),
    }
    return ConnectionHandler({"default": database, alias: database})[alias]


def run(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
