"""Draining: pause something, and see that nothing of it runs any more."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.acting import Pause, PauseScope
from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import UnknownKind, UsageError
from dutiful.core.job import JobRecord
from dutiful.core.payload import check_name
from dutiful.core.transitions import State
from dutiful.duties import WorkerRecord
from dutiful.operator.fleet import Fleetwide
from dutiful.operator.releasing import PAGE, all_of
from dutiful.reading import JobFilter
from dutiful.settings import ANY, DEFAULT_LANES

BY_HAND = (PauseScope.KIND, PauseScope.QUEUE, PauseScope.LANE)
LOOK = 0.5
# A claim that was under way when the pause came has been answered by then.
SETTLED = timedelta(seconds=1)


class Part(msgspec.Struct, frozen=True):
    """What is to be drained."""

    scope: PauseScope
    name: str

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class Holdup(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a drain waits for; `remedy` is what a person can do, should it take too long."""

    job_id: UUID
    kind: str
    queue: str
    started_at: datetime | None
    worker: str
    alive: bool  # whether that worker has given a sign of life lately
    remedy: str


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """How far a drain is; when it is `safe`, nothing runs, and nothing will until somebody resumes it.

    `unheard` are workers that have not said yet that they know of their lane's pause; they do so at each heartbeat.
    """

    pauses: list[Pause]
    running: int
    holdups: list[Holdup]  # those that have run for longest first
    unheard: list[str] = []
    safe: bool = False


