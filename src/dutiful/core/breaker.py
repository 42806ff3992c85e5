"""A circuit breaker as a value: closed until failures in a row open it, half-open when its time is over.

Every change of state begins a new round. Whoever was let in says in which round that was, so that what comes of a call
from an earlier one, however late, changes nothing.
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from dutiful.core.errors import UsageError

AGAIN = timedelta(seconds=5)  # when to ask again while others probe, unless the breaker is open for less


class BreakerState(StrEnum):
    CLOSED = "closed"  # calls pass
    OPEN = "open"  # calls are refused
    HALF_OPEN = "half_open"  # a few calls pass, to find out


GATES = {BreakerState.OPEN: "breaker", BreakerState.HALF_OPEN: "probing"}
"""Before which gate the jobs of its kinds wait: before the first, none is claimed, even if it stands in a line."""


class Sign(StrEnum):
    """What a call that was let in says of the service."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"  # it ended for a reason of its own, by a service in whatever health
    UNCLEAR = "unclear"  # it was cut short: nobody knows how it would have ended

    @property
    def clear(self) -> bool:
        """Whether it speaks for the service, or against it."""
        return self in (Sign.GOOD, Sign.BAD)


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After how many failures in a row a breaker opens, for how long, and how many calls may then find out."""

    failures: int = 5
    open_for: timedelta = timedelta(seconds=60)
    probes: int = 1

    def __post_init__(self) -> None:
        for name in ("failures", "probes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
                raise UsageError(f"a breaker's {name} is {value!r}: it must be a whole number from 1 to 1,000,000")
        if not timedelta(milliseconds=10) <= self.open_for <= timedelta(days=365):
            raise UsageError(f"a breaker's open_for is {self.open_for}: it must be from 10ms to a year")


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """One breaker, shared by the fleet."""

    name: str
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0  # in a row, while it is closed; when open, those that opened it
    successes: int = 0  # of probes in this round
    neutral: int = 0  # probes in this round that ended for reasons of their own
    round: int = 0
    trips: int = 0  # how often failures have opened it; not people
    policy: BreakerPolicy = BreakerPolicy()  # as whoever spoke last has it
    last_failure_at: datetime | None = None
    opened_at: datetime | None = None
    open_until: datetime | None = None
    half_opened_at: datetime | None = None


class Entry(msgspec.Struct, frozen=True):
    """Somebody was let in."""

    round: int
    probe: bool = False


class Barred(msgspec.Struct, frozen=True):
    """Somebody was refused, and may ask again then."""

    until: datetime  # by the clock of whoever decides
    wait: timedelta = timedelta(0)  # how long that is, for those whose own clock goes otherwise


def enter(breaker: Breaker, policy: BreakerPolicy, probing: int, now: datetime) -> tuple[Breaker, Entry | Barred]:
    """Let a call in or not; `probing` is how many probes of this round are under way."""
    if breaker.state is BreakerState.CLOSED:
        return breaker, Entry(breaker.round)
    if breaker.state is BreakerState.OPEN:
        if breaker.open_until is not None and not due(breaker, now):
            return breaker, Barred(breaker.open_until, breaker.open_until - now)
        breaker, probing = half_opened(breaker, now), 0
    if probing < _wanted(breaker, policy):
        return breaker, Entry(breaker.round, probe=True)
    again = min(AGAIN, policy.open_for)
    return breaker, Barred(now + again, again)


def leave(breaker: Breaker, policy: BreakerPolicy, entry: Entry, sign: Sign, now: datetime) -> Breaker:
    """What a call that was let in changes by how it ended."""
    if entry.round != breaker.round or sign is Sign.UNCLEAR:
        return breaker
    if sign is Sign.BAD:
        failures = min(breaker.failures + 1, policy.failures)
        failed = msgspec.structs.replace(breaker, failures=failures, last_failure_at=now, policy=policy)
        if breaker.state is BreakerState.HALF_OPEN or failures >= policy.failures:
            return msgspec.structs.replace(opened(failed, now, policy.open_for), trips=breaker.trips + 1)
        return failed
    if sign is Sign.NEUTRAL:
        return _neutral(breaker, policy)
    if breaker.state is BreakerState.HALF_OPEN:
        good = msgspec.structs.replace(breaker, successes=breaker.successes + 1, policy=policy)
        return closed(good) if good.successes >= policy.probes else good
    return breaker if breaker.failures == 0 else msgspec.structs.replace(breaker, failures=0, policy=policy)


def _neutral(breaker: Breaker, policy: BreakerPolicy) -> Breaker:
    """Where all calls end so, none would ever be good: as many as failures would open it close it, if none was bad.

    Should the service be down all the same, it takes no more failures than that until it is open again.
    """
    if breaker.state is not BreakerState.HALF_OPEN:
        return breaker
    counted = msgspec.structs.replace(breaker, neutral=breaker.neutral + 1, policy=policy)
    return closed(counted) if counted.neutral >= policy.failures else counted


def half_opened(breaker: Breaker, now: datetime) -> Breaker:
    return msgspec.structs.replace(
        breaker, state=BreakerState.HALF_OPEN, successes=0, neutral=0, half_opened_at=now, round=breaker.round + 1
    )


def opened(breaker: Breaker, now: datetime, open_for: timedelta) -> Breaker:
    """It trips, or somebody forces it."""
    return msgspec.structs.replace(
        breaker,
        state=BreakerState.OPEN,
        opened_at=now,
        open_until=now + open_for,
        successes=0,
        neutral=0,
        round=breaker.round + 1,
    )


def closed(breaker: Breaker) -> Breaker:
    """Its probes were good, or nothing spoke against it for long enough, or somebody resets it."""
    return msgspec.structs.replace(
        breaker, state=BreakerState.CLOSED, failures=0, successes=0, neutral=0, open_until=None, round=breaker.round + 1
    )


def due(breaker: Breaker, now: datetime) -> bool:
    """Whether it is open, and its time is over."""
    return breaker.state is BreakerState.OPEN and (breaker.open_until is None or breaker.open_until <= now)


def turn(policy: BreakerPolicy) -> timedelta:
    """How long a job that was let out keeps others back; by then it may stand in a line that nobody gets to."""
    return max(AGAIN, policy.open_for)


def room(breaker: Breaker, probing: int, lined_up: int) -> int:
    """How many more jobs of its kinds may pass the gate of a half-open one; `lined_up` did, and it is their turn."""
    return max(_wanted(breaker, breaker.policy) - probing - lined_up, 0)


def _wanted(breaker: Breaker, policy: BreakerPolicy) -> int:
    """How many more probes have to be good; one at least, should a policy that asks for fewer have come meanwhile."""
    return max(policy.probes - breaker.successes, 1)


def bars(breaker: Breaker, waiting: int, probing: int, now: datetime) -> bool:
    """Whether anybody is kept from anything: when its time is over and nobody asks, nobody is."""
    if breaker.state is BreakerState.OPEN and not due(breaker, now):
        return True
    return breaker.state is not BreakerState.CLOSED and (waiting > 0 or probing > 0)
