"""Operators, dead letters and the trail they leave: short words for tests of what people do."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from dutiful.auditing import AuditFilter
from dutiful.client import Client
from dutiful.core import ids
from dutiful.core.audit import AuditEvent
from dutiful.core.outcome import Failed
from dutiful.core.principal import Principal, Role
from dutiful.deliveries.in_process import InProcess
from dutiful.duties import WorkerRecord
from dutiful.operator import Operator
from dutiful.reprocessing import Kinds
from dutiful.store import Store
from dutiful.testing.store_suite.builders import finish_one

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
    return Operator(Client(store, InProcess()), Principal(name=name, **fields), kinds)


def of_acme(store: Store, role: Role = Role.ADMIN) -> Operator:
    return operator(store, "ann of acme", tenant="acme", role=role)


async def dead_letter(store: Store, **fields: Any) -> UUID:
    """A job that failed for good just now."""
    return await finish_one(store, Failed(fields.pop("error", BROKEN), final=True), now=now(), **fields)


async def trail(store: Store, **filter: Any) -> list[AuditEvent]:
    """What was recorded, the oldest first."""
    return (await store.audit_events(AuditFilter(**{"limit": 1_000, **filter})))[::-1]


async def told(store: Store, target: UUID) -> list[str]:
    """What was done to one job or dead letter, in short."""
    return [f"{event.action} {event.outcome}" for event in await trail(store, target=ids.public(target))]


async def fall_silent(store: Store, host: str = "far-away", **fields: Any) -> WorkerRecord:
    """A worker that was last heard of a minute ago, when it ran something."""
    then = now() - fields.pop("since", timedelta(minutes=1))
    pid = fields.pop("pid", 42)
    lanes = {"general": {"slots": 1, "queues": ["*"], "busy": 1, "jobs": [str(uuid4())], "ahead": 0, "heard": []}}
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
    await store.beat(worker, timedelta(seconds=30), now=then)
    return worker
