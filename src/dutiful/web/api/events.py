"""Events of many jobs over HTTP, for those who run them."""

from typing import Annotated, Any, assert_never

from fastapi import Header, Query
from pydantic import Field
from starlette.requests import Request

from dutiful.core import ids
from dutiful.core.event import Event, EventType
from dutiful.core.job import JobRecord
from dutiful.watcher.items import Gap, Item, Snapshot
from dutiful.watcher.plain import plain
from dutiful.web.api.status import EventsResponse, begun
from dutiful.web.gates import TheApp, TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import Ask, JobId, Moment, Text
from dutiful.web.sse import Encoded, event_stream

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
async def follow_events(
    operator: TheOperator,
    app: TheApp,
    request: Request,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[
        str | None, Header(description="The last id that was read: a browser sends it by itself when it comes back.")
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
        tenant=operator.scope(query.tenant),
        correlation_id=query.correlation_id,
        encoded=ENCODED,
    )
    return await begun(stream, request)


def _shown(item: Item) -> dict[str, Any]:
    """With public ids only, as everywhere in this API."""
    told = plain(item)
    public_id = told.pop("public_id", None)
    match item:
        case Event():
            return {**told, "job_id": public_id}
        case Snapshot():
            return {**told, "job": _with_public_ids(item.job, told["job"])}
        case Gap():
            return told
        case _:
            assert_never(item)


def _with_public_ids(job: JobRecord, told: dict[str, Any]) -> dict[str, Any]:
    named = {"id": job.id, "parent_id": job.parent_id, "retry_of": job.retry_of}
    kept = {name: value for name, value in told.items() if name != "public_id"}
    return {**kept, **{name: None if one is None else ids.public(one) for name, one in named.items()}}


ENCODED = Encoded(_shown)
