"""A schedule as the code declares it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dutiful.core.cron import CatchUp, Cron, Every, Schedule
from dutiful.core.duration import duration
from dutiful.core.errors import UsageError
from dutiful.kind import Kind
from dutiful.options import Options, read_options
from dutiful.store import ScheduleRecord

EVERY = "every "
OPTIONS = ("queue", "priority", "max_attempts", "tenant")


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """What to enqueue, and when."""

    name: str
    kind: Kind[Any, Any]
    when: Schedule
    catch_up: CatchUp
    payload: dict[str, Any]
    options: Options

    def record(self, now: datetime) -> ScheduleRecord:
        """As it is stored, so that a leader that does not have this code can fire it."""
        kind, options = self.kind, self.options
        job = {
            "queue": options.queue or kind.queue,
            "payload": self.payload,
            "priority": kind.priority if options.priority is None else options.priority,
            "max_attempts": options.max_attempts or kind.policy.retry.max_attempts,
            "tenant": options.tenant,
        }
        when = self.when
        return ScheduleRecord(
            name=self.name,
            kind=kind.name,
            expression=when.expression if isinstance(when, Cron) else f"{EVERY}{when.interval.total_seconds():g}s",
            timezone=when.timezone if isinstance(when, Cron) else "UTC",
            catch_up=self.catch_up.value,
            job=job,
            next_at=when.next_after(now),
        )


def read_schedule_options(given: dict[str, Any]) -> Options:
    """How each of a schedule's jobs differs from its kind's defaults."""
    if unknown := sorted(set(given) - set(OPTIONS)):
        raise UsageError(f"a schedule has no option {unknown[0]!r}; it has: {', '.join(OPTIONS)}")
    return read_options(Options(), given)


def when_of(record: ScheduleRecord) -> Schedule:
    """The schedule that a stored expression means."""
    if record.expression.startswith(EVERY):
        return Every(duration(record.expression.removeprefix(EVERY)))
    try:
        return Cron(record.expression, record.timezone)
    except UsageError as error:
        raise UsageError(f"schedule {record.name}: {error}") from error
