"""Audit events of another time, which no program can record: a trigger refuses them."""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import psycopg

TRIGGER = "dutiful_audit_event_dated"


@contextmanager
def any_date(url: str) -> Iterator[None]:
    """Within the block, audit events of any time can be appended to this database."""
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("ALTER TABLE dutiful.audit_event DISABLE TRIGGER dated")
            yield
            owner.execute("ALTER TABLE dutiful.audit_event ENABLE TRIGGER dated")
        return
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        ((made,),) = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (TRIGGER,)).fetchall()
        db.execute(f"DROP TRIGGER {TRIGGER}")
        yield
        db.execute(str(made))
    finally:
        db.close()
