"""Checks and prepares the file, and brings its tables up to date."""

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import msgspec

from dutiful.core.errors import SchemaMismatch, UsageError
from dutiful.stores.sqlite.engine.driver import LIBRARIES, Connection, Driver, connect_to_look, is_busy, translate
from dutiful.stores.sqlite.engine.sql import SQL

SCHEMA_VERSION = 1
"""The number of the newest migration that this release knows."""
OLDEST_VERSION = 1
"""The oldest release's SCHEMA_VERSION that can work with the tables as this release leaves them."""

_TURNING_WAL_ON_S = 10.0


class Migration(msgspec.Struct, frozen=True):
    name: str
    sql: str

    @property
    def version(self) -> int:
        return int(self.name[:4])

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> Sequence[Migration]:
    folder = files("dutiful.stores.sqlite").joinpath("schema")
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return [
        Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
        for file in sorted(found, key=lambda file: file.name)
    ]


def check_path(path: str) -> None:
    """Refuses paths that cannot be database files, with a better message than the driver's.

    The file itself must not be opened here: closing it would drop the locks that SQLite holds on it.
    """
    if path in ("", ":memory:") or path.startswith("file:"):
        raise UsageError(f"{path!r} is not a path: jobs are kept in a file, so give one, as in ./dutiful.db")
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        folder = Path(path).parent
        if not folder.is_dir():
            raise UsageError(f"the directory {folder} does not exist: make it, or give another path") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"the directory {folder} cannot be written to: change its permissions") from None
        return
    except NotADirectoryError:
        raise UsageError(f"{path} leads through something that is not a directory: give another path") from None
    except PermissionError:
        raise UsageError(f"{path} cannot be reached: change the permissions of its directories") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a directory: give the path of a file, as in {path.rstrip('/')}/dutiful.db")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is not a regular file: give another path")
    for needed in (Path(path), Path(path).parent):
        if not os.access(needed, os.W_OK):
            raise UsageError(f"{needed} cannot be written to: change its permissions, or run as its owner")


def check_made(path: str, driver: Driver, busy_timeout: timedelta) -> None:
    """Raises SchemaMismatch if there is no file, or one without the tables; changes and creates nothing."""
    try:
        there = Path(path).exists()
    except PermissionError:
        there = True  # perhaps; check_path says
    if not there:
        raise SchemaMismatch(
            f"there is no database {path} yet",
            "start a worker, enqueue a job or run `dutiful migrate` to make it, or give another --database-url",
        )
    check_path(path)
    leave = LIBRARIES.enter(path, driver)
    try:
        db = connect_to_look(path, driver, busy_timeout // timedelta(milliseconds=1))
        try:
            ours = db.value(SQL["has_meta"]) is not None
        finally:
            db.close()
    except Exception as error:
        raise translate(error, path) from error
    finally:
        leave()
    if not ours:
        raise SchemaMismatch(
            f"{path} is not a Dutiful database", "`dutiful migrate` makes it one; or give another --database-url"
        )


def prepare(db: Connection, synchronous: str) -> None:
    """Sets up a connection. WAL mode is stored in the file; the other settings end with the connection."""
    if (mode := _use_wal(db)) != "wal":
        raise UsageError(f"SQLite keeps this file in {mode} mode instead of WAL: put it on a local disk")
    db.value(f"PRAGMA synchronous = {synchronous}")
    db.value("PRAGMA temp_store = MEMORY")
    db.value("PRAGMA cache_size = -16384")
    db.value("PRAGMA wal_autocheckpoint = 2000")
    # A WAL that grew during a long read is truncated to this size.
    db.value("PRAGMA journal_size_limit = 67108864")


def _use_wal(db: Connection) -> str:
    # When WAL is turned on in a new file, SQLite does not wait for other processes that do the same; this loop does.
    until = time.monotonic() + _TURNING_WAL_ON_S
    while True:
        try:
            return str(db.value("PRAGMA journal_mode = WAL"))
        except Exception as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
            time.sleep(0.002)


def check_version(db: Connection) -> None:
    """Raises SchemaMismatch if a newer release has changed the file so that this one cannot use it."""
    if db.value(SQL["has_meta"]) is None:
        return
    oldest = int(db.value(SQL["get_meta"], ("oldest_version",)) or 0)
    if oldest > SCHEMA_VERSION:
        version = db.value(SQL["get_meta"], ("schema_version",))
        raise SchemaMismatch(
            f"the database has schema version {version}, newer than this release can work with "
            f"(it knows {SCHEMA_VERSION})",
            "upgrade dutiful",
        )


def script() -> str:
    """All migrations with their records, for the sqlite3 shell; opening the file applies them by itself."""
    parts = [SQL["create_meta"], SQL["create_migration"]]
    for one in migrations():
        record = f"('{one.name}', '{one.checksum}', unixepoch() * 1000000)"
        parts += [f"-- {one.name}\n{one.sql.rstrip()}", SQL["record_migration"].replace("(?, ?, ?)", record)]
    versions = f"('schema_version', '{SCHEMA_VERSION}'), ('oldest_version', '{OLDEST_VERSION}')"
    parts.append(f"INSERT INTO dutiful_meta (key, value) VALUES {versions}")
    return "BEGIN;\n\n" + "\n\n".join(part.rstrip(";") + ";" for part in parts) + "\n\nCOMMIT;\n"


def apply_next(db: Connection, now: int) -> str | None:
    """Applies the first missing migration in the open transaction; returns its name."""
    if (migration := missing(db)) is None:
        return None
    db.run(SQL["create_meta"])
    db.run(SQL["create_migration"])
    db.script(migration.sql)
    db.run(SQL["record_migration"], (migration.name, migration.checksum, now))
    if migration.version > int(db.value(SQL["get_meta"], ("schema_version",)) or 0):
        db.run(SQL["put_meta"], ("schema_version", str(migration.version)))
        db.run(SQL["put_meta"], ("oldest_version", str(OLDEST_VERSION)))
    return migration.name


def missing(db: Connection) -> Migration | None:
    """The first missing migration, found without writing: another process may be applying it."""
    check_version(db)
    applied: dict[str, str] = {}
    if db.value(SQL["has_meta"]) is not None:
        applied = {str(name): str(checksum) for name, checksum in db.rows(SQL["applied_migrations"])}
    for migration in migrations():
        if (checksum := applied.get(migration.name)) is None:
            return migration
        if checksum != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} was applied in another form than this release has",
                "install the release that made this database, or start with a new file",
            )
    return None
