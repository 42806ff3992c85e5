"""Facts about the file and the library, for `doctor`."""

from pathlib import Path
from typing import Any

from dutiful.stores.sqlite.driver import Connection, Driver, library_version
from dutiful.stores.sqlite.sql import SQL

_SOUND = (3, 51, 3)
_LARGE_WAL = 256 * 1024 * 1024


def health(db: Connection, path: str, driver: Driver) -> dict[str, Any]:
    version = library_version(driver)
    wal = Path(f"{path}-wal")
    wal_bytes = wal.stat().st_size if wal.exists() else 0
    page_size, pages, free = (db.value(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count"))
    worries: list[str] = []
    if tuple(int(part) for part in version.split(".")[:3]) < _SOUND:
        worries.append(
            f"SQLite {version} can lose commits when its WAL is reset while two connections write (mended in 3.51.3): "
            'use driver="apsw", or a Python that is linked with a newer library'
        )
    if wal_bytes > _LARGE_WAL:
        worries.append(
            f"the WAL has grown to {wal_bytes // 2**20} MiB: some program keeps a read transaction open on the file"
        )
    if db.value("PRAGMA synchronous") < 2:
        worries.append('the last commits can be lost in a power cut: use synchronous="FULL"')
    return {
        "store": "sqlite",
        "path": path,
        "driver": driver,
        "sqlite_version": version,
        "schema_version": int(db.value(SQL["get_meta"], ("schema_version",)) or 0),
        "journal_mode": db.value("PRAGMA journal_mode"),
        "synchronous": ("OFF", "NORMAL", "FULL", "EXTRA")[db.value("PRAGMA synchronous")],
        "database_bytes": page_size * pages,
        "free_bytes": page_size * free,
        "wal_bytes": wal_bytes,
        "worries": worries,
    }
