"""What people did, as events that cannot be changed unnoticed: each is sealed by a hash over it and the seal before."""

import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from dutiful.core.principal import Origin, Role

FIRST = ""  # the hash that stands before the first seal


class AuditOutcome(StrEnum):
    REQUESTED = "requested"  # written before the act, so that none goes unseen; one without an end was cut off
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # it was allowed, but could not be done
    REFUSED = "refused"  # bad input, or no right to it; nothing was changed


Word = TypeVar("Word", bound=StrEnum)


def word(words: type[Word], text: str) -> Word:
    """A word as it is stored; one of a later release stays the text that it is, so that its seal holds."""
    try:
        return words(text)
    except ValueError:
        return cast(Word, text)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, when and why; `act` is shared by the events of one act."""

    id: UUID  # version 7
    act: UUID
    at: datetime
    principal: str
    role: Role | None = None
    origin: Origin
    action: str  # "dead_letter.reprocess", "job.cancel", …
    outcome: AuditOutcome
    target: str | None = None  # what it was done to: a public id, a name
    tenant: str | None = None  # whose it is
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
    """What is left of the part of the chain that retention has deleted: its last seal."""

    seq: int
    hash: str
    at: datetime  # of the last event deleted


def seal(event: AuditEvent, after: Seal | Anchor | None) -> Seal:
    """The next link, for `event`."""
    previous, seq = (FIRST, 1) if after is None else (after.hash, after.seq + 1)
    return Seal(seq=seq, event_id=event.id, hash=hashlib.sha256(f"{previous}\n{canonical(event)}".encode()).hexdigest())


def canonical(event: AuditEvent) -> str:
    """The event as one text, the same from whichever database it was read."""
    fields = msgspec.to_builtins(event)
    fields["at"] = event.at.astimezone(UTC).isoformat(timespec="microseconds")
    return msgspec.json.encode(fields, order="deterministic").decode()
