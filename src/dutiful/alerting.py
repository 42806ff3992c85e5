"""The contract of alerts: how each stands is stored, so that a hold outlives whoever watches."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from dutiful.core.alert import Alert


class AlertChange(msgspec.Struct, frozen=True):
    """How an alert stands now, if it still stood as was seen: two that watch at once tell of a change once."""

    before: Alert | None
    after: Alert
    tell: bool = False  # it has begun to fire or is over: webhooks hear of it, by the same transaction


class Alerting(Protocol):
    async def alerts(self) -> list[Alert]:
        """All that are stored, by rule and series."""
        ...

    async def change_alerts(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[Alert]:
        """Apply those that still hold; returns the alerts that were changed."""
        ...

    async def forget_alerts(self, rules: Sequence[str]) -> list[str]:
        """Drop alerts of rules that are not among these; returns the names of the rules that are gone."""
        ...
