"""Decides, for both stores and all workers, the next state of a job after an attempt."""

import logging
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, assert_never
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.job import Claim, HeldClaim, PhaseState
from dutiful.core.outcome import (
    Cancelled,
    Done,
    Failed,
    Lost,
    Outcome,
    Partial,
    PhaseTry,
    Released,
    Snoozed,
    TimedOut,
    TimeoutExceeded,
)
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import class_of, describe, fingerprint, make_error
from dutiful.core.retry.policy import Retry
from dutiful.core.states import State, Transition, check

log = logging.getLogger("dutiful.core")
AnyClaim = Claim | HeldClaim
Uniform = Callable[[float, float], float]
ZERO = timedelta(0)
REFUSED = "refused"  # the outcome recorded for an attempt that reported after its claim was lost


class Policy(msgspec.Struct, frozen=True):
    """How a kind treats failures and crashes."""

    retry: Retry = Retry()
    max_crashes: int = 3
    retry_crashes: bool = True


class Change(msgspec.Struct, frozen=True):
    """The next state of a running job; the store checks the claim and writes it in one transaction."""

    job_id: UUID
    claim_id: int
    to: State
    outcome: str
    attempt: int  # attempts spent so far
    crashes: int
    delay: timedelta | None = None  # for State.SCHEDULED
    result: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    keep_seq: bool = False  # back to its old position in the queue
    # The state of the phase that was running; CANCELLED applies to all phases that are not over.
    phase_to: PhaseState | None = None
    wait: tuple[str, ...] | None = None  # the steps that block it, unless one is over meanwhile
    began: bool = False  # of a release: limits count it as a start

    @property
    def rejected_by(self) -> str | None:
        """The breaker whose gate blocks it, unless its kind is paused as well."""
        return self.errors[0].get("breaker") if self.outcome == "snoozed" and self.errors else None


def decide(held: AnyClaim, outcome: Outcome, policy: Policy, max_attempts: int, uniform: Uniform) -> Change:
    """The Change that `outcome` makes; `max_attempts` is the job's own, which may differ from its kind's."""
    match outcome:
        case Done(result):
            return _move(held, Transition.COMPLETE, State.COMPLETED, "done", result=result)
        case Partial(result, errors):
            return _move(
                held, Transition.COMPLETE, State.COMPLETED_WITH_ERRORS, "partial", result=result, errors=errors
            )
        case Failed(error, _, _, _, phase, more):
            delay = delay_after(outcome, *_counted(held, policy, max_attempts, phase), uniform)
            return _retry_or_fail(held, "failed", delay, (error, *more), phase)
        case TimedOut(_, error, phase):
            delay = delay_after(outcome, *_counted(held, policy, max_attempts, phase), uniform)
            return _retry_or_fail(held, "timed_out", delay, (error,), phase)
        case Snoozed(delay, because, wait):
            # A snooze is not a failure, so the attempt is not counted.
            errors = () if because is None else (because,)
            if wait is not None:
                return _move(held, Transition.SNOOZE, State.BLOCKED, "snoozed", attempt=held.attempt - 1, wait=wait)
            if because is not None and "breaker" in because:
                return _move(held, Transition.SNOOZE, State.BLOCKED, "snoozed", attempt=held.attempt - 1, errors=errors)
            return _later(held, Transition.SNOOZE, "snoozed", delay, attempt=held.attempt - 1, errors=errors)
        case Cancelled(reason, sealed):
            error = {"type": "Cancelled", "message": reason, **(sealed or {})}
            return _move(held, Transition.CANCEL, State.CANCELLED, "cancelled", errors=(error,))
        case Lost():
            return _lost(held, policy)
        case Released(began):
            attempt = held.attempt - 1
            return _move(held, Transition.RELEASE, State.READY, "released", attempt=attempt, keep_seq=True, began=began)
        case _:
            assert_never(outcome)


def decide_or_fail(held: AnyClaim, outcome: Outcome, policy: Policy, max_attempts: int, uniform: Uniform) -> Change:
    """Like decide, but a policy that raises fails its job instead of the caller, which settles many others."""
    try:
        return decide(held, outcome, policy, max_attempts, uniform)
    except Exception as error:
        log.exception("the retry policy of kind %s raised, so its job %s fails", held.kind, ids.public(held.job_id))
        return decide(held, Failed(describe(error), final=True), Policy(), max_attempts, uniform)


def is_repeat(outcome: str, ended: State | None, recorded: Collection[str]) -> bool:
    """Whether an outcome whose claim is gone was stored before, because the reply was lost and it was sent again.

    `ended` is the final state that this claim gave its job, if it did; `recorded` are the outcomes of its attempts.
    """
    # Postgres decides this, and refused_error, in record_refusals (claims_settle.sql); test_stores_agree.py compares.
    # A success is no repeat of what a person or the rescuer has ended otherwise meanwhile.
    if ended is not None and not (outcome in ("done", "partial") and ended in (State.FAILED, State.CANCELLED)):
        return True
    return outcome in recorded


