"""A circuit breaker as a value: closed until failures in a row open it, half-open when `open_until` has passed.

Every change of state begins a new round. A call remembers the round in which it entered, so that a late result of an
earlier round changes nothing.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from dutiful.core.errors import UsageError

PROBE_WAIT = timedelta(seconds=5)  # until the next try while others probe, unless the breaker opens for less


class BreakerState(StrEnum):
    CLOSED = "closed"  # calls pass
    OPEN = "open"  # calls are rejected
    HALF_OPEN = "half_open"  # admits a few probes


PAUSE_SCOPES = {BreakerState.OPEN: "breaker", BreakerState.HALF_OPEN: "probing"}
"""The scope under which the kinds of a breaker are paused; while the breaker is open, ready jobs are not claimed."""


class CallResult(StrEnum):
    """The result of a call, as evidence about the service."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"  # it ended for its own reasons, which say nothing about the service
    UNCLEAR = "unclear"  # it was interrupted, so its result is unknown

    @property
    def clear(self) -> bool:
        """Whether it shows the service to be healthy or not."""
        return self in (CallResult.GOOD, CallResult.BAD)


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After how many failures in a row a breaker opens, for how long, and how many calls then probe the service."""

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
    failures: int = 0  # in a row while closed; while open, those that opened it
    successes: int = 0  # of probes in this round
    neutral: int = 0  # neutral probes in this round
    round: int = 0
    trips: int = 0  # how often failures have opened it; those by an operator are not counted
    policy: BreakerPolicy = BreakerPolicy()  # of the last call that changed it
    last_failure_at: datetime | None = None
    opened_at: datetime | None = None
    open_until: datetime | None = None
    half_opened_at: datetime | None = None


class Entry(msgspec.Struct, frozen=True):
    """A call may pass."""

    round: int
    probe: bool = False


class Rejected(msgspec.Struct, frozen=True):
    """A call may not pass before `until`."""

    until: datetime  # by the store's clock
    wait: timedelta = timedelta(0)  # the time until then, because the caller's clock may differ


def enter(breaker: Breaker, policy: BreakerPolicy, probing: int, now: datetime) -> tuple[Breaker, Entry | Rejected]:
    """Decides whether a call may pass; `probing` is the number of probes of this round that run."""
    if breaker.state is BreakerState.CLOSED:
        return breaker, Entry(breaker.round)
    if breaker.state is BreakerState.OPEN:
        if breaker.open_until is not None and not due(breaker, now):
            return breaker, Rejected(breaker.open_until, breaker.open_until - now)
        breaker, probing = half_opened(breaker, now), 0
    if probing < _wanted(breaker, policy):
        return breaker, Entry(breaker.round, probe=True)
    wait = min(PROBE_WAIT, policy.open_for)
    return breaker, Rejected(now + wait, wait)


def exited(breaker: Breaker, policy: BreakerPolicy, entry: Entry, result: CallResult, now: datetime) -> Breaker:
    """The breaker after a call that had entered ended with `result`."""
    if entry.round != breaker.round or result is CallResult.UNCLEAR:
        return breaker
    if result is CallResult.BAD:
        failures = min(breaker.failures + 1, policy.failures)
        failed = replace(breaker, failures=failures, last_failure_at=now, policy=policy)
        if breaker.state is BreakerState.HALF_OPEN or failures >= policy.failures:
            return replace(opened(failed, now, policy.open_for), trips=breaker.trips + 1)
        return failed
    if result is CallResult.NEUTRAL:
        return _neutral(breaker, policy)
    if breaker.state is BreakerState.HALF_OPEN:
        good = replace(breaker, successes=breaker.successes + 1, policy=policy)
        return closed(good) if good.successes >= policy.probes else good
    return breaker if breaker.failures == 0 else replace(breaker, failures=0, policy=policy)


def _neutral(breaker: Breaker, policy: BreakerPolicy) -> Breaker:
    """Closes it after as many neutral probes as failures would open it, because a service may only get neutral calls.
    If the service is still down, as many failures open the breaker again.
    """
    if breaker.state is not BreakerState.HALF_OPEN:
        return breaker
    counted = replace(breaker, neutral=breaker.neutral + 1, policy=policy)
    return closed(counted) if counted.neutral >= policy.failures else counted


def half_opened(breaker: Breaker, now: datetime) -> Breaker:
    return _next_round(breaker, BreakerState.HALF_OPEN, half_opened_at=now)


def opened(breaker: Breaker, now: datetime, open_for: timedelta) -> Breaker:
    """The breaker opened, by failures or by an operator."""
    return _next_round(breaker, BreakerState.OPEN, opened_at=now, open_until=now + open_for)


def closed(breaker: Breaker) -> Breaker:
    """The breaker closed, by good or enough neutral probes, or by an operator."""
    return _next_round(breaker, BreakerState.CLOSED, failures=0, open_until=None)


def _next_round(breaker: Breaker, state: BreakerState, **changes: Any) -> Breaker:
    return replace(breaker, state=state, successes=0, neutral=0, round=breaker.round + 1, **changes)


def due(breaker: Breaker, now: datetime) -> bool:
    """Whether it is open and `open_until` has passed."""
    return breaker.state is BreakerState.OPEN and (breaker.open_until is None or breaker.open_until <= now)


def probe_turn(policy: BreakerPolicy) -> timedelta:
    """How long a job chosen to probe keeps others from probing; it may be in a queue that no worker reaches."""
    return max(PROBE_WAIT, policy.open_for)


def probe_room(breaker: Breaker, probing: int, chosen: int) -> int:
    """How many more jobs may probe a half-open breaker; `probing` run, `chosen` are ready and have their turn."""
    return max(_wanted(breaker, breaker.policy) - probing - chosen, 0)


def _wanted(breaker: Breaker, policy: BreakerPolicy) -> int:
    """How many more probes have to be good; at least one, because the policy may have changed to fewer meanwhile."""
    return max(policy.probes - breaker.successes, 1)


def blocks(breaker: Breaker, waiting: int, probing: int, now: datetime) -> bool:
    """Whether it keeps calls or jobs from passing; not if `open_until` has passed and nothing waits."""
    if breaker.state is BreakerState.OPEN and not due(breaker, now):
        return True
    return breaker.state is not BreakerState.CLOSED and (waiting > 0 or probing > 0)
