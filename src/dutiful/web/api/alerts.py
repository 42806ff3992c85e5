"""Alerts over HTTP: what fires, since when, and where to read on."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from dutiful.core.alert import AlertState
from dutiful.operator.alerts import AlertRecord
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import Shape

alerts = Operations("Alerts", "/admin/alerts", fleetwide=True)


class AlertItem(Shape):
    rule: str = Field(examples=["errors"])
    series: str = Field(examples=["kind=email_ingestion_fetch"])
    state: AlertState = Field(examples=["firing"])
    value: float | None = Field(examples=[0.25])
    since: datetime
    fired_at: datetime | None
    cleared_at: datetime | None
    summary: str = Field(examples=["More than 10 % of a kind's attempts fail"])
    metric: str | None = Field(examples=["error_rate"], description="None if this server's app has no such rule.")
    above: float | None = Field(examples=[0.1])
    below: float | None = Field(examples=[None])
    clear: float | None = Field(examples=[0.05])
    runbook: str | None = Field(examples=["docs/runbooks/high-error-rate.md"])


class AlertItems(Shape):
    watched: datetime | Literal[False] = Field(description="When a worker last looked; false if none watches now.")
    firing: int = Field(examples=[1])
    alerts: list[AlertItem]


@alerts.read("/")
async def list_alerts(operator: TheOperator) -> AlertItems:
    """List the alerts that fire, those that are about to, and those that are over."""
    items = [_item(record) for record in await operator.alerts()]
    return AlertItems(
        watched=await operator.alerts_watched() or False,
        firing=sum(item.state is AlertState.FIRING for item in items),
        alerts=items,
    )


def _item(record: AlertRecord) -> AlertItem:
    alert, rule = record.alert, record.rule
    return AlertItem(
        rule=alert.rule,
        series=alert.series,
        state=alert.state,
        value=alert.value,
        since=alert.since,
        fired_at=alert.fired_at,
        cleared_at=alert.cleared_at,
        summary=alert.summary,
        metric=None if rule is None else rule.metric,
        above=None if rule is None else rule.above,
        below=None if rule is None else rule.below,
        clear=None if rule is None else rule.clear,
        runbook=None if rule is None else rule.runbook,
    )
