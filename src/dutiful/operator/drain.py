"""The progress of a drain: which paused jobs still run, and which workers have not confirmed the pause."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import UsageError
from dutiful.core.job import JobRecord
from dutiful.core.states import State
from dutiful.operator.explain import FleetState
from dutiful.operator.jobs.fail import FAILED_BY_HAND
from dutiful.store.control import EVERY_LANE, Pause, PauseScope
from dutiful.store.workers import LaneRecord, Process, WorkerRecord

SILENCE = timedelta(hours=1)
"""How long a drain waits for a silent worker whose process cannot be seen; later than that, it counts as ended."""


class DrainTarget(msgspec.Struct, frozen=True):
    """A kind, queue or lane to drain."""

    scope: PauseScope
    name: str

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


EVERYTHING = DrainTarget(PauseScope.LANE, EVERY_LANE)


class Blocker(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that a drain waits for; `remedy` is what a person can do if it takes too long."""

    job_id: UUID
    kind: str
    queue: str
    started_at: datetime | None
    worker: str
    alive: bool
    remedy: str


class SilentWorker(msgspec.Struct, frozen=True):
    """A worker that sends no heartbeats and has not signed off: its process may have ended, or continue at any time."""

    worker: str
    since: datetime
    process: Process
    remedy: str


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a drain; when it is `safe`, nothing runs, and nothing will until a resume."""

    targets: list[DrainTarget]
    newly_paused: list[DrainTarget] = []  # the targets that were not paused before this drain
    pauses: list[Pause]
    running: int
    blockers: list[Blocker]  # the longest running first
    unconfirmed: list[str] = []  # workers that have sent no heartbeat since they know of the pause
    silent: list[SilentWorker] = []
    gone: list[str] = []  # silent workers that a person knows to have ended
    unknown: list[DrainTarget] = []  # queues that only a lane "*" serves and no job names: misspelt, perhaps
    not_paused: list[str] = []  # targets that were resumed meanwhile
    safe: bool = False

    @property
    def stalled(self) -> bool:
        """Whether it can never become safe."""
        return bool(self.not_paused) or not self.targets


class UnclaimedRun(msgspec.Struct, frozen=True):
    """A job that a worker reports as running without holding its claim: that has ended, or was taken away."""

    worker: WorkerRecord
    lane: str
    job_id: UUID


class DrainSnapshot:
    """Pauses, running jobs and workers at one moment, and what of them concerns the targets."""

    def __init__(
        self,
        targets: Sequence[DrainTarget],
        pauses: list[Pause],
        running: Sequence[JobRecord],
        workers: Sequence[WorkerRecord],
        now: datetime,
        gone: Collection[str] = (),
    ) -> None:
        state = FleetState.of([], pauses)
        found = {target: state.paused(target.scope, target.name) for target in targets}
        self.paused = {target: pause for target, pause in found.items() if pause is not None}
        self.not_paused = [str(target) for target, pause in found.items() if pause is None]
        self._workers = {worker.id: worker for worker in workers}
        self._present = [worker for worker in workers if may_run(worker, workers, gone, now)]
        self._now = now
        self._everything = EVERYTHING in found
        self._kinds = {target.name for target in targets if target.scope is PauseScope.KIND}
        self._queues = {target.name for target in targets if target.scope is PauseScope.QUEUE}
        self._lanes = {target.name for target in targets if target.scope is PauseScope.LANE}
        self._claims = {(job.worker_id, job.id) for job in running}
        self.claimed = sorted(filter(self._counts, running), key=lambda job: job.started_at or job.created_at)

    def _counts(self, job: JobRecord) -> bool:
        if self._everything or job.kind in self._kinds or job.queue in self._queues:
            return True
        worker = None if job.worker_id is None else self._workers.get(job.worker_id)
        if worker is None:
            return bool(self._lanes)  # its lane is unknown
        lanes = [lane for name, lane in worker.lanes.items() if name in self._lanes]
        if worker.alive:
            return any(job.id in lane.jobs for lane in lanes)
        return any(lane.serves(job.queue) for lane in lanes)

    def unclaimed(self) -> Iterator[UnclaimedRun]:
        """Jobs that run without a claim, of any kind and queue, because workers report only ids."""
        for worker, name, lane in self._present_lanes():
            for job_id in lane.jobs:
                if (worker.id, job_id) not in self._claims:
                    yield UnclaimedRun(worker, name, job_id)

    def concerns(self, run: UnclaimedRun, job: JobRecord) -> bool:
        return self._drains(run.lane) or job.kind in self._kinds or job.queue in self._queues

    def prefetched(self) -> int:
        """Claims that lanes have not started; within a second they start or release them."""
        if self._everything:
            return 0  # counted as running
        return sum(lane.buffered for _, name, lane in self._present_lanes() if self._drains(name))

    def unconfirmed_ids(self) -> set[UUID]:
        """Workers that serve a target and whose heartbeats do not show its pause yet.

        Such a worker may run a job that was taken from it before it could report it, or get one by a claim that was in
        flight when the pause came.
        """
        return {
            worker.id
            for worker, name, lane in self._present_lanes()
            for target, pause in self.paused.items()
            if _may_take(worker, name, lane, target) and pause.mark not in lane.pauses_seen
        }

    def by_silence(self, worker_ids: Collection[UUID]) -> tuple[list[str], list[SilentWorker]]:
        """The names of the workers that send heartbeats, and those that do not."""
        found = [worker for worker in self._present if worker.id in worker_ids]
        unconfirmed = sorted(worker.name for worker in found if not is_silent(worker))
        return unconfirmed, [
            SilentWorker(worker.name, worker.seen_at, worker.process, _silent_remedy(worker, self._now))
            for worker in found
            if is_silent(worker)
        ]

    def paused_for(self, span: timedelta) -> bool:
        return all(self._now - pause.since >= span for pause in self.paused.values())

    def blocker(self, job: JobRecord) -> Blocker:
        worker = None if job.worker_id is None else self._workers.get(job.worker_id)
        return Blocker(
            job_id=job.id,
            kind=job.kind,
            queue=job.queue,
            started_at=job.started_at,
            worker=str(job.worker_id) if worker is None else worker.name,
            alive=worker is not None and worker.alive,
            remedy=_remedy(job, worker),
        )

    def _present_lanes(self) -> list[tuple[WorkerRecord, str, LaneRecord]]:
        return [(worker, name, lane) for worker in self._present for name, lane in worker.lanes.items()]

    def _drains(self, lane: str) -> bool:
        return self._everything or lane in self._lanes


def unclaimed_blocker(run: UnclaimedRun, job: JobRecord) -> Blocker:
    remedy = (
        "was taken from its worker, which was silent and may still run it: make sure that its process has ended"
        if is_silent(run.worker)
        else "runs on without a claim, so its result is refused: let it end, or stop its worker"
    )
    return Blocker(
        job_id=job.id,
        kind=job.kind,
        queue=job.queue,
        started_at=None,
        worker=run.worker.name,
        alive=run.worker.alive,
        remedy=remedy,
    )


def has_ended(run: UnclaimedRun, job: JobRecord | None) -> bool:
    """Whether it seems to have ended by itself since its worker's last heartbeat."""
    if job is None:
        return True
    by_hand = any(error.get("type") == FAILED_BY_HAND for error in job.errors or ())
    return not by_hand and job.finished_at is not None and job.finished_at >= run.worker.seen_at


