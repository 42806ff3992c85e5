"""The contract of circuit breakers: rows shared by the fleet, so that a failure in one worker counts for all.

A name without a row is a closed breaker. While it is closed and nothing has failed lately, entering is one read and
exiting writes nothing.

A kind may declare a breaker. While the breaker is open, the kind's jobs are blocked like those of a paused kind, and no
attempt is counted. While it is half-open, only as many are admitted as may probe, in turn from the kinds and queues
that live workers serve, or from all of them if no worker is known.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from dutiful.core.breaker.state import Breaker, BreakerPolicy, CallResult, Entry, Rejected
from dutiful.core.job import ClaimToken


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker with its kinds and the jobs that wait for it."""

    breaker: Breaker
    probing: int = 0  # probes under way
    kinds: list[str] = []  # kinds that declare it
    waiting: int = 0  # jobs that wait for it: of these kinds, or rejected inside their handlers


class BreakerStore(Protocol):
    async def enter(
        self, name: str, policy: BreakerPolicy, token: ClaimToken, *, now: datetime | None = None
    ) -> Entry | Rejected:
        """Asks whether a call may pass; a probe counts until it exits or its lease ends.

        One claim is one probe, however often it asks. Raises ClaimLost if it would be a probe and its lease has ended.
        """

    async def exit(
        self,
        name: str,
        policy: BreakerPolicy,
        token: ClaimToken,
        entry: Entry,
        result: CallResult,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        """Reports how the call ended; ignored for a probe that has exited or whose claim another probe has replaced."""

    async def all(self, *, now: datetime | None = None) -> list[BreakerRecord]:
        """All breakers that have a row, ordered by name."""

    async def kinds(self) -> dict[str, str]:
        """The names of breakers, by the kind that declares them."""

    async def open(
        self,
        name: str,
        open_for: timedelta | None,
        policy: BreakerPolicy | None = None,
        *,
        now: datetime | None = None,
    ) -> Breaker:
        """Opens it now, whatever its state, for `open_for` or as its policy says; `policy` replaces the stored one.

        The opening is not counted among those caused by failures.
        """

    async def reset(self, name: str, *, now: datetime | None = None) -> Breaker | None:
        """Closes it now and clears its failures; None if there is none of that name."""

    async def put_kinds(
        self,
        kinds: Mapping[str, str | None],
        policies: Mapping[str, BreakerPolicy] | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        """Stores the breaker that each kind declares (None removes it), and the declared policies of breakers, by name.

        Each of these breakers gets a row, so that operators see it before its first failure.
        """
