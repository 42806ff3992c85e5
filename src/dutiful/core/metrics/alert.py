"""Alerts as values: a rule watches a metric, and its alert for each series goes from ok to pending, firing and ok.

An alert fires once the value has been beyond the threshold for `hold`, and ends once it has been on the safe side of
`clear` for `clear_hold`; between the two, a firing alert continues. A share of too few attempts, or of none, is
unreliable: it starts no alert, and ends one only if nothing bad is seen for QUIET. An estimate is beyond or safe only
if both of its bounds are; otherwise its alert stays as it is. Both holds start again after a time without evaluation.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec.structs import replace

from dutiful.core.metrics.catalogue import METRICS, WINDOW_MINUTES, Sample
from dutiful.core.metrics.estimate import Bounds

# Twice the window of a share, so that a kind that runs rarely and always fails does not fire again and again.
QUIET = timedelta(minutes=2 * WINDOW_MINUTES)
_LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^,]*)(?:, |$)')


class AlertState(StrEnum):
    OK = "ok"
    PENDING = "pending"  # beyond the threshold, but not for long enough
    FIRING = "firing"


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """When an alert fires and ends; either `above` or `below` is given."""

    name: str
    metric: str  # one of core.metrics.catalogue.METRICS
    above: float | None = None
    below: float | None = None
    clear: float | None = None  # the value at which it ends; None: the threshold
    hold: timedelta = timedelta(0)
    clear_hold: timedelta = timedelta(0)
    where: dict[str, str] = {}  # only series with these labels
    least: int = 0  # a share or quantile of fewer attempts is unreliable
    summary: str = ""
    runbook: str | None = None
    unmeasured: bool = False  # its metric is not counted, because the setting metrics is off

    def matches(self, sample: Sample) -> bool:
        """Whether the rule watches the sample's series."""
        return sample.metric == self.metric and self.where.items() <= sample.labels.items()

    def is_reliable(self, sample: Sample | None) -> bool:
        """Whether a sample has enough attempts; a missing series (None) is reliable unless it would be a share."""
        if sample is None:
            return not METRICS[self.metric].share
        return sample.count is None or sample.count >= self.least

    def zero_sample(self) -> Sample | None:
        """A sample of 0 for the missing series of a rule with `below`, if the rule names exactly one series."""
        metric = METRICS[self.metric]
        named = self.below is not None and metric.zero and set(self.where) == set(metric.labels)
        return Sample(self.metric, 0, self.where) if named else None

    def beyond(self, value: float | None) -> bool:
        if value is None:
            return False
        return value > self.threshold if self.above is not None else value < self.threshold

    def safe(self, value: float | None) -> bool:
        """Whether the value ends the alert; a series that does not exist any more is safe."""
        if value is None:
            return True
        end = self.threshold if self.clear is None else self.clear
        return value <= end if self.above is not None else value >= end

    @property
    def threshold(self) -> float:
        threshold = self.below if self.above is None else self.above
        assert threshold is not None
        return threshold


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one rule for one series of its metric, such as one kind or one lane."""

    rule: str
    series: str  # its labels as text, "" if it has none
    state: AlertState = AlertState.OK
    value: float | None = None
    since: datetime  # of this state
    calm_since: datetime | None = None  # while firing: since when the value is safe
    fired_at: datetime | None = None
    cleared_at: datetime | None = None
    summary: str = ""


def series_of(labels: Mapping[str, str]) -> str:
    """Labels as text, unique for each set of labels."""
    return ", ".join(f"{name}={_quoted(value)}" for name, value in sorted(labels.items()))


def labels_of(series: str) -> dict[str, str]:
    """The labels from which `series_of` made this text."""
    return {name: _read(value) for name, value in _LABEL.findall(series)}


def evaluate(
    rule: AlertRule,
    before: Alert,
    value: float | None,
    now: datetime,
    *,
    reliable: bool = True,
    bounds: Bounds | None = None,
    continuous: bool = True,
) -> Alert:
    """The alert after its series has this value; None: there is no such series any more.

    `reliable` is False for too few attempts, `continuous` if there was a time without evaluation since `before`.
    """
    known = value if value is not None and math.isfinite(value) else None
    # A clock that was set back must not prolong the hold.
    alert = replace(before, value=known, summary=rule.summary, since=min(before.since, now))
    if not continuous:
        alert = _restart_holds(alert, now)
    ends = (known,) if bounds is None else (bounds.low, bounds.high)
    beyond = {reliable and rule.beyond(end) for end in ends}
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
            calm = rule.clear_hold if reliable else max(rule.clear_hold, QUIET)
            return _calmed(alert, now, calm) if safe == {True} else replace(alert, calm_since=None)
        case _:
            assert_never(before.state)


def _restart_holds(alert: Alert, now: datetime) -> Alert:
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


def _quoted(value: str) -> str:
    plain = value.isprintable() and not set(value) & set(',="') and value == value.strip() != ""
    return value if plain else msgspec.json.encode(value).decode()


def _read(value: str) -> str:
    return msgspec.json.decode(value, type=str) if value.startswith('"') else value
