"""Explains to people why a job is in its state: why it waits, what it depends on, what they can do."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from dutiful.core import ids
from dutiful.core.breaker.state import BreakerState
from dutiful.core.breaker.state import due as is_due
from dutiful.core.duration import brief
from dutiful.core.errors import CannotOpen
from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.core.limits import read_gate
from dutiful.core.shares import HEAVIEST
from dutiful.core.states import State
from dutiful.core.steps import StepKind, StepRecord, StepState, event_gate
from dutiful.store.breakers import BreakerRecord
from dutiful.store.control import EVERY_LANE, Pause, PauseScope
from dutiful.store.deliveries import WaitingJob
from dutiful.store.limits import LimitRecord
from dutiful.store.shares import ShareRecord
from dutiful.store.workers import LaneRecord, Process, WorkerRecord

CLOSED = BreakerState.CLOSED
ZERO = timedelta(0)
ELECTION = timedelta(seconds=20)  # within which another worker leads if the leader is gone
START = "start one with `dutiful worker`, or `dutiful sql-worker` for SQL functions and channels"


class Why(StrEnum):
    """The reason why a job is in its state."""

    FINISHED = "finished"
    RUNNING = "running"
    GATHERING = "gathering"
    STOPPING = "stopping"
    LEASE_EXPIRED = "lease_expired"
    WORKER_ENDED = "worker_ended"
    NOT_DUE = "not_due"
    RETRY = "retry"
    SNOOZED = "snoozed"
    SLEEPS = "sleeps"
    EVENT = "event"
    DEPENDENCY = "dependency"
    KIND_PAUSED = "kind_paused"
    QUEUE_PAUSED = "queue_paused"
    LANE_PAUSED = "lane_paused"
    BREAKER = "breaker"
    LIMIT = "limit"
    SHARE = "share"
    GATED = "gated"
    NO_WORKER = "no_worker"
    NO_LEADER = "no_leader"
    QUEUE_UNSERVED = "queue_unserved"
    KIND_UNKNOWN = "kind_unknown"
    TENANT_UNSERVED = "tenant_unserved"
    UNDELIVERED = "undelivered"
    SUSPECT = "suspect"
    WAITING_FOR_SLOT = "waiting_for_slot"
    NEXT = "next"


class Explanation(msgspec.Struct, frozen=True):
    """`sentence` completes "It …"; `remedy` is what a person can do about it, if anything."""

    code: Why
    sentence: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class FleetState:
    """The live workers, the pauses and the breakers; only a `fleetwide` principal learns who paused what."""

    workers: tuple[WorkerRecord, ...]
    pauses: tuple[Pause, ...]
    fleetwide: bool = True
    breakers: tuple[BreakerRecord, ...] = ()
    limits: tuple[LimitRecord, ...] = ()
    shares: tuple[ShareRecord, ...] = ()

    @classmethod
    def of(
        cls,
        workers: list[WorkerRecord],
        pauses: list[Pause],
        *,
        fleetwide: bool = True,
        breakers: Sequence[BreakerRecord] = (),
        limits: Sequence[LimitRecord] = (),
        shares: Sequence[ShareRecord] = (),
    ) -> "FleetState":
        alive = tuple(w for w in workers if w.alive)
        return cls(alive, tuple(pauses), fleetwide, tuple(breakers), tuple(limits), tuple(shares))

    @property
    def leaders(self) -> tuple[WorkerRecord, ...]:
        """The live workers that can do all maintenance, as those in SQL cannot."""
        return tuple(worker for worker in self.workers if not worker.in_sql)

    @property
    def promoted(self) -> bool:
        """Whether a worker makes jobs ready that are due: the one that leads, or one in SQL."""
        return any(worker.leading or worker.in_sql for worker in self.workers)

    def paused(self, scope: PauseScope, name: str) -> Pause | None:
        """The pause of a lane, a queue or a kind: its own, or that of all lanes."""
        names = (name, EVERY_LANE) if scope is PauseScope.LANE else (name,)
        return next((p for p in self.pauses if p.scope is scope and p.name in names), None)

    def breaker(self, kind: str) -> BreakerRecord | None:
        """The breaker that blocks jobs of the kind."""
        return next((r for r in self.breakers if kind in r.kinds and r.breaker.state is not CLOSED), None)

    def serving(self, queue: str) -> Iterator[tuple[WorkerRecord, str, LaneRecord]]:
        """The lanes that take jobs from the queue."""
        for worker in self.workers:
            for name, lane in worker.lanes.items():
                if lane.serves(queue):
                    yield worker, name, lane

    def taking(self, record: JobRecord) -> list[tuple[WorkerRecord, str, LaneRecord]]:
        """The lanes that take the job: they serve its queue and its tenant, and know its kind."""
        return [
            (worker, name, lane)
            for worker, name, lane in self.serving(record.queue)
            if record.kind in (lane.kinds or worker.kinds) and (not lane.tenants or record.tenant in lane.tenants)
        ]

    def shared(self, record: JobRecord) -> bool:
        """Whether tenants take turns in every lane that takes the job."""
        lanes = [lane for _, _, lane in self.taking(record)]
        return bool(lanes) and all(lane.fair for lane in lanes)

    def slots(self, record: JobRecord) -> tuple[int, int]:
        """All slots that could run the job, and how many of them were busy when their workers last reported."""
        lanes = [lane for _, _, lane in self.taking(record)]
        return sum(lane.slots for lane in lanes), sum(lane.busy for lane in lanes)


def finished(record: JobRecord, now: datetime) -> Explanation:
    ended = "" if record.finished_at is None else f" {brief(now - record.finished_at)} ago"
    done = record.state is State.COMPLETED
    remedy = None if done else f"`dutiful jobs retry {ids.public(record.id)}` runs it again as a new job"
    if remedy is not None and (record.error or {}).get("type") == CannotOpen.__name__:
        remedy = f"give its workers the key that its error names (setting encryption_keys); then {remedy}"
    return Explanation(Why.FINISHED, f"has ended as {record.state.replace('_', ' ')}{ended}", remedy)


def running(record: JobRecord, now: datetime, workers: Sequence[WorkerRecord] = ()) -> Explanation:
    public = ids.public(record.id)
    if record.expires_at is not None and record.expires_at < now:
        ago = brief(now - record.expires_at)
        return Explanation(
            Why.LEASE_EXPIRED,
            f"was running, but its worker did not renew its lease, which ended {ago} ago; a live worker will rescue it",
            f"if no worker is alive, {START}",
        )
    since = "" if record.started_at is None else f" for {brief(now - record.started_at)}"
    attempt = f"(attempt {record.attempt} of {record.max_attempts})"
    if record.cancel_requested_at is not None:
        asked = brief(now - record.cancel_requested_at)
        return Explanation(Why.STOPPING, f"has been running{since} {attempt} and was asked to stop {asked} ago")
    if _process_ended(record, workers) and record.expires_at is not None:
        return Explanation(
            Why.WORKER_ENDED,
            f"was running{since} {attempt}, and its worker's process has ended; a live worker rescues it when its "
            f"lease is over, in {brief(record.expires_at - now)}",
            None if any(worker.alive for worker in workers) else f"no worker is alive: {START}",
        )
    if gathers := _gathering(record, workers, now):
        return gathers
    return Explanation(Why.RUNNING, f"has been running{since} {attempt}", f"`dutiful jobs cancel {public}` stops it")


def _process_ended(record: JobRecord, workers: Sequence[WorkerRecord]) -> bool:
    return any(worker.id == record.worker_id and worker.process is Process.ENDED for worker in workers)


def _gathering(record: JobRecord, workers: Sequence[WorkerRecord], now: datetime) -> Explanation | None:
    """Set if it had not begun at its worker's last heartbeat, because its batch was not full."""
    worker = next((one for one in workers if one.id == record.worker_id), None)
    if worker is None or all(record.id not in lane.gathering for lane in worker.lanes.values()):
        return None
    since = "" if record.started_at is None else f" {brief(now - record.started_at)} ago"
    seen = brief(max(now - worker.seen_at, ZERO))
    sentence = f"was claimed{since} and waits for more jobs of its batch, or did at its worker's heartbeat {seen} ago"
    remedy = "it begins when its batch is full, or its kind's linger is over"
    return Explanation(Why.GATHERING, sentence, remedy)


