"""How far a drain is: one look at what is paused, what runs, and what workers say of themselves."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.acting import EVERY_LANE, Pause, PauseScope
from dutiful.core import ids
from dutiful.core.job import JobRecord
from dutiful.core.transitions import State
from dutiful.duties import Process, WorkerRecord
from dutiful.explanation import Fleet
from dutiful.operator.failing import BY_HAND
from dutiful.operator.silence import Silent, is_silent, may_go_on, silent
from dutiful.settings import ANY


class Part(msgspec.Struct, frozen=True):
    """What is to be drained."""

    scope: PauseScope
    name: str

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


EVERYTHING = Part(PauseScope.LANE, EVERY_LANE)


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

    `not_paused` is what was to be drained and can start, because somebody has resumed it. `unheard` are workers that
    have not said since the pause what they run; they do so at each heartbeat. `silent` are those that do not any more,
    and may go on all the same; `gone` are those of them that a person knows to have ended.
    """

    parts: list[Part]  # what was to be drained
    begun: list[Part] = []  # of these, what this drain has paused; the rest was paused before
    pauses: list[Pause]
    running: int
    holdups: list[Holdup]  # those that have run for longest first
    unheard: list[str] = []
    silent: list[Silent] = []
    gone: list[str] = []
    unknown: list[Part] = []  # queues that any lane "*" would serve, and that nobody has named: misspelt, perhaps
    not_paused: list[str] = []
    safe: bool = False

    @property
    def hopeless(self) -> bool:
        """Whether it will not be safe, however long one waits."""
        return bool(self.not_paused) or not self.parts


class Adrift(msgspec.Struct, frozen=True):
    """A job that a worker said it runs, and of which it holds no claim: that has ended, or was taken away."""

    worker: WorkerRecord
    lane: str
    job_id: UUID


class Look:
    """One look at the fleet: which of the jobs that run are of what is drained."""

    def __init__(
        self,
        parts: Sequence[Part],
        pauses: list[Pause],
        running: Sequence[JobRecord],
        workers: Sequence[WorkerRecord],
        now: datetime,
        gone: Collection[str] = (),
    ) -> None:
        held = Fleet.of([], pauses)
        found = {part: held.paused(part.scope, part.name) for part in parts}
        self.paused = {part: pause for part, pause in found.items() if pause is not None}
        self.not_paused = [str(part) for part, pause in found.items() if pause is None]
        self._workers = {worker.id: worker for worker in workers}
        self._there = [worker for worker in workers if may_go_on(worker, workers, gone, now)]
        self._now = now
        self._everything = EVERYTHING in found
        self._kinds = {part.name for part in parts if part.scope is PauseScope.KIND}
        self._queues = {part.name for part in parts if part.scope is PauseScope.QUEUE}
        self._lanes = {part.name for part in parts if part.scope is PauseScope.LANE}
        self._claims = {(job.worker_id, job.id) for job in running}
        self.held = sorted(filter(self._counts, running), key=lambda job: job.started_at or job.created_at)

    def _counts(self, job: JobRecord) -> bool:
        if self._everything or job.kind in self._kinds or job.queue in self._queues:
            return True
        worker = None if job.worker_id is None else self._workers.get(job.worker_id)
        if worker is None:
            return bool(self._lanes)  # whose lane it was, nobody knows any more
        lanes = [lane for name, lane in worker.lanes.items() if name in self._lanes]
        if worker.alive:
            return any(str(job.id) in lane.get("jobs", ()) for lane in lanes)
        return any(_serves(lane, job.queue) for lane in lanes)

    def adrift(self) -> Iterator[Adrift]:
        """Those of any kind: what they are of is not known here."""
        for worker, name, lane in self._lanes_there():
            for job_id in map(UUID, lane.get("jobs", ())):
                if (worker.id, job_id) not in self._claims:
                    yield Adrift(worker, name, job_id)

    def concerns(self, adrift: Adrift, job: JobRecord) -> bool:
        return self._drains(adrift.lane) or job.kind in self._kinds or job.queue in self._queues

    def ahead(self) -> int:
        """What lanes have claimed and not begun; a second later they have begun it or given it back."""
        if self._everything:
            return 0  # counted as what runs
        return sum(lane.get("ahead", 0) for _, name, lane in self._lanes_there() if self._drains(name))

    def unheard(self) -> set[UUID]:
        """Workers that might run some of it, and have said nothing of themselves since they know that it is paused.

        Only so does a job count that one has begun, and that was taken from it before it could say so; or one that it
        is about to get, by a claim that was under way when the pause came.
        """
        return {
            worker.id
            for worker, name, lane in self._lanes_there()
            for part, pause in self.paused.items()
            if _may_run(worker, name, lane, part) and not _has_heard(lane, pause)
        }

    def heedless(self, worker_ids: Collection[UUID]) -> tuple[list[str], list[Silent]]:
        """Those of them that are yet to be heard from, and those that are silent."""
        found = [worker for worker in self._there if worker.id in worker_ids]
        unheard = sorted(worker.name for worker in found if not is_silent(worker))
        return unheard, [silent(worker, self._now) for worker in found if is_silent(worker)]

    def settled(self, settled: timedelta) -> bool:
        return all(self._now - pause.since >= settled for pause in self.paused.values())

    def holdup(self, job: JobRecord) -> Holdup:
        worker = None if job.worker_id is None else self._workers.get(job.worker_id)
        return Holdup(
            job_id=job.id,
            kind=job.kind,
            queue=job.queue,
            started_at=job.started_at,
            worker=str(job.worker_id) if worker is None else worker.name,
            alive=worker is not None and worker.alive,
            remedy=_remedy(job, worker),
        )

    def _lanes_there(self) -> list[tuple[WorkerRecord, str, Mapping[str, Any]]]:
        return [(worker, name, lane) for worker in self._there for name, lane in worker.lanes.items()]

    def _drains(self, lane: str) -> bool:
        return self._everything or lane in self._lanes


