"""Alerts in SQLite, changed by compare-and-set."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from dutiful.core.metrics.alert import Alert
from dutiful.store.alerts import AlertChange
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_micros, maybe_moment, micros, span
from dutiful.stores.sqlite.engine.columns import ALERT
from dutiful.stores.sqlite.webhooks import write_alert_posts


class SqliteAlerts(Subject):
    async def all(self) -> list[Alert]:
        return [ALERT.decode(row) for row in await self._engine.browse(lambda db: db.rows(SQL["alerts"]))]

    @writes
    def change(
        self, db: Connection, changes: Sequence[AlertChange], *, now: datetime | None = None
    ) -> list[AlertChange]:
        applied = [change for change in changes if _apply(db, change)]
        for change in applied:
            if change.event is not None:
                write_alert_posts(db, change.event, change.data, clock(now))
        return applied

    async def forget(self, alerts: Sequence[Alert]) -> None:
        rows = [(alert.rule, alert.series, micros(alert.since)) for alert in alerts]
        await self._engine.write(lambda db: db.many(SQL["delete_alert"], rows))

    @writes
    def note_check(self, db: Connection, good_for: timedelta, *, now: datetime | None = None) -> None:
        at = clock(now)
        db.run(SQL["record_alert_check"], (at, at + span(good_for)))

    async def last_check(self, *, now: datetime | None = None) -> datetime | None:
        return maybe_moment(await self._engine.browse(lambda db: db.value(SQL["last_alert_check"], (clock(now),))))


def _apply(db: Connection, change: AlertChange) -> bool:
    after, before = change.after, change.before
    if before is None:
        return db.change(SQL["insert_alert"], ALERT.encode(after)) > 0
    seen = (before.state.value, micros(before.since), before.value, maybe_micros(before.calm_since))
    return db.change(SQL["update_alert"], (*ALERT.encode(after), *seen)) > 0
