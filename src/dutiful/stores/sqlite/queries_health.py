"""For `doctor`: checks the invariants of storage, and reports facts about the file and the library."""

from pathlib import Path
from typing import Any

from dutiful.core.ids import public
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import uuid
from dutiful.stores.sqlite.engine.driver import Driver, library_version

_VIOLATIONS = {
    "places_of_jobs": "job {} stands in {}",
    "places_without_job": "{} has a row for {}, which is no job",
    "orphan_keys": "the unique key {2!r} (tenant {0!r}, kind {1!r}) is still held as {3} by {4}",
    "dependencies_of_no_job": "{}, which depends on {}, is gone",
    "dependencies_on_no_job": "{} waits for {}, which is no job",
    "waits_for_no_dependency": "{} waits for a job that it does not depend on",
    "dead_letters_of_live_jobs": "a dead letter is kept for {}, which is {}",
    "failed_without_dead_letter": "job {} failed without a dead letter",
    "dead_letters_without_body": "one half of the dead letter of {} is missing",
    "reprocessing_without_job": "the dead letter of {} is {} {} a new job",
    "reprocessed_twice": "job {} stands for more than one dead letter",
    "seals_without_event": "the audit event of seal {} has been deleted",
    "attempts_without_job": "attempts are kept of {}, which is no job",
    "belongings_without_job": "{} is kept of {}, which is no job",
}
"""The message for each row of a statement; ids are shown in their public spelling."""
_SOUND = (3, 51, 3)
_LARGE_WAL = 256 * 1024 * 1024


def check_places(db: Connection) -> list[str]:
    violations = [text.format(*map(_shown, row)) for name, text in _VIOLATIONS.items() for row in db.rows(SQL[name])]
    return violations + [
        f"audit event {uuid(id_)} is neither sealed nor waits for its seal, or both"
        for (id_,) in db.rows(SQL["events_without_seal"])
    ]


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


def _shown(value: Any) -> Any:
    return f"{public(uuid(value))} ({uuid(value)})" if isinstance(value, bytes) else value
