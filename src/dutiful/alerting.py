"""The contract of alerts: how each stands is stored, so that a hold outlives whoever watches."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from dutiful.core.alert import Alert


class AlertChange(msgspec.Struct, frozen=True):
    """How an alert stands now, if it still stood as was seen: two that watch at once tell of a change once."""

    before: Alert | None  # none: there was none
    after: Alert
    event: str | None = None  # "alert.firing" or "alert.cleared": webhooks hear of it, by the same transaction
    data: dict[str, Any] = {}  # what they are told


class Alerting(Protocol):
    async def alerts(self) -> list[Alert]:
        """All that are stored, by rule and series."""
        ...

    async def change_alerts(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[AlertChange]:
        """Apply those that still hold; returns the ones that were applied."""
        ...

    async def forget_alerts(self, alerts: Sequence[Alert]) -> None:
        """Drop those of them that are ok, and still stand as was seen."""
        ...

    async def note_look(self, good_for: timedelta, *, now: datetime | None = None) -> None:
        """Somebody has looked at all alerts now, and means to look again within this time."""
        ...

    async def last_look(self, *, now: datetime | None = None) -> datetime | None:
        """When somebody looked; None: nobody has within the time that the last one gave, so nobody watches."""
        ...
