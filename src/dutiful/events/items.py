"""Subscriptions, and what a stream yields besides events; and their JSON."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, TypeVar, assert_never
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.events import Event, EventType, JobView
from dutiful.core.job import JobRecord, PhaseRecord
from dutiful.core.sealed import shown_record
from dutiful.kind import Kind

T = TypeVar("T")
EARLIEST, LATEST = 1970, 9000  # years: beyond them, adding or subtracting seconds may leave the range of datetime
# Not every reader who may see a job's state may see its payload, or the addresses that it reports to.
_LEFT_OUT = frozenset({"payload", "options"})


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when the stream began; every event of the stream came later."""

    type: ClassVar[str] = "snapshot"
    job: JobRecord  # with its progress; in a stream, without its payload
    phases: list[PhaseRecord]
    webhook_sent: bool

    @classmethod
    def of(cls, view: JobView) -> "Snapshot":
        phases = [shown_record(phase) for phase in view.phases]
        return cls(job=shown_record(view.job), phases=phases, webhook_sent=view.webhook_sent)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Events between the two moments are left out, because more happened than could be read; look jobs up instead."""

    type: ClassVar[str] = "gap"
    since: datetime
    until: datetime


Item = Snapshot | Event | Gap


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a subscriber wants: those that match every field given."""

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
        kinds: Iterable[str | Kind[Any, Any]] | None = None,
        queues: Iterable[str] | None = None,
        tenant: str | None = None,
        correlation_id: str | None = None,
        types: Iterable[str] | None = None,
    ) -> "Subscription":
        """Checks what a user wrote."""
        named = _names(types, "types")
        return cls(
            jobs=jobs,
            kinds=_names(kinds, "kinds"),
            queues=_names(queues, "queues"),
            tenant=None if tenant is None else _text(tenant, "tenant"),
            correlation_id=None if correlation_id is None else _text(correlation_id, "correlation_id"),
            types=None if named is None else frozenset(_type(name) for name in named),
        )

    def within(self, limit: "Subscription") -> "Subscription":
        """Returns the intersection with a limit."""
        return Subscription(
            jobs=_intersection(self.jobs, limit.jobs),
            kinds=_not_empty(_intersection(self.kinds, limit.kinds), "kinds"),
            queues=_not_empty(_intersection(self.queues, limit.queues), "queues"),
            tenant=_one_value(self.tenant, limit.tenant, "tenant"),
            correlation_id=_one_value(self.correlation_id, limit.correlation_id, "correlation_id"),
            types=_not_empty(_intersection(self.types, limit.types), "types"),
        )

    def admits(self, job: JobRecord | Event) -> bool:
        """Whether the job, or the job of an event, matches, whatever the type of event."""
        return (
            (self.kinds is None or job.kind in self.kinds)
            and (self.queues is None or job.queue in self.queues)
            and (self.tenant is None or job.tenant == self.tenant)
            and (self.correlation_id is None or job.correlation_id == self.correlation_id)
        )

    def wants(self, event: Event) -> bool:
        return (self.types is None or event.type in self.types) and self.admits(event)


def item_json(item: Item) -> dict[str, Any]:
    """Returns JSON types only; each job's id in both spellings."""
    match item:
        case Event():
            fields = {"type": item.type, "public_id": ids.public(item.job_id), **msgspec.structs.asdict(item)}
        case Snapshot():
            rest = {"job": _job(item.job), "phases": item.phases, "webhook_sent": item.webhook_sent}
            fields = {"type": item.type, "public_id": ids.public(item.job.id), **rest}
        case Gap():
            fields = {"type": item.type, "since": item.since, "until": item.until}
        case _:
            assert_never(item)
    builtins: dict[str, Any] = msgspec.to_builtins(fields)
    return builtins


def _job(job: JobRecord) -> dict[str, Any]:
    fields = {name: value for name, value in msgspec.structs.asdict(job).items() if name not in _LEFT_OUT}
    fields["errors"] = [_without_traceback(error) for error in job.errors or []]
    fields["last_error"] = None if job.last_error is None else _without_traceback(job.last_error)
    return {"public_id": ids.public(job.id), **fields}


def _without_traceback(error: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in error.items() if name != "traceback"}


def kind_name(kind: str | Kind[Any, Any]) -> str:
    return kind.name if isinstance(kind, Kind) else kind


def check_since(since: datetime | None) -> datetime | None:
    """Refuses what stores cannot compare with."""
    if since is None:
        return None
    if not isinstance(since, datetime):
        raise UsageError(f"since {since!r:.80} must be a datetime, as in datetime.now(UTC) - timedelta(hours=1)")
    if since.tzinfo is None:
        raise UsageError(f"since {since.isoformat()} has no time zone: give it one, as in datetime.now(UTC)")
    if not EARLIEST <= since.year <= LATEST:
        raise UsageError(f"since {since.isoformat()} is out of range: give a time from {EARLIEST} to {LATEST}")
    return since


def _names(names: Iterable[str | Kind[Any, Any]] | None, field: str) -> frozenset[str] | None:
    if names is None:
        return None
    if isinstance(names, str | Kind) or not isinstance(names, Iterable):
        raise UsageError(f"{field} is {names!r:.80}: give a list, as in {field}=[{names!r:.80}]")
    named = frozenset(_text(kind_name(name), field) for name in names)
    if not named:
        raise UsageError(f"{field} is empty, so that nothing would ever come: name some, or leave it out")
    return named


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{field} has {value!r:.80}: give a text that is not empty, or leave it out")
    return value


def _type(name: str) -> EventType:
    try:
        return EventType(name)
    except ValueError:
        raise UsageError(f"types has {name!r}, which is no event type; there are: {', '.join(EventType)}") from None


def _intersection(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _not_empty(names: frozenset[T] | None, field: str) -> frozenset[T] | None:
    if names is not None and not names:
        raise UsageError(f"{field}: you may ask for none of those")
    return names


def _one_value(asked: str | None, limit: str | None, field: str) -> str | None:
    if asked is not None and limit is not None and asked != limit:
        raise UsageError(f"{field} is {asked!r}: you may ask for {limit!r} only")
    return asked if limit is None else limit
