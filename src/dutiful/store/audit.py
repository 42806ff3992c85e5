"""The contract of the audit trail: events are appended in any order, sealed in order, and never changed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.review.audit import Anchor, AuditEvent, AuditOutcome, Seal


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events, newest first; `before` is the cursor: the id of the previous page's last event."""

    principal: str | None = None
    action: str | None = None  # "job.cancel", or "job." for all that begin with it
    outcome: AuditOutcome | None = None
    target: str | None = None
    tenant: str | None = None
    act: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: UUID | None = None
    limit: int = 50


class Sealed(msgspec.Struct, frozen=True):
    """A seal, and its event as it is now; None: the event was deleted."""

    seal: Seal
    event: AuditEvent | None
    readable: bool = True  # False: it has text that is not UTF-8, so other bytes might be read as the same event


class Stray(msgspec.Struct, frozen=True):
    """An event that is in neither the chain nor the list of unsealed events."""

    event_id: UUID
    deleted: bool  # True: deleted before it was sealed; False: never queued for sealing


class AuditStore(Protocol):
    async def append(self, events: Sequence[AuditEvent]) -> None:
        """Appends events; skips those whose id exists, so that the call can be repeated."""

    async def search(self, filter: AuditFilter) -> list[AuditEvent]: ...

    async def head(self) -> Seal | Anchor | None:
        """The last link of the chain: the newest seal, or the anchor if nothing is left beyond it."""

    async def anchor(self) -> Anchor | None: ...

    async def unsealed(self, limit: int) -> list[AuditEvent]:
        """Unsealed events, ordered by id."""

    async def seal(self, seals: Sequence[Seal]) -> bool:
        """Appends seals, the first of which follows the head; False, and nothing is written, if the head is another."""

    async def sealed(self, after: int, limit: int) -> list[Sealed]:
        """The seals after seq `after`, in order, with their events."""

    async def strays(self, limit: int) -> list[Stray]:
        """Events missing from the list of unsealed events, or deleted while in it; none if the trail is intact."""

    async def trim(self, limit: int, *, now: datetime | None = None) -> int:
        """Deletes up to `limit` sealed events from the start of the chain and leaves an anchor; returns how many.

        Only events past their retention; where roles other than the owner may trim, the store's own clock decides. A
        policy below SHORTEST_KEEP, which only SQL can have set, deletes nothing.
        """

    async def retention(self) -> timedelta | None:
        """How long events are kept; None: forever."""

    async def set_retention(self, span: timedelta | None, event: AuditEvent | None = None) -> None:
        """Sets how long events are kept, for the whole store, and appends `event`, both or neither.

        UsageError if the role may not.
        """
