"""The contract of events, which are derived from rows that are stored anyway: nothing is written for them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.events import JobView, LeftOut


class JobChange(msgspec.Struct, frozen=True):
    """A job that may have changed; the same mark as before means that it has not."""

    job_id: UUID
    mark: str


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for a while about a job that retention has deleted."""

    job_id: UUID
    kind: str
    queue: str
    tenant: str | None
    correlation_id: str
    stale_at: datetime | None = None  # when it was marked stale before
    deleted_at: datetime
    sent_at: datetime


class JobChanges(msgspec.Struct, frozen=True):
    """What changed; `until` is the `since` of the next call, `more` says that the limit was reached.

    `until` lies back by the age of the oldest open transaction, which may still commit earlier changes, so a change may
    be returned more than once: the caller removes duplicates.
    """

    changes: list[JobChange]
    tombstones: list[Tombstone]
    until: datetime
    more: bool = False


class EventStore(Protocol):
    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        """Registers a listener for `ttl`, or extends it; workers read it with their heartbeat."""

    async def unlisten(self, listener_id: UUID) -> None: ...

    async def has_listeners(self, *, now: datetime | None = None) -> bool:
        """Whether any listener is registered now."""

    async def marks(self, job_ids: Sequence[UUID]) -> list[JobChange]:
        """A mark of each job that exists: another one once there is another event of it. No result is read."""

    async def views(self, job_ids: Sequence[UUID], *, largest: int | None = None) -> list[JobView]:
        """The jobs that exist, each with everything that events are derived from, in one snapshot; without payloads.

        Instead of a result of more than `largest` bytes there is LeftOut.
        """

    async def result(self, job_id: UUID, left_out: LeftOut) -> str | None:
        """The JSON of a result that a view has left out; None if it is there no more."""

    async def changes_since(self, since: datetime | None, limit: int, *, tenant: str | None = None) -> JobChanges:
        """Jobs of which anything changed since `since` (None: now): state, progress, webhook posts, deletion.

        Reads about `limit` changes, however many there are. With `tenant`, those of other tenants are read but not
        returned, so a call may return none and still say that there are more.
        """

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        """Tombstones of the jobs that were deleted lately and whose notice was sent."""
