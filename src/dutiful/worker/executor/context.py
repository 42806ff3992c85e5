"""The handler's view of its attempt."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from dutiful.concurrency.loop_call import LoopCall, on_event_loop
from dutiful.context import BreakerBlock, ItemName, Items, JobTransaction, Lock, Parents, Timeout
from dutiful.core.breaker.state import CallResult
from dutiful.core.duration import Duration, brief
from dutiful.core.errors import CannotOpen, ClaimLost, JobCancelled, UsageError
from dutiful.core.job import Claim, ClaimToken
from dutiful.core.json import check_name, encode
from dutiful.core.outcome import Released, Snoozed, TimeoutExceeded
from dutiful.core.retry.error_info import MESSAGE_LIMIT
from dutiful.core.states import State
from dutiful.core.steps import fingerprint, name_of
from dutiful.kind import Phase
from dutiful.payload.key_ring import JobSeal, KeyRing
from dutiful.payload.sealing import open_payload, seal_error, seal_of
from dutiful.payload.signature import Schema
from dutiful.store.claims import ClaimStore, Errors, Transaction
from dutiful.worker.breakers.block import AttemptBreakers, NamedBreaker
from dutiful.worker.breakers.client import BreakerClient
from dutiful.worker.executor.claim_facts import ClaimFacts
from dutiful.worker.executor.items import KEPT_ERRORS, TrackedItems, each, failed_items
from dutiful.worker.executor.outcomes import breaker_result_of_error, snooze_for_breaker
from dutiful.worker.executor.parents import ParentReader
from dutiful.worker.executor.progress import ProgressSink, ProgressTracker
from dutiful.worker.executor.step_writer import StepWriter
from dutiful.worker.executor.steps import AttemptSteps
from dutiful.worker.executor.timeouts import BlockTimeout
from dutiful.worker.locks.handle import AttemptLocks, NamedLock, lock_name
from dutiful.worker.locks.manager import LockManager
from dutiful.worker.slots import LingeringHandler, Slot, StopReason
from dutiful.workflow.graph import Workflow
from dutiful.workflow.handle import SyncWorkflowHandle, WorkflowHandle
from dutiful.workflow.spawn import spawned

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttemptDeps:
    """What every attempt of a worker uses; locks and breakers are None where handlers run inline."""

    claims: ClaimStore
    progress: ProgressSink
    locks: LockManager | None
    breakers: BreakerClient | None
    result_limit: int
    message_limit: int = MESSAGE_LIMIT
    resources: Mapping[str, Any] = field(default_factory=dict)
    steps: StepWriter | None = None  # None where handlers run inline
    parents: ParentReader | None = None  # None where handlers run inline
    timeout_grace: float = 1.0  # seconds that a part past its ctx.timeout() may take to stop
    encrypted: frozenset[str] = frozenset()  # the kinds whose jobs are sealed
    key_ring: KeyRing | None = None


class HandlerTransaction:
    """Implements dutiful.context.JobTransaction."""

    inner: Transaction
    result: Any = None

    async def execute(self, statement: str, *args: Any) -> None:
        await self.inner.execute(statement, *args)

    @property
    def connection(self) -> Any:
        return self.inner.connection

    def complete(self, result: Any) -> None:
        self.result = result


@dataclass(slots=True, eq=False)
class AttemptContext(ClaimFacts):
    """Implements dutiful.Context for one attempt."""

    _slot: Slot
    _deps: AttemptDeps
    _locks: AttemptLocks | None = None  # made for its first lock
    _breakers: AttemptBreakers | None = None
    steps: AttemptSteps | None = None  # made for its first step
    _phase: Phase | None = None
    _results: dict[str, str | None] | None = None  # of phases that have ended, as JSON text
    phase_errors: tuple[dict[str, Any], ...] = ()  # errors despite which the pipeline continued
    phase_attempt: int | None = None
    tracker: ProgressTracker | None = None  # made when the handler first reports progress
    settled: State | None = None  # by ctx.transaction(): nothing is left to settle
    completed_by_user: State | None = None  # by ctx.complete_in(), in a transaction whose commit we do not see
    seal: JobSeal | None = None  # of a job that is encrypted

    @property
    def cancelled(self) -> bool:
        return self._slot.claim is not self._claim or self._slot.stop is not None

    def check(self) -> None:
        if not self.cancelled:
            return
        match self._slot.stop:
            case StopReason.TIMEOUT:
                limit = self._slot.timeout
                raise TimeoutExceeded(f"ran longer than {brief(limit) if limit else 'allowed'}")
            case StopReason.CANCEL:
                raise JobCancelled("the job was cancelled")
            case _:
                raise ClaimLost("the claim of this job is lost")

    def timeout(self, length: Duration) -> Timeout:
        return BlockTimeout(length, self._deps.timeout_grace, self._stop_late, self.check)

    def _stop_late(self, limit: timedelta) -> None:
        """Stops the attempt, because a part of it does not stop; from any thread."""
        slot, claim = self._slot, self._claim

        def stop() -> None:
            if slot.claim is claim:
                slot.limit_to(timedelta(0))
                slot.timeout = limit
                slot.request_stop(StopReason.TIMEOUT)

        if slot.task is not None:
            with suppress(RuntimeError):  # the worker has closed its loop
                slot.task.get_loop().call_soon_threadsafe(stop)

    def left_thread(self, thread: "Future[Any]") -> LingeringHandler | None:
        """What lingers if the handler, asked to stop, no longer waits for a thread; None if it goes on without it."""
        return LingeringHandler(self._claim, self._slot.lane, thread, is_part=True) if self.cancelled else None

    def lock(self, namespace: str, key: ItemName) -> Lock:
        name = lock_name(namespace, key)
        if self._deps.locks is None:
            raise UsageError("there are no locks in inline mode: test this handler with testing.app_on(app)")
        if self._locks is None:
            self._locks = AttemptLocks(self._deps.locks, self._token)
        return NamedLock(self._locks, name)

    def release_locks(self) -> None:
        """Releases locks that the attempt or a phase left behind."""
        if self._locks is not None:
            self._locks.end()

    # --- breakers

    def breaker(self, name: str) -> BreakerBlock:
        name = str.__str__(check_name(name, "breaker"))
        return nullcontext[Any](None) if self._deps.breakers is None else NamedBreaker(self._own_breakers, name)

    async def enter_breaker(self, breaker: str) -> Released | Snoozed | None:
        """Enters the breaker that the kind declares; returns the outcome of an attempt that it rejects."""
        if self._deps.breakers is None or (error := await self._own_breakers.enter_declared(breaker)) is None:
            return None
        # Released, it waits with the others of its kind until the breaker admits a probe.
        waits = await self._deps.breakers.make_kind_wait(self._claim.kind, breaker)
        return Released(began=False) if waits else snooze_for_breaker(error)

    async def exit_breaker(self, result: CallResult) -> None:
        if self._breakers is not None:
            await self._breakers.exit_declared(result)

    @property
    def _own_breakers(self) -> AttemptBreakers:
        if self._breakers is None:
            assert self._deps.breakers is not None
            self._breakers = AttemptBreakers(self._deps.breakers, self._token, self._slot, self._call_result)
        return self._breakers

    def _call_result(self, error: BaseException | None) -> CallResult:
        kind = self._slot.kind
        if error is not None and (self._slot.claim is not self._claim or kind is None):
            return CallResult.UNCLEAR  # the attempt has already ended
        own = None if self._phase is None else self._phase.retry
        return CallResult.GOOD if kind is None else breaker_result_of_error(error, self._slot, own or kind.policy.retry)

    # --- phases

    @property
    def phase(self) -> str | None:
        return None if self._phase is None else self._phase.name

    def result(self, phase: str) -> Any:
        kept = self.phase_result(phase)
        return None if kept is None else msgspec.json.decode(kept)

    def results(self) -> Mapping[str, Any]:
        return {name: self.result(name) for name in self._results or ()}

    def enter_phase(self, phase: Phase, attempt: int = 1) -> None:
        """Makes a phase the current one, before its condition is evaluated."""
        self._phase, self.phase_attempt = phase, attempt
        self.ensure_tracker().enter_phase(phase.name, phase.position)

    def keep_result(self, phase: str, result: str | None) -> None:
        """Keeps the result of a phase that has ended, as JSON text, for later phases."""
        self._results = {**(self._results or {}), phase: result}

    def phase_result(self, phase: str) -> str | None:
        if phase not in (self._results or {}):
            ended = ", ".join(self._results or {}) or "none"
            raise UsageError(f"there is no result of a phase {phase!r}: it has not ended; those that have are: {ended}")
        return (self._results or {})[phase]

    # --- steps

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._own_steps.call(self._step_name(name), function, args, kwargs)

    def step_sync(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        steps, mark = self._own_steps, fingerprint(name_of(function), args, kwargs)
        name = steps.begin_call(self._step_name(name), function)
        done, result = self._on_loop(lambda: steps.stored(name, function, mark))
        if done:
            return result
        began = time.monotonic()
        value = function(*args, **kwargs)
        return self._on_loop(lambda: steps.keep(name, function, mark, began, value))

    async def sleep(self, length: Duration, *, name: str) -> None:
        await self._own_steps.sleep(length, self._step_name(name))

    def sleep_sync(self, length: Duration, *, name: str) -> None:
        self._on_loop(lambda: self.sleep(length, name=name))

    async def wait_for_event(
        self, event: str, key: str, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        return await self._own_steps.wait_for_event(event, key, timeout, self._step_name(name or event))

    def wait_for_event_sync(
        self, event: str, key: str, *, timeout: Duration | None = None, name: str | None = None
    ) -> Any:
        return self._on_loop(lambda: self.wait_for_event(event, key, timeout=timeout, name=name))

    @property
    def _own_steps(self) -> AttemptSteps:
        if self._deps.steps is None:
            raise UsageError("there are no steps in inline mode: test this handler with testing.app_on(app)")
        if self.steps is None:
            self.steps = AttemptSteps(
                self._deps.steps, self._claim, self._deps.result_limit, self.seal, self._deps.key_ring
            )
        return self.steps

    def _step_name(self, name: str) -> str:
        """Within a phase, which may have steps of the same names as others."""
        return name if self._phase is None or not isinstance(name, str) else f"{self._phase.name}/{name}"

    def _on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs it on the worker's event loop, for a handler in a thread."""
        if on_event_loop() or self._slot.task is None:
            raise UsageError("ctx.step_sync and the like are for blocking handlers: await ctx.step(…) in this one")
        return LoopCall(self._slot.task.get_loop(), work).wait()

    # --- progress

    def ensure_tracker(self) -> ProgressTracker:
        if self.tracker is None:
            self.tracker = ProgressTracker(self._claim, self._deps.progress, self._phase_count or 1, self.seal)
        return self.tracker

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        self.ensure_tracker().progress(percent, message)

    def items(self, names: Iterable[ItemName]) -> Items:
        return TrackedItems(self.ensure_tracker(), names, lambda: self.cancelled)

    async def each(
        self,
        items: Iterable[T],
        work: Callable[[T], Awaitable[Any]],
        *,
        concurrency: int = 8,
        name: Callable[[T], ItemName] | None = None,
    ) -> Items:
        return await each(self.ensure_tracker(), items, work, concurrency, name, lambda: self.cancelled)

    # --- other jobs

    async def parents(self) -> Parents:
        if self._deps.parents is None:
            raise UsageError("there are no parents in inline mode: test this handler with testing.app_on(app)")
        return await self._deps.parents.of(self._claim.job_id)

    def parents_sync(self) -> Parents:
        assert self._slot.task is not None
        return LoopCall(self._slot.task.get_loop(), self.parents).wait()

    async def spawn(self, *calls: Any, key: str | None = None) -> WorkflowHandle:
        return await self._spawned(calls, key).enqueue()

    def spawn_sync(self, *calls: Any, key: str | None = None) -> SyncWorkflowHandle:
        return self._spawned(calls, key).enqueue_sync()

    def _spawned(self, calls: tuple[Any, ...], key: str | None) -> Workflow:
        if self._slot.claim is not self._claim:  # what waits for the job may have begun
            raise ClaimLost("this attempt is over, so that it cannot spawn jobs: do it before the handler returns")
        return spawned(self._claim.job_id, calls, key)

    # --- the user's own writes

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[JobTransaction]:
        self._check_last()
        await self._flush_progress()
        own = HandlerTransaction()
        # Encoded when the block ends, because the handler may set its result until then.
        async with self._deps.claims.transaction(self._token, lambda: self._encode(own.result), self._errors) as inner:
            own.inner = inner
            yield own
        self.settled = _state(self._errors())

    async def complete_in(self, session: Any, result: Any = None) -> None:
        self._check_last()
        errors, text = self._errors(), self._encode(result)
        await self._flush_progress()
        await self._deps.claims.complete_within(session, self._token, text, errors)
        self.completed_by_user = _state(errors)

    def complete_in_sync(self, session: Any, result: Any = None) -> None:
        self._check_last()
        errors, text = self._errors(), self._encode(result)
        self._flush_progress_sync()
        self._deps.claims.complete_within_sync(session, self._token, text, errors)
        self.completed_by_user = _state(errors)

    def _encode(self, result: Any) -> str | None:
        text = None if result is None else encode(result, what="result", limit=self._deps.result_limit)
        return text if self.seal is None else self.seal.seal_text("result", text)

    def _errors(self) -> Errors:
        """Errors despite which the handler completes its job; ItemsFailed if every item has failed."""
        if self.tracker is None:
            return ()
        failed = failed_items(self.tracker.item_counts)
        if self._phase is not None:
            failed = [{**error, "phase": self._phase.name} for error in failed]
        errors = [*self.phase_errors, *failed][:KEPT_ERRORS]
        return errors if self.seal is None else [seal_error(self.seal, error) for error in errors]

    @property
    def _phase_count(self) -> int:
        return len(self._slot.kind.phases) if self._slot.kind is not None else 0

    @property
    def _token(self) -> ClaimToken:
        return ClaimToken(self._claim.job_id, self._claim.claim_id)

    async def _flush_progress(self) -> None:
        """Stores progress now, because later writes would wait for the row that the user's transaction locks."""
        if self.tracker is not None:
            await self._deps.progress.flush(self.tracker)

    def _flush_progress_sync(self) -> None:
        """The same from a thread; does nothing on the event loop's own thread, where it cannot wait."""
        if self.tracker is None or self._slot.task is None:
            return
        loop = self._slot.task.get_loop()
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                return
        LoopCall(loop, self._flush_progress).wait()

    def _check_last(self) -> None:
        if self.settled or self.completed_by_user:
            raise UsageError("this job is completed already; the transaction is the last thing a handler does")
        if self._phase is not None and self._phase.position + 1 < self._phase_count:
            raise UsageError(f"phase {self._phase.name} cannot complete the job: only the last phase can")


def _state(errors: Errors) -> State:
    return State.COMPLETED_WITH_ERRORS if errors else State.COMPLETED


def handler_arguments(
    signature: Schema, payload: str, context: AttemptContext, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a handler: the fields of its payload, the context and resources, as it declares them."""
    arguments = msgspec.structs.asdict(signature.decode(payload))
    if signature.context is not None:
        arguments[signature.context] = context
    for name, resource in signature.resources.items():
        arguments[name] = resources[resource]
    return arguments


def open_claim(claim: Claim, ring: KeyRing | None) -> tuple[JobSeal, str]:
    """The seal of an encrypted job, and its payload."""
    if ring is None:
        raise CannotOpen("the payload is sealed, and this worker has no key: set encryption_keys, and run it again")
    seal = seal_of(ring, claim.job_id, claim.tenant, claim.kind, claim.options)
    return seal, open_payload(seal, claim.payload)
