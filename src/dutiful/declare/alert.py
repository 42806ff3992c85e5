"""Alert rules: those that the code declares, and the built-in ones."""

import math
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from msgspec.structs import replace

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.core.metrics.alert import AlertRule
from dutiful.core.metrics.catalogue import METRICS

RUNBOOKS = "docs/runbooks"
LONGEST_TEXT = 1_000

BUILT_IN = {
    rule.name: rule
    for rule in (
        AlertRule(
            name="backlog",
            metric="pending_total",
            above=500,
            clear=400,
            hold=timedelta(minutes=5),
            summary="More than 500 jobs have been waiting for over 5 minutes",
            runbook=f"{RUNBOOKS}/queue-backing-up.md",
        ),
        AlertRule(
            name="errors",
            metric="last_error_rate",
            above=0.10,
            clear=0.05,
            summary="More than 10 % of a kind's attempts fail",
            runbook=f"{RUNBOOKS}/high-error-rate.md",
        ),
        AlertRule(
            name="fast-lane-full",
            metric="lane_utilisation",
            where={"lane": "fast"},
            above=0.9,
            clear=0.75,
            hold=timedelta(minutes=2),
            summary="More than 90 % of the fast lane has been busy for over 2 minutes",
            runbook=f"{RUNBOOKS}/queue-backing-up.md",
        ),
        AlertRule(
            name="late",
            metric="oldest_pending_seconds",
            above=3600,
            summary="A job has been due for over an hour",
            runbook=f"{RUNBOOKS}/queue-backing-up.md",
        ),
        AlertRule(
            name="breaker-open",
            metric="breaker_open",
            above=0,
            summary="A breaker is open, so calls to its service are rejected",
            runbook=f"{RUNBOOKS}/breaker-open.md",
        ),
    )
}


class AlertOptions(TypedDict, total=False):
    """The options of app.alert(…); AlertRule says what they mean, and None is as if left out."""

    above: float | None
    below: float | None
    clear: float | None
    hold: Duration | None
    clear_hold: Duration | None
    where: Mapping[str, str] | None
    least: int | None
    summary: str | None
    runbook: str | None


def read_alert(name: str, metric: str | None = None, **options: Unpack[AlertOptions]) -> AlertRule:
    """Checks everything now, because alerts are evaluated without a caller to report an error to."""
    what = f"alert {check_name(name, 'alert')}"
    if metric is None:
        raise UsageError(f"{what} needs a metric; there are: {', '.join(METRICS)}")
    if not isinstance(metric, str) or metric not in METRICS:
        raise UsageError(f"{what}: there is no metric {metric!r:.80}; there are: {', '.join(METRICS)}")
    given: dict[str, Any] = {field: value for field, value in options.items() if value is not None}
    for field in ("above", "below", "clear"):
        _check_number(given.get(field), f"{what}: {field}")
    for field in given.keys() & {"hold", "clear_hold"}:
        given[field] = duration(given[field], f"{what}: {field}")
    for field in given.keys() & {"summary", "runbook"}:
        _check_text(given[field], f"{what}: {field}")
    above, below, clear, least = given.get("above"), given.get("below"), given.get("clear"), given.get("least", 0)
    if (above is None) == (below is None):
        raise UsageError(f"{what}: give either above=… or below=…")
    where = given["where"] = _read_where(given.get("where", {}), metric, what)
    if below is not None and METRICS[metric].zero and len(where) < len(METRICS[metric].labels):
        # A series at 0 has no sample; only with all labels given is it known which one is missing.
        named = " and ".join(METRICS[metric].labels)
        raise UsageError(f"{what}: at 0 there is no series of {metric}, so below needs where, with its {named}")
    if clear is not None and ((above is not None and clear > above) or (below is not None and clear < below)):
        bound = f"at most above ({above:g})" if above is not None else f"at least below ({below:g})"
        raise UsageError(f"{what}: clear is {clear:g}, so it would end while it fires; make it {bound}")
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise UsageError(f"{what}: least is {least!r:.80}; it must be a whole number of attempts, from 0")
    if least and not METRICS[metric].share:
        shares = ", ".join(name for name, one in METRICS.items() if one.share)
        raise UsageError(f"{what}: {metric} is no share of attempts, so leave least out; it is for: {shares}")
    side = f"above {above:g}" if above is not None else f"below {below:g}"
    summary = given.pop("summary", "") or f"{metric} is {side}"
    return AlertRule(name=name, metric=metric, summary=summary, **given)


def rules_of(
    declared: Mapping[str, AlertRule | None],
    off: Iterable[str] = (),
    *,
    runbook_url: str | None = None,
    counting: bool = True,
) -> dict[str, AlertRule]:
    """All rules to evaluate: the built-in ones and the declared ones (None: off), without those in `off`.

    `runbook_url` is the base of the built-in runbooks; `counting` is False if workers do not count attempts.
    """
    every = {name: _located(rule, runbook_url) for name, rule in BUILT_IN.items()} | dict(declared)
    kept = {name: rule for name, rule in every.items() if rule is not None and name not in off}
    if counting:
        return kept
    return {name: replace(rule, unmeasured=METRICS[rule.metric].counted) for name, rule in kept.items()}


def check_names(off: Iterable[str], declared: Iterable[str]) -> None:
    """Refuses a setting that turns off an unknown alert, because its name is misspelt."""
    known = dict.fromkeys([*BUILT_IN, *declared])
    for name in off:
        if name not in known:
            raise UsageError(
                f"setting alerts_off names {name!r:.80}, and there is no such alert; there are: {', '.join(known)}"
            )


def check_off(name: str, options: Mapping[str, Any]) -> None:
    """Refuses off=True with other options, or for an alert that is not built in."""
    if fields := ", ".join(field for field, value in options.items() if value is not None):
        raise UsageError(f"alert {name!r:.80} is off, so leave {fields} out")
    if name not in BUILT_IN:
        raise UsageError(f"off=True is for built-in alerts, and {name!r:.80} is none of: {', '.join(BUILT_IN)}")


def _located(rule: AlertRule, url: str | None) -> AlertRule:
    return rule if url is None else replace(rule, runbook=f"{url.rstrip('/')}/{rule.runbook}")


def _check_number(value: Any, what: str) -> None:
    if value is None:
        return
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise UsageError(f"{what} is too large for a metric to reach")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{what} is {value!r:.80}; it must be a number")


def _read_where(where: Any, metric: str, what: str) -> dict[str, str]:
    labels = METRICS[metric].labels
    if not isinstance(where, Mapping) or not all(isinstance(value, str) for value in where.values()):
        raise UsageError(f'{what}: where must give a text for each label, as in {{"queue": "mail"}}')
    if unknown := [label for label in where if label not in labels]:
        known = f"it has: {', '.join(labels)}" if labels else "it has none"
        raise UsageError(f"{what}: {metric} has no label {unknown[0]!r:.80}; {known}")
    return dict(where)


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise UsageError(f"{what} must be one line of at most {LONGEST_TEXT:,} characters")
