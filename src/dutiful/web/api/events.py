"""Events of many jobs over HTTP, for those who run them."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from dutiful.core.event import EventType
from dutiful.watcher import Wanted
from dutiful.web.api.status import EventsResponse, begun
from dutiful.web.gates import TheApp, TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import Ask, JobId, Moment, Text
from dutiful.web.sse import event_stream

MOST = 100
events = Operations("Events", "/admin/events")


class EventsQuery(Ask):
    """Which events: those that fit all that is given."""

    job: list[JobId] = Field(default=[], max_length=MOST)
    kind: list[Text] = Field(default=[], max_length=MOST)
    queue: list[Text] = Field(default=[], max_length=MOST)
    type: list[EventType] = Field(default=[], max_length=MOST)
    tenant: Text | None = None
    correlation_id: Text | None = None
    since: Moment | None = None


@events.read("/", stream=True)
async def follow_events(operator: TheOperator, app: TheApp, query: Annotated[EventsQuery, Query()]) -> EventsResponse:
    """Follow what happens to jobs as server-sent events."""
    wanted = Wanted.read(tenant=query.tenant).within(Wanted(tenant=operator.tenant))
    stream = event_stream(
        app,
        query.job or None,
        since=query.since,
        kinds=query.kind or None,
        queues=query.queue or None,
        types=query.type or None,
        tenant=wanted.tenant,
        correlation_id=query.correlation_id,
    )
    return await begun(stream)
