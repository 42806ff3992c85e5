"""Operators, dead letters, workers and the audit trail, for tests of what people do."""

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from suite.builders import finish_one

from dutiful.client.client import Client
from dutiful.core import ids
from dutiful.core.outcome import Failed
from dutiful.core.principal import Principal, Role
from dutiful.core.review.audit import AuditEvent
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.maintenance.requeue import Kinds
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.workers import LaneRecord, WorkerRecord

SQLITE = "sqlite:///"
BROKEN = {
    "type": "SMTPError",
    "message": "mailbox 7 is full",
    "traceback": "…",
    "class": "retryable",
    "fingerprint": "f1",
}


def now() -> datetime:
    return datetime.now(UTC)


def operator(store: Store, name: str = "ada", kinds: Kinds | None = None, **fields: Any) -> Operator:
    return Operator(Client(store, InProcessDelivery()), Principal(name=name, **fields), kinds)


def of_acme(store: Store, role: Role = Role.ADMIN) -> Operator:
    return operator(store, "ann of acme", tenant="acme", role=role)


async def dead_letter(store: Store, **fields: Any) -> UUID:
    """A job that has just failed for good."""
    return await finish_one(store, Failed(fields.pop("error", BROKEN), final=True), now=now(), **fields)


async def trail(store: Store, **filter: Any) -> list[AuditEvent]:
    """The audit events that a filter finds, the oldest first."""
    return (await store.audit.search(AuditFilter(**{"limit": 1_000, **filter})))[::-1]


async def audited(store: Store, target: UUID) -> list[str]:
    """The audited actions on one job or dead letter, each with its outcome."""
    return [f"{event.action} {event.outcome}" for event in await trail(store, target=ids.public(target))]


async def add_silent_worker(store: Store, host: str = "far-away", **fields: Any) -> WorkerRecord:
    """A worker whose last heartbeat was a minute ago, when it ran a job."""
    then = now() - fields.pop("since", timedelta(minutes=1))
    pid = fields.pop("pid", 42)
    lanes = {"general": LaneRecord(slots=1, queues=("*",), busy=1, jobs=(uuid4(),))}
    worker = WorkerRecord(
        id=uuid4(),
        name=f"{host}:{pid}",
        host=host,
        pid=pid,
        started_at=then,
        seen_at=then,
        lanes=lanes,
        kinds=["email"],
    )
    await store.workers.heartbeat(worker, timedelta(seconds=30), now=then)
    return worker


def tamper(store: Store, url: str, *statements: str) -> None:
    """Change the audit trail with the owner's rights; {event}, {seal} and {unsealed} in `statements` are its tables."""
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
