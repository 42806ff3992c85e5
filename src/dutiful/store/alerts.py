"""The contract of alerts: their states are stored, so that a hold outlives the process that evaluates them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from dutiful.core.metrics.alert import Alert


class AlertChange(msgspec.Struct, frozen=True):
    """A compare-and-set of an alert: of two processes that evaluate it at once, one reports the change."""

    before: Alert | None  # none: there was none
    after: Alert
    event: str | None = None  # "alert.firing" or "alert.cleared": a webhook post is written in the same transaction
    data: dict[str, Any] = {}  # of the webhook post


class AlertStore(Protocol):
    async def all(self) -> list[Alert]:
        """All that are stored, by rule and series."""

    async def change(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[AlertChange]:
        """Apply those that still hold; returns the ones that were applied."""

    async def forget(self, alerts: Sequence[Alert]) -> None:
        """Drop those of them that are ok, and still stand as was seen."""

    async def note_check(self, good_for: timedelta, *, now: datetime | None = None) -> None:
        """Record that all alerts were checked now, and are to be checked again within this time."""

    async def last_check(self, *, now: datetime | None = None) -> datetime | None:
        """When rules were last evaluated; None: not within the time that the last evaluation was good for."""