def refused_error(outcome: str) -> dict[str, Any]:
    """The error recorded with REFUSED, once a claim, because what was done under it is lost."""
    return {"type": "ClaimLost", "message": f"its outcome came after the claim was lost: {outcome}"}


def delay_after(
    outcome: Failed | TimedOut, retry: Retry, attempt: int, max_attempts: int, uniform: Uniform
) -> timedelta | None:
    """How long this policy waits before the next attempt; None if there is none."""
    error_class = class_of(outcome.error)
    if isinstance(outcome, TimedOut):
        return retry.delay_after(attempt, TimeoutExceeded, uniform, error_class=error_class, max_attempts=max_attempts)
    if outcome.final:
        return None
    return retry.delay_after(
        attempt, outcome.exception, uniform, outcome.retry_after, error_class=error_class, max_attempts=max_attempts
    )


def _counted(held: AnyClaim, policy: Policy, max_attempts: int, phase: PhaseTry | None) -> tuple[Retry, int, int]:
    """The policy and attempts that count: those of a phase with its own policy, or the job's."""
    if phase is None:
        return policy.retry, held.attempt, max_attempts
    return phase.retry, phase.attempt, phase.retry.max_attempts


def _retry_or_fail(
    held: AnyClaim, outcome: str, delay: timedelta | None, errors: tuple[dict[str, Any], ...], phase: PhaseTry | None
) -> Change:
    if delay is None:
        return _move(held, Transition.FAIL, State.FAILED, outcome, errors=errors)
    # An attempt that a phase counts is not counted for the job.
    attempt = held.attempt if phase is None else held.attempt - 1
    return _later(held, Transition.RETRY, outcome, delay, attempt=attempt, errors=errors)


def _lost(held: AnyClaim, policy: Policy) -> Change:
    """A lost attempt is not counted until the same job was running at `max_crashes` worker deaths."""
    crashes = held.crashes + 1
    if policy.retry_crashes and crashes < policy.max_crashes:
        attempt = held.attempt - 1
        # Nothing set a new time, so it has been due all along.
        return _move(held, Transition.LOSE, State.READY, "lost", attempt=attempt, crashes=crashes, keep_seq=True)
    return _move(held, Transition.LOSE, State.FAILED, "lost", crashes=crashes, errors=(lost_error(crashes),))


def lost_error(crashes: int) -> dict[str, Any]:
    """The error of a job that was running at so many worker deaths; sql_maintenance.sql makes the same."""
    times = "once" if crashes == 1 else f"{crashes} times"
    message = f"the worker running this job died {times}; it may be what kills it"
    return make_error("WorkerLost", message, ErrorClass.TRANSIENT)


def dependency_reason(needed: UUID, state: State) -> str:
    """Why a job ended that depends on one that did not complete; dependents.sql says the same."""
    became = "failed" if state is State.FAILED else "was cancelled"
    return f"job {ids.public(needed)}, which it depends on, {became}"


def dependency_error(needed: UUID, state: State) -> dict[str, Any]:
    """The error of a job that fails by the policy of an edge."""
    made = make_error("DependencyFailed", dependency_reason(needed, state), ErrorClass.NON_RETRYABLE)
    return {**made, "fingerprint": DEPENDENCY_FINGERPRINT}


DEPENDENCY_FINGERPRINT = fingerprint("DependencyFailed", "a job that it depends on failed or was cancelled")


def _later(
    held: AnyClaim,
    transition: Transition,
    outcome: str,
    delay: timedelta,
    *,
    attempt: int,
    errors: tuple[dict[str, Any], ...] = (),
) -> Change:
    if delay <= ZERO:
        return _move(held, transition, State.READY, outcome, attempt=attempt, errors=errors)
    return _move(held, transition, State.SCHEDULED, outcome, attempt=attempt, errors=errors, delay=delay)


def _move(
    held: AnyClaim,
    transition: Transition,
    to: State,
    outcome: str,
    *,
    attempt: int | None = None,
    crashes: int | None = None,
    delay: timedelta | None = None,
    result: str | None = None,
    errors: tuple[dict[str, Any], ...] = (),
    keep_seq: bool = False,
    wait: tuple[str, ...] | None = None,
    began: bool = False,
) -> Change:
    return Change(
        job_id=held.job_id,
        claim_id=held.claim_id,
        to=check(State.RUNNING, transition, to),
        outcome=outcome,
        attempt=held.attempt if attempt is None else attempt,
        crashes=held.crashes if crashes is None else crashes,
        delay=delay,
        result=result,
        errors=errors,
        keep_seq=keep_seq,
        phase_to=_PHASE_TO.get(outcome),
        wait=wait,
        began=began,
    )


_PHASE_TO = {
    "failed": PhaseState.FAILED,
    "timed_out": PhaseState.FAILED,
    "cancelled": PhaseState.CANCELLED,
    "lost": PhaseState.INTERRUPTED,
    "released": PhaseState.INTERRUPTED,
    "snoozed": PhaseState.INTERRUPTED,
}
