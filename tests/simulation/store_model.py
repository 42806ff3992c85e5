"""A store in memory, as simple as the contract allows; where the contract is silent it follows what it observes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.job import Claim, Inserted, Insertion, JobRecord, NewJob, OnConflict, Scope, Unique
from dutiful.core.review.state import TABLE, ReviewAct, ReviewState
from dutiful.core.settle import Change
from dutiful.core.states import WAITING, State
from dutiful.store.claims import ClaimRequest, RefusalReason
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import DeadLetter, Reviewed
from dutiful.stores.order import SEQ_STEP
from suite.builders import T0

Key = tuple[str | None, str | None, str]
COMPLETED = {State.COMPLETED, State.COMPLETED_WITH_ERRORS}
DEAD = {State.FAILED, State.CANCELLED}

MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True)
class ModelJob:
    asked: NewJob
    state: State
    due: datetime  # when it became due; those of one moment are in the order of their ids
    run_at: datetime | None = None
    queued: bool = True  # it has a position in its queue, though its kind may be paused
    waits: bool = False  # for other jobs; it becomes due when they have ended
    attempt: int = 0
    crashes: int = 0
    claim_id: int | None = None
    expires_at: datetime | None = None
    cancel_requested: bool = False
    finished_at: datetime | None = None
    attempts: list[tuple[int, str]] = field(default_factory=list)

    @property
    def id(self) -> UUID:
        return self.asked.id


@dataclass(slots=True)
class Taken:
    """One claim that was made at some time, and the outcome that it settled with."""

    claim: Claim
    worker_id: UUID
    settled: str | None = None
    final: bool = False


@dataclass(slots=True)
class ModelLetter:
    id: UUID
    status: ReviewState = ReviewState.PENDING_REVIEW
    new_job_id: UUID | None = None
    reviewed_at: datetime | None = None
    old: bool = False  # retention may delete it, and need not


class Model:
    def __init__(self) -> None:
        self.now = T0
        self.jobs: dict[UUID, ModelJob] = {}
        self.gone: set[UUID] = set()
        self.letters: dict[UUID, ModelLetter] = {}
        self.keys: dict[Key, tuple[UUID, Scope, datetime | None]] = {}
        self.paused: set[tuple[PauseScope, str]] = set()
        self.taken: list[Taken] = []
        self._open: dict[UUID, set[State]] = {}  # where the contract allows more than one state

    def observe(self, records: Iterable[JobRecord]) -> None:
        """Compares with what the store shows."""
        shown = {record.id: record for record in records}
        assert shown.keys() == self.jobs.keys()
        for job in self.jobs.values():
            record = shown[job.id]
            assert record.state in self._open.pop(job.id, {job.state}), f"{job} is shown as {record}"
            job.state = record.state
            assert (record.attempt, record.crashes) == (job.attempt, job.crashes), f"{job} is shown as {record}"
            assert record.expires_at == job.expires_at

    def in_state(self, *states: State) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state in states]

    def is_paused(self, scope: PauseScope, name: str) -> bool:
        return (scope, name) in self.paused

    # --- enqueue

    def insert(self, batch: Sequence[NewJob]) -> list[Inserted]:
        plain = all(asked.plain for asked in batch)
        results: list[Inserted] = []
        for n, asked in enumerate(batch):
            made = sum(result.insertion is Insertion.MADE for result in results)
            results.append(self._insert(asked, self.now + SEQ_STEP * (made if plain else n) * MICROSECOND))
        return results

    def _insert(self, asked: NewJob, due: datetime) -> Inserted:
        if asked.id in self.jobs:
            return Inserted(asked.id, Insertion.EXISTING)
        insertion = Insertion.MADE
        for inherited in asked.inherits:
            holder = self._holder(_key(asked, inherited))
            if holder in self.jobs and not self.jobs[holder].state.final:
                return Inserted(holder, Insertion.REJECTED)
        if asked.unique:
            key = _key(asked, asked.unique)
            if holder := self._holder(key):
                waiting = holder in self.jobs and self.jobs[holder].state in WAITING
                if asked.unique.on_conflict is not OnConflict.REPLACE or not waiting:
                    rejected = asked.unique.on_conflict is OnConflict.REJECT
                    return Inserted(holder, Insertion.REJECTED if rejected else Insertion.EXISTING)
                self._finish(self.jobs[holder], State.CANCELLED)
                insertion = Insertion.REPLACED
            self._put_key(asked, asked.unique)
        for inherited in asked.inherits:
            if self._holder(key := _key(asked, inherited)):
                self.keys[key] = (asked.id, *self.keys[key][1:])
            else:
                self._put_key(asked, inherited)
        run_at = asked.run_at if asked.delay is None else self.now + asked.delay
        job = ModelJob(asked, State.READY, run_at or due, run_at)
        self.jobs[job.id] = job
        job.state = State.BLOCKED if self._gated(job) else self._due(job)
        job.queued, job.waits = self._may_queue(job), not self._all_met(job)
        return Inserted(job.id, insertion)

    def _put_key(self, job: NewJob, unique: Unique) -> None:
        expires_at = None if unique.window is None else self.now + unique.window
        self.keys[_key(job, unique)] = (job.id, unique.scope, expires_at)

    def _holder(self, key: Key) -> UUID | None:
        holder, _, expires_at = self.keys.get(key, (None, None, None))
        return None if expires_at and expires_at <= self.now else holder

    def _gated(self, job: ModelJob) -> bool:
        return self.is_paused(PauseScope.KIND, job.asked.kind) or not self._all_met(job)

    def _may_queue(self, job: ModelJob) -> bool:
        """Whether it has a position in its queue: only a pause may keep it from being ready."""
        return self._all_met(job) and self._due(job) is State.READY

    def _all_met(self, job: ModelJob) -> bool:
        return all(self._met(need) for need in job.asked.depends_on)

    def _met(self, need: UUID) -> bool:
        # A need that retention has removed was completed: an open one is kept.
        return need in self.gone or self.jobs[need].state in COMPLETED

    def _due(self, job: ModelJob) -> State:
        return State.SCHEDULED if job.run_at and job.run_at > self.now else State.READY

    # --- claims

    def claimable(self, ask: ClaimRequest) -> list[ModelJob]:
        """The jobs that `ask` gets, in order."""
        if self.is_paused(PauseScope.LANE, ask.lane):
            return []
        levels = {(level.queue, level.priority): n for n, level in enumerate(ask.levels)}
        found = [
            job
            for job in self.in_state(State.READY)
            if (job.asked.queue, job.asked.priority) in levels
            and job.asked.kind in ask.kinds
            and (not ask.tenants or job.asked.tenant in ask.tenants)
            and not self.is_paused(PauseScope.KIND, job.asked.kind)
            and not self.is_paused(PauseScope.QUEUE, job.asked.queue)
        ]

        def position(job: ModelJob) -> tuple[int, datetime, UUID]:
            return (levels[job.asked.queue, job.asked.priority], job.due, job.id)

        found.sort(key=position)
        clean, suspect = [j for j in found if not j.crashes], [j for j in found if j.crashes]
        return sorted([*clean[: ask.limit], *suspect[: ask.suspects]], key=position)

    def claim(self, ask: ClaimRequest, claims: Sequence[Claim]) -> None:
        expected = self.claimable(ask)
        assert [claim.job_id for claim in claims] == [job.id for job in expected]
        for claim, job in zip(claims, expected, strict=True):
            assert (claim.attempt, claim.crashes) == (job.attempt + 1, job.crashes)
        for claim in claims:
            job = self.jobs[claim.job_id]
            job.state, job.attempt = State.RUNNING, job.attempt + 1
            job.claim_id, job.expires_at, job.cancel_requested = claim.claim_id, self.now + ask.lease, False
            self.taken.append(Taken(claim, ask.worker_id))
            self._free(job, Scope.QUEUED)

    def holds(self, taken: Taken) -> bool:
        job = self.jobs.get(taken.claim.job_id)
        return job is not None and job.state is State.RUNNING and job.claim_id == taken.claim.claim_id

    def expired(self) -> set[tuple[UUID, int | None]]:
        running = self.in_state(State.RUNNING)
        return {(job.id, job.claim_id) for job in running if job.expires_at and job.expires_at <= self.now}

    def settle(self, taken: Taken, change: Change) -> set[RefusalReason] | None:
        """Returns the refusals that the contract allows; None where the change is applied."""
        if not self.holds(taken):
            # The store need not remember final outcomes and deleted jobs in detail.
            if taken.final or change.job_id in self.gone:
                return {RefusalReason.LOST, RefusalReason.REPEATED}
            return {RefusalReason.REPEATED if taken.settled == change.outcome else RefusalReason.LOST}
        job = self.jobs[change.job_id]
        if job.cancel_requested and change.to is not State.CANCELLED:
            return {RefusalReason.CANCEL_REQUESTED}
        taken.settled, taken.final = change.outcome, change.to.final
        job.attempt, job.crashes = change.attempt, change.crashes
        if change.to.final:
            self._finish(job, change.to)
            return None
        job.attempts.append((change.claim_id, change.outcome))
        self._leave_running(job, change.to, now_or_later=self.now + change.delay if change.delay else None)
        if not change.keep_seq:
            job.due, job.queued = self.now, self._may_queue(job)
        return None

    def refused(self, taken: Taken) -> None:
        """The outcome of a lost claim is recorded once."""
        entry = (taken.claim.claim_id, "refused")
        job = self.jobs.get(taken.claim.job_id)
        if job and entry not in job.attempts:
            job.attempts.append(entry)

    def release(self, taken: Taken) -> None:
        if not self.holds(taken):
            return
        job = self.jobs[taken.claim.job_id]
        if job.cancel_requested:
            return
        taken.settled, job.attempt = "released", job.attempt - 1
        job.attempts.append((taken.claim.claim_id, "released"))
        self._leave_running(job, State.READY, None)

    def renew(self, taken: Sequence[Taken], lease: timedelta) -> tuple[frozenset[int], frozenset[UUID]]:
        """Returns the claims that are lost, and the jobs to be cancelled."""
        lost = frozenset(t.claim.claim_id for t in taken if not self.holds(t))
        held = [self.jobs[t.claim.job_id] for t in taken if self.holds(t)]
        for job in held:
            job.expires_at = self.now + lease
        return lost, frozenset(job.id for job in held if job.cancel_requested)

    def _leave_running(self, job: ModelJob, to: State, now_or_later: datetime | None) -> None:
        job.state, job.run_at, job.claim_id, job.expires_at = to, now_or_later, None, None
        self._may_be_blocked(job)

    def _finish(self, job: ModelJob, state: State) -> None:
        job.state, job.finished_at, job.claim_id, job.expires_at = state, self.now, None, None
        self._free(job, Scope.QUEUED, Scope.ACTIVE)
        if state is State.FAILED:
            self.letters[job.id] = ModelLetter(job.id)

    def _free(self, job: ModelJob, *scopes: Scope) -> None:
        self.keys = {k: v for k, v in self.keys.items() if not (v[0] == job.id and v[1] in scopes)}

    def _may_be_blocked(self, job: ModelJob) -> None:
        if self.is_paused(PauseScope.KIND, job.asked.kind):
            self._open[job.id] = {job.state, State.BLOCKED}

    # --- maintenance and control

    def promote(self) -> set[tuple[str, int]]:
        """Makes all due jobs ready; returns the queue levels that got jobs for certain."""
        due = [j for j in self.in_state(State.SCHEDULED) if self._due(j) is State.READY]
        for job in due:
            assert job.run_at is not None
            job.state, job.due, job.queued = State.READY, job.run_at, True
            self._may_be_blocked(job)
        return {(j.asked.queue, j.asked.priority) for j in due if j.id not in self._open}

    def sweep(self) -> None:
        """Checks every gate until nothing changes."""
        for job in self.in_state(State.READY):
            if self.is_paused(PauseScope.KIND, job.asked.kind):
                job.state, job.run_at = State.BLOCKED, None
        changed = True
        while changed:
            changed = False
            for job in self.in_state(State.BLOCKED):
                if any(need in self.jobs and self.jobs[need].state in DEAD for need in job.asked.depends_on):
                    self._finish(job, State.CANCELLED)
                    changed = True
        for job in self.in_state(State.BLOCKED):
            if not job.queued and self._may_queue(job):
                job.due, job.queued = self.now if job.waits or job.run_at is None else job.run_at, True
            job.waits = not self._all_met(job)
            if not self._gated(job):
                job.state = self._due(job)

    def cancel(self, job: ModelJob) -> tuple[State, bool, bool]:
        """Returns its state, whether that changed, and whether it was asked to stop."""
        if job.state.final:
            return job.state, False, False
        if job.state is State.RUNNING:
            first, job.cancel_requested = not job.cancel_requested, True
            return job.state, first, True
        self._finish(job, State.CANCELLED)
        return job.state, True, False

    def fail(self, job: ModelJob) -> bool:
        waited = job.state in WAITING
        if waited:
            self._finish(job, State.FAILED)
        return waited

    def run_now(self, job: ModelJob) -> set[State]:
        if job.state is State.SCHEDULED:
            job.state, job.run_at, job.due, job.queued = State.READY, None, self.now, True
            self._may_be_blocked(job)
        return self._open.get(job.id, {job.state})

    def delete_old(self, older_than: timedelta, left: set[UUID]) -> int:
        """Compares with the jobs that are left; returns how many were deleted."""
        needed = {need for job in self.in_state(State.BLOCKED) for need in job.asked.depends_on}
        depended_on = {need for job in self.jobs.values() for need in job.asked.depends_on}
        cutoff = self.now - older_than
        old = {job.id for job in self.jobs.values() if job.finished_at and job.finished_at < cutoff}
        deleted = self.jobs.keys() - left
        assert deleted <= old
        assert old - depended_on <= deleted
        assert not {need for need in deleted & needed if self.jobs[need].state not in COMPLETED}
        for job_id in deleted:
            del self.jobs[job_id]
        self.gone |= deleted
        for letter in self.letters.values():
            closed = letter.status in (ReviewState.RESOLVED, ReviewState.DISCARDED)
            if closed and letter.id in self.gone and letter.reviewed_at and letter.reviewed_at < cutoff:
                letter.old = True
        return len(deleted)

    # --- dead letters

    def observe_letters(self, letters: Iterable[DeadLetter]) -> None:
        shown = {letter.id: (letter.status, letter.new_job_id, letter.reviewed_at) for letter in letters}
        missing = self.letters.keys() - shown.keys()
        assert all(self.letters[job_id].old for job_id in missing)
        for job_id in missing:
            del self.letters[job_id]
        assert shown == {one.id: (one.status, one.new_job_id, one.reviewed_at) for one in self.letters.values()}

    def review(self, letter: ModelLetter, act: ReviewAct, job: NewJob | None) -> Reviewed:
        to = TABLE.get((letter.status, act))
        made = None if to is None or job is None else self._insert(job, self.now)
        holder = None if made is None or made.insertion is Insertion.MADE else made.job_id
        applied = to is not None and holder is None
        if to is not None and applied:
            letter.status, letter.reviewed_at = to, self.now
            letter.new_job_id = None if job is None else job.id
        return Reviewed(
            id=letter.id, status=letter.status, applied=applied, new_job_id=letter.new_job_id, holder=holder
        )

    def resolve(self) -> int:
        """Resolves those whose new jobs have ended; returns how many."""
        ended = [
            letter
            for letter in self.letters.values()
            if letter.status is ReviewState.REPROCESSING
            and letter.new_job_id is not None
            and (letter.new_job_id in self.gone or self.jobs[letter.new_job_id].state.final)
        ]
        for letter in ended:
            new = self.jobs.get(letter.new_job_id) if letter.new_job_id is not None else None
            if new is not None and new.state is State.CANCELLED:
                letter.status, letter.new_job_id = ReviewState.PENDING_REVIEW, None
            else:
                letter.status = ReviewState.RESOLVED
        return len(ended)


def _key(job: NewJob, unique: Unique) -> Key:
    return job.tenant, None if unique.across_kinds else job.kind, unique.key
