"""Somebody with the owner's rights, who changes the audit trail behind everybody's back."""

import sqlite3

import psycopg

from dutiful.store import Store

SQLITE = "sqlite:///"


def meddle(store: Store, url: str, *statements: str) -> None:
    """Run statements on the tables of the trail, whose names stand in them as {event}, {seal} and {unsealed}."""
    if store.url.startswith(SQLITE):
        names = {name: f"dutiful_audit_{name}" for name in ("event", "seal", "unsealed")}
        with sqlite3.connect(store.url.removeprefix(SQLITE)) as database:
            found = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'dutiful_audit%'"
            triggers = database.execute(found).fetchall()
            for trigger, _ in triggers:
                database.execute(f"DROP TRIGGER {trigger}")
            for statement in statements:
                database.execute(statement.format(**names))
            for _, made in triggers:
                database.execute(made)
        database.close()
        return
    names = {name: f"dutiful.audit_{name}" for name in ("event", "seal", "unsealed")}
    with psycopg.connect(url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")  # no triggers
        for statement in statements:
            connection.execute(statement.format(**names).encode())
