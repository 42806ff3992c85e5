"""Alerts in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from dutiful.core.metrics.alert import Alert
from dutiful.store.alerts import AlertChange
from dutiful.stores.postgres.engine.subject import Subject, arrays, as_struct, text


class PostgresAlerts(Subject):
    async def all(self) -> list[Alert]:
        return [as_struct(Alert, row) for row in await self._db.fetch(self._sql["alerts"])]

    async def change(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[AlertChange]:
        # Not retried if the reply is lost: the second call would find the alerts changed, by the first one.
        rows = await self._rows("change_alerts", "rule, series", text(changes), now, repeat=False)
        applied = {tuple(row) for row in rows}
        return [change for change in changes if (change.after.rule, change.after.series) in applied]

    async def forget(self, alerts: Sequence[Alert]) -> None:
        await self._db.fetch(self._sql["delete_alerts"], *arrays(alerts, "rule", "series", "since"))

    async def note_check(self, good_for: timedelta, *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["record_alert_check"], good_for, now)

    async def last_check(self, *, now: datetime | None = None) -> datetime | None:
        rows = await self._db.fetch(self._sql["last_alert_check"], now)
        return rows[0]["at"] if rows else None
