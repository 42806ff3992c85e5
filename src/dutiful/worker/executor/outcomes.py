"""Turns what a handler raised into an outcome, and an outcome into a breaker's call result."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from dutiful.core.breaker.state import CallResult
from dutiful.core.duration import brief, duration
from dutiful.core.errors import (
    BreakerOpen,
    CannotOpen,
    ClaimLost,
    DutifulError,
    ItemsFailed,
    JobCancelled,
    LockLost,
    PayloadInvalid,
    StoreUnavailable,
)
from dutiful.core.json import encode
from dutiful.core.outcome import (
    STOPPED,
    Cancel,
    Cancelled,
    Done,
    Fail,
    Failed,
    Lost,
    Outcome,
    Partial,
    PhaseTry,
    Released,
    Skip,
    Snooze,
    Snoozed,
    TimedOut,
    TimeoutExceeded,
)
from dutiful.core.retry.backoff import wait_from
from dutiful.core.retry.classify import ErrorClass, classify, leaves
from dutiful.core.retry.error_info import MESSAGE_LIMIT, class_of, describe, make_error, storable, type_of
from dutiful.core.retry.policy import Retry
from dutiful.core.states import State
from dutiful.core.steps import StepKind, Waiting
from dutiful.worker.slots import Slot, StopReason


@dataclass(frozen=True, slots=True)
class UserCompletion:
    """The job was completed in a transaction of the user's own; whether that was committed, only the store knows."""

    state: State
    otherwise: Outcome  # the outcome of the attempt if it was rolled back


Settlement = Outcome | State | UserCompletion  # a State: of a transaction that is known to be committed
ROLLED_BACK = Failed(
    make_error("RolledBack", "the transaction that completes this job was not committed", ErrorClass.RETRYABLE)
)
_INTERRUPTING = (StoreUnavailable, LockLost, ClaimLost)  # they end a call whatever the service does
_OF_THE_JOB = (Waiting, Cancel, Snooze, BreakerOpen, ClaimLost, LockLost)
# In a job that was not asked to stop they come from another one, whose result it waited for.
_STOPS = (JobCancelled, TimeoutExceeded)


class NotStarted(StoreUnavailable):
    """What the handler needs could not be read, so that it has not run, and the attempt is not counted."""


def encode_result(value: Any, limit: int, what: str = "result") -> str | None:
    """What a handler returned, as JSON text; raises a Snooze or Cancel that it returned."""
    if isinstance(value, (Snooze, Cancel)):
        raise value
    return None if value is None else encode(value, what=what, limit=limit)


def job_signal(error: BaseException, *, stop_requested: bool = False) -> BaseException | None:
    """The error, or the first one of an exception group, that concerns the whole job rather than one failure in it."""
    signals = (*_OF_THE_JOB, *_STOPS) if stop_requested else _OF_THE_JOB
    errors = leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return next((one for one in errors if isinstance(one, signals)), None)


def outcome_of_error(error: BaseException, slot: Slot, retry: Retry, message_limit: int) -> Outcome:
    """The outcome of a handler that raised; re-raises a cancellation of the slot itself."""
    if isinstance(error, asyncio.CancelledError):
        if slot.stop is not None:
            return outcome_of_stop(slot)
        if slot.closing:
            raise error  # otherwise the handler cancelled its own task, or something that it awaited
    if isinstance(error, NotStarted):
        return Released(began=False)
    match job_signal(error, stop_requested=slot.stop is not None):
        case TimeoutExceeded() | JobCancelled() | ClaimLost() if slot.stop is not None:
            return outcome_of_stop(slot)
        case ClaimLost():
            return Lost()
        case None if (late := part_timed_out(error)) is not None and late.limit is not None:
            return TimedOut(late.limit, describe(late, error_class=ErrorClass.TRANSIENT, message_limit=message_limit))
        case _:
            return requested_outcome(error, retry, message_limit)


def part_timed_out(error: BaseException) -> TimeoutExceeded | None:
    """The error of a part of this handler that ctx.timeout() has ended, if the error is that, or a group with it."""
    errors = leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return next((one for one in errors if isinstance(one, TimeoutExceeded) and one.limit is not None), None)


def outcome_of_stop(slot: Slot) -> Outcome:
    """The outcome of a handler that stopped because it was asked to."""
    match slot.stop:
        case StopReason.TIMEOUT:
            allowed = slot.timeout or slot.elapsed
            message = f"ran longer than its timeout of {brief(allowed)}"
            return TimedOut(allowed, make_error("TimeoutExceeded", message, ErrorClass.TRANSIENT))
        case StopReason.CANCEL:
            return Cancelled(STOPPED)
        case StopReason.SHUTDOWN:
            return Released()
        case _:
            return Lost()


