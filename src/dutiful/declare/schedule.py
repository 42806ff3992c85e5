"""A schedule as the code declares it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from dutiful.core.cron import CatchUp, Cron, Every, Schedule
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.core.sealed import ORIGIN
from dutiful.kind import Kind
from dutiful.options import Options, one_of, read_options
from dutiful.payload.key_ring import JobSeal
from dutiful.settings import Settings
from dutiful.store.schedules import ScheduleRecord

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
        # A leader without this code reads the text alone.
        if _read(self.expression, self._timezone) != self.when:
            raise UsageError(f"schedule {self.name}: {self.expression!r} would not be read as {self.when}")

    @property
    def expression(self) -> str:
        return self.when.expression if isinstance(self.when, Cron) else f"{EVERY}{_seconds(self.when.interval)}s"

    @property
    def _timezone(self) -> str:
        return self.when.timezone if isinstance(self.when, Cron) else "UTC"

    def record(self, now: datetime) -> ScheduleRecord:
        """The stored form, so that a leader without this code can fire it."""
        kind, options = self.kind, self.options
        job: dict[str, Any] = {
            "queue": options.queue or kind.queue,
            "payload": self.payload,
            "priority": kind.priority if options.priority is None else options.priority,
            "max_attempts": options.max_attempts or kind.policy.retry.max_attempts,
            "tenant": options.tenant,
        }
        checked = kind.check(self.payload)
        if checked.tenant is not None:
            job["tenant"] = checked.tenant
        if checked.correlation_id is not None:
            job["correlation_id"] = checked.correlation_id
        if checked.unique is not None and kind.rules is not None:
            job["unique"] = {**msgspec.to_builtins(checked.unique), "field": kind.rules.unique_field}
        if details := kind.details(options):
            job["options"] = details
        if kind.encrypted:
            # Once for all of its jobs, so that a leader without keys can fire it.
            kind.check_clear()
            seal = JobSeal(kind.key_ring, f"schedule {self.name}", job["tenant"], kind.name)
            job["payload"] = seal.seal("payload", checked.text)
            job["options"] = {**details, ORIGIN: f"schedule {self.name}"}
        return ScheduleRecord(
            name=self.name,
            kind=kind.name,
            expression=self.expression,
            timezone=self._timezone,
            catch_up=self.catch_up.value,
            job=job,
            next_at=self.when.next_after(now),
        )


def read_schedule(
    kind: Any,
    cron: str | None,
    every: Duration | None,
    name: str | None,
    timezone: str,
    catch_up: CatchUp | str,
    payload: Mapping[str, Any],
    options: dict[str, Any],
    settings: Settings,
) -> ScheduleSpec:
    """Checks everything now, because when it fires there is no caller to report an error to."""
    if not isinstance(kind, Kind):
        wanted = f"app.kind({kind!r})" if isinstance(kind, str) else "what @app.job has made of your function"
        raise UsageError(f"{kind!r:.80} is not a kind: give app.schedule the kind itself, {wanted}")
    if (cron is None) == (every is None):
        raise UsageError("give a schedule either a cron expression or every=…")
    when = Cron(cron, timezone) if cron is not None else Every(every if every is not None else 0)
    policy = one_of(CatchUp, catch_up, "catch_up")
    checked = kind.check(payload)
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise UsageError(f"a schedule has no option {unknown[0]!r}; it has: {', '.join(OPTIONS)}")
    chosen = read_options(Options(), options)
    name = name or kind.name
    if settings.tenants and chosen.tenant is None and checked.tenant is None:
        raise UsageError(
            f"schedule {name}: option tenant is missing, and every job of this app has one (setting tenants); give it "
            'here, as in tenant="acme"'
        )
    if chosen.tenant is not None and checked.tenant is not None and chosen.tenant != checked.tenant:
        raise UsageError(
            f"schedule {name}: option tenant is not what the payload says; leave the option out, it is taken from the "
            "payload"
        )
    return ScheduleSpec(name, kind, when, policy, msgspec.json.decode(checked.text), chosen)


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
        return Every(float(text.removesuffix("s")))  # also with an exponent: 1.2096e+06s
    except ValueError:
        return Every(text)


def _seconds(length: timedelta) -> str:
    """The seconds as text, exact and without an exponent."""
    whole, rest = divmod(length, timedelta(seconds=1))
    return f"{whole}.{rest.microseconds:06}".rstrip("0") if rest else str(whole)