def later(record: JobRecord, run_at: datetime, attempts: list[AttemptRecord], now: datetime) -> Explanation:
    due = f"{run_at:%Y-%m-%d %H:%M:%S} UTC, in {brief(run_at - now)}"
    remedy = f"`dutiful jobs retry {ids.public(record.id)}` makes it due now"
    last = next((a for a in reversed(attempts) if a.outcome != "refused"), None)
    if last is None:
        return Explanation(Why.NOT_DUE, f"is not due until {due}", remedy)
    error = last.error or {}
    if last.outcome == "snoozed":
        return Explanation(Why.SNOOZED, f"asked to be run later (snoozed); it is due at {due}", remedy)
    what = f"{error.get('type', last.outcome)}: {error.get('message', '')}".rstrip(": ").splitlines()
    tried = f"attempt {record.attempt} of {record.max_attempts}"
    return Explanation(Why.RETRY, f"waits to be retried after {tried} ended with {what[0]}; it is due at {due}", remedy)


def sleeping(record: JobRecord, steps: list[StepRecord], now: datetime) -> Explanation | None:
    """The step in which a scheduled job sleeps, if it does."""
    found = next((s for s in steps if s.kind is StepKind.SLEEP and s.state is StepState.WAITING), None)
    if found is None or found.due_at is None or record.run_at is None or record.run_at < found.due_at:
        return None  # it is retried before
    until = f"{found.due_at:%Y-%m-%d %H:%M:%S} UTC, for {brief(found.due_at - now)}"
    return Explanation(Why.SLEEPS, f"sleeps in its step {found.name!r} until {until}")


