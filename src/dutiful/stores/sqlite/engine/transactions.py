"""Transactions with a user's own writes: on the user's connection to the same file, or collected for the writer."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import apsw

from dutiful.core.errors import UsageError
from dutiful.stores.sqlite.engine.driver import Connection, Driver, translate

_COMMENTS = re.compile(r"\A(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_FORBIDDEN = frozenset(
    ("BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE", "ATTACH", "DETACH", "PRAGMA", "VACUUM")
)
_TWO_LIBRARIES = (
    "this store uses apsw, which brings an SQLite library of its own, and your connection uses another. Two libraries "
    'in one process drop each other\'s locks on the file and lose acknowledged commits. Set sqlite_driver="sqlite3" '
    "(DUTIFUL_SQLITE_DRIVER=sqlite3), so that the whole process uses one library"
)


@contextmanager
def borrowed(connection: Any, driver: Driver, path: str) -> Iterator[Connection]:
    """The user's connection as a Connection, inside its transaction, which only the user commits.

    On a connection in autocommit mode, the statements get a transaction of their own.
    """
    raw = _raw(connection, driver)
    db = Connection(raw)
    try:
        _check_file(db, path)
        by_itself = isinstance(raw, apsw.Connection) or raw.isolation_level is None
        if not db.in_transaction and not by_itself:
            # sqlite3 would begin one at the first write anyway, but that one may fail if another process writes.
            db.run("BEGIN IMMEDIATE")
        db.run("SAVEPOINT dutiful")
        try:
            yield db
        except BaseException:
            if db.in_transaction:
                db.run("ROLLBACK TO dutiful")
                db.run("RELEASE dutiful")
            raise
        db.run("RELEASE dutiful")
    except (apsw.Error, sqlite3.Error) as error:
        raise translate(error, path) from error


def _raw(connection: Any, driver: Driver) -> sqlite3.Connection | apsw.Connection:
    library = type(connection).__module__.partition(".")[0]
    if isinstance(connection, apsw.Connection):
        if driver != "apsw":
            raise UsageError('this store was opened with driver="sqlite3": give it a connection of that library')
        return connection
    if not isinstance(connection, sqlite3.Connection) and library not in ("sqlalchemy", "django"):
        raise UsageError(
            f"{type(connection).__qualname__} is no connection to SQLite that can be used here: give a "
            "sqlite3.Connection, a blocking Connection or Session of SQLAlchemy, or a connection of Django"
        )
    if driver != "sqlite3":
        # Before it is used: a session would open the file, and closing it again would drop the locks.
        raise UsageError(_TWO_LIBRARIES)
    match library:
        case "sqlalchemy":
            return _of_sqlalchemy(connection)
        case "django":
            return _of_django(connection)
        case _:
            return cast(sqlite3.Connection, connection)


def _of_sqlalchemy(connection: Any) -> sqlite3.Connection:
    if "asyncio" in type(connection).__module__:
        raise UsageError(
            "an asyncio session of SQLAlchemy keeps its SQLite connection in a thread of its own: use a blocking "
            "Session or Connection, for example in `await session.run_sync(…)`"
        )
    bound = connection if hasattr(connection, "exec_driver_sql") else connection.connection()
    if bound.dialect.name != "sqlite":
        raise UsageError(f"the jobs are kept in SQLite, but this connection is to {bound.dialect.name}")
    raw = bound.connection.dbapi_connection
    if not isinstance(raw, sqlite3.Connection):
        raise UsageError(f"SQLAlchemy uses {type(raw).__qualname__} here: use its pysqlite driver, sqlite:///…")
    return raw


def _of_django(connection: Any) -> sqlite3.Connection:
    if connection.vendor != "sqlite":
        raise UsageError(f"the jobs are kept in SQLite, but this connection is to {connection.vendor}")
    connection.ensure_connection()
    raw = connection.connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def _check_file(db: Connection, path: str) -> None:
    for _, name, file in db.rows("PRAGMA database_list"):
        if name == "main":
            if not file or not Path(file).samefile(path):
                raise UsageError(f"the jobs are kept in {path}, but this connection is to {file or 'memory'}")
            return


class BufferedTransaction:
    """Buffers a handler's statements; they run when the block ends, together with the job's completion."""

    def __init__(self) -> None:
        self._statements: list[tuple[str, tuple[Any, ...]]] = []
        self._closed = False

    async def execute(self, statement: str, *args: Any) -> None:
        if self._closed:
            raise UsageError("the transaction is over: call execute inside its block")
        word = _COMMENTS.sub("", statement).partition(" ")[0].strip().rstrip(";").upper()
        if word in _FORBIDDEN:
            raise UsageError(f"{word} cannot be used here: the job's transaction is begun and committed for you")
        self._statements.append((statement, args))

    @property
    def connection(self) -> NoReturn:
        raise UsageError(
            "there is no connection here: on SQLite, which has one writer, statements are collected and applied when "
            "the block is left. Use execute(), and read what you need before the block"
        )

    def close(self) -> None:
        self._closed = True

    def apply(self, db: Connection) -> None:
        for statement, args in self._statements:
            db.run_foreign(statement, args)