class Draining(Fleetwide):
    async def drain(
        self,
        *,
        kinds: Sequence[str] = (),
        queues: Sequence[str] = (),
        lanes: Sequence[str] = (),
        everything: bool = False,
        reason: str | None = None,
    ) -> Drain:
        """Pause them, and tell what still runs; what waits, and what comes, runs after a resume.

        With `everything`, each lane that a live worker has, and each that workers have by default.
        """
        parts = self._parts(kinds, queues, lanes)
        target = "everything" if everything else ", ".join(map(str, parts))
        async with self._act(
            "fleet.drain", target, reason, fleetwide=True, check=lambda: self._check_parts(parts, everything)
        ) as act:
            if everything:
                alive = {lane for worker in await self._store.workers() if worker.alive for lane in worker.lanes}
                parts = [Part(PauseScope.LANE, lane) for lane in sorted(alive | {lane.name for lane in DEFAULT_LANES})]
            for part in parts:
                await self.pause(part.scope, part.name, reason)
            state = await self.draining(parts, everything=everything)
            act.after = {"paused": [str(part) for part in parts], "running": state.running}
        return state

    async def draining(self, parts: Sequence[Part] | None = None, *, everything: bool = False) -> Drain:
        """How far they are, of all that is paused unless told; with `everything`, whatever runs counts."""
        self._check_fleetwide("the state of a drain")
        pauses = [p for p in await self._store.pauses() if p.scope in BY_HAND and (parts is None or _part(p) in parts)]
        # What runs comes first: whoever signs off in between has given back what it held.
        running = await all_of(self._store, JobFilter(state=State.RUNNING, limit=PAGE))
        look = _Look(pauses, {worker.id: worker for worker in await self._store.workers()}, everything)
        held = sorted(filter(look.counts, running), key=lambda job: job.started_at or job.created_at)
        unheard = look.unheard()
        ahead = 0 if everything else look.ahead()
        settled = all(datetime.now(UTC) - pause.since >= SETTLED for pause in pauses)
        return Drain(
            pauses=pauses,
            running=len(held) + ahead,
            holdups=[look.holdup(job) for job in held],
            unheard=unheard,
            safe=not held and not ahead and not unheard and settled,
        )

    async def drained(
        self, drain: Drain, timeout: timedelta, tell: Callable[[Drain], None], *, everything: bool = False
    ) -> Drain:
        """Wait until it is safe or the time is over; `tell` hears of each look."""
        parts = [_part(pause) for pause in drain.pauses]
        until = time.monotonic() + timeout.total_seconds()
        while not drain.safe and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK, left))
            drain = await self.draining(parts, everything=everything)
            tell(drain)
        return drain

    def _parts(self, kinds: Sequence[str], queues: Sequence[str], lanes: Sequence[str]) -> list[Part]:
        named = ((PauseScope.KIND, kinds), (PauseScope.QUEUE, queues), (PauseScope.LANE, lanes))
        return list(dict.fromkeys(Part(scope, name) for scope, names in named for name in names))

    async def _check_parts(self, parts: Sequence[Part], everything: bool) -> None:
        if bool(parts) is everything:
            raise UsageError("say what to drain: some kinds, queues or lanes, or everything, and not both")
        for part in parts:
            check_name(part.name, part.scope.value)
            known = await self._names_of(part.scope)
            if part.name not in known and not await self._was_seen(part):
                error = UnknownKind if part.scope is PauseScope.KIND else UsageError
                raise error(
                    f"there is no {part.scope} {part.name!r}: no live worker knows it, and no job is of it; there are: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )

    async def _names_of(self, scope: PauseScope) -> set[str]:
        workers = [worker for worker in await self._store.workers() if worker.alive]
        match scope:
            case PauseScope.KIND:
                return set(self._kinds) | {kind for worker in workers for kind in worker.kinds}
            case PauseScope.LANE:
                return {lane.name for lane in DEFAULT_LANES} | {lane for worker in workers for lane in worker.lanes}
            case PauseScope.QUEUE:
                lanes = {queue for worker in workers for lane in worker.lanes.values() for queue in lane["queues"]}
                return (lanes | {kind.queue for kind in self._kinds.values()}) - {ANY}

    async def _was_seen(self, part: Part) -> bool:
        match part.scope:
            case PauseScope.KIND:
                return bool(await self._store.jobs(JobFilter(kind=part.name, limit=1)))
            case PauseScope.QUEUE:
                return bool(await self._store.jobs(JobFilter(queue=part.name, limit=1)))
            case PauseScope.LANE:
                return False


class _Look:
    """One look at the fleet: which of the jobs that run are of what is drained."""

    def __init__(self, pauses: Sequence[Pause], workers: Mapping[UUID, WorkerRecord], everything: bool) -> None:
        self._workers = workers
        self._everything = everything
        self._kinds = {pause.name for pause in pauses if pause.scope is PauseScope.KIND}
        self._queues = {pause.name for pause in pauses if pause.scope is PauseScope.QUEUE}
        self._lanes = {pause.name for pause in pauses if pause.scope is PauseScope.LANE}

    def counts(self, job: JobRecord) -> bool:
        if self._everything or job.kind in self._kinds or job.queue in self._queues:
            return True
        worker = None if job.worker_id is None else self._workers.get(job.worker_id)
        if worker is None:
            return bool(self._lanes)  # whose lane it was, nobody knows any more
        lanes = [lane for name, lane in worker.lanes.items() if name in self._lanes]
        if worker.alive:
            return any(str(job.id) in lane.get("jobs", ()) for lane in lanes)
        return any(job.queue in lane["queues"] or ANY in lane["queues"] for lane in lanes)

    def ahead(self) -> int:
        """What lanes have claimed and not begun; a second later they have begun it or given it back."""
        return sum(lane.get("ahead", 0) for _, lane in self._paused_lanes())

    def unheard(self) -> list[str]:
        if self._everything:
            return []
        return sorted({worker.name for worker, lane in self._paused_lanes() if not lane.get("paused")})

    def _paused_lanes(self) -> list[tuple[WorkerRecord, Mapping[str, Any]]]:
        return [
            (worker, lane)
            for worker in self._workers.values()
            for name, lane in worker.lanes.items()
            if worker.alive and name in self._lanes
        ]

    def holdup(self, job: JobRecord) -> Holdup:
        worker = None if job.worker_id is None else self._workers.get(job.worker_id)
        alive = worker is not None and worker.alive
        return Holdup(
            job_id=job.id,
            kind=job.kind,
            queue=job.queue,
            started_at=job.started_at,
            worker=str(job.worker_id) if worker is None else worker.name,
            alive=alive,
            remedy=_remedy(job, alive=alive),
        )


def _remedy(job: JobRecord, *, alive: bool) -> str:
    public, now = ids.public(job.id), datetime.now(UTC)
    if not alive:
        lease = "" if job.expires_at is None or job.expires_at < now else f" in {brief(job.expires_at - now)}"
        return (
            f"its worker is gone: a live worker rescues it when its lease ends{lease}; or take it back yourself: "
            f"dutiful jobs release {public}"
        )
    if job.cancel_requested_at is not None:
        return f"was asked to stop and has not: dutiful jobs fail {public}"
    return f"let it end, or: dutiful jobs cancel {public}; if it does not heed that: dutiful jobs release {public}"


def _part(pause: Pause) -> Part:
    return Part(pause.scope, pause.name)