def waiting(record: JobRecord, steps: list[StepRecord], now: datetime) -> Explanation:
    """The event that a blocked job waits for."""
    waits = (s for s in steps if s.state is StepState.WAITING and s.event is not None and s.key is not None)
    found = next((s for s in waits if event_gate(s.event or "", s.key or "") == record.gate_key), None)
    if found is None or found.event is None or found.key is None:
        return Explanation(Why.EVENT, f"waits for the event {record.gate_key}")
    until = "for good"
    if found.due_at is not None:
        until = f"until {found.due_at:%Y-%m-%d %H:%M:%S} UTC, for {brief(max(found.due_at - now, ZERO))}"
    remedy = f"`dutiful send-event {shlex.quote(found.event)} {shlex.quote(found.key)}` sends it"
    if record.tenant is not None:
        remedy = remedy.replace("` sends", f" --tenant {shlex.quote(record.tenant)}` sends")
    sentence = f"waits in its step {found.name!r} for the event {found.event!r} with the key {found.key!r}, {until}"
    return Explanation(Why.EVENT, sentence, remedy)


def gate(record: JobRecord, needs: list[JobRecord], fleet: FleetState, now: datetime) -> Explanation | None:
    """What blocks a job; None if nothing does any more, and it only has to be promoted."""
    if record.gate == "dependency":
        waiting = [n for n in needs if n.state not in (State.COMPLETED, State.COMPLETED_WITH_ERRORS)]
        if not waiting:
            return None
        named = ", ".join(f"{ids.public(n.id)} ({n.kind}, {n.state})" for n in waiting[:3])
        more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        remedy = f"`dutiful jobs show {ids.public(waiting[0].id)}` shows what that one waits for"
        return Explanation(Why.DEPENDENCY, f"depends on jobs that have not completed: {named}{more}", remedy)
    if record.gate == "paused":
        if found := _paused(PauseScope.KIND, record.kind, fleet, now):
            return found
        waits_for = fleet.breaker(record.kind)
        if waits_for is not None and waits_for.breaker.state is BreakerState.HALF_OPEN and not waits_for.probing:
            # A job that no worker takes is not released as a probe.
            return unserved(record, fleet, now) or _breaker_open(record.kind, fleet, now)
        return _breaker_open(record.kind, fleet, now) or _admitted_next(record, fleet)
    if record.gate == "limit" and record.gate_key is not None:
        return _limit_full(*read_gate(record.gate_key), fleet, now)
    if record.gate == "breaker":
        rejected_by = next((r for r in fleet.breakers if r.breaker.name == record.gate_key), None)
        if rejected_by is None or rejected_by.breaker.state is CLOSED:
            return None
        return _waits_for(rejected_by, fleet, now, "it calls")
    return Explanation(Why.GATED, f"is blocked by {record.gate} {record.gate_key or ''}".rstrip())


def _paused(scope: PauseScope, name: str, fleet: FleetState, now: datetime) -> Explanation | None:
    pause = fleet.paused(scope, name)
    if pause is None:
        return None
    code = {"kind": Why.KIND_PAUSED, "queue": Why.QUEUE_PAUSED, "lane": Why.LANE_PAUSED}[scope]
    every = scope is PauseScope.LANE and pause.name == EVERY_LANE
    what = "every lane" if every else f"its {scope} {name!r}"
    if not fleet.fleetwide:
        return Explanation(code, f"waits because {what} is paused")
    return Explanation(code, f"waits because {what} was {paused_text(pause, now)}", f"`{resume_command(pause)}`")


def _breaker_open(kind: str, fleet: FleetState, now: datetime) -> Explanation | None:
    waits_for = fleet.breaker(kind)
    return None if waits_for is None else _waits_for(waits_for, fleet, now, "its kind needs")


