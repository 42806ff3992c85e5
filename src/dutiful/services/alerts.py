"""Watches metrics, and tells of each alert that begins to fire or is over: once, however many watch."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from dutiful.alerting import AlertChange, Alerting
from dutiful.core.alert import Alert, AlertRule, AlertState, judge, labels_of, series_of
from dutiful.core.estimate import Doubt
from dutiful.core.metric import Sample, overlooked
from dutiful.delivery import Lines
from dutiful.duties import Survey

log = logging.getLogger("dutiful.alerts")
KEEP = timedelta(days=30)  # how long one that is over is shown
LIMIT = timedelta(seconds=30)  # of one look
NOTED = timedelta(seconds=5)  # between two notes that somebody looks, at least
# Beyond the interval, nobody watches: a look may take long, and another worker may have to take the lead.
LATER = LIMIT + timedelta(seconds=30)
FIRING, CLEARED = "alert.firing", "alert.cleared"
Measure = Callable[[datetime], Awaitable[Sequence[Sample]]]


class Alerts:
    name = "alerts"

    def __init__(self, store: Alerting, rules: Mapping[str, AlertRule], measure: Measure, every: timedelta) -> None:
        self._store = store
        self._rules = rules
        self._measure = measure
        self._every = every
        self._not_before = 0.0
        self._noted: datetime | None = None

    async def tick(self, survey: Survey) -> Lines | None:
        if time.monotonic() >= self._not_before:
            # First, so that one that cannot look now does not try again at once.
            self._not_before = time.monotonic() + self._every.total_seconds()
            try:
                async with asyncio.timeout(LIMIT.total_seconds()):
                    await self.once(survey.now)
            except TimeoutError:
                log.warning(
                    "a look at what alerts watch had no answer within %.0f s and was given up; it is tried again, and "
                    "until then nothing fires",
                    LIMIT.total_seconds(),
                )
        return None

    async def once(self, now: datetime) -> list[AlertChange]:
        """Judge all series by what they measure now; returns what has changed by our word."""
        stored = {(alert.rule, alert.series): alert for alert in await self._store.alerts()}
        samples = await self._measure(now) if self._rules else ()
        watched = self._looked_lately(now) or await self._store.last_look(now=now) is not None
        changes = [*self._judged(stored, samples, now, watched), *self._retired(stored.values(), now)]
        applied = await self._store.change_alerts(changes, now=now) if changes else []
        for change in applied:
            _log(change)
        await self._note(stored.values(), applied, now)
        if past := [alert for alert in stored.values() if self._is_past(alert, now)]:
            await self._store.forget_alerts(past)
        return applied

    async def _note(self, stored: Iterable[Alert], applied: Sequence[AlertChange], now: datetime) -> None:
        """Whoever asks is to know that somebody watches; and whoever reads this log, what fired before we did."""
        if self._noted is not None and timedelta(0) <= now - self._noted < NOTED:
            return
        if not self._looked_lately(now):
            ended = {(change.after.rule, change.after.series) for change in applied if change.event == CLEARED}
            for alert in stored:
                if alert.state is AlertState.FIRING and (alert.rule, alert.series) not in ended:
                    _log_known(alert)
        self._noted = now
        await self._store.note_look(self._every + LATER, now=now)

    def _looked_lately(self, now: datetime) -> bool:
        """Whether it was us who watched; if not, another one may have."""
        return self._noted is not None and now - self._noted < self._every + LATER

    def _judged(
        self, stored: Mapping[tuple[str, str], Alert], samples: Sequence[Sample], now: datetime, watched: bool
    ) -> Iterator[AlertChange]:
        by_metric: dict[str, list[Sample]] = {}
        for one in samples:
            by_metric.setdefault(one.metric, []).append(one)
        for rule in self._rules.values():
            alike = by_metric.get(rule.metric, [])
            seen = {series_of(one.labels): one for one in alike if rule.reads(one)}
            if not seen and (absent := rule.absent()):
                seen = {series_of(absent.labels): absent}
            # Those that are not there any more are over, too.
            known = [series for name, series in stored if name == rule.name]
            for series in dict.fromkeys([*seen, *known]):
                before, sample = stored.get((rule.name, series)), seen.get(series)
                fresh = Alert(rule=rule.name, series=series, since=now)
                value, doubt = None if sample is None else sample.value, _doubt(sample, series, alike)
                sure = rule.knows(sample)
                after = judge(rule, before or fresh, value, now, sure=sure, doubt=doubt, watched=watched)
                if after not in (before, fresh):
                    yield _change(before, after, rule)

    def _retired(self, stored: Iterable[Alert], now: datetime) -> Iterator[AlertChange]:
        """Whoever was told that an alert fires hears that it is over when nobody watches any more."""
        for alert in stored:
            if alert.rule not in self._rules and alert.state is not AlertState.OK:
                cleared_at = now if alert.state is AlertState.FIRING else alert.cleared_at
                ok = replace(alert, state=AlertState.OK, value=None, since=now, calm_since=None, cleared_at=cleared_at)
                yield _change(alert, ok, None)

    def _is_past(self, alert: Alert, now: datetime) -> bool:
        old = alert.rule not in self._rules or now - alert.since > KEEP
        return alert.state is AlertState.OK and old


def _doubt(sample: Sample | None, series: str, alike: Iterable[Sample]) -> Doubt | None:
    """Of an estimate; or of a series that is not there, and may have been overlooked."""
    if sample is not None and sample.value:
        return sample.doubt
    unseen = overlooked(alike, labels_of(series))
    return Doubt(0.0, unseen) if unseen else None


def _change(before: Alert | None, after: Alert, rule: AlertRule | None) -> AlertChange:
    fired = before is not None and before.state is AlertState.FIRING
    fires = after.state is AlertState.FIRING
    if fired == fires:
        return AlertChange(before, after)
    return AlertChange(before, after, FIRING if fires else CLEARED, _told(after, rule))


def _told(alert: Alert, rule: AlertRule | None) -> dict[str, Any]:
    return {
        "rule": alert.rule,
        "series": alert.series,
        "state": alert.state.value,
        "metric": None if rule is None else rule.metric,
        "value": alert.value,
        "above": None if rule is None else rule.above,
        "below": None if rule is None else rule.below,
        "fired_at": alert.fired_at,
        "cleared_at": alert.cleared_at,
        "summary": alert.summary,
        "runbook": None if rule is None else rule.runbook,
    }


def _log(change: AlertChange) -> None:
    if change.event is None:
        return
    alert = change.after
    firing = change.event == FIRING
    value = "" if alert.value is None else f", {change.data['metric']} is {alert.value:g}"
    log.log(
        logging.WARNING if firing else logging.INFO,
        "alert %s %s: %s%s",
        _named(alert),
        "fires" if firing else "is over",
        alert.summary,
        value,
        extra=_fields(alert),
    )


def _log_known(alert: Alert) -> None:
    since = alert.since.isoformat(timespec="seconds")
    log.warning("alert %s has been firing since %s: %s", _named(alert), since, alert.summary, extra=_fields(alert))


def _named(alert: Alert) -> str:
    return f"{alert.rule} ({alert.series})" if alert.series else alert.rule


def _fields(alert: Alert) -> dict[str, Any]:
    return {"rule": alert.rule, "series": alert.series, "value": alert.value, "summary": alert.summary}
