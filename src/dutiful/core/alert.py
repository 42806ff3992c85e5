"""Alerts as values: a rule watches a metric, and what it says of each series goes ok, pending, firing, ok.

It fires once the value has been beyond the threshold for as long as the rule holds it, and is over once the value has
been back on the safe side of `clear` for as long: between the two it stays what it is.
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec


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
    summary: str = ""  # what a person reads
    runbook: str | None = None  # where to read on


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
