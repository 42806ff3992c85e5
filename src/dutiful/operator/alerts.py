"""Alerts and their rules. Closed to a tenant's principal, because metrics are of the whole fleet."""

from datetime import datetime

import msgspec

from dutiful.core.metrics.alert import Alert, AlertRule, AlertState
from dutiful.operator.actor import OperatorPart

_ORDER = {AlertState.FIRING: 0, AlertState.PENDING: 1, AlertState.OK: 2}


class AlertRecord(msgspec.Struct, frozen=True):
    """An alert and its rule; None if this app does not declare it."""

    alert: Alert
    rule: AlertRule | None


class Alerts(OperatorPart):
    async def all(self) -> list[AlertRecord]:
        """Firing, then pending, then cleared alerts; the newest of each first."""
        self._actor.check_fleetwide("the list of alerts")
        stored = await self._store.alerts.all()
        shown = [alert for alert in stored if alert.state is not AlertState.OK or alert.cleared_at is not None]
        shown.sort(key=lambda alert: alert.since, reverse=True)
        shown.sort(key=lambda alert: _ORDER[alert.state])
        return [AlertRecord(alert, self._actor.alert_rules.get(alert.rule)) for alert in shown]

    async def last_check(self) -> datetime | None:
        """When a worker last evaluated the rules; None: no worker does, so the alerts are out of date."""
        self._actor.check_fleetwide("the list of alerts")
        return await self._store.alerts.last_check()

    def rules(self) -> list[AlertRule]:
        """The rules that a worker with this app's code evaluates."""
        self._actor.check_fleetwide("the list of alert rules")
        return list(self._actor.alert_rules.values())
