"""A circuit breaker in memory: which calls it admits, and what their results change."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from dutiful.core.breaker.state import PROBE_WAIT, BreakerPolicy, CallResult, Entry, Rejected
from dutiful.core.job import Claim
from suite.builders import T0


@dataclass(slots=True)
class Caller:
    """A claim, and the entries that it was ever given."""

    claim: Claim
    lease_ends: datetime
    held: bool = True  # its lease exists, expired or not
    entries: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class BreakerModel:
    policy: BreakerPolicy
    now: datetime = T0
    state: str = "closed"
    round: int = 0
    failures: int = 0
    successes: int = 0
    neutral: int = 0
    trips: int = 0
    open_until: datetime | None = None
    probers: list[Caller] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)  # kinds
    paused: set[str] = field(default_factory=set)  # kinds, by operators

    def live(self, caller: Caller) -> bool:
        return caller.held and caller.lease_ends > self.now

    def probing(self) -> int:
        return sum(self.live(caller) for caller in self.probers)

    def enter(self, caller: Caller) -> Entry | Rejected | Literal["lost"]:
        if self.state == "closed":
            return Entry(self.round)
        if self.state == "open":
            assert self.open_until is not None
            if self.now < self.open_until:
                return Rejected(self.open_until, self.open_until - self.now)
            if not self.live(caller):
                return "lost"
            self.half_open()
        if caller not in self.probers:
            if self.successes + self.probing() >= self.policy.probes:
                again = min(PROBE_WAIT, self.policy.open_for)
                return Rejected(self.now + again, again)
            if self.live(caller):
                # A job has one probe, and a dead claim has none.
                self.probers = [p for p in self.probers if self.live(p) and p.claim.job_id != caller.claim.job_id]
                self.probers.append(caller)
        return Entry(self.round, probe=True) if self.live(caller) else "lost"

    def exit(self, caller: Caller, entry: Entry, result: CallResult) -> None:
        if entry.round != self.round or (entry.probe and caller not in self.probers):
            return
        if entry.probe:
            self.probers.remove(caller)
        if result is CallResult.BAD:
            self.failures = min(self.failures + 1, self.policy.failures)
            if entry.probe or self.failures >= self.policy.failures:
                self.open(self.policy.open_for)
                self.trips += 1
        elif result is CallResult.NEUTRAL and entry.probe:
            self.neutral += 1
            if self.neutral >= self.policy.failures:
                self.close()
        elif result is CallResult.GOOD and entry.probe:
            self.successes += 1
            if self.successes >= self.policy.probes:
                self.close()
        elif result is CallResult.GOOD:
            self.failures = 0

    def half_open(self) -> None:
        self._turn("half_open")

    def open(self, open_for: timedelta) -> None:
        self._turn("open")
        self.open_until = self.now + open_for

    def close(self) -> None:
        self._turn("closed")
        self.failures = 0
        self.open_until = None

    def _turn(self, state: str) -> None:
        self.state, self.round, self.successes, self.neutral, self.probers = state, self.round + 1, 0, 0, []

    def due(self) -> bool:
        return self.state == "open" and self.open_until is not None and self.open_until <= self.now
