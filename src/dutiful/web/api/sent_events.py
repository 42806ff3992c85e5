"""Sending events to jobs over HTTP."""

from typing import Any
from uuid import UUID

from pydantic import Field

from dutiful.core.duration import duration
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.shapes import Length, Reason, Shape, Text

sent_events = Operations("Jobs", "/admin/events")


class SendAsk(Reason):
    name: Text = Field(examples=["paid"])
    key: Text = Field(examples=["order-7"])
    data: Any = Field(default=None, examples=[{"amount": 5}], description="What the jobs get.")
    tenant: Text | None = None
    keep: Length = Field(default="7d", description="How long jobs that wait later get it.")


class SendAnswer(Shape):
    event_id: UUID


@sent_events.act("/send/", "event.send", status=201)
async def send_event(operator: OperatorDep, ask: SendAsk) -> SendAnswer:
    """Send an event to the jobs that wait for it, or will."""
    keep = duration(ask.keep, "keep")
    return SendAnswer(
        event_id=await operator.sent_events.send(
            ask.name, ask.key, ask.data, tenant=ask.tenant, keep=keep, reason=ask.reason
        )
    )
