"""The contract of events: they are derived from rows that are stored anyway, so nothing more is written for them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.events import JobView


class JobChange(msgspec.Struct, frozen=True):
    """A job that may have changed; the same mark as before means that it has not."""

    job_id: UUID
    mark: str


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for a while of a job that retention has deleted."""

    job_id: UUID
    kind: str
    queue: str
    tenant: str | None
    correlation_id: str
    stale_at: datetime | None = None  # when it was marked stale before
    deleted_at: datetime
    notified_at: datetime


class JobChanges(msgspec.Struct, frozen=True):
    """What changed; `until` is the `since` of the next call, `more` says that the limit was reached.

    It reaches back by the age of the oldest transaction that may still commit something earlier, so the same change
    comes again: the caller removes duplicates.
    """

    changes: list[JobChange]
    tombstones: list[Tombstone]
    until: datetime
    more: bool = False


class EventStore(Protocol):
    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        """Register a listener for `ttl`, or extend it; workers learn of it with their heartbeat."""

    async def unlisten(self, listener_id: UUID) -> None: ...

    async def has_listeners(self, *, now: datetime | None = None) -> bool:
        """Whether any listener is registered now."""

    async def views(self, job_ids: Sequence[UUID]) -> list[JobView]:
        """Those of `job_ids` that exist, each with all that events are made from, of one snapshot."""

    async def changes_since(self, since: datetime | None, limit: int) -> JobChanges:
        """Jobs enqueued, claimed, reported on, ended, posted about or deleted since then; None: since now."""

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        """Those of `job_ids` that were deleted and announced lately."""
