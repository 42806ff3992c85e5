"""Alerts as values: a rule watches a metric, and what it says of each series goes ok, pending, firing, ok.

It fires once the value has been beyond the threshold for as long as the rule holds it, and is over once the value has
been back on the safe side of `clear` for `clear_hold`: between the two, one that fires goes on. A share of too few
attempts, or of none, is not known: it begins no alert, and ends one only if nothing bad is seen for QUIET. An estimate
is beyond, or safe, if it is wherever it may lie between its bounds; if that is not known, its alert stays as it is.
Neither of the holds counts a time in which nobody watched: after it, they begin anew.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec.structs import replace

from dutiful.core.estimate import Doubt
from dutiful.core.metric import METRICS, WINDOW_MINUTES, Sample

# Twice the time that a share is of, so that a kind which runs rarely and always fails is not told of again and again.
QUIET = timedelta(minutes=2 * WINDOW_MINUTES)


_LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^,]*)(?:, |$)')


class AlertState(StrEnum):
    OK = "ok"
    PENDING = "pending"  # beyond the threshold, but not for long enough
    FIRING = "firing"


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """One of `above` and `below` is given."""

    name: str
    metric: str  # one of core.metric.METRICS
    above: float | None = None
    below: float | None = None
    clear: float | None = None  # where it is over; none: at the threshold
    hold: timedelta = timedelta(0)
    clear_hold: timedelta = timedelta(0)
    where: dict[str, str] = {}  # only series with these labels
    least: int = 0  # a share or quantile of fewer attempts says nothing
    summary: str = ""  # what a person reads
    runbook: str | None = None  # where to read on
    blind: bool = False  # with the setting metrics off, nobody counts what it would look at

    def reads(self, sample: Sample) -> bool:
        """Whether the sample is of a series that is watched."""
        return sample.metric == self.metric and self.where.items() <= sample.labels.items()

    def knows(self, sample: Sample | None) -> bool:
        """Whether its value can be relied on; None: there is no such series, which says that nothing is wrong unless it
        is one of attempts."""
        if sample is None:
            return not METRICS[self.metric].share
        return sample.count is None or sample.count >= self.least

    def absent(self) -> Sample | None:
        """What `below` sees if the one series that it watches is not there."""
        metric = METRICS[self.metric]
        named = self.below is not None and metric.zero and set(self.where) == set(metric.labels)
        return Sample(self.metric, 0, self.where) if named else None

    def beyond(self, value: float | None) -> bool:
        if value is None:
            return False
        return value > self.above if self.above is not None else value < self._below

    def safe(self, value: float | None) -> bool:
        """Whether it is over with this value; a series that is not there any more is safe."""
        if value is None:
            return True
        if self.above is not None:
            return value <= (self.above if self.clear is None else self.clear)
        return value >= (self._below if self.clear is None else self.clear)

    @property
    def threshold(self) -> float:
        return self.above if self.above is not None else self._below

    @property
    def _below(self) -> float:
        assert self.below is not None
        return self.below


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One rule for one series of its metric, such as one kind or one lane."""

    rule: str
    series: str  # its labels as text, "" if it has none
    state: AlertState = AlertState.OK
    value: float | None = None
    since: datetime  # of this state
    calm_since: datetime | None = None  # while firing: since when the value is back
    fired_at: datetime | None = None
    cleared_at: datetime | None = None
    summary: str = ""


def series_of(labels: Mapping[str, str]) -> str:
    """Labels as text, each set of them as another one."""
    return ", ".join(f"{name}={_spelt(value)}" for name, value in sorted(labels.items()))


def labels_of(series: str) -> dict[str, str]:
    """What `series_of` made this text of."""
    return {name: _read(value) for name, value in _LABEL.findall(series)}


def judge(
    rule: AlertRule,
    before: Alert,
    value: float | None,
    now: datetime,
    *,
    sure: bool = True,
    doubt: Doubt | None = None,
    watched: bool = True,
) -> Alert:
    """How an alert stands now that its series has this value; None: there is no such series any more. Not `sure`: it
    is of too few attempts. Not `watched`: since `before`, there was a time in which nobody looked."""
    known = value if value is not None and math.isfinite(value) else None
    # A clock that was set back must not make it wait until it has caught up.
    alert = replace(before, value=known, summary=rule.summary, since=min(before.since, now))
    if not watched:
        alert = _anew(alert, now)
    ends = (known,) if doubt is None else (doubt.low, doubt.high)
    beyond = {sure and rule.beyond(end) for end in ends}
    safe = {rule.safe(end) for end in ends}
    match before.state:
        case AlertState.OK:
            risen = replace(alert, state=AlertState.PENDING, since=now)
            return _held(rule, risen, now) if beyond == {True} else before
        case AlertState.PENDING:
            if len(beyond) > 1:
                return alert
            return _held(rule, alert, now) if beyond == {True} else replace(alert, state=AlertState.OK, since=now)
        case AlertState.FIRING:
            if len(safe) > 1:
                return alert
            calm = rule.clear_hold if sure else max(rule.clear_hold, QUIET)
            return _calmed(alert, now, calm) if safe == {True} else replace(alert, calm_since=None)
        case _:
            assert_never(before.state)


def _anew(alert: Alert, now: datetime) -> Alert:
    """What it was before says nothing of the time in which nobody looked, so no hold may count that time."""
    return replace(alert, since=now) if alert.state is AlertState.PENDING else replace(alert, calm_since=None)


def _held(rule: AlertRule, alert: Alert, now: datetime) -> Alert:
    if now - alert.since < rule.hold:
        return alert
    return replace(alert, state=AlertState.FIRING, since=now, fired_at=now, cleared_at=None)


def _calmed(alert: Alert, now: datetime, hold: timedelta) -> Alert:
    since = min(alert.calm_since or now, now)
    if now - since < hold:
        return replace(alert, calm_since=since)
    return replace(alert, state=AlertState.OK, since=now, calm_since=None, cleared_at=now)


def _spelt(value: str) -> str:
    plain = value.isprintable() and not set(value) & set(',="') and value == value.strip() != ""
    return value if plain else msgspec.json.encode(value).decode()


def _read(value: str) -> str:
    return msgspec.json.decode(value, type=str) if value.startswith('"') else value
