"""Alerts: how each stands, changed only by whoever saw it as it was."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from dutiful.alerting import AlertChange
from dutiful.core.alert import Alert, AlertState
from dutiful.stores.sqlite.codec import maybe_micros, maybe_moment, micros, moment, span
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.outbox import announce_alert
from dutiful.stores.sqlite.sql import SQL


def alerts(db: Connection) -> list[Alert]:
    return [_alert(row) for row in db.rows(SQL["alerts"])]


def change(db: Connection, changes: Sequence[AlertChange], now: int) -> list[AlertChange]:
    applied = [change for change in changes if _apply(db, change)]
    for change in applied:
        if change.event is not None:
            announce_alert(db, change.event, change.data, now)
    return applied


def forget(db: Connection, alerts: Sequence[Alert]) -> None:
    db.many(SQL["delete_alert"], [(alert.rule, alert.series, micros(alert.since)) for alert in alerts])


def note_look(db: Connection, good_for: timedelta, now: int) -> None:
    db.run(SQL["note_look"], (now, now + span(good_for)))


def last_look(db: Connection, now: int) -> datetime | None:
    return maybe_moment(db.value(SQL["last_look"], (now,)))


def _apply(db: Connection, change: AlertChange) -> bool:
    after, before = change.after, change.before
    values: dict[str, Any] = {
        "rule": after.rule,
        "series": after.series,
        "state": after.state.value,
        "value": after.value,
        "since": micros(after.since),
        "calm_since": maybe_micros(after.calm_since),
        "fired_at": maybe_micros(after.fired_at),
        "cleared_at": maybe_micros(after.cleared_at),
        "summary": after.summary,
    }
    if before is None:
        return bool(db.change(SQL["insert_alert"], values))
    seen = {
        "was_state": before.state.value,
        "was_since": micros(before.since),
        "was_value": before.value,
        "was_calm_since": maybe_micros(before.calm_since),
    }
    return bool(db.change(SQL["update_alert"], values | seen))


def _alert(row: Row) -> Alert:
    rule, series, state, value, since, calm_since, fired_at, cleared_at, summary = row
    return Alert(
        rule=rule,
        series=series,
        state=AlertState(state),
        value=value,
        since=moment(since),
        calm_since=maybe_moment(calm_since),
        fired_at=maybe_moment(fired_at),
        cleared_at=maybe_moment(cleared_at),
        summary=summary,
    )
