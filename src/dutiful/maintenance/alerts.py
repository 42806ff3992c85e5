"""Checks alert rules against metrics; each alert is announced once when it begins, and once when it ends."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from dutiful.core.metrics.alert import Alert, AlertRule, AlertState, evaluate, labels_of, series_of
from dutiful.core.metrics.catalogue import Sample, most_unseen
from dutiful.core.metrics.estimate import Bounds
from dutiful.delivery.base import QueueLevels
from dutiful.store.alerts import AlertChange, AlertStore
from dutiful.store.leadership import Survey

log = logging.getLogger("dutiful.alerts")
KEEP = timedelta(days=30)  # how long one that is over is shown
CHECK_TIMEOUT = timedelta(seconds=30)
NOTE_INTERVAL = timedelta(seconds=5)  # between two notes that alerts are checked, at least
# Beyond the interval, before alerts count as unchecked: a check may take long, and another worker may have to lead.
GRACE = CHECK_TIMEOUT + timedelta(seconds=30)
FIRING, CLEARED = "alert.firing", "alert.cleared"
Measure = Callable[[datetime], Awaitable[Sequence[Sample]]]


class AlertChecker:
    name = "alerts"

    def __init__(self, store: AlertStore, rules: Mapping[str, AlertRule], measure: Measure, every: timedelta) -> None:
        self._store = store
        self._rules = rules
        self._measure = measure
        self._every = every
        self._not_before = 0.0
        self._noted: datetime | None = None

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if time.monotonic() >= self._not_before:
            # First, so that a check that fails is not repeated at once.
            self._not_before = time.monotonic() + self._every.total_seconds()
            try:
                async with asyncio.timeout(CHECK_TIMEOUT.total_seconds()):
                    await self.check(survey.now)
            except TimeoutError:
                log.warning(
                    "a check of alerts had no answer within %.0f s and was given up; it is repeated, and until then "
                    "no alert fires",
                    CHECK_TIMEOUT.total_seconds(),
                )
        return None

    async def check(self, now: datetime) -> list[AlertChange]:
        """Evaluates all rules on what is measured now; returns the changes that this process has made."""
        stored = {(alert.rule, alert.series): alert for alert in await self._store.all()}
        samples = await self._measure(now) if self._rules else ()
        continuous = self._checked_lately(now) or await self._store.last_check(now=now) is not None
        changes = [*self._evaluate(stored, samples, now, continuous), *self._end_removed(stored.values(), now)]
        applied = await self._store.change(changes, now=now) if changes else []
        for change in applied:
            _log(change)
        await self._note_check(stored.values(), applied, now)
        if past := [alert for alert in stored.values() if self._is_past(alert, now)]:
            await self._store.forget(past)
        return applied

    async def _note_check(self, stored: Iterable[Alert], applied: Sequence[AlertChange], now: datetime) -> None:
        """Stores that alerts are checked; a process that begins to check logs what fires already."""
        if self._noted is not None and timedelta(0) <= now - self._noted < NOTE_INTERVAL:
            return
        if not self._checked_lately(now):
            ended = {(change.after.rule, change.after.series) for change in applied if change.event == CLEARED}
            for alert in stored:
                if alert.state is AlertState.FIRING and (alert.rule, alert.series) not in ended:
                    _log_firing(alert)
        self._noted = now
        await self._store.note_check(self._every + GRACE, now=now)

    def _checked_lately(self, now: datetime) -> bool:
        """Whether this process did; if not, another one may have."""
        return self._noted is not None and now - self._noted < self._every + GRACE

    def _evaluate(
        self, stored: Mapping[tuple[str, str], Alert], samples: Sequence[Sample], now: datetime, continuous: bool
    ) -> Iterator[AlertChange]:
        by_metric: dict[str, list[Sample]] = {}
        for one in samples:
            by_metric.setdefault(one.metric, []).append(one)
        for rule in self._rules.values():
            alike = by_metric.get(rule.metric, [])
            seen = {series_of(one.labels): one for one in alike if rule.matches(one)}
            if not seen and (absent := rule.zero_sample()):
                seen = {series_of(absent.labels): absent}
            # A series that has disappeared ends its alert, too.
            known = [series for name, series in stored if name == rule.name]
            for series in dict.fromkeys([*seen, *known]):
                before, sample = stored.get((rule.name, series)), seen.get(series)
                fresh = Alert(rule=rule.name, series=series, since=now)
                value, bounds = None if sample is None else sample.value, _bounds(sample, series, alike)
                reliable = rule.is_reliable(sample)
                after = evaluate(
                    rule, before or fresh, value, now, reliable=reliable, bounds=bounds, continuous=continuous
                )
                if after not in (before, fresh):
                    yield _change(before, after, rule)

    def _end_removed(self, stored: Iterable[Alert], now: datetime) -> Iterator[AlertChange]:
        """Ends alerts whose rule has been removed, because their start was announced."""
        for alert in stored:
            if alert.rule not in self._rules and alert.state is not AlertState.OK:
                cleared_at = now if alert.state is AlertState.FIRING else alert.cleared_at
                ok = replace(alert, state=AlertState.OK, value=None, since=now, calm_since=None, cleared_at=cleared_at)
                yield _change(alert, ok, None)

    def _is_past(self, alert: Alert, now: datetime) -> bool:
        old = alert.rule not in self._rules or now - alert.since > KEEP
        return alert.state is AlertState.OK and old


def _bounds(sample: Sample | None, series: str, alike: Iterable[Sample]) -> Bounds | None:
    """The bounds of an estimate, or of a missing series that may have been overlooked."""
    if sample is not None and (sample.value or sample.bounds):
        return sample.bounds
    unseen = most_unseen(alike, labels_of(series))
    return Bounds(0.0, unseen) if unseen else None


def _change(before: Alert | None, after: Alert, rule: AlertRule | None) -> AlertChange:
    fired = before is not None and before.state is AlertState.FIRING
    fires = after.state is AlertState.FIRING
    if fired == fires:
        return AlertChange(before, after)
    return AlertChange(before, after, FIRING if fires else CLEARED, _event_data(after, rule))


def _event_data(alert: Alert, rule: AlertRule | None) -> dict[str, Any]:
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


def _log_firing(alert: Alert) -> None:
    since = alert.since.isoformat(timespec="seconds")
    log.warning("alert %s has been firing since %s: %s", _named(alert), since, alert.summary, extra=_fields(alert))


def _named(alert: Alert) -> str:
    return f"{alert.rule} ({alert.series})" if alert.series else alert.rule


def _fields(alert: Alert) -> dict[str, Any]:
    return {"rule": alert.rule, "series": alert.series, "value": alert.value, "summary": alert.summary}
