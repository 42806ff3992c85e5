"""Settles outcomes in batches: while one round trip is under way, what comes in waits for the next."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import DataRefused, DutifulError
from dutiful.core.job import Claim, HeldClaim
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Partial, Released
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import class_of, make_error
from dutiful.core.settle import ZERO, Change, Policy, Uniform, decide_or_fail
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE, Delivery
from dutiful.kind import Kind
from dutiful.maintenance.runner import MaintenanceRunner
from dutiful.observe.logs import job_fields
from dutiful.observe.outage import OutageLog
from dutiful.store.claims import ClaimStore, Completion, Refusal, RefusalReason
from dutiful.store.limits import LimitStore
from dutiful.worker.counters import NO_TIMING, AttemptCounters, Completed, Timing
from dutiful.worker.executor.outcomes import Settlement, UserCompletion
from dutiful.worker.leases import Leases

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer

log = logging.getLogger("dutiful.worker")
BATCH = 3_000
# While so many outcomes come in during one round trip, the next one waits until it has more to bring, because a commit
# costs the same whatever it brings.
FLOW = 100
GATHER = 0.05
PART = "outcomes wait to be stored"
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
# Placeholders for the fields of a claim that is known by its lease alone. A release reads only the queue; "" is none.
_UNKNOWN: dict[str, Any] = {
    field.name: field.type() if field.type in (int, float, str) else None for field in msgspec.structs.fields(Claim)
}
AWAITED = '"awaited"'  # in the options of a job that others were enqueued with to wait for
RETRY_LOCKED = 1.0  # seconds between two tries to settle claims whose lease is locked


@dataclass(slots=True)
class SettleBatch:
    """Outcomes to be stored: completions, which are most of them, and other changes."""

    done: list[Completed] = field(default_factory=list)
    changes: list[tuple[Claim, Change]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.done) + len(self.changes)

    @property
    def claims(self) -> set[int]:
        return {claim.claim_id for claim, _, _ in self.done} | {claim.claim_id for claim, _ in self.changes}

    def take(self) -> "SettleBatch":
        """Removes and returns the next batch."""
        taken = SettleBatch(self.done[:BATCH], self.changes[:BATCH])
        self.done, self.changes = self.done[BATCH:], self.changes[BATCH:]
        return taken

    def put_back(self, taken: "SettleBatch") -> None:
        self.done, self.changes = taken.done + self.done, taken.changes + self.changes


@dataclass(eq=False)
class Settler:
    claims: ClaimStore
    kinds: Mapping[str, Kind[Any, Any]]
    leases: Leases
    uniform: Uniform
    counters: AttemptCounters | None = None
    delivery: Delivery | None = None
    maintenance: MaintenanceRunner | None = None
    tracer: "Tracer | None" = None
    outages: OutageLog = field(default_factory=OutageLog)
    limits: LimitStore | None = None

    def __post_init__(self) -> None:
        self._waiting = SettleBatch()
        self._under_way = SettleBatch()
        self._locked = SettleBatch()  # a user's open transaction holds their leases: tried again, never waited for
        self._by_users: dict[int, tuple[State, Timing]] = {}  # by claim: completed, if the user has committed
        self._retry_locked_at = 0.0
        self._retrying_locked = False
        self._skip_locked = False  # because the last try failed, perhaps by such a lease
        self._pause = FIRST_RETRY
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._flow = 0  # how many outcomes came in during the last round trip
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._limited = frozenset(name for name, kind in self.kinds.items() if kind.limits)
        self._with_feedback = frozenset(
            name for name, kind in self.kinds.items() if any(spec.limit.feedback for spec in kind.limits)
        )
        self._holds: dict[UUID, timedelta] = {}  # by job: how long its service has asked to wait
        self.settled_count = 0

    @property
    def pending(self) -> int:
        """How many outcomes wait for a round trip."""
        return len(self._waiting) + len(self._locked)

    @property
    def unsettled(self) -> set[int]:
        """The claims whose outcomes are not known to be stored."""
        return self._waiting.claims | self._under_way.claims | self._locked.claims

    def settle(self, claim: Claim, outcome: Settlement, timing: Timing | None = None) -> None:
        """Queues an outcome; writing it is retried until the store answers.

        A State: the handler's transaction has stored it, only leases and counters follow. No timing: no handler ran.
        """
        if isinstance(outcome, UserCompletion):
            # If it was committed, the store recognises the other outcome as a repeat.
            self._by_users[claim.claim_id] = outcome.state, timing or NO_TIMING
            outcome = outcome.otherwise
        if type(outcome) is Done:
            done = Completion(claim.job_id, claim.claim_id, outcome.result, _names_webhook(claim))
            self._waiting.done.append((claim, done, timing or NO_TIMING))
            if len(self._waiting.done) == BATCH // 2:
                self._full.set()
        elif isinstance(outcome, State):
            self.leases.drop([claim.claim_id])
            if self.counters is not None:
                self.counters.settled_by_handler(outcome, claim, timing or NO_TIMING)
            self._release_dependents([claim])
            return
        else:
            self._note_ended(claim, timing)
            change = self._decide(claim, outcome)
            self._waiting.changes.append((claim, change))
            if claim.kind in self._with_feedback and isinstance(outcome, Failed):
                self._note_hold(outcome, change)
        self._wake.set()

    def _note_hold(self, outcome: Failed, change: Change) -> None:
        wait = outcome.retry_after or change.delay
        if wait is not None and class_of(outcome.error) is ErrorClass.RATE_LIMITED:
            self._holds[change.job_id] = wait

    def settle_late(self, claim: Claim, outcome: Settlement) -> None:
        """Takes the outcome of a handler without which its job was settled: the store refuses it, and records that.

        An attempt that stopped at last, or failed, has nothing to lose.
        """
        if not isinstance(outcome, (Done, Partial)):
            log.info("job %s: its handler has ended at last", ids.public(claim.job_id), extra=job_fields(claim))
        elif claim.claim_id in self.unsettled:
            asyncio.get_running_loop().call_later(RETRY_LOCKED, self.settle_late, claim, outcome)
        else:
            self._waiting.changes.append((claim, self._decide(claim, outcome)))
            self._wake.set()

    def release_unknown(self, held: HeldClaim) -> None:
        """Releases a claim that this worker holds without knowing its job."""
        self.settle(_without_job(held), Released(began=False))

    def release_rest(self) -> None:
        """Releases every claim of this worker that has no outcome yet."""
        settling = self.unsettled
        for claim, _ in self.leases.snapshot():
            if claim.claim_id not in settling:
                self.settle(claim, Released())

    async def flush(self) -> None:
        """Waits until every outcome has been settled."""
        if self.pending:
            self._wake.set()
            self._full.set()
            self._idle.clear()
        await self._idle.wait()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._full.set()

    async def run(self) -> None:
        while not (self._closing and not self.pending):
            await self._wait_for_outcomes()
            self._idle.clear()
            while self._waiting:
                await self._gather()
                await self._write_batch(self._waiting)
                self._flow = len(self._waiting)
            if self._locked and time.monotonic() >= self._retry_locked_at:
                self._skip_locked = self._retrying_locked = True
                await self._write_batch(self._locked)
                self._retrying_locked = False
            if not self.pending:
                self._idle.set()

    async def _gather(self) -> None:
        self._full.clear()
        if self._flow >= FLOW and len(self._waiting.done) < BATCH // 2 and not self._closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), GATHER)

    async def _wait_for_outcomes(self) -> None:
        if self._locked:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), RETRY_LOCKED)
        else:
            await self._wake.wait()
        self._wake.clear()

    async def _write_batch(self, source: SettleBatch) -> None:
        batch = self._under_way = source.take()
        try:
            if self._holds and self.limits is not None:
                # First, because the ends of jobs let others start.
                holds, self._holds = self._holds, {}
                try:
                    await self.limits.hold(holds)
                except DutifulError:
                    self._holds = holds | self._holds
                    raise
            if batch.done:
                await self._complete(batch.done)
                batch.done = []
            if batch.changes:
                await self._apply(batch.changes)
            self._under_way = SettleBatch()
            self._pause, self._skip_locked = FIRST_RETRY, False
            self.outages.works(PART)
        except DutifulError as error:
            # Kept and tried again: no outcome is dropped while this worker lives.
            source.put_back(batch)
            self._under_way = SettleBatch()
            self._skip_locked = True
            self.outages.failed(PART, error)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_RETRY)

    async def _complete(self, done: Sequence[Completed]) -> None:
        try:
            refused = await self.claims.complete([one for _, one, _ in done], skip_locked=self._skip_locked)
        except DataRefused as error:
            if len(done) > 1:
                middle = len(done) // 2
                await self._complete(done[:middle])
                await self._complete(done[middle:])
                return
            await self._fail_refused_result(done[0], error)
            return
        if refused and (locked := _of(refused, RefusalReason.LOCKED)):
            self._set_aside(SettleBatch([one for one in done if one[0].claim_id in locked]))
            done = [one for one in done if one[0].claim_id not in locked]
        cancelled = _of(refused, RefusalReason.CANCEL_REQUESTED) if refused else set()
        if cancelled:
            unwanted = [one for one in done if one[0].claim_id in cancelled]
            done = [one for one in done if one[0].claim_id not in cancelled]
            for claim, _, timing in unwanted:
                self._note_ended(claim, timing)
            await self._cancel([claim for claim, _, _ in unwanted])
        self.settled_count += len(done)
        self.leases.drop([claim.claim_id for claim, _, _ in done])
        self._on_final(any(one.webhook for _, one, _ in done))
        self._release_dependents(claim for claim, _, _ in done)
        if self._limited:
            self._free_slots(claim for claim, _, _ in done)
        if self.counters is not None:
            lost = _of(refused, RefusalReason.LOST)
            self.counters.completed([one for one in done if one[0].claim_id not in lost] if lost else done)
            # The next batch goes out first, so that they are counted while the store is at work.
            asyncio.get_running_loop().call_soon(self.counters.count)
        if refused:
            _log_lost(refused, [claim for claim, _, _ in done])

    async def _fail_refused_result(self, completed: Completed, error: DataRefused) -> None:
        """Fails the one attempt whose result the database did not accept."""
        claim, _, timing = completed
        if self.leases.claim(claim.claim_id) is not None:
            message = f"the job's result could not be stored: {error}"
            info = make_error("ResultRefused", message, ErrorClass.NON_RETRYABLE)
            self._note_ended(claim, timing)
            await self._apply([(claim, self._decide(claim, Failed(info, final=True)))])

    async def _apply(self, changes: Sequence[tuple[Claim, Change]]) -> None:
        try:
            refused = await self.claims.settle([change for _, change in changes], skip_locked=self._skip_locked)
        except DataRefused:
            if len(changes) > 1:
                middle = len(changes) // 2
                await self._apply(changes[:middle])
                await self._apply(changes[middle:])
                return
            claim, change = changes[0]
            error_class = class_of(change.errors[0]) if change.errors else None
            message = "the job failed, and its error could not be stored"
            info = make_error("ErrorRefused", message, error_class or ErrorClass.RETRYABLE)
            storable = msgspec.structs.replace(change, result=None, errors=(info,))
            refused = await self.claims.settle([storable], skip_locked=self._skip_locked)
        if locked := _of(refused, RefusalReason.LOCKED):
            self._set_aside(SettleBatch(changes=[one for one in changes if one[0].claim_id in locked]))
            changes = [one for one in changes if one[0].claim_id not in locked]
        self.settled_count += len(changes)
        cancelled = _of(refused, RefusalReason.CANCEL_REQUESTED)
        stored = [one for one in changes if one[0].claim_id not in cancelled]
        self.leases.drop([claim.claim_id for claim, _ in stored])
        repeated = _of(refused, RefusalReason.REPEATED)
        for claim, change in stored:
            if claim.claim_id in repeated and claim.claim_id in self._by_users:
                self._on_final(_names_webhook(claim))
                continue
            self._log_failure(claim, change)
            self._on_settled(claim, change)
        self._release_dependents(
            claim for claim, change in stored if change.to.final or claim.claim_id in self._by_users
        )
        if self._limited:
            self._free_slots(claim for claim, _ in stored)
        self._count(stored, refused)
        _log_lost(refused, [claim for claim, _ in changes])
        if cancelled:
            await self._cancel([claim for claim, _ in changes if claim.claim_id in cancelled])

    async def _cancel(self, claims: Sequence[Claim]) -> None:
        """Settles claims whose cancellation was requested before their outcomes came."""
        await self._apply([(claim, self._decide(claim, Cancelled("cancelled"))) for claim in claims])

    def _decide(self, claim: Claim, outcome: Outcome) -> Change:
        kind = self.kinds.get(claim.kind)
        policy = kind.policy if kind else Policy()
        return decide_or_fail(claim, outcome, policy, claim.max_attempts, self.uniform)

    def _set_aside(self, locked: SettleBatch) -> None:
        if not self._retrying_locked:
            log.warning("%d outcomes wait for transactions that hold their leases; the others do not", len(locked))
        self._locked.put_back(locked)
        self._retry_locked_at = time.monotonic() + RETRY_LOCKED

    def _note_ended(self, claim: Claim, timing: Timing | None) -> None:
        if self.counters is not None and timing is not None:
            self.counters.attempt_ended(claim, timing)

    def _count(self, changes: Sequence[tuple[Claim, Change]], refused: Sequence[Refusal]) -> None:
        if self.counters is None:
            for claim, _ in changes:
                self._by_users.pop(claim.claim_id, None)
            return
        lost, repeated = _of(refused, RefusalReason.LOST), _of(refused, RefusalReason.REPEATED)
        for claim, change in changes:
            by_user = self._by_users.pop(claim.claim_id, None)
            if by_user is not None and claim.claim_id in repeated:
                self.counters.refused(claim)
                self.counters.settled_by_handler(by_user[0], claim, by_user[1])
                continue
            # A lost attempt was counted when its claim was taken away.
            if claim.claim_id in lost or (change.outcome == "lost" and claim.claim_id in repeated):
                self.counters.refused(claim)
            else:
                self.counters.settled(claim, change)

    def _log_failure(self, claim: Claim, change: Change) -> None:
        if change.outcome not in ("failed", "timed_out"):
            return
        # The span has ended, so the log record does not get it by itself.
        span = {} if self.tracer is None else self.tracer.span_of(claim)
        error = change.errors[0] if change.errors else {}
        again = f"it is tried again in {brief(change.delay or ZERO)}"
        log.warning(
            "job %s (%s) failed at attempt %d of %d: %s: %s; %s",
            *(ids.public(claim.job_id), claim.kind, claim.attempt, claim.max_attempts),
            *(error.get("type"), str(error.get("message"))[:500]),
            "it is a dead letter now" if change.to is State.FAILED else again,
            extra={**job_fields(claim), **span},
        )

    def _on_settled(self, claim: Claim, change: Change) -> None:
        """Hints other workers at the job, and maintenance at when it is due."""
        if change.to is State.READY and self.delivery is not None:
            # Another worker may have a free slot for it. A job that keeps its seq is below their floors, where only a
            # peek finds it.
            hinted = claim.queue and not change.keep_seq
            self.delivery.hint(frozenset({(claim.queue, claim.priority)}) if hinted else EVERYWHERE)
        if self.maintenance is not None and change.to is State.SCHEDULED and change.delay is not None:
            self.maintenance.job_scheduled(change.delay)
        if change.to.final:
            self._on_final(_names_webhook(claim))

    def _release_dependents(self, claims: Iterable[Claim]) -> None:
        if self.maintenance is None:
            return
        if awaited := [claim.job_id for claim in claims if claim.options is not None and AWAITED in claim.options]:
            self.maintenance.awaited_ended(awaited)

    def _free_slots(self, claims: Iterable[Claim]) -> None:
        if self.maintenance is None:
            return
        if ended := [claim.job_id for claim in claims if claim.kind in self._limited]:
            self.maintenance.slots_freed(ended)

    def _on_final(self, webhook: bool) -> None:
        if self.maintenance is not None and (webhook or self.maintenance.wants_jobs):
            self.maintenance.jobs_ended()


def _of(refused: Sequence[Refusal], reason: RefusalReason) -> set[int]:
    return {refusal.claim_id for refusal in refused if refusal.reason is reason}


def _without_job(held: HeldClaim) -> Claim:
    """A claim that can only be released, because most of its job is not known."""
    known = msgspec.structs.asdict(held)
    return Claim(**{name: known.get(name, unknown) for name, unknown in _UNKNOWN.items()})


def _names_webhook(claim: Claim) -> bool:
    return claim.options is not None and '"webhook"' in claim.options


def _log_lost(refused: Sequence[Refusal], claims: Sequence[Claim]) -> None:
    known = {claim.claim_id: claim for claim in claims}
    for refusal in refused:
        if refusal.reason is RefusalReason.LOST:
            job, claim = ids.public(refusal.job_id), known.get(refusal.claim_id)
            fields = {"job": job} if claim is None else job_fields(claim)
            log.warning("job %s: its claim was lost, so this outcome is discarded", job, extra=fields)
