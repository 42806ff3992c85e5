"""What it means how a handler ended."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from dutiful.core.breaker import Sign
from dutiful.core.classify import classify
from dutiful.core.duration import duration
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import MESSAGE_LIMIT, class_of, describe, made, storable, type_of
from dutiful.core.errors import (
    BreakerOpen,
    ClaimLost,
    DutifulError,
    ItemsFailed,
    JobCancelled,
    LockLost,
    PayloadInvalid,
    StoreUnavailable,
)
from dutiful.core.outcome import (
    Cancel,
    Cancelled,
    Done,
    Fail,
    Failed,
    Lost,
    Outcome,
    Partial,
    Released,
    Skip,
    Snooze,
    Snoozed,
    TimedOut,
    TimeoutExceeded,
)
from dutiful.core.retry import Retry
from dutiful.core.retry_after import wait_from
from dutiful.worker.signal import of_the_job
from dutiful.worker.slot import Slot, Stop

_CUT_SHORT = (StoreUnavailable, LockLost, ClaimLost)  # what ends a call in the middle, and not by its own reason


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
            case BreakerOpen():
                return until_it_may_call(error)
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


def sign_of(outcome: Outcome, stop: Stop | None) -> Sign:
    """What an attempt says of the service that all of it depends on; `stop`: why it was told to stop, if it was."""
    match outcome:
        case Done():
            return Sign.GOOD
        case TimedOut():
            return Sign.BAD
        case Failed(error, exception):
            return _sign_of_failure(error, exception)
        case Snoozed(_, because):
            return Sign.NEUTRAL if because is None else Sign.UNCLEAR  # that is another breaker
        case Cancelled():
            return Sign.NEUTRAL if stop is None else Sign.UNCLEAR
        case Partial():
            return Sign.NEUTRAL
        case Lost() | Released():
            return Sign.UNCLEAR
        case _:
            assert_never(outcome)


def _sign_of_failure(error: Mapping[str, Any], exception: type[BaseException] | None) -> Sign:
    known = exception if isinstance(exception, type) else Exception
    if issubclass(known, _CUT_SHORT):
        return Sign.UNCLEAR
    # It would have failed by a service in good health, too; and what is ours speaks of no service.
    ours = issubclass(known, DutifulError) and known is not ItemsFailed
    return Sign.NEUTRAL if ours or class_of(error) is ErrorClass.NON_RETRYABLE else Sign.BAD


def sign_of_error(error: BaseException | None, slot: Slot, retry: Retry) -> Sign:
    """What a block that ended so says of the service that it calls."""
    if error is None:
        return Sign.GOOD
    if isinstance(error, asyncio.CancelledError):
        return Sign.BAD if slot.stop is Stop.TIMEOUT else Sign.UNCLEAR
    if not isinstance(error, Exception):
        return Sign.UNCLEAR
    return Sign.NEUTRAL if isinstance(error, Skip) else sign_of(ended_by(error, slot, retry, MESSAGE_LIMIT), slot.stop)


def until_it_may_call(error: BreakerOpen) -> Snoozed:
    """How long that takes is not known here: it waits before the breaker's gate."""
    return Snoozed(timedelta(0), {**made("BreakerOpen", str(error), ErrorClass.TRANSIENT), "breaker": error.name})


def _raised(error: BaseException, slot: Slot, retry: Retry, message_limit: int) -> Outcome:
    match of_the_job(error, told_to_stop=slot.stop is not None):
        case TimeoutExceeded() | JobCancelled() | ClaimLost() if slot.stop is not None:
            return stopped(slot)
        case ClaimLost():
            return Lost()
        case _:
            return meant_by(error, retry, message_limit)
