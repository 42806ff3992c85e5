"""What fires, and what is watched. Closed to a tenant's principal: metrics are of the whole fleet."""

from datetime import datetime

import msgspec

from dutiful.core.alert import Alert, AlertRule, AlertState
from dutiful.operator.door import Door

_ORDER = {AlertState.FIRING: 0, AlertState.PENDING: 1, AlertState.OK: 2}


class AlertRecord(msgspec.Struct, frozen=True):
    """An alert, and the rule that it goes by; None: this app does not declare it."""

    alert: Alert
    rule: AlertRule | None


class Alerts(Door):
    async def alerts(self) -> list[AlertRecord]:
        """Those that fire first, then those that are about to, then those that are over; the newest of each first."""
        self._check_fleetwide("the list of alerts")
        stored = await self._store.alerts()
        shown = [alert for alert in stored if alert.state is not AlertState.OK or alert.cleared_at is not None]
        shown.sort(key=lambda alert: alert.since, reverse=True)
        shown.sort(key=lambda alert: _ORDER[alert.state])
        return [AlertRecord(alert, self._alert_rules.get(alert.rule)) for alert in shown]

    async def alerts_watched(self) -> datetime | None:
        """When a worker last looked; None: none does, so how alerts stand is how they stood."""
        self._check_fleetwide("the list of alerts")
        return await self._store.last_look()

    def alert_rules(self) -> list[AlertRule]:
        """What a worker with this app's code watches."""
        self._check_fleetwide("the list of alert rules")
        return list(self._alert_rules.values())
