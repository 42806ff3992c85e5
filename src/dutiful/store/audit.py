"""The contract of the audit trail: events are appended freely, sealed in order, and never changed."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.review.audit import Anchor, AuditEvent, AuditOutcome, Seal


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events, the newest first; `before` is the cursor: the id of the last event of the page before."""

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


class Stray(msgspec.Struct, frozen=True):
    """What neither the chain nor the list of unsealed events accounts for."""

    event_id: UUID
    deleted: bool  # it was to be sealed, and is gone; otherwise it is there, and was never to be sealed


class AuditStore(Protocol):
    async def append(self, events: Sequence[AuditEvent]) -> None:
        """One whose id is there already is left as it is, so that it may be repeated."""

    async def search(self, filter: AuditFilter) -> list[AuditEvent]: ...

    async def head(self) -> Seal | Anchor | None:
        """The last link of the chain: the newest seal, or the anchor if nothing is left beyond it."""

    async def anchor(self) -> Anchor | None: ...

    async def unsealed(self, limit: int) -> list[AuditEvent]:
        """In order of their ids."""

    async def seal(self, seals: Sequence[Seal]) -> bool:
        """Append links, whose first follows the head; False, and nothing is written, if another process was faster."""

    async def sealed(self, after: int, limit: int) -> list[Sealed]:
        """The chain beyond seq `after`, in order."""

    async def strays(self, limit: int) -> list[Stray]:
        """Events that are unsealed without waiting for it, or deleted while they waited; none in an intact trail."""

    async def trim(self, limit: int, *, now: datetime | None = None) -> int:
        """Delete up to `limit` sealed events from the beginning of the chain, and leave an anchor; says how many.

        Only what is older than events are kept, by the store's own clock where others than its owner may trim.
        """

    async def retention(self) -> timedelta | None:
        """How long events are kept; None: for good."""

    async def set_retention(self, span: timedelta | None) -> None:
        """Set it for the whole store; UsageError for a role that may not."""
