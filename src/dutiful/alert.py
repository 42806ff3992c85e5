"""Alert rules as the code declares them, and those that every app has."""

import math
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dutiful.core.alert import AlertRule
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.metric import METRICS
from dutiful.core.payload import check_name

RUNBOOKS = "docs/runbooks"
# With fewer attempts in the window of the metric, one or two that failed would wake somebody.
ENOUGH = 10
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
            metric="error_rate",
            above=0.10,
            clear=0.05,
            least=ENOUGH,
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
            summary="A breaker is open, so calls to its service are refused",
            runbook=f"{RUNBOOKS}/breaker-open.md",
        ),
    )
}


def read_alert(
    name: str,
    metric: str | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    clear: float | None = None,
    hold: Duration = 0,
    clear_hold: Duration = 0,
    where: Mapping[str, str] | None = None,
    least: int = 0,
    summary: str | None = None,
    runbook: str | None = None,
) -> AlertRule:
    """Everything about it checked now, for at night there is nobody to tell."""
    what = f"alert {check_name(name, 'alert')}"
    if metric is None:
        raise UsageError(f"{what} needs a metric; there are: {', '.join(METRICS)}")
    if not isinstance(metric, str) or metric not in METRICS:
        raise UsageError(f"{what}: there is no metric {metric!r:.80}; there are: {', '.join(METRICS)}")
    if (above is None) == (below is None):
        raise UsageError(f"{what}: give either above=… or below=…")
    for field, value in (("above", above), ("below", below), ("clear", clear)):
        _check_number(value, f"{what}: {field}")
    seen = _read_where(where or {}, metric, what)
    if below is not None and METRICS[metric].zero and len(seen) < len(METRICS[metric].labels):
        # At 0 there is no series that could be below anything, unless it is known which one is missing.
        named = " and ".join(METRICS[metric].labels)
        raise UsageError(f"{what}: at 0 there is no series of {metric}, so below needs where, with its {named}")
    if clear is not None and ((above is not None and clear > above) or (below is not None and clear < below)):
        side = f"at most above ({above:g})" if above is not None else f"at least below ({below:g})"
        raise UsageError(f"{what}: clear is {clear:g}, so it would be over while it fires; make it {side}")
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise UsageError(f"{what}: least is {least!r:.80}; it must be a whole number of attempts, from 0")
    if least and not METRICS[metric].share:
        shares = ", ".join(name for name, one in METRICS.items() if one.share)
        raise UsageError(f"{what}: {metric} is no share of attempts, so leave least out; it is for: {shares}")
    word = f"above {above:g}" if above is not None else f"below {below:g}"
    return AlertRule(
        name=name,
        metric=metric,
        above=above,
        below=below,
        clear=clear,
        hold=duration(hold, f"{what}: hold"),
        clear_hold=duration(clear_hold, f"{what}: clear_hold"),
        where=seen,
        least=least,
        summary=_text(summary, f"{what}: summary") or f"{metric} is {word}",
        runbook=_text(runbook, f"{what}: runbook"),
    )


def rules_of(
    declared: Mapping[str, AlertRule | None],
    off: Iterable[str] = (),
    *,
    runbook_url: str | None = None,
    counting: bool = True,
) -> dict[str, AlertRule]:
    """All that are to be watched: the built-in ones and those of the code (None: off), but those that are `off`.

    `runbook_url` is where the runbooks of the built-in ones are; not `counting`: workers do not count attempts.
    """
    every = {name: _located(rule, runbook_url) for name, rule in BUILT_IN.items()} | dict(declared)
    kept = {name: rule for name, rule in every.items() if rule is not None and name not in off}
    if counting:
        return kept
    return {name: replace(rule, blind=METRICS[rule.metric].tallied) for name, rule in kept.items()}


def check_names(off: Iterable[str], declared: Iterable[str]) -> None:
    """Refuse a setting that turns off what there is not: somebody sleeps badly for a typing error."""
    known = dict.fromkeys([*BUILT_IN, *declared])
    for name in off:
        if name not in known:
            raise UsageError(
                f"setting alerts_off names {name!r:.80}, and there is no such alert; there are: {', '.join(known)}"
            )


def check_off(name: str, said: Iterable[str]) -> None:
    """Refuse off=True where it says nothing."""
    if fields := ", ".join(said):
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


def _text(value: Any, what: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise UsageError(f"{what} must be one line of at most {LONGEST_TEXT:,} characters")
    return value
