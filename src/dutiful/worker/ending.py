"""What it means how a handler ended."""

import asyncio

from dutiful.core.duration import duration
from dutiful.core.error_info import MESSAGE_LIMIT, describe
from dutiful.core.errors import ClaimLost, JobCancelled, PayloadInvalid
from dutiful.core.outcome import (
    Cancel,
    Cancelled,
    Fail,
    Failed,
    Lost,
    Outcome,
    Released,
    RetryAfter,
    Snooze,
    Snoozed,
    TimedOut,
    TimeoutExceeded,
)
from dutiful.core.payload import clean
from dutiful.worker.slot import Slot, Stop


def ended_by(error: BaseException, slot: Slot) -> Outcome:
    """The outcome of a handler that raised; raises again what is meant for the slot itself."""
    if not isinstance(error, asyncio.CancelledError):
        return _raised(error, slot)
    if slot.stop is not None:
        return stopped(slot)
    if slot.closing:
        raise error
    return _raised(error, slot)  # its own doing: it cancelled its task, or something that it awaited


def stopped(slot: Slot) -> Outcome:
    """The handler was told to stop and did."""
    match slot.stop:
        case Stop.TIMEOUT:
            allowed = slot.allowed or slot.ran
            error = {"type": "TimeoutExceeded", "message": f"ran longer than its timeout of {allowed}"}
            return TimedOut(allowed, error)
        case Stop.CANCEL:
            return Cancelled("cancelled while running")
        case Stop.SHUTDOWN:
            return Released()
        case _:
            return Lost()


def _raised(error: BaseException, slot: Slot) -> Outcome:
    try:
        return _meant(error, slot)
    except BaseException:  # a subclass without what its base has, or one that cannot be written as text
        return Failed(describe(error), type(error))


def _meant(error: BaseException, slot: Slot) -> Outcome:
    match error:
        case Snooze():
            return Snoozed(duration(error.delay))
        case Cancel():
            return Cancelled(clean(str(error.reason), MESSAGE_LIMIT))
        case RetryAfter():
            return Failed(describe(error), type(error), retry_after=duration(error.delay))
        case Fail() | PayloadInvalid():
            return Failed(describe(error), type(error), final=True)
        case TimeoutExceeded() | JobCancelled() | ClaimLost() if slot.stop is not None:
            return stopped(slot)
        case ClaimLost():
            return Lost()
        case _:
            return Failed(describe(error), type(error))
