"""A job's status for its user: state, progress and result, but not its payload or how it is run."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, assert_never

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dutiful.core import ids
from dutiful.core.events import Event, EventType
from dutiful.core.job import JobRecord, PhaseRecord, PhaseState
from dutiful.core.principal import Role
from dutiful.core.states import State
from dutiful.events.items import Gap, Item, Snapshot
from dutiful.web.admission import AppDep, OperatorDep
from dutiful.web.endpoint import send_stream
from dutiful.web.operations import Operations
from dutiful.web.shapes import ExactJobId, PublicId, Shape
from dutiful.web.sse import HEADERS, PING, Encoded, event_stream

LIFE = 15 * 60.0  # then a stream ends and its reader reconnects, perhaps to a server with less load
RECHECK = PING - 1.0  # how often the reader is authenticated again, because a token may have been revoked
# The data of each event that users may see; the rest is for operators.
SHOWN: dict[EventType, tuple[str, ...]] = {
    EventType.ENQUEUED: ("run_at",),
    EventType.STARTED: ("attempt",),
    EventType.PHASE_COMPLETED: ("phase", "position"),
    EventType.PROGRESS: ("phase", "percent", "overall", "message", "items", "updated_at"),
    EventType.RETRYING: ("attempt",),
    EventType.COMPLETED: ("state", "result"),
    EventType.FAILED: ("state",),
    EventType.CANCELLED: ("state",),
    EventType.DELETED: (),
}
status = Operations("Status", "", role=Role.VIEWER)


class StatusPhase(Shape):
    name: str
    position: int
    state: PhaseState
    started_at: datetime | None
    ended_at: datetime | None


class StatusProgress(Shape):
    phase: str | None
    percent: float | None
    overall: int | None
    message: str | None
    items: dict[str, Any] | None
    updated_at: datetime


class JobStatus(Shape):
    id: PublicId
    kind: str
    state: State
    created_at: datetime
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: StatusProgress | None
    phases: list[StatusPhase]
    result: Any
    error: str | None


class EventsResponse(StreamingResponse):
    """A stream of events, whose first piece is known."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, chunks: AsyncGenerator[bytes, None], ended: Callable[[], None]) -> None:
        super().__init__(chunks, headers=HEADERS)
        self._first = first
        self._chunks = chunks
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send_stream(self._first, self._chunks, self.raw_headers, receive, send)
        finally:
            self._ended()


@status.read("/{job_id}")
async def get_status(operator: OperatorDep, job_id: ExactJobId) -> JobStatus:
    """Show a job's state, progress and result."""
    return _status(await operator.jobs.get(job_id), await operator.jobs.phases(job_id))


@status.read("/{job_id}/events", stream=True)
async def get_status_events(operator: OperatorDep, app: AppDep, request: Request, job_id: ExactJobId) -> EventsResponse:
    """Follow a job as server-sent events: a snapshot, then events, with pings in between."""
    await operator.jobs.get(job_id)
    stream = event_stream(app, job_id, types=list(SHOWN), tenant=operator.tenant, encoded=ENCODED)
    return await events_response(stream, request)


async def events_response(stream: AsyncGenerator[bytes, None], request: Request) -> EventsResponse:
    """The response of a stream that has begun, so that errors of the request come before it."""
    return EventsResponse(await anext(stream), _limited(stream, request.state.still_allowed), request.state.ended)


async def _limited(
    stream: AsyncGenerator[bytes, None], still_allowed: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes, None]:
    """Ends the stream after LIFE, or at the next check after its reader lost access; pings cause checks."""
    clock = asyncio.get_running_loop().time
    end, recheck = clock() + LIFE, clock() + RECHECK
    async with aclosing(stream):
        async for piece in stream:
            if clock() > recheck:
                recheck = clock() + RECHECK
                if not await still_allowed():
                    return
            yield piece
            if clock() > end:
                return


def _status(job: JobRecord, phases: list[PhaseRecord]) -> JobStatus:
    failed = job.state in (State.FAILED, State.CANCELLED) and job.errors
    return JobStatus(
        id=job.id,
        kind=job.kind,
        state=job.state,
        created_at=job.created_at,
        run_at=job.run_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        progress=None if job.progress is None else StatusProgress.model_validate(job.progress),
        phases=[StatusPhase.model_validate(phase) for phase in phases],
        result=job.result,
        error=str(job.errors[0].get("message", "")) if failed and job.errors else None,
    )


def _shown(item: Item) -> dict[str, Any]:
    match item:
        case Snapshot():
            return {"type": item.type, "job": _status(item.job, item.phases).model_dump(mode="json")}
        case Event():
            data = {name: item.data[name] for name in SHOWN.get(item.type, ()) if name in item.data}
            if errors := item.data.get("errors"):
                data["error"] = errors[0].get("message")
            return {"type": item.type, "id": ids.public(item.job_id), "key": item.key, "at": item.at, "data": data}
        case Gap():
            return {"type": item.type, "since": item.since, "until": item.until}
        case _:
            assert_never(item)


ENCODED = Encoded(_shown)
