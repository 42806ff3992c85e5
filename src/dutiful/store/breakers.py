"""The contract of circuit breakers: rows that the fleet shares, so that a failure seen by one worker counts for all.

A name that has no row is a closed breaker. While it is closed and nothing has failed lately, entering is one read and
exiting writes nothing.

A kind may declare a breaker. While that one is open, the kind's jobs wait as those of a paused kind do, unspent; while
it is half-open, only as many are admitted as may probe, in turn from the kinds and queues that a live worker serves,
or from all of them if no worker is known.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from dutiful.core.breaker.state import Breaker, BreakerPolicy, CallResult, Entry, Rejected
from dutiful.core.job import Token


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker with its kinds and the jobs that wait for it."""

    breaker: Breaker
    probing: int = 0  # probes under way
    kinds: list[str] = []  # those that declare it
    waiting: int = 0  # jobs that wait for it: of these kinds, or refused inside their handlers


class BreakerStore(Protocol):
    async def enter(
        self, name: str, policy: BreakerPolicy, token: Token, *, now: datetime | None = None
    ) -> Entry | Rejected:
        """Ask for a call of the service; a probe holds its place until it exits or its lease ends.

        One claim has one place, however often it asks. ClaimLost if it would be a probe and its lease has ended.
        """

    async def exit(
        self,
        name: str,
        policy: BreakerPolicy,
        token: Token,
        entry: Entry,
        result: CallResult,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        """Report how the call ended; ignored for a probe that has exited or whose place was taken over."""

    async def all(self, *, now: datetime | None = None) -> list[BreakerRecord]:
        """All that have a row, ordered by name."""

    async def of_kind(self, kind: str) -> str | None:
        """The breaker that the kind declares."""

    async def kinds(self) -> dict[str, str]:
        """The breaker of every kind that declares one."""

    async def force(
        self,
        name: str,
        open_for: timedelta | None,
        policy: BreakerPolicy | None = None,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        """Open it now, for this long or as long as its policy says, whatever its state; `policy`: if the code has one.

        It does not count as a trip.
        """

    async def reset(self, name: str, *, now: datetime | None = None) -> Breaker | None:
        """Close it now and forget its failures; None if there is none of that name."""

    async def put_kinds(
        self,
        kinds: Mapping[str, str | None],
        policies: Mapping[str, BreakerPolicy] | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        """By kind, the breaker that it declares in the code; None: none any more. By name, the policies declared there.

        Each of these breakers has a row then, so that operators see it before it has ever failed.
        """
