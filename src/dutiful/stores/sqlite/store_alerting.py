"""The store's face to those who watch metrics."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from dutiful.alerting import AlertChange
from dutiful.core.alert import Alert
from dutiful.stores.sqlite import alerting
from dutiful.stores.sqlite.threads import Threaded


class SqliteAlerting(Threaded):
    async def alerts(self) -> list[Alert]:
        return await self._browse(alerting.alerts)

    async def change_alerts(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[AlertChange]:
        return await self._write(lambda db: alerting.change(db, changes, self._clock(now)))

    async def forget_alerts(self, alerts: Sequence[Alert]) -> None:
        await self._write(lambda db: alerting.forget(db, alerts))

    async def note_look(self, good_for: timedelta, *, now: datetime | None = None) -> None:
        await self._write(lambda db: alerting.note_look(db, good_for, self._clock(now)))

    async def last_look(self, *, now: datetime | None = None) -> datetime | None:
        return await self._browse(lambda db: alerting.last_look(db, self._clock(now)))
