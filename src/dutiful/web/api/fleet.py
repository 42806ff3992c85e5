"""The fleet over HTTP: workers, lanes, pauses and drains."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import Field

from dutiful.operator.drain import DrainTarget
from dutiful.store.control import PauseScope
from dutiful.store.workers import LaneRecord, Process
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.shapes import NO_REASON, Ask, LongText, PublicId, Reason, Shape, Text, Texts

fleet = Operations("Fleet", "/admin", fleetwide=True)


class WorkerLane(Shape):
    slots: int
    queues: list[str]
    busy: int
    jobs: list[UUID]
    lingering: int = Field(description="Handlers that run on although their jobs were settled without them.")
    buffered: int = Field(description="Claims that no slot has taken up yet.")
    gathering: list[UUID] = Field(description="Those of its jobs that wait in slots for others of their batches.")
    utilisation: float | None
    pauses_seen: list[str] = Field(description="Marks of the pauses that all its claims respect.")
    breakers: dict[str, str] | None = Field(description="By kind, the breaker that it declares.")
    kinds: list[str] = Field(description="Empty: all that the worker runs.")
    tenants: list[str] = Field(description="Empty: any.")
    fair: bool = Field(description="Whether tenants take turns in it.")


class Worker(Shape):
    id: UUID
    name: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    process: Process = Field(description="The state of its process, as far as this server can see it.")
    leading: bool
    lanes: dict[str, WorkerLane]
    kinds: list[str]


class Workers(Shape):
    workers: list[Worker]


class Lane(Shape):
    lane: str
    workers: int
    slots: int
    busy: int
    lingering: int
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


class DrainQuery(Ask):
    kinds: Texts = Field(default=[], description="Only these; by default all that is paused.")
    queues: Texts = Field(default=[])
    lanes: Texts = Field(default=[])
    everything: bool = Field(default=False, description="Every lane: all running jobs count.")
    gone: Texts = Field(default=[], description="Silent workers whose processes are known to have ended.")


class DrainAsk(Ask):
    kinds: Texts = Field(default=[], examples=[["email_ingestion_fetch"]])
    queues: Texts = Field(default=[], examples=[["default"]])
    lanes: Texts = Field(default=[], examples=[["general"]])
    everything: bool = Field(default=False, description="Every present and future lane, instead of the others.")
    gone: Texts = Field(default=[], description="Silent workers whose processes are known to have ended.")
    reason: LongText | None = Field(default=None, examples=["the mail server moves"])


class BlockingJob(Shape):
    job_id: PublicId
    kind: str
    queue: str
    started_at: datetime | None
    worker: str
    alive: bool
    remedy: str = Field(examples=["let it end"])


class SilentWorkerItem(Shape):
    worker: str = Field(examples=["web-1:4711"])
    since: datetime
    process: Process
    remedy: str = Field(examples=["make sure that its process has ended"])


class DrainTargetItem(Shape):
    scope: PauseScope
    name: str


class DrainState(Shape):
    """`safe`: nothing runs, and nothing will before a resume; until then, ask again.

    `not_paused` are targets that were resumed meanwhile. With them, or without `pauses`, the drain never becomes safe.
    """

    safe: bool
    running: int
    pauses: list[Paused]
    blockers: list[BlockingJob] = Field(description="Running jobs, the longest running first.")
    unconfirmed: list[str] = Field(description="Workers whose heartbeats do not confirm the pause yet.")
    silent: list[SilentWorkerItem] = Field(description="Workers without heartbeats, whose processes may still run.")
    unknown: list[DrainTargetItem] = Field(description="Queues that no code or job names: misspelt, perhaps.")
    not_paused: list[str] = Field(examples=[["kind email_ingestion_fetch"]])


@fleet.read("/workers/")
async def list_workers(operator: OperatorDep) -> Workers:
    """List the worker processes, their lanes and their kinds."""
    return Workers(workers=[Worker.model_validate(one) for one in await operator.fleet.workers()])


@fleet.read("/lanes/")
async def list_lanes(operator: OperatorDep) -> Lanes:
    """List the lanes of all live workers: their slots, and how many are busy."""
    lanes: dict[str, list[LaneRecord]] = {}
    for worker in await operator.fleet.workers():
        for name, lane in worker.lanes.items() if worker.alive else ():
            lanes.setdefault(name, []).append(lane)
    return Lanes(
        lanes=[
            Lane(
                lane=name,
                workers=len(parts),
                slots=sum(part.slots for part in parts),
                busy=sum(part.busy for part in parts),
                lingering=sum(part.lingering for part in parts),
                queues=sorted({queue for part in parts for queue in part.queues}),
            )
            for name, parts in sorted(lanes.items())
        ]
    )


@fleet.read("/pauses/")
async def list_pauses(operator: OperatorDep) -> Pauses:
    """List pauses, since when and by whom."""
    return Pauses(pauses=[Paused.model_validate(one) for one in await operator.fleet.pauses()])


@fleet.act("/pauses/{scope}/{name:path}/pause/", "{scope}.pause", target="name")
async def pause(operator: OperatorDep, scope: PauseScope, name: Text, ask: Reason = NO_REASON) -> PauseAnswer:
    """Start no more jobs of a queue, kind or lane; running jobs continue."""
    changed = await operator.fleet.pause(scope, name, ask.reason)
    return PauseAnswer(scope=scope, name=name, paused=True, changed=changed)


@fleet.act("/pauses/{scope}/{name:path}/resume/", "{scope}.resume", target="name")
async def resume(operator: OperatorDep, scope: PauseScope, name: Text, ask: Reason = NO_REASON) -> PauseAnswer:
    """Resume a paused queue, kind or lane."""
    changed = await operator.fleet.resume(scope, name, ask.reason)
    return PauseAnswer(scope=scope, name=name, paused=False, changed=changed)


@fleet.act("/drain/", "fleet.drain")
async def start_drain(operator: OperatorDep, ask: DrainAsk) -> DrainState:
    """Pause kinds, queues, lanes or everything, and show what still runs."""
    state = await operator.fleet.drain(
        kinds=ask.kinds, queues=ask.queues, lanes=ask.lanes, everything=ask.everything, reason=ask.reason, gone=ask.gone
    )
    return DrainState.model_validate(state)


@fleet.read("/drain/")
async def get_drain(operator: OperatorDep, query: Annotated[DrainQuery, Query()]) -> DrainState:
    """Show what still runs of all that is paused, or of some targets."""
    named = ((PauseScope.KIND, query.kinds), (PauseScope.QUEUE, query.queues), (PauseScope.LANE, query.lanes))
    targets = [DrainTarget(scope, name) for scope, names in named for name in names]
    state = await operator.fleet.drain_status(targets or None, everything=query.everything, gone=query.gone)
    return DrainState.model_validate(state)
