"""The contract by which events are read: facts are rows already, so nothing is written for them as they happen."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.event import JobView


class Stir(msgspec.Struct, frozen=True):
    """A job that something may have happened to; one with the same mark as before needs no second look."""

    job_id: UUID
    mark: str


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a job that retention has deleted, for a while."""

    job_id: UUID
    kind: str
    queue: str
    tenant: str | None
    correlation_id: str
    stale_at: datetime | None = None  # since when it was marked before it went
    deleted_at: datetime
    told_at: datetime


class Stirred(msgspec.Struct, frozen=True):
    """What happened since; `until` is the `since` of the next look, `more` says that this one was cut short.

    It reaches back by the age of the oldest transaction that may still commit something earlier, so the same Stir
    comes again: whoever asks removes duplicates.
    """

    stirs: list[Stir]
    tombstones: list[Tombstone]
    until: datetime
    more: bool = False


class Watching(Protocol):
    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        """Make known for `ttl`, or for `ttl` more, that somebody watches; workers hear of it with their heartbeat."""

    async def unlisten(self, listener_id: UUID) -> None: ...

    async def listened(self, *, now: datetime | None = None) -> bool:
        """Whether anybody watches now."""
        ...

    async def views(self, job_ids: Sequence[UUID]) -> list[JobView]:
        """Those of `job_ids` that exist, each with all that events are made from, of one snapshot."""
        ...

    async def stirred(self, since: datetime | None, limit: int) -> Stirred:
        """Jobs made, claimed, reported on, ended, posted about or gone since then; None: since now."""
        ...

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        """Those of `job_ids` that are gone and have been told of; for a while."""
        ...
