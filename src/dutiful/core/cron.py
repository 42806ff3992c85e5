"""Schedules as values, and the decision which firings are due."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias, assert_never
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """Five cron fields (six with leading seconds) in a time zone; clock changes are handled as by Debian's cron.

    A time that is skipped fires right after the change, one that is repeated fires only the first time; a wildcard in
    the minute or the hour follows real time.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        try:
            zone = ZoneInfo(self.timezone)
        except (LookupError, ValueError, OSError, TypeError):  # unknown, outside the database, a folder in it, not text
            raise UsageError(
                f'timezone {self.timezone!r} is unknown here: give an IANA name such as "Europe/Helsinki" or "UTC". '
                "If it is right, install the tzdata package."
            ) from None
        try:
            next(CronSim(self.expression, _EPOCH.astimezone(zone)))
        except StopIteration:
            raise UsageError(f"expression {self.expression!r} never fires: check its day and month.") from None
        except (CronSimError, ValueError, AttributeError) as error:  # the last two: a huge number, not a text
            raise UsageError(
                f"expression {self.expression!r} is not a cron expression ({error}): give minute, hour, day of month, "
                'month and day of week, as in "0 3 * * *" (daily at 03:00) or "*/5 * * * MON-FRI".'
            ) from None

    def next_after(self, moment: datetime) -> datetime:
        """The first firing after `moment`, in UTC."""
        start = _utc(moment)
        # While the clocks repeat an hour, cronsim offers times of its first pass again.
        firings = (
            firing.astimezone(UTC) for firing in CronSim(self.expression, start.astimezone(ZoneInfo(self.timezone)))
        )
        return next(firing for firing in firings if firing > start)


@dataclass(frozen=True, slots=True, init=False)
class Every:
    """Fires at each multiple of `interval` since 1970 in UTC, so that restarts do not shift it."""

    interval: timedelta

    def __init__(self, interval: Duration) -> None:
        length = duration(interval, "interval")
        if length < _SECOND:
            raise UsageError(f"interval {length} is too short: give at least one second.")
        object.__setattr__(self, "interval", length)

    def next_after(self, moment: datetime) -> datetime:
        """The first firing after `moment`, in UTC."""
        return _EPOCH + ((_utc(moment) - _EPOCH) // self.interval + 1) * self.interval


Schedule: TypeAlias = Cron | Every


class CatchUp(Enum):
    """What happens to firings that were missed because no worker ran."""

    SKIP = "skip"  # none is made
    ONE = "one"  # only the latest is made
    ALL = "all"  # each is made, a limited number at a time


@dataclass(frozen=True, slots=True)
class Firing:
    """The firings to make now, oldest first, and when the next one is due."""

    times: tuple[datetime, ...]
    next_at: datetime


def due(
    schedule: Schedule,
    next_at: datetime,
    now: datetime,
    catch_up: CatchUp = CatchUp.ONE,
    limit: int = 100,
    *,
    grace: timedelta = timedelta(minutes=1),
) -> Firing:
    """Decides what to fire at `now`, given the first firing not yet made; one later than `grace` counts as missed.

    With ALL, more than `limit` leave `next_at` in the past, and the next call continues from there.
    """
    first, now = _utc(next_at), _utc(now)
    if first > now:
        return Firing((), first)
    match catch_up:
        case CatchUp.SKIP:
            latest = _latest(schedule, first, now)
            return Firing((latest,) if now - latest <= grace else (), schedule.next_after(now))
        case CatchUp.ONE:
            return Firing((_latest(schedule, first, now),), schedule.next_after(now))
        case CatchUp.ALL:
            return _all(schedule, first, now, limit)
        case _:
            assert_never(catch_up)


def _latest(schedule: Schedule, first: datetime, now: datetime) -> datetime:
    """The last firing from `first` to `now`, by bisection, because years of a schedule of seconds may be missed."""
    latest, end = first, now
    while (following := schedule.next_after(latest)) <= now:
        middle = latest + (end - latest) / 2
        candidate = schedule.next_after(middle)
        if candidate <= now:
            latest = candidate
        else:
            latest, end = following, middle
    return latest


def _all(schedule: Schedule, first: datetime, now: datetime, limit: int) -> Firing:
    if limit < 1:
        raise UsageError(f"limit {limit} would never fire: give at least 1.")
    times = [first]
    while (following := schedule.next_after(times[-1])) <= now and len(times) < limit:
        times.append(following)
    return Firing(tuple(times), following)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise UsageError(f"{moment} has no time zone: pass an aware datetime, as in datetime.now(UTC).")
    return moment.astimezone(UTC)
