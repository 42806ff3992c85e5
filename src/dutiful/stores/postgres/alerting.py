"""Alerts in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from dutiful.alerting import AlertChange
from dutiful.core.alert import Alert, AlertState
from dutiful.stores.postgres.part import PostgresPart


class PostgresAlerting(PostgresPart):
    async def alerts(self) -> list[Alert]:
        rows = await self._db.fetch(self._sql["alerts"])
        return [Alert(**{**dict(row), "state": AlertState(row["state"])}) for row in rows]

    async def change_alerts(self, changes: Sequence[AlertChange], *, now: datetime | None = None) -> list[AlertChange]:
        # Not repeated if the reply is lost: the second time, nothing would stand as was seen.
        args = (msgspec.json.encode(changes).decode(), now)
        applied = {tuple(row) for row in await self._db.fetch(self._sql["change_alerts"], *args, repeat=False)}
        return [change for change in changes if (change.after.rule, change.after.series) in applied]

    async def forget_alerts(self, alerts: Sequence[Alert]) -> None:
        columns = [a.rule for a in alerts], [a.series for a in alerts], [a.since for a in alerts]
        await self._db.fetch(self._sql["forget_alerts"], *columns)

    async def note_look(self, good_for: timedelta, *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["note_look"], good_for, now)

    async def last_look(self, *, now: datetime | None = None) -> datetime | None:
        rows = await self._db.fetch(self._sql["last_look"], now)
        return rows[0]["at"] if rows else None
