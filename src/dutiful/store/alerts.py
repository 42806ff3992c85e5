"""The contract of alerts: their states are stored, so that a restart does not lose how long one has been pending."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from dutiful.core.metrics.alert import Alert


class AlertChange(msgspec.Struct, frozen=True):
    """A compare-and-set of an alert: if two processes evaluate it at once, only one reports the change."""

    before: Alert | None  # None: the alert is new
    after: Alert
    event: str | None = None  # "alert.firing" or "alert.cleared": a webhook post is written in the same transaction
    data: dict[str, Any] = {}  # of the webhook post


class AlertStore(Protocol):
    async def all(self) -> list[Alert]:
        """All stored alerts, by rule and series."""

    async def change(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[AlertChange]:
        """Applies changes whose `before` is still stored; returns those that were applied."""

    async def forget(self, alerts: Sequence[Alert]) -> None:
        """Deletes these alerts if they are ok and unchanged."""

    async def note_check(self, good_for: timedelta, *, now: datetime | None = None) -> None:
        """Records that all alerts were checked now, and that the next check is due within `good_for`."""

    async def last_check(self, *, now: datetime | None = None) -> datetime | None:
        """When rules were last evaluated; None if the next check is overdue."""
