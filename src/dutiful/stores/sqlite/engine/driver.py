"""One interface to connections of apsw and of the standard library's sqlite3, with their errors translated."""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

import apsw

from dutiful.core.errors import DataRefused, StoreAway, StoreUnavailable, UsageError
from dutiful.core.json import decoded
from dutiful.stores.sqlite.engine.files import make_database

Driver = Literal["apsw", "sqlite3"]
Row = tuple[Any, ...]
Bindings = Sequence[Any] | Mapping[str, Any]

_STATEMENTS_CACHED = 200
_BUSY, _NOMEM, _READONLY, _INTERRUPT, _IOERR, _CORRUPT, _FULL = 5, 7, 8, 9, 10, 11, 13
_CANTOPEN, _PROTOCOL, _LOCKED, _NOTADB = 14, 15, 6, 26
_PASSING = (_BUSY, _LOCKED, _NOMEM, _INTERRUPT, _IOERR, _FULL, _PROTOCOL)  # worth waiting for
_REMEDIES = {
    _BUSY: "another process kept the database locked; try again, and look for a program that holds it open for writing",
    _LOCKED: "another connection kept a table locked; try again",
    _NOMEM: "there is not enough memory; try again",
    _READONLY: "the database cannot be written to; check the permissions of the file and of its directory",
    _INTERRUPT: "the statement was interrupted; try again",
    _IOERR: "reading or writing the file failed; check the disk and its free space, then try again",
    _CORRUPT: "the file is damaged; stop every process that uses it and restore it from a backup",
    _FULL: "the disk is full; nothing was stored: free some space, then try again",
    _CANTOPEN: "the file cannot be opened; check that its directory exists and may be written to",
    _PROTOCOL: "the database's locks are in disorder; try again",
}


class Connection:
    """A connection in autocommit mode, used by one thread at a time; statements are prepared once and kept."""

    __slots__ = ("_apsw", "_execute", "_executemany", "raw")

    def __init__(self, raw: apsw.Connection | sqlite3.Connection) -> None:
        self.raw = raw
        self._apsw = isinstance(raw, apsw.Connection)
        self._execute = cast(Any, raw.execute)
        if isinstance(raw, sqlite3.Connection) and raw.row_factory is not None:
            self._execute = _in_tuples(raw)  # a user's connection, with its own type of rows
        self._executemany = cast(Any, raw.executemany)

    def run(self, sql: str, bindings: Bindings = ()) -> None:
        self._execute(sql, bindings)

    def many(self, sql: str, bindings: Iterable[Bindings]) -> int:
        """Runs `sql` once for each; returns how many rows were changed in all."""
        before = self.total_changes
        self._executemany(sql, bindings)
        return self.total_changes - before

    def rows(self, sql: str, bindings: Bindings = ()) -> list[Row]:
        cursor = self._execute(sql, bindings)
        try:
            return cast(list[Row], cursor.fetchall())
        except (UnicodeDecodeError, sqlite3.OperationalError) as error:
            return list(self._with_replacements(cursor, sql, bindings, error))

    def each(self, sql: str, bindings: Bindings = ()) -> Iterator[Row]:
        """Rows one by one, without loading all of them; the caller must read to the end, as `row` does."""
        cursor = self._execute(sql, bindings)
        passed = 0
        try:
            for row in cursor:
                passed += 1
                yield row
        except (UnicodeDecodeError, sqlite3.OperationalError) as error:
            yield from islice(self._with_replacements(cursor, sql, bindings, error), passed, None)

    def row(self, sql: str, bindings: Bindings = ()) -> Row | None:
        # Read to the end: an open cursor would keep its read transaction, and RETURNING writes only when it is drained.
        rows = self.rows(sql, bindings)
        return rows[0] if rows else None

    def value(self, sql: str, bindings: Bindings = ()) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(sql, bindings)
        return rows[0][0] if rows else None

    def _with_replacements(self, cursor: Any, sql: str, bindings: Bindings, error: Exception) -> Iterator[Row]:
        """Reads rows again with texts as bytes, because a driver refuses a whole row for a text that is not UTF-8.

        Nothing is written twice, because SQLite refuses RETURNING inside WITH.
        """
        if not _is_undecodable(error):
            raise error
        names = [f"c{at}" for at in range(len(cursor.description))]
        values = ", ".join(
            f"typeof({name}) = 'text', iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in names
        )
        again = f"WITH read ({', '.join(names)}) AS (\n{sql}\n) SELECT {values} FROM read"
        for row in self._execute(again, bindings).fetchall():
            yield _replaced(row[::2], row[1::2])

    def change(self, sql: str, bindings: Bindings = ()) -> int:
        """Runs one statement; returns how many rows it changed."""
        before = self.total_changes
        self._execute(sql, bindings)
        return self.total_changes - before

    def script(self, sql: str) -> None:
        """Runs several statements in the open transaction, if there is one."""
        if isinstance(self.raw, apsw.Connection):
            for _ in self.raw.execute(sql):
                pass
            return
        # executescript would commit first.
        for statement in _split(sql):
            self.raw.execute(statement)

    def run_foreign(self, sql: str, bindings: Sequence[Any]) -> None:
        """Runs a user's statement; refuses several in one text."""
        if not isinstance(self.raw, apsw.Connection):
            self.raw.execute(sql, bindings)
            return
        cursor = self.raw.cursor()
        seen: list[str] = []

        def trace(_cursor: Any, statement: str, _bindings: Any) -> bool:
            seen.append(statement)
            if len(seen) > 1:
                raise UsageError("execute takes one statement at a time: call it once for each")
            return True

        cursor.exec_trace = trace
        for _ in cursor.execute(sql, bindings):
            pass

    @property
    def total_changes(self) -> int:
        return cast(int, self.raw.total_changes() if self._apsw else self.raw.total_changes)  # type: ignore[operator]

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def close(self) -> None:
        self.raw.close()


