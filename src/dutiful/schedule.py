"""A schedule as the code declares it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from dutiful.core.cron import CatchUp, Cron, Every, Schedule
from dutiful.core.errors import UsageError
from dutiful.duties import ScheduleRecord
from dutiful.kind import Kind
from dutiful.options import Options, read_options

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

    def __post_init__(self) -> None:
        # A leader without this code goes by the text alone.
        if _read(self.expression, self._timezone) != self.when:
            raise UsageError(f"schedule {self.name}: {self.expression!r} would not be read as {self.when}")

    @property
    def expression(self) -> str:
        return self.when.expression if isinstance(self.when, Cron) else f"{EVERY}{_seconds(self.when.interval)}s"

    @property
    def _timezone(self) -> str:
        return self.when.timezone if isinstance(self.when, Cron) else "UTC"

    def record(self, now: datetime) -> ScheduleRecord:
        """As it is stored, so that a leader that does not have this code can fire it."""
        kind, options = self.kind, self.options
        job: dict[str, Any] = {
            "queue": options.queue or kind.queue,
            "payload": self.payload,
            "priority": kind.priority if options.priority is None else options.priority,
            "max_attempts": options.max_attempts or kind.policy.retry.max_attempts,
            "tenant": options.tenant,
        }
        said = kind.check(self.payload)
        if said.tenant is not None:
            job["tenant"] = said.tenant
        if said.correlation_id is not None:
            job["correlation_id"] = said.correlation_id
        if said.unique is not None and kind.rules is not None:
            job["unique"] = {**msgspec.to_builtins(said.unique), "field": kind.rules.unique_field}
        if details := kind.details(options):
            job["options"] = details
        return ScheduleRecord(
            name=self.name,
            kind=kind.name,
            expression=self.expression,
            timezone=self._timezone,
            catch_up=self.catch_up.value,
            job=job,
            next_at=self.when.next_after(now),
        )


def read_schedule_options(given: dict[str, Any]) -> Options:
    """How each of a schedule's jobs differs from its kind's defaults."""
    if unknown := sorted(set(given) - set(OPTIONS)):
        raise UsageError(f"a schedule has no option {unknown[0]!r}; it has: {', '.join(OPTIONS)}")
    return read_options(Options(), given)


def when_of(record: ScheduleRecord) -> Schedule:
    """The schedule that a stored expression means."""
    try:
        return _read(record.expression, record.timezone)
    except UsageError as error:
        raise UsageError(f"schedule {record.name}: {error}") from error


def _read(expression: str, timezone: str) -> Schedule:
    if not expression.startswith(EVERY):
        return Cron(expression, timezone)
    text = expression.removeprefix(EVERY)
    try:
        return Every(float(text.removesuffix("s")))  # also as it was once written: 1.2096e+06s
    except ValueError:
        return Every(text)


def _seconds(length: timedelta) -> str:
    """Exactly, and without an exponent."""
    whole, rest = divmod(length, timedelta(seconds=1))
    return f"{whole}.{rest.microseconds:06}".rstrip("0") if rest else str(whole)
