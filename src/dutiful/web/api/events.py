"""Events of many jobs over HTTP, for operators."""

from typing import Annotated, Any, assert_never

from fastapi import Header, Query
from pydantic import Field
from starlette.requests import Request

from dutiful.core import ids
from dutiful.core.events import Event, EventType
from dutiful.core.job import JobRecord
from dutiful.events.items import Gap, Item, Snapshot, item_json
from dutiful.web.admission import AppDep, OperatorDep
from dutiful.web.api.status import EventsResponse, events_response
from dutiful.web.operations import Operations
from dutiful.web.shapes import Ask, JobId, Moment, Text
from dutiful.web.sse import Encoded, event_stream

MOST = 100
events = Operations("Events", "/admin/events")


class EventsQuery(Ask):
    """Selects events that match all given fields."""

    job: list[JobId] = Field(default=[], max_length=MOST)
    kind: list[Text] = Field(default=[], max_length=MOST)
    queue: list[Text] = Field(default=[], max_length=MOST)
    type: list[EventType] = Field(default=[], max_length=MOST)
    tenant: Text | None = None
    correlation_id: Text | None = None
    since: Moment | None = None


@events.read("/", stream=True)
async def follow_events(
    operator: OperatorDep,
    app: AppDep,
    request: Request,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[
        str | None, Header(description="The last id that was read; a browser sends it when it reconnects.")
    ] = None,
) -> EventsResponse:
    """Follow what happens to jobs as server-sent events."""
    stream = event_stream(
        app,
        query.job or None,
        last_event_id=last_event_id,
        since=query.since,
        kinds=query.kind or None,
        queues=query.queue or None,
        types=query.type or None,
        tenant=operator.actor.scope(query.tenant),
        correlation_id=query.correlation_id,
        encoded=ENCODED,
    )
    return await events_response(stream, request)


def _shown(item: Item) -> dict[str, Any]:
    """The item with public ids only, as everywhere in this API."""
    fields = item_json(item)
    public_id = fields.pop("public_id", None)
    match item:
        case Event():
            return {**fields, "job_id": public_id}
        case Snapshot():
            return {**fields, "job": _with_public_ids(item.job, fields["job"])}
        case Gap():
            return fields
        case _:
            assert_never(item)


def _with_public_ids(job: JobRecord, fields: dict[str, Any]) -> dict[str, Any]:
    named = {"id": job.id, "parent_id": job.parent_id, "retry_of": job.retry_of}
    kept = {name: value for name, value in fields.items() if name != "public_id"}
    return {**kept, **{name: None if one is None else ids.public(one) for name, one in named.items()}}


ENCODED = Encoded(_shown)