def _is_undecodable(error: Exception) -> bool:
    return isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error)


class ReplacedRow(Row):
    """A row of which a text is not UTF-8, and was replaced; `raw` has texts as bytes, as they are stored."""

    raw: Row

    @classmethod
    def of(cls, raw: Row, values: Iterable[Any]) -> "ReplacedRow":
        made = cls(values)
        made.raw = raw
        return made


def _replaced(texts: Row, raw: Row) -> Row:
    """A row of which `texts` says where `raw` has the bytes of a text."""
    values = [decoded(value) if is_text else value for is_text, value in zip(texts, raw, strict=True)]
    if all(value.encode() == was for is_text, value, was in zip(texts, values, raw, strict=True) if is_text):
        return tuple(values)
    return ReplacedRow.of(raw, values)


def stored(row: Row) -> Row:
    """A row that was read, to be bound where `CAST(? AS TEXT)` compares texts with those that are stored."""
    return row.raw if isinstance(row, ReplacedRow) else row


def _in_tuples(raw: sqlite3.Connection) -> Any:
    def execute(sql: str, bindings: Any = ()) -> sqlite3.Cursor:
        cursor = raw.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, bindings)

    return execute


def connect(path: str, driver: Driver, busy_timeout_ms: int) -> Connection:
    """Opens `path`, creating the file if it is missing."""
    raw: apsw.Connection | sqlite3.Connection
    if driver == "apsw":
        raw = apsw.Connection(path, statementcachesize=_STATEMENTS_CACHED)
        raw.set_busy_timeout(busy_timeout_ms)
        # Otherwise this library plans a statement again for each value that is bound to it, which takes ten times as
        # long as running it.
        raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        raw.create_scalar_function("dutiful_case_folded", cast(Any, case_folded), 1, deterministic=True)
    else:
        raw = sqlite3.connect(
            path,
            timeout=busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_CACHED,
        )
        raw.create_function("dutiful_case_folded", 1, case_folded, deterministic=True)
    return Connection(raw)


