"""Runs one attempt and returns its outcome; the next state is decided by the settler."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dutiful.concurrency.daemon_pool import DaemonPool, raise_in_thread
from dutiful.context import CURRENT
from dutiful.core import ids
from dutiful.core.errors import ClaimLost, DutifulError, ItemsFailed, JobCancelled
from dutiful.core.items import item_errors
from dutiful.core.job import Claim
from dutiful.core.outcome import Done, Failed, Lost, Outcome, Partial, TimeoutExceeded
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.core.sealed import START
from dutiful.kind import Kind, Mode, Phase
from dutiful.observe.logs import job_fields
from dutiful.payload.sealing import seal_outcome
from dutiful.pipeline import Pipeline
from dutiful.worker.batches import Batch
from dutiful.worker.executor.around import await_around, call_around, hooks_of
from dutiful.worker.executor.batch import BatchRun, Outcomes
from dutiful.worker.executor.context import AttemptContext, AttemptDeps, handler_arguments, open_claim
from dutiful.worker.executor.items import KEPT_ERRORS, failed_items
from dutiful.worker.executor.outcomes import (
    ROLLED_BACK,
    Settlement,
    UserCompletion,
    breaker_result,
    encode_result,
    outcome_of_error,
)
from dutiful.worker.executor.parents import RESULTS
from dutiful.worker.executor.pipeline_runner import PipelineRun
from dutiful.worker.executor.processes import ProcessPool
from dutiful.worker.executor.progress import ProgressTracker, ProgressWriter
from dutiful.worker.slots import CurrentSlot, LingeringHandler, Slot, StopReason, run_in_context

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer

log = logging.getLogger("dutiful.worker")
NOTHING = Done()
FLUSH_TIMEOUT = 1.0  # seconds that a job that has to stop waits until its progress is stored
_RAISED: dict[StopReason, type[Exception]] = {
    StopReason.TIMEOUT: TimeoutExceeded,
    StopReason.CANCEL: JobCancelled,
    StopReason.LOST: ClaimLost,
    StopReason.SHUTDOWN: ClaimLost,
}


class Executor:
    """Runs handlers: on the event loop, in threads, in processes."""

    def __init__(
        self, deps: AttemptDeps, progress: ProgressWriter, threads: "ThreadPool", processes: ProcessPool
    ) -> None:
        self.current = CurrentSlot()
        self._deps = deps
        self._resources = deps.resources
        self._progress = progress
        self._threads = threads
        self._processes = processes

    async def run(self, claim: Claim, kind: Kind[Any, Any], slot: Slot) -> Settlement:
        """Returns the outcome; a state if the handler has settled the job in its own transaction."""
        slot.begin(claim, kind)
        slot.own_completion = context = AttemptContext(claim, slot, self._deps)
        outcome: Outcome
        try:
            kind.check_tenant(claim.tenant)
            if claim.kind in self._deps.encrypted or claim.payload.startswith(START):
                claim = self._opened(claim, kind, context)
            if claim.options is not None and RESULTS in claim.options and self._deps.parents is not None:
                payload = await self._deps.parents.payload(claim, kind.signature)
                context.set_payload(payload)
                claim = msgspec.structs.replace(claim, payload=payload)
            if kind.rules is not None:
                # A payload enqueued by SQL or by another version of the code has not been checked.
                accepted = kind.accept(claim.payload, claim.tenant, claim.subject)
                context.set_payload(accepted.payload)
                claim = msgspec.structs.replace(claim, payload=accepted.arguments)
            enter = None
            if kind.breaker is not None:
                enter, slot.on_given_up = partial(context.enter_breaker, kind.breaker), context.exit_breaker
            if kind.mode is Mode.PROCESS:  # enters the breaker once it has a process
                outcome = await self._processes.run(kind, claim, context.checked_payload, slot, enter)
            elif enter is not None and (rejected := await enter()) is not None:
                outcome = rejected
            elif kind.mode is Mode.LOOP:  # without _call, whose cost a small job would notice
                own = copy_context()
                own.run(CURRENT.set, context)
                arguments = handler_arguments(kind.signature, claim.payload, context, self._resources)
                hooks = hooks_of(kind)
                if not hooks:
                    handler = kind.function(**arguments)
                else:
                    handler = await_around(hooks, context, partial(kind.function, **arguments))
                value = await run_in_context(handler, own, self.current, slot)
                if context.steps is not None:
                    context.steps.check_ended()
                outcome = NOTHING if value is None else Done(encode_result(value, self._deps.result_limit))
            elif isinstance(kind, Pipeline):
                run = PipelineRun(self._progress, self._call, self._deps, claim, kind, context, slot)
                outcome = await run.run()
            else:
                arguments = handler_arguments(kind.signature, claim.payload, context, self._resources)
                value = await self._call(kind, arguments, context, slot)
                if context.steps is not None:
                    context.steps.check_ended()
                outcome = Done(encode_result(value, self._deps.result_limit))
            if context.tracker is not None and kind.mode is not Mode.PHASES:
                outcome = _with_items(outcome, context.tracker)
        except BaseException as error:  # an exit or an interrupt that a handler raises ends the job, not the worker
            outcome = outcome_of_error(error, slot, kind.policy.retry, self._deps.message_limit)
            if isinstance(error, ItemsFailed) and isinstance(outcome, Failed) and context.tracker is not None:
                outcome = replace(outcome, more=tuple(item_errors(context.tracker.item_counts, KEPT_ERRORS)))
        finally:
            stop = slot.stop
            slot.end()
            context.release_locks()
        if context.seal is not None:
            outcome = seal_outcome(context.seal, outcome)
        if context.tracker is not None:
            await self._flush_progress(context.tracker, None if stop is None else FLUSH_TIMEOUT)
        if kind.breaker is not None:
            await context.exit_breaker(breaker_result(outcome, stop))
        if context.settled is not None:
            if not isinstance(outcome, (Done, Partial)):
                message = "job %s continued after its transaction had completed it; %r is ignored"
                log.warning(message, ids.public(claim.job_id), outcome, extra=job_fields(claim))
            return context.settled
        if stop is StopReason.LOST:
            outcome = Lost()
        if context.completed_by_user is not None:
            otherwise = ROLLED_BACK if isinstance(outcome, (Done, Partial)) else outcome
            return UserCompletion(context.completed_by_user, otherwise)
        return outcome

    def _opened(self, claim: Claim, kind: Kind[Any, Any], context: AttemptContext) -> Claim:
        """The claim with its payload opened, which is kept nowhere else; from here on, all that is stored is sealed."""
        context.seal, payload = open_claim(claim, self._deps.key_ring)
        context.set_payload(payload)
        return msgspec.structs.replace(claim, payload=payload)

    async def run_batch(self, batch: Batch, kind: Kind[Any, Any], slot: Slot) -> Outcomes:
        """Returns the outcomes of its jobs, by claim."""
        return await BatchRun(self._call, self._deps, batch, kind, slot).run()

    def _call(
        self, called: Kind[Any, Any] | Phase, arguments: dict[str, Any], context: Any, slot: Slot
    ) -> Awaitable[Any]:
        own = copy_context()
        own.run(CURRENT.set, context)
        assert slot.kind is not None
        hooks, call = hooks_of(slot.kind), partial(called.function, **arguments)
        if called.mode is Mode.THREAD:
            return self._threads.run(partial(call_around, hooks, context, call), own, slot)
        return run_in_context(await_around(hooks, context, call), own, self.current, slot)

    async def _flush_progress(self, tracker: ProgressTracker, timeout: float | None) -> None:
        """Stores the last progress before the job is settled; the outcome does not depend on it."""
        job, fields = ids.public(tracker.job_id), job_fields(tracker.claim)
        try:
            async with asyncio.timeout(timeout):
                await self._progress.flush(tracker)
        except DutifulError as error:
            log.debug("job %s: its last progress was not stored: %s", job, error, extra=fields)
        except (TimeoutError, asyncio.CancelledError):
            # There is no time to wait for the store; the outcome is settled all the same.
            log.warning("job %s: its last progress was not stored", job, extra=fields)
        except Exception:
            log.exception("job %s: its last progress could not be stored", job, extra=fields)


def _with_items(outcome: Outcome, tracker: ProgressTracker) -> Outcome:
    """Adds failed items to the outcome of a handler that returned."""
    if not isinstance(outcome, Done):
        return outcome
    try:
        errors = failed_items(tracker.item_counts)
    except ItemsFailed as error:
        info = make_error("ItemsFailed", str(error), ErrorClass.RETRYABLE)
        return Failed(info, ItemsFailed, more=tuple(item_errors(tracker.item_counts, KEPT_ERRORS)))
    return Partial(outcome.result, tuple(errors)) if errors else outcome


class TracedExecutor(Executor):
    """Gives each attempt a trace span, which is current wherever its handler runs."""

    def __init__(self, tracer: "Tracer", *parts: Any) -> None:
        super().__init__(*parts)
        self._tracer = tracer

    async def run(self, claim: Claim, kind: Kind[Any, Any], slot: Slot) -> Settlement:
        begun = self._tracer.begin(claim)
        try:
            outcome = await super().run(claim, kind, slot)
        except BaseException:
            self._tracer.interrupted(begun)
            raise
        self._tracer.end(begun, claim, outcome.state if isinstance(outcome, UserCompletion) else outcome)
        return outcome

    async def run_batch(self, batch: Batch, kind: Kind[Any, Any], slot: Slot) -> Outcomes:
        """Each job has a span of its own; what the handler traces belongs to that of the first."""
        claims = list(batch.claims)
        begun = [(claim, self._tracer.begin(claim)) for claim in reversed(claims)]
        outcomes: Outcomes | None = None
        try:
            outcomes = await super().run_batch(batch, kind, slot)
        finally:
            for claim, span in reversed(begun):
                if outcomes is None:
                    self._tracer.interrupted(span)
                else:
                    self._tracer.end(span, claim, outcomes[claim.claim_id])
        return outcomes


class ThreadPool:
    """Runs blocking handlers in threads, and interrupts them there."""

    def __init__(self, size: int) -> None:
        self._pool = DaemonPool(size, "dutiful job")

    async def run(self, function: Callable[[], Any], own: Context, slot: Slot) -> Any:
        """Runs the function and waits for its thread, until the slot leaves it: a thread cannot be killed."""
        call, claim = _Call(function), slot.claim
        assert claim is not None
        thread = self._pool.submit(partial(own.run, _caught, call))
        slot.thread = claim.job_id, thread
        running = asyncio.wrap_future(thread)
        left = False

        def leave() -> LingeringHandler | None:
            nonlocal left
            left = self._pool.leave(thread)
            if not left:
                return None
            slot.thread = None
            running.cancel()
            if slot.stop is not None:  # once more: it had its time to clean up, or has caught the first
                call.interrupt(slot.stop)
            return LingeringHandler(claim, slot.lane, thread)

        slot.set_interrupt(call.interrupt, leave)
        try:
            value, error = await running
        except asyncio.CancelledError:
            if left and slot.stop is not None:
                raise _RAISED[slot.stop]("its handler did not stop") from None
            # The slot is being closed, and the handler can only be interrupted.
            call.interrupt(StopReason.SHUTDOWN)
            raise
        slot.thread = None  # the future would keep the result alive
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        self._pool.close()


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Returns what the call returned or raised: a future would replace a TimeoutError by an empty one."""
    try:
        return call(), None
    except BaseException as error:
        return None, error


class _Call:
    """One call of a handler in a thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._thread: int | None = None
        self._lock = threading.Lock()
        self._stop: StopReason | None = None

    def __call__(self) -> Any:
        try:
            with self._lock:
                if self._stop is not None:
                    raise _RAISED[self._stop]
                self._thread = threading.get_ident()
            return self._function()
        finally:
            with self._lock:
                # An interrupt that has not been raised yet would otherwise hit the pool, and end its thread.
                raise_in_thread(threading.get_ident(), None)
                self._thread = None

    def interrupt(self, stop: StopReason) -> None:
        """Raises in the thread at its next Python instruction; a call into C is interrupted when it returns."""
        with self._lock:
            self._stop = stop
            if self._thread is not None:
                raise_in_thread(self._thread, _RAISED[stop])
