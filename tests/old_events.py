"""Audit events of another time, which no program can record: a trigger refuses them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import psycopg
from psycopg import sql

from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore

TRIGGER = "dutiful_audit_event_dated"


def owner_url(store: Store) -> str:
    return store.direct_dsn if isinstance(store, PostgresStore) else store.url


@contextmanager
def any_date(url: str, schema: str = "dutiful", connect: Callable[[str], Any] = apsw.Connection) -> Iterator[None]:
    """Within the block, audit events of any time can be appended to this database.

    `connect` is that of the store's SQLite library: another one in its process drops its file locks.
    """
    if url.startswith("postgres"):
        switch = sql.SQL("ALTER TABLE {} {} TRIGGER dated")
        table = sql.Identifier(schema, "audit_event")
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute(switch.format(table, sql.SQL("DISABLE")))
            yield
            owner.execute(switch.format(table, sql.SQL("ENABLE")))
        return
    db = connect(url.removeprefix("sqlite:///"))
    try:
        ((made,),) = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (TRIGGER,)).fetchall()
        db.execute(f"DROP TRIGGER {TRIGGER}")
        yield
        db.execute(str(made))
    finally:
        db.close()
