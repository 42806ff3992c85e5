"""What it means how a handler ended."""

import asyncio
from datetime import UTC, datetime

from dutiful.core.classify import classify
from dutiful.core.duration import duration
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import describe, made, storable, type_of
from dutiful.core.errors import ClaimLost, JobCancelled, PayloadInvalid
from dutiful.core.outcome import (
    Cancel,
    Cancelled,
    Fail,
    Failed,
    Lost,
    Outcome,
    Released,
    Snooze,
    Snoozed,
    TimedOut,
    TimeoutExceeded,
)
from dutiful.core.retry import Retry
from dutiful.core.retry_after import wait_from
from dutiful.worker.signal import of_the_job
from dutiful.worker.slot import Slot, Stop


def ended_by(error: BaseException, slot: Slot, retry: Retry, message_limit: int) -> Outcome:
    """The outcome of a handler that raised; raises again what is meant for the slot itself."""
    if not isinstance(error, asyncio.CancelledError):
        return _raised(error, slot, retry, message_limit)
    if slot.stop is not None:
        return stopped(slot)
    if slot.closing:
        raise error
    # Its own doing: it cancelled its task, or something that it awaited.
    return _raised(error, slot, retry, message_limit)


def stopped(slot: Slot) -> Outcome:
    """The handler was told to stop and did."""
    match slot.stop:
        case Stop.TIMEOUT:
            allowed = slot.allowed or slot.ran
            message = f"ran longer than its timeout of {allowed}"
            return TimedOut(allowed, made("TimeoutExceeded", message, ErrorClass.TRANSIENT))
        case Stop.CANCEL:
            return Cancelled("cancelled while running")
        case Stop.SHUTDOWN:
            return Released()
        case _:
            return Lost()


def meant_by(error: BaseException, retry: Retry, message_limit: int) -> Snoozed | Cancelled | Failed:
    """What an error that a handler raised asks for, in whatever process that was."""
    error = of_the_job(error) or error
    try:
        match error:
            case Snooze():
                return Snoozed(duration(error.delay))
            case Cancel():
                return Cancelled(storable(str.__str__(str(error.reason)), message_limit))
    except BaseException:  # a subclass without what its base has, or one that cannot be written as text
        pass
    final = isinstance(error, (Fail, PayloadInvalid))
    try:
        known = classify(error) if final else retry.classified(error)
        told = describe(error, error_class=known.error_class, message_limit=message_limit)
        wait = wait_from(datetime.now(UTC), known.retry_after)
    except BaseException as second:  # whatever an error is made of, it ends its job and never the worker
        error_class = ErrorClass.NON_RETRYABLE if final else ErrorClass.RETRYABLE
        message = f"(it could not be described: {type(second).__name__})"
        return Failed(made(type_of(error), message, error_class), type(error), final=final)
    return Failed(told, known.decided_by or type(error), wait, final)


def _raised(error: BaseException, slot: Slot, retry: Retry, message_limit: int) -> Outcome:
    match of_the_job(error, told_to_stop=slot.stop is not None):
        case TimeoutExceeded() | JobCancelled() | ClaimLost() if slot.stop is not None:
            return stopped(slot)
        case ClaimLost():
            return Lost()
        case _:
            return meant_by(error, retry, message_limit)
