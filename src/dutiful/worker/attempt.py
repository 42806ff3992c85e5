"""Runs one claim and says what came of it; decides no state."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from dutiful.context import CURRENT
from dutiful.core import ids
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import made
from dutiful.core.errors import DutifulError, ItemsFailed
from dutiful.core.job import Claim
from dutiful.core.outcome import Cancel, Done, Failed, Lost, Outcome, Partial, Snooze
from dutiful.core.payload import encode
from dutiful.core.transitions import State
from dutiful.kind import Kind, Mode, Phase
from dutiful.observe.logs import about
from dutiful.pipeline import Pipeline
from dutiful.store import Store
from dutiful.worker.breakers import Breakers
from dutiful.worker.context import AttemptContext
from dutiful.worker.ending import ended_by, sign_of
from dutiful.worker.items import failures, item_failures
from dutiful.worker.locks import Locks
from dutiful.worker.phases import Phases
from dutiful.worker.ports import Ports
from dutiful.worker.processes import ProcessPool
from dutiful.worker.reporter import Reporter
from dutiful.worker.slot import Slot, Stepping, Stop, in_own_context
from dutiful.worker.threads import Threads
from dutiful.worker.track import Track

log = logging.getLogger("dutiful.worker")
NOTHING = Done()
LAST_WORDS = 1.0  # how long a job that is told to stop may wait until its progress is stored


class Attempts:
    """How this worker runs handlers: on its loop, in its threads, in its processes."""

    def __init__(
        self,
        store: Store,
        threads: Threads,
        processes: ProcessPool,
        resources: Mapping[str, Any],
        result_limit: int,
        message_limit: int,
        locks: Locks,
        breakers: Breakers,
        news: Callable[[], None],
    ) -> None:
        self.stepping = Stepping()
        self._threads = threads
        self._processes = processes
        self._resources = resources
        self._result_limit = result_limit
        self._message_limit = message_limit
        self._reporter = Reporter(store, news)
        self._ports = Ports(store, self._reporter, locks, breakers, result_limit)
        self._phases = Phases(self._reporter, self._call, resources, result_limit, message_limit)

    def close(self) -> None:
        self._reporter.close()

    async def run(self, claim: Claim, kind: Kind[Any, Any], slot: Slot) -> Outcome | State:
        """What came of it; a state if the handler has settled the job in its own transaction."""
        slot.begin(claim, kind)
        context = AttemptContext(claim, slot, self._ports)
        outcome: Outcome
        try:
            kind.check_tenant(claim.tenant)
            if kind.rules is not None:
                # What comes by SQL, or from code of another day, has been checked by nobody.
                accepted = kind.accept(claim.payload, claim.tenant)
                context.upgrade(accepted.payload)
                claim = msgspec.structs.replace(claim, payload=accepted.arguments)
            enter = None if kind.breaker is None else partial(context.let_in, kind.breaker)
            if kind.mode is Mode.PROCESS:  # which may have to be waited for: it enters when it could begin
                outcome = await self._processes.run(kind, claim, slot, enter)
            elif enter is not None and (barred := await enter()) is not None:
                outcome = barred
            elif kind.mode is Mode.LOOP:
                own = contextvars.copy_context()
                own.run(CURRENT.set, context)
                handler = kind.function(**self._arguments(claim, kind, context))
                value = await in_own_context(handler, own, self.stepping, slot)
                outcome = NOTHING if value is None else self._outcome_of(value)
            elif kind.mode is Mode.THREAD:
                arguments = self._arguments(claim, kind, context)
                outcome = self._outcome_of(await self._threads.run(kind.function, arguments, context, slot))
            else:
                assert isinstance(kind, Pipeline)
                outcome = await self._phases.run(claim, kind, context, slot)
            if context.tracked is not None and kind.mode is not Mode.PHASES:
                outcome = _with_items(outcome, context.tracked)
        except BaseException as error:  # an exit or an interrupt that a handler raises ends the job, not the worker
            outcome = ended_by(error, slot, kind.policy.retry, self._message_limit)
            if isinstance(error, ItemsFailed) and isinstance(outcome, Failed) and context.tracked is not None:
                outcome = replace(outcome, more=tuple(item_failures(context.tracked.ledgers)))
        finally:
            stop = slot.stop
            slot.end()
            context.free_locks()
        if context.tracked is not None:
            await self._last_word(context.tracked, None if stop is None else LAST_WORDS)
        if kind.breaker is not None:
            await context.let_out(sign_of(outcome, stop))
        if context.settled is not None:
            if not isinstance(outcome, (Done, Partial)):
                log.warning(
                    "job %s went on after its transaction had completed it; %r is ignored",
                    ids.public(claim.job_id),
                    outcome,
                    extra=about(claim),
                )
            return context.settled
        if context.entrusted is not None and isinstance(outcome, (Done, Partial)):
            return context.entrusted
        # Had the user's own transaction been committed, the store would know this for a repetition.
        return Lost() if stop is Stop.LOST else outcome

    async def _call(self, phase: Phase, arguments: dict[str, Any], context: AttemptContext, slot: Slot) -> Any:
        if phase.mode is Mode.THREAD:
            return await self._threads.run(phase.function, arguments, context, slot)
        own = contextvars.copy_context()
        own.run(CURRENT.set, context)
        return await in_own_context(phase.function(**arguments), own, self.stepping, slot)

    async def _last_word(self, track: Track, patience: float | None) -> None:
        """What the handler said last is stored before its job is settled; the outcome does not depend on it."""
        job, fields = ids.public(track.job_id), about(track.claim)
        try:
            async with asyncio.timeout(patience):
                await self._reporter.last_word(track)
        except DutifulError as error:
            log.debug("job %s: its last progress was not stored: %s", job, error, extra=fields)
        except (TimeoutError, asyncio.CancelledError):
            # There is no time to wait for the store; but what the handler has done is not to be forgotten.
            log.warning("job %s: its last progress was not stored", job, extra=fields)
        except Exception:
            log.exception("job %s: its last progress could not be stored", job, extra=fields)

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


def _with_items(outcome: Outcome, track: Track) -> Outcome:
    """What a job that ran to its end comes to by its items."""
    if not isinstance(outcome, Done):
        return outcome
    try:
        errors = failures(track.ledgers)
    except ItemsFailed as error:
        info = made("ItemsFailed", str(error), ErrorClass.RETRYABLE)
        return Failed(info, ItemsFailed, more=tuple(item_failures(track.ledgers)))
    return Partial(outcome.result, tuple(errors)) if errors else outcome
