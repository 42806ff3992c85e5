"""Runs a batch: one call of its handler for many jobs, and an outcome for each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import msgspec

from dutiful.context import BreakerBlock, ItemName, Lock, Timeout
from dutiful.core.breaker.state import CallResult
from dutiful.core.duration import Duration
from dutiful.core.errors import UsageError
from dutiful.core.job import Claim
from dutiful.core.outcome import STOPPED, Cancelled, Done, Failed, Lost, Outcome
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import class_of, describe
from dutiful.core.sealed import START
from dutiful.kind import Kind
from dutiful.payload.batch_signature import BatchSignature
from dutiful.payload.key_ring import JobSeal
from dutiful.payload.sealing import seal_outcome
from dutiful.worker.batches import Batch
from dutiful.worker.executor.claim_facts import ClaimFacts
from dutiful.worker.executor.context import AttemptContext, AttemptDeps, open_claim
from dutiful.worker.executor.outcomes import breaker_result, encode_result, outcome_of_error, requested_outcome
from dutiful.worker.executor.parents import RESULTS
from dutiful.worker.slots import LingeringHandler, Slot, StopReason

Outcomes = dict[int, Outcome]  # by claim
NOTHING = Done()


@dataclass(slots=True, eq=False)
class ClaimedJob(ClaimFacts):
    """Implements dutiful.BatchJob."""

    _is_stopped: Callable[[Claim], bool]
    value: Any = field(default=None, kw_only=True)  # the payload with its declared type

    @property
    def claim_id(self) -> int:
        return self._claim.claim_id

    @property
    def payload(self) -> Any:
        return self.value

    @property
    def cancelled(self) -> bool:
        return self._is_stopped(self._claim)


class BatchAttempt:
    """Implements dutiful.BatchContext, for the handler and for hooks around it.

    What names one job is None, so that jobs that the handler enqueues have no parent by chance; their tenant is known.
    """

    job_id = public_id = correlation_id = parent_id = attempt = max_attempts = queue = phase = phase_attempt = None

    def __init__(self, inner: AttemptContext, jobs: Sequence[ClaimedJob], tenant: str | None) -> None:
        self._inner = inner
        self.jobs = jobs
        self.kind = inner.kind
        self.tenant = tenant

    @property
    def cancelled(self) -> bool:
        return self._inner.cancelled

    def check(self) -> None:
        self._inner.check()

    def left_thread(self, thread: "Future[Any]") -> LingeringHandler | None:
        return self._inner.left_thread(thread)

    def timeout(self, length: Duration) -> Timeout:
        return self._inner.timeout(length)

    def lock(self, namespace: str, key: ItemName) -> Lock:
        return self._inner.lock(namespace, key)

    def breaker(self, name: str) -> BreakerBlock:
        return self._inner.breaker(name)

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(
            f"a batch has no ctx.{name}, because it has several jobs: kind {self.kind} needs a handler without batch, "
            "or what each of ctx.jobs has"
        )


def batch_arguments(signature: BatchSignature, context: BatchAttempt, resources: Any) -> dict[str, Any]:
    """The arguments of a handler: jobs or payloads, as it declares them, the context and resources."""
    jobs = context.jobs
    arguments: dict[str, Any] = {signature.parameter: list(jobs) if signature.wrapped else [job.value for job in jobs]}
    if signature.context is not None:
        arguments[signature.context] = context
    for name, resource in signature.resources.items():
        arguments[name] = resources[resource]
    return arguments


def returned_outcomes(kind: str, value: Any, jobs: int) -> Sequence[Any]:
    """What the handler returned for each job; UsageError unless that is nothing, or a list of one for each."""
    if value is None:
        return [None] * jobs
    if not isinstance(value, list | tuple):
        raise UsageError(
            f"kind {kind}: its handler returned {type(value).__qualname__}: return a list with an outcome for "
            "each job, in their order, or nothing"
        )
    if len(value) != jobs:
        raise UsageError(
            f"kind {kind}: its handler got {jobs} jobs and returned {len(value)} outcomes: return one for each, in "
            "their order, or nothing"
        )
    return value


class BatchRun:
    """One call of a handler for the jobs of a batch."""

    def __init__(
        self,
        call: Callable[[Kind[Any, Any], dict[str, Any], Any, Slot], Awaitable[Any]],
        deps: AttemptDeps,
        batch: Batch,
        kind: Kind[Any, Any],
        slot: Slot,
    ) -> None:
        assert isinstance(kind.signature, BatchSignature)
        self._call = call
        self._deps = deps
        self._batch = batch
        self._kind = kind
        self._signature = kind.signature
        self._slot = slot
        self._claims = tuple(batch.claims)
        self._context = AttemptContext(batch.first, slot, deps)
        self._seals: dict[int, JobSeal] = {}  # by claim, of jobs that are encrypted
        self._reading = kind.policy.retry, deps.message_limit  # how errors are read

    async def run(self) -> Outcomes:
        slot, context = self._slot, self._context
        slot.begin(self._batch.first, self._kind)
        outcomes: Outcomes = {}
        try:
            jobs = await self._jobs(outcomes)
            if jobs:
                outcomes |= await self._handle(jobs)
        except BaseException as error:  # an exit or an interrupt that a handler raises ends the jobs, not the worker
            outcome = self._one_by_one(outcome_of_error(error, slot, *self._reading))
            outcomes = {claim.claim_id: outcome for claim in self._claims} | outcomes
        finally:
            stop = slot.stop
            slot.end()
            context.release_locks()
        if self._kind.breaker is not None:
            await context.exit_breaker(_call_result([breaker_result(one, stop) for one in outcomes.values()]))
        outcomes |= {claim_id: seal_outcome(seal, outcomes[claim_id]) for claim_id, seal in self._seals.items()}
        return outcomes | {claim_id: _ended(reason) for claim_id, reason in self._batch.stopped.items()}

    async def _jobs(self, outcomes: Outcomes) -> list[ClaimedJob]:
        """The jobs whose payloads can be read; the others have their outcomes, and keep none from running."""
        jobs = []
        for claim in self._claims:
            job = ClaimedJob(claim, self._is_stopped)
            try:
                await self._read_payload(job, claim)
                jobs.append(job)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                outcomes[claim.claim_id] = outcome_of_error(error, self._slot, *self._reading)
        return jobs

    async def _read_payload(self, job: ClaimedJob, claim: Claim) -> None:
        kind = self._kind
        kind.check_tenant(claim.tenant)
        if claim.kind in self._deps.encrypted or claim.payload.startswith(START):
            self._seals[claim.claim_id], payload = open_claim(claim, self._deps.key_ring)
            claim = msgspec.structs.replace(claim, payload=payload)
        if claim.options is not None and RESULTS in claim.options and self._deps.parents is not None:
            payload = await self._deps.parents.payload(claim, self._signature)
            claim = msgspec.structs.replace(claim, payload=payload)
        # Each by itself, so that payloads of several versions may be in a batch: all are upgraded to the current one.
        accepted = kind.accept(claim.payload, claim.tenant, claim.subject)
        job.set_payload(accepted.payload)
        job.value = self._signature.decode(accepted.arguments)

    async def _handle(self, jobs: Sequence[ClaimedJob]) -> Outcomes:
        kind, slot, context = self._kind, self._slot, self._context
        if kind.breaker is not None:
            slot.on_given_up = context.exit_breaker
            if (rejected := await context.enter_breaker(kind.breaker)) is not None:
                return {job.claim_id: rejected for job in jobs}
        tenant = None if self._batch.across_tenants else self._batch.first.tenant
        batch = BatchAttempt(context, jobs, tenant)
        arguments = batch_arguments(self._signature, batch, self._deps.resources)
        value = await self._call(kind, arguments, batch, slot)
        try:
            returned = returned_outcomes(kind.name, value, len(jobs))
        except UsageError as error:
            # Whatever it did is done; to do it again would end in the same way.
            wrong = Failed(describe(error, message_limit=self._deps.message_limit), UsageError, final=True)
            return {job.claim_id: wrong for job in jobs}
        return {job.claim_id: self._outcome(one) for job, one in zip(jobs, returned, strict=True)}

    def _outcome(self, returned: Any) -> Outcome:
        """The outcome of one job: its result, or what an exception asks for, as if it had been raised for this job."""
        if returned is None:
            return NOTHING
        if isinstance(returned, BaseException):
            return requested_outcome(returned, *self._reading)
        try:
            return Done(encode_result(returned, self._deps.result_limit))
        except Exception as error:
            return requested_outcome(error, *self._reading)

    def _one_by_one(self, outcome: Outcome) -> Outcome:
        """Gives jobs another attempt, each alone, after an error that would be final: one of them may be at fault."""
        if len(self._claims) == 1 or not isinstance(outcome, Failed):
            return outcome
        if not outcome.final and class_of(outcome.error) is not ErrorClass.NON_RETRYABLE:
            return outcome
        error = {**outcome.error, "class": ErrorClass.RETRYABLE.value}
        return replace(outcome, error=error, exception=None, final=False)

    def _is_stopped(self, claim: Claim) -> bool:
        return claim.claim_id in self._batch.stopped or self._context.cancelled


def _ended(reason: StopReason) -> Outcome:
    return Cancelled(STOPPED) if reason is StopReason.CANCEL else Lost()


def _call_result(results: Sequence[CallResult]) -> CallResult:
    """The result of the one call: good if it was for any job."""
    return next((one for one in (CallResult.GOOD, CallResult.BAD) if one in results), results[0])


__all__ = ["BatchAttempt", "BatchRun", "ClaimedJob", "batch_arguments", "returned_outcomes"]