def _admitted_next(record: JobRecord, fleet: FleetState) -> Explanation | None:
    if not any(record.kind in one.kinds for one in fleet.limits):
        return None
    remedy = f"if no worker is alive, {START}"
    return Explanation(Why.LIMIT, "waits until a live worker has checked the limits of its kind", remedy)


def _limit_full(name: str, key: str, fleet: FleetState, now: datetime) -> Explanation | None:
    record = next((one for one in fleet.limits if one.limit.name == name), None)
    if record is None:
        return None
    most, per = record.most, record.limit.per
    said = f"{most} at once" if per is None else f"{most} in {brief(per)}"
    of_key = f" with its key {key!r}" if key else ""
    use = next((one for one in record.keys if one.key == key), None)
    waiting = "" if use is None else f"; {use.waiting} wait for it"
    if use is not None and use.held_until is not None:
        until = f"until {use.held_until:%Y-%m-%d %H:%M:%S} UTC, for {brief(max(use.held_until - now, ZERO))}"
        sentence = f"waits because the service behind the limit {name!r}{of_key} has asked to wait {until}{waiting}"
        remedy = f"`dutiful limits reset {shlex.quote(name)}`, if it need not"
        return Explanation(Why.LIMIT, sentence, remedy if fleet.fleetwide else None)
    remedy = f"`dutiful limits set {shlex.quote(name)} {most + 1}` allows one more"
    sentence = f"waits for the limit {name!r}: {said}{of_key}{waiting}"
    return Explanation(Why.LIMIT, sentence, remedy if fleet.fleetwide else None)


def _waits_for(waits_for: BreakerRecord, fleet: FleetState, now: datetime, what: str) -> Explanation:
    if not fleet.fleetwide:
        return Explanation(Why.BREAKER, f"waits because a service that {what} is failing")
    breaker = waits_for.breaker
    if breaker.state is BreakerState.HALF_OPEN and waits_for.probing:
        state = "which is half-open: other jobs probe whether calls succeed again"
    elif breaker.state is BreakerState.HALF_OPEN or is_due(breaker, now):
        state = "which is half-open: waiting jobs are released in turn, to probe whether calls succeed again"
    else:
        until = breaker.open_until or now
        state = f"which is open until {until:%Y-%m-%d %H:%M:%S} UTC, for {brief(max(until - now, ZERO))}"
    remedy = f"`dutiful breakers reset {breaker.name}`, if the service is back"
    return Explanation(Why.BREAKER, f"waits for the breaker {breaker.name!r}, {state}", remedy)


def unserved(record: JobRecord, fleet: FleetState, now: datetime) -> Explanation | None:
    """Why no worker takes a due job; None if one can."""
    queue, kind = record.queue, record.kind
    if found := _paused(PauseScope.KIND, kind, fleet, now) or _paused(PauseScope.QUEUE, queue, fleet, now):
        return found
    if (waits_for := fleet.breaker(kind)) is not None and waits_for.breaker.state is BreakerState.OPEN:
        return _breaker_open(kind, fleet, now)
    if not fleet.workers:
        return Explanation(Why.NO_WORKER, "waits because no worker is alive", START)
    serving = list(fleet.serving(queue))
    if not serving:
        lanes = f"start a worker with a lane for it: `dutiful worker --lane 'more=1:{queue}'`"
        return Explanation(Why.QUEUE_UNSERVED, f"waits because no live worker serves its queue {queue!r}", lanes)
    knowing = [worker for worker, _, lane in serving if kind in (lane.kinds or worker.kinds)]
    if not knowing and any(kind in worker.kinds for worker, _, _ in serving):
        sentence = f"waits because no lane of the live workers that serve its queue {queue!r} takes its kind {kind!r}"
        lanes = f"start a worker with a lane that takes it: `dutiful worker --lane 'more=1:{queue}'`"
        return Explanation(Why.QUEUE_UNSERVED, sentence, lanes)
    if not knowing:
        remedy = "deploy the code that has this kind to a worker that serves the queue"
        sentence = f"waits because no live worker that serves its queue {queue!r} knows its kind {kind!r}"
        return Explanation(Why.KIND_UNKNOWN, sentence, remedy)
    taking = fleet.taking(record)
    if not taking:
        own = "it has none" if record.tenant is None else f"not of its own, {record.tenant!r}"
        sentence = f"waits because the live workers that could run it take jobs of certain tenants only, and {own}"
        return Explanation(Why.TENANT_UNSERVED, sentence, "start a worker without --tenant, or with this one")
    lane = taking[0][1]
    if all(fleet.paused(PauseScope.LANE, name) for _, name, _ in taking):
        return _paused(PauseScope.LANE, lane, fleet, now)
    return None


