"""Alerts over HTTP."""

from datetime import datetime
from typing import Literal

import msgspec
from pydantic import Field

from dutiful.core.metrics.alert import AlertState
from dutiful.operator.alerts import AlertRecord
from dutiful.web.admission import OperatorDep
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
    metric: str | None = Field(examples=["error_rate"], description="null if this server's app has no such rule.")
    above: float | None = Field(examples=[0.1])
    below: float | None = Field(examples=[None])
    clear: float | None = Field(examples=[0.05])
    runbook: str | None = Field(examples=["docs/runbooks/high-error-rate.md"])


class AlertItems(Shape):
    watched: datetime | Literal[False] = Field(
        description="When a worker last evaluated the rules; false if none does now."
    )
    firing: int = Field(examples=[1])
    alerts: list[AlertItem]


@alerts.read("/")
async def list_alerts(operator: OperatorDep) -> AlertItems:
    """List firing, pending and cleared alerts."""
    items = [_item(record) for record in await operator.alerts.all()]
    return AlertItems(
        watched=await operator.alerts.last_check() or False,
        firing=sum(item.state is AlertState.FIRING for item in items),
        alerts=items,
    )


def _item(record: AlertRecord) -> AlertItem:
    rule = {name: getattr(record.rule, name, None) for name in ("metric", "above", "below", "clear", "runbook")}
    return AlertItem.model_validate({**msgspec.structs.asdict(record.alert), **rule})
