"""The one place that decides what becomes of a job after an attempt."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, assert_never
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import class_of, describe, made
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
from dutiful.core.pipeline import PhaseState
from dutiful.core.retry import Retry
from dutiful.core.transitions import Act, State, check

log = logging.getLogger("dutiful.core")
Uniform = Callable[[float, float], float]
ZERO = timedelta(0)


class Held(Protocol):
    """What the decision needs to know of a claim; Claim and Lapsed both have it."""

    @property
    def job_id(self) -> UUID: ...
    @property
    def kind(self) -> str: ...
    @property
    def claim_id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def crashes(self) -> int: ...


class Policy(msgspec.Struct, frozen=True):
    """How a kind wants its failures and crashes treated."""

    retry: Retry = Retry()
    max_crashes: int = 3
    retry_crashes: bool = True


class Change(msgspec.Struct, frozen=True):
    """Where a running job goes now; the store checks the claim and writes it in one transaction."""

    job_id: UUID
    claim_id: int
    to: State
    outcome: str
    attempt: int  # attempts spent so far
    crashes: int
    delay: timedelta | None = None  # for State.SCHEDULED
    result: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    keep_seq: bool = False  # back to the place in the line that it had
    # What becomes of a phase that was running, and by CANCELLED of all that are not over.
    phase_to: PhaseState | None = None

    @property
    def barred_by(self) -> str | None:
        """The breaker before whose gate it waits, unless its kind is paused, too."""
        return self.errors[0].get("breaker") if self.outcome == "snoozed" and self.errors else None


def decide(held: Held, outcome: Outcome, policy: Policy, max_attempts: int, uniform: Uniform) -> Change:
    """The Change for `outcome`; `max_attempts` is the job's own, which may differ from its kind's."""
    match outcome:
        case Done(result):
            return _move(held, Act.COMPLETE, State.COMPLETED, "done", result=result)
        case Partial(result, errors):
            return _move(held, Act.COMPLETE, State.COMPLETED_WITH_ERRORS, "partial", result=result, errors=errors)
        case Failed(error, _, _, _, phase, more):
            delay = delay_after(outcome, *_counting(held, policy, max_attempts, phase), uniform)
            return _retry_or_fail(held, "failed", delay, (error, *more), phase)
        case TimedOut(_, error, phase):
            delay = delay_after(outcome, *_counting(held, policy, max_attempts, phase), uniform)
            return _retry_or_fail(held, "timed_out", delay, (error,), phase)
        case Snoozed(delay, because):
            # A snooze is not a failure, so the attempt is handed back.
            told = () if because is None else (because,)
            if because is not None and "breaker" in because:
                return _move(held, Act.SNOOZE, State.BLOCKED, "snoozed", attempt=held.attempt - 1, errors=told)
            return _later(held, Act.SNOOZE, "snoozed", delay, attempt=held.attempt - 1, errors=told)
        case Cancelled(reason):
            error = {"type": "Cancelled", "message": reason}
            return _move(held, Act.CANCEL, State.CANCELLED, "cancelled", errors=(error,))
        case Lost():
            return _lost(held, policy)
        case Released():
            return _move(held, Act.RELEASE, State.READY, "released", attempt=held.attempt - 1, keep_seq=True)
        case _:
            assert_never(outcome)


def decide_surely(held: Held, outcome: Outcome, policy: Policy, max_attempts: int, uniform: Uniform) -> Change:
    """As decide; but a policy that fails ends its job, not whoever asked about it and many others."""
    try:
        return decide(held, outcome, policy, max_attempts, uniform)
    except Exception as error:
        log.exception("the retry policy of kind %s failed; its job %s too", held.kind, ids.public(held.job_id))
        return decide(held, Failed(describe(error), final=True), Policy(), max_attempts, uniform)


def delay_after(
    outcome: Failed | TimedOut, retry: Retry, attempt: int, max_attempts: int, uniform: Uniform
) -> timedelta | None:
    """How long to wait before the next attempt by this policy; None if there is none."""
    error_class = class_of(outcome.error)
    if isinstance(outcome, TimedOut):
        return retry.delay_after(attempt, TimeoutExceeded, uniform, error_class=error_class, max_attempts=max_attempts)
    if outcome.final:
        return None
    return retry.delay_after(
        attempt, outcome.exception, uniform, outcome.retry_after, error_class=error_class, max_attempts=max_attempts
    )


def _counting(held: Held, policy: Policy, max_attempts: int, phase: PhaseTry | None) -> tuple[Retry, int, int]:
    """Whose attempts count: those of a phase with a policy of its own, or the job's."""
    if phase is None:
        return policy.retry, held.attempt, max_attempts
    return phase.retry, phase.attempt, phase.retry.max_attempts


def _retry_or_fail(
    held: Held, word: str, delay: timedelta | None, errors: tuple[dict[str, Any], ...], phase: PhaseTry | None
) -> Change:
    if delay is None:
        return _move(held, Act.FAIL, State.FAILED, word, errors=errors)
    # What a phase retries by its own count, the job has not spent.
    attempt = held.attempt if phase is None else held.attempt - 1
    return _later(held, Act.RETRY, word, delay, attempt=attempt, errors=errors)


def _lost(held: Held, policy: Policy) -> Change:
    """A lost attempt is the worker's fault until the same job was there at too many deaths."""
    crashes = held.crashes + 1
    if policy.retry_crashes and crashes < policy.max_crashes:
        return _move(held, Act.LOSE, State.READY, "lost", attempt=held.attempt - 1, crashes=crashes)
    times = "once" if crashes == 1 else f"{crashes} times"
    message = f"the worker running this job died {times}; it may be what kills it"
    error = made("WorkerLost", message, ErrorClass.TRANSIENT)
    return _move(held, Act.LOSE, State.FAILED, "lost", crashes=crashes, errors=(error,))


def _later(
    held: Held, act: Act, word: str, delay: timedelta, *, attempt: int, errors: tuple[dict[str, Any], ...] = ()
) -> Change:
    if delay <= ZERO:
        return _move(held, act, State.READY, word, attempt=attempt, errors=errors)
    return _move(held, act, State.SCHEDULED, word, attempt=attempt, errors=errors, delay=delay)


def _move(
    held: Held,
    act: Act,
    to: State,
    word: str,
    *,
    attempt: int | None = None,
    crashes: int | None = None,
    delay: timedelta | None = None,
    result: str | None = None,
    errors: tuple[dict[str, Any], ...] = (),
    keep_seq: bool = False,
) -> Change:
    return Change(
        job_id=held.job_id,
        claim_id=held.claim_id,
        to=check(State.RUNNING, act, to),
        outcome=word,
        attempt=held.attempt if attempt is None else attempt,
        crashes=held.crashes if crashes is None else crashes,
        delay=delay,
        result=result,
        errors=errors,
        keep_seq=keep_seq,
        phase_to=_PHASE_TO.get(word),
    )


_PHASE_TO = {
    "failed": PhaseState.FAILED,
    "timed_out": PhaseState.FAILED,
    "cancelled": PhaseState.CANCELLED,
    "lost": PhaseState.INTERRUPTED,
    "released": PhaseState.INTERRUPTED,
    "snoozed": PhaseState.INTERRUPTED,
}
