"""The contract of circuit breakers: rows that the whole fleet shares, so that what one worker learns all know.

A name that has no row is a closed breaker. While it is closed and nothing has failed lately, entering is one look and
leaving writes nothing.

A kind may declare a breaker. While that one is open, the kind's jobs wait as those of a paused kind do, unspent; while
it is half-open, only as many are let out as may probe: of the kinds and queues in turn that a living worker serves,
unless none is known.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from dutiful.core.breaker import Barred, Breaker, BreakerPolicy, Entry, Sign
from dutiful.core.job import Token


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker as people look at it."""

    breaker: Breaker
    probing: int = 0  # probes under way
    kinds: list[str] = []  # those that declare it
    waiting: int = 0  # jobs that wait for it: of these kinds, or refused inside their handlers


class Breaking(Protocol):
    async def enter_breaker(
        self, name: str, policy: BreakerPolicy, token: Token, *, now: datetime | None = None
    ) -> Entry | Barred:
        """Ask to call the service; a probe's place is kept for `token` until it leaves or its lease is over.

        One claim has one place, however often it asks. ClaimLost if it would be a probe, and its lease is over.
        """
        ...

    async def leave_breaker(
        self,
        name: str,
        policy: BreakerPolicy,
        token: Token,
        entry: Entry,
        sign: Sign,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        """Say how the call ended; of a probe that has left, or whose place another one has, no word counts."""
        ...

    async def breakers(self, *, now: datetime | None = None) -> list[BreakerRecord]:
        """All that have a row, by name."""
        ...

    async def breaker_of_kind(self, kind: str) -> str | None:
        """The one that the kind declares, as the fleet knows it."""
        ...

    async def breaker_kinds(self) -> dict[str, str]:
        """The same of every kind that declares one."""
        ...

    async def force_breaker(
        self,
        name: str,
        open_for: timedelta | None,
        policy: BreakerPolicy | None = None,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        """Open it now, for this long or as long as its policy says, whatever its state; `policy`: if the code has one.

        That is no trip.
        """
        ...

    async def reset_breaker(self, name: str, *, now: datetime | None = None) -> Breaker | None:
        """Close it now and forget its failures; None if there is none of that name."""
        ...

    async def put_breaker_kinds(
        self,
        kinds: Mapping[str, str | None],
        policies: Mapping[str, BreakerPolicy] | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        """By kind, the breaker that it declares in the code; None: none any more. By name, the policies declared there.

        Each of these breakers has a row then, so that people see it before it has ever failed.
        """