def unblocked(record: JobRecord, fleet: FleetState, now: datetime, ahead: int, *, exact: bool) -> Explanation:
    """Nothing blocks it: how many jobs are ahead; `exact` is False if `ahead` counts the whole queue."""
    overdue = ZERO if record.run_at is None or record.state is not State.SCHEDULED else now - record.run_at
    if overdue > ELECTION and not fleet.promoted:
        sentence = f"has been due for {brief(overdue)}, and no worker leads and makes it ready"
        return Explanation(Why.NO_LEADER, sentence, "start a worker without --no-services")
    if record.state is not State.READY:
        return Explanation(Why.NEXT, "is free to run; a worker makes it ready within a second or two")
    slots, busy = fleet.slots(record)
    served = f"{busy} of the {slots} slots that serve its queue {record.queue!r} were busy at the last heartbeat"
    if record.crashes:
        sentence = f"was running when a worker died, so it is run alone, as soon as a slot is idle; {served}"
        return Explanation(Why.SUSPECT, sentence)
    if fleet.shared(record):
        return _share(record, fleet, ahead, served, exact=exact)
    if not ahead:
        return Explanation(Why.NEXT, f"is the next of its queue to be taken; {served}")
    count = f"{'about' if exact else 'up to'} {ahead:,} job{'s are' if ahead > 1 else ' is'} ahead of it"
    return Explanation(
        Why.WAITING_FOR_SLOT, f"waits for a slot: {count}; {served}", "give its lane more slots, or add workers"
    )


def _share(record: JobRecord, fleet: FleetState, ahead: int, served: str, *, exact: bool) -> Explanation:
    share = next((one for one in fleet.shares if one.tenant == record.tenant), ShareRecord(record.tenant))
    whose = "of jobs without a tenant" if record.tenant is None else f"of its tenant {record.tenant!r}"
    number = f"{share.running} job{'' if share.running == 1 else 's'}"
    own = f"{'' if exact else 'up to '}{ahead:,} of its jobs are ahead of it" if ahead else "it is the next of its jobs"
    sentence = f"waits for the share {whose}, which runs {number} with the weight {share.weight}: {own}; {served}"
    slots, busy = fleet.slots(record)
    reserve, idle = sum(lane.reserve for _, _, lane in fleet.taking(record)), slots - busy
    lanes = "give its lane more slots"
    if share.running and 0 < idle <= reserve:
        kept = "the idle one is" if idle == 1 else f"the {idle} idle ones are"
        sentence += f", and {kept} kept for tenants that run nothing there (reserve {reserve})"
        lanes += ", or a smaller reserve"
    if not fleet.fleetwide:
        return Explanation(Why.SHARE, sentence)
    if record.tenant is None or busy <= share.running or share.weight >= HEAVIEST:  # then a weight changes nothing
        return Explanation(Why.SHARE, sentence, lanes)
    remedy = f"`dutiful shares set {shlex.quote(record.tenant)} {share.weight + 1}` gives it more of what others have"
    return Explanation(Why.SHARE, sentence, f"{remedy}; or {lanes}")


def undelivered(job: WaitingJob, now: datetime) -> Explanation:
    """It is ready, and its broker has no message of it."""
    before = "was never delivered" if job.delivered_at is None else "has to be delivered again"
    due = brief(max(now - job.due_at, ZERO))
    return Explanation(
        Why.UNDELIVERED,
        f"has been ready for {due} and {before} to an Arq worker; a leading worker does that within a second or two, "
        "unless Redis is away",
        "`dutiful doctor` checks Redis and the workers; `dutiful redeliver` delivers all that waits, at once",
    )


def with_delivery(found: Explanation, job: WaitingJob, place: str, now: datetime) -> Explanation:
    """Adds where its message is."""
    ago = "" if job.delivered_at is None else f" {brief(max(now - job.delivered_at, ZERO))} ago"
    text = f"{found.sentence}; it was delivered to {place}{ago}, and no Arq worker has taken it yet"
    remedy = found.remedy or "if none runs, start one with `dutiful worker --arq`"
    return Explanation(found.code, text, remedy)


def resume_command(pause: Pause) -> str:
    """Quoted, because `*` means files to a shell."""
    return f"dutiful resume {pause.scope} {shlex.quote(pause.name)}"


def paused_text(pause: Pause, now: datetime) -> str:
    by = f" by {pause.by}" if pause.by else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused {brief(now - pause.since)} ago{by}{reason}"
