"""The fleet over HTTP: queues, lanes, workers, and what is paused."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import Field

from dutiful.acting import PauseScope
from dutiful.duties import Process
from dutiful.web.api.queue import QueueItem
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import NO_REASON, Ask, Reason, Shape, Text

queues = Operations("Queue", "/admin/queues")
fleet = Operations("Fleet", "/admin", fleetwide=True)


class QueuesQuery(Ask):
    tenant: Text | None = None


class Queues(Shape):
    queues: list[QueueItem]


class Worker(Shape):
    id: UUID
    name: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    process: Process = Field(description="What becomes of its process, as far as the server can see it from its host.")
    leading: bool
    lanes: dict[str, Any]
    kinds: list[str]


class Workers(Shape):
    workers: list[Worker]


class Lane(Shape):
    lane: str
    workers: int
    slots: int
    busy: int
    queues: list[str]


class Lanes(Shape):
    lanes: list[Lane]


class Paused(Shape):
    scope: PauseScope
    name: str
    since: datetime
    by: str | None
    reason: str | None


class Pauses(Shape):
    pauses: list[Paused]


class PauseAnswer(Shape):
    scope: PauseScope
    name: str
    paused: bool
    changed: bool


@queues.read("/")
async def list_queues(operator: TheOperator, query: Annotated[QueuesQuery, Query()]) -> Queues:
    """List the queues that have jobs, and how many wait where."""
    return Queues(queues=[QueueItem.model_validate(one) for one in await operator.queues(query.tenant)])


@fleet.read("/workers/")
async def list_workers(operator: TheOperator) -> Workers:
    """List the worker processes, their lanes and what they know."""
    return Workers(workers=[Worker.model_validate(one) for one in await operator.workers()])


@fleet.read("/lanes/")
async def list_lanes(operator: TheOperator) -> Lanes:
    """List the lanes of all live workers: their slots, and how many are busy."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    for worker in await operator.workers():
        for name, lane in worker.lanes.items() if worker.alive else ():
            lanes.setdefault(name, []).append(lane)
    return Lanes(
        lanes=[
            Lane(
                lane=name,
                workers=len(parts),
                slots=sum(part["slots"] for part in parts),
                busy=sum(part.get("busy", 0) for part in parts),
                queues=sorted({queue for part in parts for queue in part["queues"]}),
            )
            for name, parts in sorted(lanes.items())
        ]
    )


@fleet.read("/pauses/")
async def list_pauses(operator: TheOperator) -> Pauses:
    """List what is paused, since when and by whom."""
    return Pauses(pauses=[Paused.model_validate(one) for one in await operator.pauses()])


@fleet.act("/pauses/{scope}/{name:path}/pause/", "{scope}.pause", target="name")
async def pause(operator: TheOperator, scope: PauseScope, name: Text, ask: Reason = NO_REASON) -> PauseAnswer:
    """Let nothing of a queue, kind or lane start any more; what runs goes on."""
    changed = await operator.pause(scope, name, ask.reason)
    return PauseAnswer(scope=scope, name=name, paused=True, changed=changed)


@fleet.act("/pauses/{scope}/{name:path}/resume/", "{scope}.resume", target="name")
async def resume(operator: TheOperator, scope: PauseScope, name: Text, ask: Reason = NO_REASON) -> PauseAnswer:
    """Let a paused queue, kind or lane go on."""
    changed = await operator.resume(scope, name, ask.reason)
    return PauseAnswer(scope=scope, name=name, paused=False, changed=changed)
