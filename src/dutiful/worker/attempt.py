"""Runs one claim and says what came of it; decides no state."""

import asyncio
import contextvars
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from dutiful.context import CURRENT
from dutiful.core import ids
from dutiful.core.error_info import MESSAGE_LIMIT, describe
from dutiful.core.errors import ClaimLost, JobCancelled, PayloadInvalid
from dutiful.core.job import Claim
from dutiful.core.outcome import (
    Cancel,
    Cancelled,
    Done,
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
from dutiful.core.payload import clean, encode
from dutiful.kind import Kind, Mode
from dutiful.store import Work
from dutiful.worker.context import AttemptContext
from dutiful.worker.processes import ProcessPool
from dutiful.worker.slot import Slot, Stepping, Stop, in_own_context
from dutiful.worker.threads import Threads

log = logging.getLogger("dutiful.worker")
NOTHING = Done()


class Attempts:
    """How this worker runs handlers: on its loop, in its threads, in its processes."""

    def __init__(
        self,
        work: Work,
        threads: Threads,
        processes: ProcessPool,
        resources: Mapping[str, Any],
        result_limit: int,
    ) -> None:
        self.stepping = Stepping()
        self._work = work
        self._threads = threads
        self._processes = processes
        self._resources = resources
        self._result_limit = result_limit

    async def run(self, claim: Claim, kind: Kind[Any, Any], slot: Slot) -> Outcome | None:
        """What came of it; None if the handler has settled the job in its own transaction."""
        slot.begin(claim, kind)
        context = AttemptContext(claim, slot, self._work, self._result_limit)
        outcome: Outcome
        try:
            if kind.mode is Mode.LOOP:
                own = contextvars.copy_context()
                own.run(CURRENT.set, context)
                handler = kind.function(**self._arguments(claim, kind, context))
                value = await in_own_context(handler, own, self.stepping, slot)
                outcome = NOTHING if value is None else self._outcome_of(value)
            elif kind.mode is Mode.THREAD:
                arguments = self._arguments(claim, kind, context)
                outcome = self._outcome_of(await self._threads.run(kind.function, arguments, context, slot))
            else:
                outcome = await self._processes.run(kind, claim, slot)
        except asyncio.CancelledError as error:
            if slot.stop is not None:
                outcome = _stopped(slot)
            elif slot.closing:
                raise
            else:
                outcome = _raised(error, slot)  # its own doing: it cancelled its task, or something that it awaited
        except BaseException as error:  # an exit or an interrupt that a handler raises ends the job, not the worker
            outcome = _raised(error, slot)
        finally:
            stop = slot.stop
            slot.end()
        if context.settled:
            if not isinstance(outcome, Done):
                log.warning(
                    "job %s went on after its transaction had completed it; %r is ignored",
                    ids.public(claim.job_id),
                    outcome,
                )
            return None
        if context.entrusted and isinstance(outcome, Done):
            return None
        # Had the user's own transaction been committed, the store would know this for a repetition.
        return Lost() if stop is Stop.LOST else outcome

    def _arguments(self, claim: Claim, kind: Kind[Any, Any], context: AttemptContext) -> dict[str, Any]:
        signature = kind.signature
        payload = signature.decode(claim.payload)
        arguments = msgspec.structs.asdict(payload)
        if signature.context is not None:
            arguments[signature.context] = context
        for name, resource in signature.resources.items():
            arguments[name] = self._resources[resource]
        return arguments

    def _outcome_of(self, value: Any) -> Outcome:
        if isinstance(value, (Snooze, Cancel)):
            raise value
        return NOTHING if value is None else Done(encode(value, what="result", limit=self._result_limit))


def _stopped(slot: Slot) -> Outcome:
    """The handler was told to stop and did."""
    match slot.stop:
        case Stop.TIMEOUT:
            allowed = slot.kind.timeout if slot.kind and slot.kind.timeout else slot.ran
            error = {"type": "TimeoutExceeded", "message": f"ran longer than its timeout of {allowed}"}
            return TimedOut(allowed, error)
        case Stop.CANCEL:
            return Cancelled("cancelled while running")
        case Stop.SHUTDOWN:
            return Released()
        case _:
            return Lost()


def _raised(error: BaseException, slot: Slot) -> Outcome:
    match error:
        case Snooze():
            return Snoozed(error.delay)
        case Cancel():
            return Cancelled(clean(str(error.reason), MESSAGE_LIMIT))
        case RetryAfter():
            return Failed(describe(error), type(error), retry_after=error.delay)
        case Fail() | PayloadInvalid():
            return Failed(describe(error), type(error), final=True)
        case TimeoutExceeded() | JobCancelled() | ClaimLost() if slot.stop is not None:
            return _stopped(slot)
        case ClaimLost():
            return Lost()
        case _:
            return Failed(describe(error), type(error))