def runs_on(adrift: Adrift, job: JobRecord) -> Holdup:
    """Of a job that is adrift and has not ended."""
    return Holdup(
        job_id=job.id,
        kind=job.kind,
        queue=job.queue,
        started_at=None,
        worker=adrift.worker.name,
        alive=adrift.worker.alive,
        remedy=_remedy_adrift(adrift.worker),
    )


def only_unheard(adrift: Adrift, job: JobRecord | None) -> bool:
    """Whether it seems to have come to its end by itself since its worker was last heard."""
    if job is None:
        return True
    by_hand = any(error.get("type") == BY_HAND for error in job.errors or ())
    return not by_hand and job.finished_at is not None and job.finished_at >= adrift.worker.seen_at


def is_held(adrift: Adrift, job: JobRecord | None) -> bool:
    """Whether it has been claimed since what runs was looked up."""
    return job is not None and job.state is State.RUNNING and job.worker_id == adrift.worker.id


def _has_heard(lane: Mapping[str, Any], pause: Pause) -> bool:
    return pause.mark in lane.get("heard", ())


def _may_run(worker: WorkerRecord, name: str, lane: Mapping[str, Any], part: Part) -> bool:
    match part.scope:
        case PauseScope.KIND:
            return part.name in worker.kinds
        case PauseScope.QUEUE:
            return _serves(lane, part.name)
        case PauseScope.LANE:
            return part.name in (name, EVERY_LANE)


def _serves(lane: Mapping[str, Any], queue: str) -> bool:
    queues: Collection[str] = lane["queues"]
    return queue in queues or ANY in queues


# A ladder, the same wherever a job holds something up: let it end, cancel it, fail it, stop its worker.


def _remedy(job: JobRecord, worker: WorkerRecord | None) -> str:
    public = ids.public(job.id)
    if worker is None or not worker.alive:
        state = "gone" if worker is None or worker.process is Process.ENDED else "silent"
        return (
            f"its worker is {state}: a live worker rescues it when its lease ends; or take it back yourself: "
            f"dutiful jobs release {public}"
        )
    if worker.process is Process.STOPPED:
        return (
            f"its worker's process is stopped: kill -CONT {worker.pid} lets it go on, kill -KILL {worker.pid} ends it"
        )
    if job.cancel_requested_at is not None:
        return f"was asked to stop and has not: dutiful jobs fail {public}; if its handler runs on: stop its worker"
    return f"let it end, or: dutiful jobs cancel {public}; if it does not heed that: dutiful jobs fail {public}"


def _remedy_adrift(worker: WorkerRecord) -> str:
    if is_silent(worker):
        return "was taken from its worker, which was silent, and may run on there: be sure that its process has ended"
    return "runs on without a claim, so what it returns is refused: let it end, or stop its worker"