def settlement_without_handler(slot: Slot, outcome: Outcome) -> Settlement:
    """The settlement of a handler that did not stop: this outcome, unless it had completed its job itself."""
    own = slot.own_completion
    if own is None:
        return outcome
    if own.settled is not None:
        return own.settled
    return outcome if own.completed_by_user is None else UserCompletion(own.completed_by_user, outcome)


def outcome_without_handler(slot: Slot) -> Outcome:
    """The outcome of a handler that was asked to stop and did not."""
    outcome = outcome_of_stop(slot)
    if not isinstance(outcome, TimedOut) or slot.phase is None or not slot.phase_deadline_applies:
        return outcome
    phase, attempt = slot.phase
    own = None if phase.retry is None else PhaseTry(phase.retry, attempt)
    return replace(outcome, error={**outcome.error, "phase": phase.name}, phase=own)


def requested_outcome(error: BaseException, retry: Retry, message_limit: int) -> Snoozed | Cancelled | Failed:
    """The outcome that an error asks for; also used in child processes, which have no slot."""
    error = job_signal(error) or error
    try:
        match error:
            case Waiting():
                return snooze_in_step(error)
            case Snooze():
                return Snoozed(duration(error.delay))
            case BreakerOpen():
                return snooze_for_breaker(error)
            case Cancel():
                return Cancelled(storable(str.__str__(str(error.reason)), message_limit))
    except BaseException:  # a subclass that lacks an attribute of its base, or cannot be written as text
        pass
    final = isinstance(error, (Fail, PayloadInvalid, CannotOpen))
    try:
        known = classify(error) if final else retry.classified(error)
        info = describe(error, error_class=known.error_class, message_limit=message_limit)
        wait = wait_from(datetime.now(UTC), known.retry_after)
    except BaseException as second:  # no error, however odd, may end the worker
        error_class = ErrorClass.NON_RETRYABLE if final else ErrorClass.RETRYABLE
        message = f"(it could not be described: {type(second).__name__})"
        return Failed(make_error(type_of(error), message, error_class), type(error), final=final)
    return Failed(info, known.decided_by or type(error), wait, final)


def breaker_result(outcome: Outcome, stop: StopReason | None) -> CallResult:
    """The result to report to the breaker that the kind declares; `stop`: why the attempt had to stop, if it had."""
    match outcome:
        case Done():
            return CallResult.GOOD
        case TimedOut():
            return CallResult.BAD
        case Failed(error, exception):
            return _result_of_failure(error, exception)
        case Snoozed(_, because):
            return CallResult.NEUTRAL if because is None else CallResult.UNCLEAR  # of another breaker
        case Cancelled():
            return CallResult.NEUTRAL if stop is None else CallResult.UNCLEAR
        case Partial():
            return CallResult.NEUTRAL
        case Lost() | Released():
            return CallResult.UNCLEAR
        case _:
            assert_never(outcome)


def _result_of_failure(error: Mapping[str, Any], exception: type[BaseException] | None) -> CallResult:
    known = exception if isinstance(exception, type) else Exception
    if issubclass(known, _INTERRUPTING):
        return CallResult.UNCLEAR
    # It would fail with a healthy service too; and an error of Dutiful itself says nothing about a service.
    ours = issubclass(known, DutifulError) and known is not ItemsFailed
    return CallResult.NEUTRAL if ours or class_of(error) is ErrorClass.NON_RETRYABLE else CallResult.BAD


def breaker_result_of_error(error: BaseException | None, slot: Slot, retry: Retry) -> CallResult:
    """The result to report to the breaker of a block that ended with this error."""
    if error is None:
        return CallResult.GOOD
    if isinstance(error, asyncio.CancelledError):
        return CallResult.BAD if slot.stop is StopReason.TIMEOUT else CallResult.UNCLEAR
    if not isinstance(error, Exception):
        return CallResult.UNCLEAR
    if isinstance(error, Skip):
        return CallResult.NEUTRAL
    return breaker_result(outcome_of_error(error, slot, retry, MESSAGE_LIMIT), slot.stop)


def snooze_in_step(waiting: Waiting) -> Snoozed:
    """Ends the attempt until the first sleep or wait is over, or an event comes."""
    if any(step.kind is StepKind.EVENT for step in waiting.steps):
        return Snoozed(timedelta(0), wait=tuple(step.name for step in waiting.steps))
    return Snoozed(min(step.due_at or waiting.now for step in waiting.steps) - waiting.now)


def snooze_for_breaker(error: BreakerOpen) -> Snoozed:
    """A snooze without a delay, because the job waits at the breaker's gate until that opens."""
    return Snoozed(timedelta(0), {**make_error("BreakerOpen", str(error), ErrorClass.TRANSIENT), "breaker": error.name})
