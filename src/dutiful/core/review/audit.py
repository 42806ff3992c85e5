"""Audit events, sealed by a chain of hashes: each covers its event and the seal before, so changes are detected."""

import hashlib
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from dutiful.core.principal import Origin, Role

FIRST = ""  # the hash before the first seal
# The least that a policy keeps events for: as old as a new event may claim to be, so that none is deleted at once.
SHORTEST_KEEP = timedelta(days=1)
# As long as the tables take them, in characters.
PRINCIPAL_LIMIT, TARGET_LIMIT, REASON_LIMIT, ADDRESS_LIMIT = 200, 500, 2_000, 200
VALUE_LIMIT = 32_768  # bytes of `before` and of `after` as JSON; the tables take twice as much


class AuditOutcome(StrEnum):
    REQUESTED = "requested"  # written before the action; one without a result was interrupted
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # allowed, but it could not be done
    REFUSED = "refused"  # bad input or no permission; nothing was changed


E = TypeVar("E", bound=StrEnum)


def enum_or_text(enum: type[E], text: str) -> E:
    """A stored value; one of a later release stays text, so that its seal remains valid."""
    try:
        return enum(text)
    except ValueError:
        return cast(E, text)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, when and why; all events of one action share `act`."""

    id: UUID  # version 7
    act: UUID
    at: datetime
    principal: str
    role: Role | None = None
    origin: Origin
    action: str  # "dead_letter.reprocess", "job.cancel", …
    outcome: AuditOutcome
    target: str | None = None  # a public id or a name
    tenant: str | None = None  # of the target
    reason: str | None = None
    before: Any = None
    after: Any = None
    address: str | None = None


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the chain; `seq` counts from 1 without a gap."""

    seq: int
    event_id: UUID
    hash: str


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The last seal of the part of the chain that retention has deleted."""

    seq: int
    hash: str
    at: datetime  # of the last event deleted
    keep: timedelta  # the policy when it was deleted
    trimmed_at: datetime


def seal(event: AuditEvent, after: Seal | Anchor | None) -> Seal:
    """The next seal of the chain, for `event`."""
    previous, seq = (FIRST, 1) if after is None else (after.hash, after.seq + 1)
    return Seal(seq=seq, event_id=event.id, hash=hashlib.sha256(f"{previous}\n{canonical(event)}".encode()).hexdigest())


def canonical(event: AuditEvent) -> str:
    """The event as text, the same whichever database it was read from."""
    fields = msgspec.to_builtins(event)
    fields["at"] = event.at.astimezone(UTC).isoformat(timespec="microseconds")
    return msgspec.json.encode(fields, order="deterministic").decode()
