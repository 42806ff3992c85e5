"""What a subscriber asks for, and what it gets besides events."""

from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar, TypeVar
from uuid import UUID

import msgspec

from dutiful.core.errors import UsageError
from dutiful.core.event import Event, EventType, JobView
from dutiful.core.job import JobRecord, PhaseRecord

T = TypeVar("T")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A watched job as it stood when the stream began; every event of the stream came later."""

    type: ClassVar[str] = "snapshot"
    job: JobRecord  # with its progress
    phases: list[PhaseRecord]
    webhook_sent: bool

    @classmethod
    def of(cls, view: JobView) -> "Snapshot":
        return cls(job=view.job, phases=view.phases, webhook_sent=view.webhook_sent)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """More happened than could be read, so events between the two moments are left out; look jobs up instead."""

    type: ClassVar[str] = "gap"
    since: datetime
    until: datetime


Item = Snapshot | Event | Gap


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a subscriber wants: those that fit all that is given."""

    jobs: frozenset[UUID] | None = None
    kinds: frozenset[str] | None = None
    queues: frozenset[str] | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    types: frozenset[EventType] | None = None

    @classmethod
    def read(
        cls,
        jobs: frozenset[UUID] | None = None,
        kinds: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        tenant: str | None = None,
        correlation_id: str | None = None,
        types: Iterable[str] | None = None,
    ) -> "Wanted":
        """As people write it, checked."""
        named = _names(types, "types")
        return cls(
            jobs=jobs,
            kinds=_names(kinds, "kinds"),
            queues=_names(queues, "queues"),
            tenant=tenant,
            correlation_id=correlation_id,
            types=None if named is None else frozenset(_type(name) for name in named),
        )

    def within(self, limit: "Wanted") -> "Wanted":
        """Both at once: what fits this and the limit."""
        return Wanted(
            jobs=_both(self.jobs, limit.jobs),
            kinds=_both(self.kinds, limit.kinds),
            queues=_both(self.queues, limit.queues),
            tenant=_same(self.tenant, limit.tenant, "tenant"),
            correlation_id=_same(self.correlation_id, limit.correlation_id, "correlation_id"),
            types=_both(self.types, limit.types),
        )

    def admits(self, job: JobRecord | Event) -> bool:
        """Whether the job, or an event's, is one of those, whatever happened to it."""
        return (
            (self.kinds is None or job.kind in self.kinds)
            and (self.queues is None or job.queue in self.queues)
            and (self.tenant is None or job.tenant == self.tenant)
            and (self.correlation_id is None or job.correlation_id == self.correlation_id)
        )

    def wants(self, event: Event) -> bool:
        return (self.types is None or event.type in self.types) and self.admits(event)


def _names(names: Iterable[str] | None, field: str) -> frozenset[str] | None:
    if isinstance(names, str):
        raise UsageError(f"{field} is the text {names!r}: give a list, as in {field}=[{names!r}]")
    return None if names is None else frozenset(names)


def _type(name: str) -> EventType:
    try:
        return EventType(name)
    except ValueError:
        raise UsageError(f"types has {name!r}, which is no event type; there are: {', '.join(EventType)}") from None


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _same(asked: str | None, limit: str | None, field: str) -> str | None:
    if asked is not None and limit is not None and asked != limit:
        raise UsageError(f"{field} is {asked!r}: you may ask for {limit!r} only")
    return asked if limit is None else limit
