"""Operators, dead letters, workers and the audit trail, for tests of what people do."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import apsw
import psycopg

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
from suite.builders import finish_one

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


POLICY_CHECK = "audit_policy_keep_check"


def tamper_past_checks(store: Store, url: str, keep: str) -> None:
    """Set the policy of the trail, which may be one that no check of the tables accepts."""
    if store.url.startswith(SQLITE):
        with closing(apsw.Connection(store.url.removeprefix(SQLITE))) as database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            span = keep.format(hour="3600000000")
            database.execute(f"INSERT OR REPLACE INTO dutiful_audit_policy VALUES (1, {span})")
        return
    with psycopg.connect(url) as connection:
        found = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s"
        (definition,) = connection.execute(found, (POLICY_CHECK,)).fetchone() or ("",)
        table = "ALTER TABLE dutiful.audit_policy"
        connection.execute(f"{table} DROP CONSTRAINT {POLICY_CHECK}".encode())
        span = keep.format(hour="interval '1 hour'")
        connection.execute(f"UPDATE dutiful.audit_policy SET keep = {span}".encode())
        again = f"{definition.removesuffix(' NOT VALID')} NOT VALID"
        connection.execute(f"{table} ADD CONSTRAINT {POLICY_CHECK} {again}".encode())


def tamper(store: Store, url: str, *statements: str, triggers: bool = False) -> None:
    """Change the audit trail with the owner's rights, past the triggers unless they are asked for.

    In `statements`, {event}, {seal}, {unsealed}, {anchor} and {policy} are its tables, {hour} and {day} spans of time,
    and {one} is the key of tables with one row.
    """
    tables = ("event", "seal", "unsealed", "anchor", "policy")
    if store.url.startswith(SQLITE):
        names = {name: f"dutiful_audit_{name}" for name in tables}
        names |= {"hour": "3600000000", "day": "86400000000", "one": "1"}
        # The store's own library: another one in the same process would drop the store's file locks when it closes.
        with closing(apsw.Connection(store.url.removeprefix(SQLITE))) as database, database:
            found = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'dutiful_audit%'"
            made = [] if triggers else database.execute(found).fetchall()
            for trigger, _ in made:
                database.execute(f"DROP TRIGGER {trigger}")
            for statement in statements:
                database.execute(statement.format(**names))
            for _, trigger in made:
                database.execute(str(trigger))
        return
    names = {name: f"dutiful.audit_{name}" for name in tables}
    names |= {"hour": "interval '1 hour'", "day": "interval '1 day'", "one": "true"}
    with psycopg.connect(url) as connection:
        if not triggers:
            connection.execute("SET LOCAL session_replication_role = replica")
        for statement in statements:
            connection.execute(statement.format(**names).encode())