def is_claimed(run: UnclaimedRun, job: JobRecord | None) -> bool:
    """Whether it was claimed after the running jobs were read."""
    return job is not None and job.state is State.RUNNING and job.worker_id == run.worker.id


def is_silent(worker: WorkerRecord) -> bool:
    return not worker.alive or worker.process is Process.STOPPED


def may_run(worker: WorkerRecord, workers: Sequence[WorkerRecord], gone: Collection[str], now: datetime) -> bool:
    """Whether its process may exist; `gone` are those of which a person says that they have ended."""
    if worker.process is Process.ENDED:
        return False
    if worker.alive or _is_seen(worker):
        return True
    if worker.name in gone:
        return False
    # Two processes have the same host and pid only if the first has ended.
    replaced = any(other.name == worker.name and other.started_at > worker.seen_at for other in workers)
    return not replaced and now - worker.seen_at < SILENCE


def check_gone(names: Sequence[str], workers: Sequence[WorkerRecord]) -> None:
    """Refuses names of workers that are unknown or still there."""
    for name in names:
        found = [worker for worker in workers if worker.name == name]
        if not found:
            unseen = [one for one in workers if not (one.alive or _is_seen(one) or one.process is Process.ENDED)]
            known = ", ".join(one.name for one in unseen) or "none"
            raise UsageError(f"there is no worker {name!r}; silent workers whose process cannot be seen here: {known}")
        if any(map(_is_seen, found)):
            raise UsageError(f"worker {name!r} is not gone: its process is there; end it first")
        if any(worker.alive and worker.process is not Process.ENDED for worker in found):
            raise UsageError(f"worker {name!r} is not gone: it sent a heartbeat lately; stop it first")


def _is_seen(worker: WorkerRecord) -> bool:
    return worker.process in (Process.RUNS, Process.STOPPED)


def _may_take(worker: WorkerRecord, name: str, lane: LaneRecord, target: DrainTarget) -> bool:
    match target.scope:
        case PauseScope.KIND:
            return target.name in (lane.kinds or worker.kinds)
        case PauseScope.QUEUE:
            return lane.serves(target.name)
        case PauseScope.LANE:
            return target.name in (name, EVERY_LANE)


# The remedies escalate: let the job end, cancel it, fail it, stop its worker.


def _remedy(job: JobRecord, worker: WorkerRecord | None) -> str:
    public = ids.public(job.id)
    if worker is None or not worker.alive:
        state = "gone" if worker is None or worker.process is Process.ENDED else "silent"
        return (
            f"its worker is {state}: a live worker rescues it when its lease ends; or take it back yourself: "
            f"dutiful jobs release {public}"
        )
    if worker.process is Process.STOPPED:
        return f"its worker's process is stopped: kill -CONT {worker.pid} continues it, kill -KILL {worker.pid} ends it"
    if job.cancel_requested_at is not None:
        return f"was asked to stop; to end it now: dutiful jobs fail {public}; if its handler runs on: stop its worker"
    return f"let it end, or: dutiful jobs cancel {public}; if it does not stop: dutiful jobs fail {public}"


def _silent_remedy(worker: WorkerRecord, now: datetime) -> str:
    since = f"{worker.name} has sent no heartbeat for {brief(now - worker.seen_at)}"
    if worker.process is Process.STOPPED:
        return (
            f"{since} because its process is stopped: continue it (kill -CONT {worker.pid}), or end it "
            f"(kill -KILL {worker.pid})"
        )
    if worker.process is Process.RUNS:
        return f"{since}, but its process is there: see what it does (kill -TTIN {worker.pid}), or end it"
    return f"{since} and has not signed off: make sure that its process has ended, then drain with --gone {worker.name}"
