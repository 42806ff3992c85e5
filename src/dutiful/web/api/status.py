"""A job as its user may see it: how it fares and what came of it, never what it was given or how it is run."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, assert_never

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dutiful.core import ids
from dutiful.core.event import Event, EventType
from dutiful.core.job import JobRecord, PhaseRecord
from dutiful.core.pipeline import PhaseState
from dutiful.core.principal import Role
from dutiful.core.transitions import State
from dutiful.watcher.items import Gap, Item, Snapshot
from dutiful.web.endpoint import send_stream
from dutiful.web.gates import TheApp, TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import ExactJobId, PublicId, Shape
from dutiful.web.sse import HEADERS, PING, Encoded, event_stream

LIFE = 15 * 60.0  # then a stream ends and its reader comes back, perhaps to a server that has less to do
LOOK = PING - 1.0  # so often whoever reads it is looked at again, for a token may have been revoked
# What an event tells beyond these is for those who run jobs.
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
async def get_status(operator: TheOperator, job_id: ExactJobId) -> JobStatus:
    """Tell how a job fares: where it stands, how far it is, what came of it."""
    return _status(await operator.job(job_id), await operator.phases(job_id))


@status.read("/{job_id}/events", stream=True)
async def get_status_events(operator: TheOperator, app: TheApp, request: Request, job_id: ExactJobId) -> EventsResponse:
    """Follow a job as server-sent events: a snapshot first, then what happens, with pings in between."""
    await operator.job(job_id)
    stream = event_stream(app, job_id, types=list(SHOWN), tenant=operator.tenant, encoded=ENCODED)
    return await begun(stream, request)


async def begun(stream: AsyncGenerator[bytes, None], request: Request) -> EventsResponse:
    """The response, when the stream has begun: what is wrong with the question is told before."""
    return EventsResponse(await anext(stream), _for_a_while(stream, request.state.still), request.state.ended)


async def _for_a_while(
    stream: AsyncGenerator[bytes, None], still: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes, None]:
    """Whoever has lost the right to see it gets nothing more after the next look; pings make sure that there is one."""
    clock = asyncio.get_running_loop().time
    end, look = clock() + LIFE, clock() + LOOK
    async with aclosing(stream):
        async for piece in stream:
            if clock() > look:
                look = clock() + LOOK
                if not await still():
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