def connect_to_look(path: str, driver: Driver, busy_timeout_ms: int) -> Connection:
    """Opens an existing file for reading only, without changing it or creating files beside it."""
    in_use = any(Path(f"{path}{more}").exists() for more in ("-wal", "-journal"))
    # To read a file in WAL mode, SQLite creates the -wal and -shm files, unless it may assume that no process writes.
    uri = f"file:{quote(path)}?{'mode=ro' if in_use else 'immutable=1'}"
    raw: apsw.Connection | sqlite3.Connection
    if driver == "apsw":
        raw = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        raw.set_busy_timeout(busy_timeout_ms)
    else:
        raw = sqlite3.connect(uri, uri=True, timeout=busy_timeout_ms / 1000, isolation_level=None)
    return Connection(raw)


def case_folded(text: str | bytes | None) -> str | None:
    """Folds case as Python does; SQLite itself only does so for ASCII letters. Takes bytes, which need not be UTF-8."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return None if text is None else text.casefold()


def file_id(path: Path) -> tuple[int, int] | None:
    """The identity (device and inode) of the file with this name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def library_version(driver: Driver) -> str:
    return apsw.sqlite_lib_version() if driver == "apsw" else sqlite3.sqlite_version


def is_busy(error: BaseException) -> bool:
    return _primary(error) == _BUSY


def _primary(error: BaseException) -> int | None:
    """SQLite's primary error code, from an error of either driver."""
    code: int | None = getattr(error, "result" if isinstance(error, apsw.Error) else "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def translate(error: BaseException, path: str) -> BaseException:
    """Converts a driver's error; returns any other error unchanged."""
    match error:
        case UnicodeEncodeError():
            return DataRefused(f"text that is not valid Unicode cannot be stored: {error}")
        case OverflowError():
            return DataRefused(f"a number is too large to be stored: {error}")
        case apsw.Error() | sqlite3.Error():
            primary = _primary(error)
        case _:
            return error
    if primary == _NOTADB:
        return UsageError(f"{path} is not an SQLite database: give another path, or move that file away")
    if primary in _REMEDIES:
        unavailable = StoreAway if primary in _PASSING else StoreUnavailable
        return unavailable(f"SQLite could not use {path} ({error}): {_REMEDIES[primary]}")
    return DataRefused(f"SQLite refused this ({type(error).__name__}: {error})")


class Libraries:
    """Tracks which SQLite library this process uses for each file.

    Two libraries in one process drop each other's POSIX locks on a file, and then lose acknowledged commits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, list[Driver]] = {}

    def enter(self, path: str, driver: Driver, *, make: bool = False) -> Callable[[], None]:
        """Registers a user of the file with this library; returns the function that unregisters it.

        `make` creates a missing file.
        """
        file = os.path.realpath(path)
        with self._lock:
            users = self._users.setdefault(file, [])
            if users and users[0] != driver:
                raise UsageError(
                    f'{path} is open in this process with driver="{users[0]}": two SQLite libraries in one process '
                    f'lose each other\'s commits, so open it with driver="{users[0]}" everywhere'
                )
            if make and not users:
                # Under the lock, because to close the file would drop the locks of another thread's connection.
                make_database(path)
            users.append(driver)
        return lambda: self._leave(file)

    def _leave(self, file: str) -> None:
        with self._lock:
            users = self._users[file]
            users.pop()
            if not users:
                del self._users[file]

    def forget(self) -> None:
        """Clears the registry in a forked child, which has none of its parent's connections."""
        self._lock = threading.Lock()
        self._users.clear()


LIBRARIES = Libraries()


def _split(sql: str) -> list[str]:
    statements: list[str] = []
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    if pending.strip():
        statements.append(pending)
    return statements
