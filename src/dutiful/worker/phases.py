"""Runs a pipeline: phase by phase, each begin and end stored before the next thing happens."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dutiful.core.errors import ItemsFailed, LockLost, UsageError
from dutiful.core.job import Claim, PhaseRecord
from dutiful.core.outcome import (
    Cancel,
    Done,
    Failed,
    Outcome,
    Partial,
    PhaseTry,
    Snooze,
    TimedOut,
)
from dutiful.core.payload import encode
from dutiful.core.pipeline import PhaseState
from dutiful.core.settle import delay_after
from dutiful.kind import Phase
from dutiful.pipeline import Pipeline
from dutiful.tracking import PhaseMark
from dutiful.worker.context import AttemptContext
from dutiful.worker.ending import ended_by, stopped
from dutiful.worker.items import KEPT_ERRORS, failures, item_failures
from dutiful.worker.reporter import Reporter
from dutiful.worker.signal import of_the_job
from dutiful.worker.slot import Slot, Stop

Call = Callable[[Phase, dict[str, Any], AttemptContext, Slot], Awaitable[Any]]
GIVEN_UP = "given_up"  # in the error of a failed phase that the pipeline went on without; the stores know it
LAST_WORDS = 1.0  # how long the end of a phase may hold up a stop until it is stored


@dataclass(frozen=True, slots=True)
class Phases:
    """How this worker runs pipelines."""

    reporter: Reporter
    call: Call
    resources: Mapping[str, Any]
    result_limit: int
    message_limit: int

    async def run(self, claim: Claim, pipeline: Pipeline, context: AttemptContext, slot: Slot) -> Outcome:
        return await _Run(self, claim, pipeline, context, slot).run()


class _Run:
    """One attempt at one pipeline."""

    def __init__(self, worker: Phases, claim: Claim, pipeline: Pipeline, context: AttemptContext, slot: Slot) -> None:
        self._worker = worker
        self._claim = claim
        self._pipeline = pipeline
        self._context = context
        self._slot = slot
        self._anew = False  # the next mark makes the store forget all phases
        self._ends: list[PhaseMark] = []  # to be stored with what comes next
        self._result: str | None = None  # of the phase that ended last

    async def run(self) -> Outcome:
        self._pipeline.signature.decode(self._claim.payload)
        known = await self._worker.reporter.phases(self._claim)
        if not self._pipeline.resumes:
            self._anew, known = bool(known), []
        records = {record.name: record for record in known}
        try:
            for phase in self._pipeline.phases:
                record = records.get(phase.name)
                if record is not None and _passed(phase, record):
                    self._pass_by(phase, record)
                elif (outcome := await self._run_phase(phase, 0 if record is None else record.attempt)) is not None:
                    return outcome
            self._slot.deadline = None  # it has kept its time
        finally:
            await self._store_rest()
        errors = self._context.blemishes[:KEPT_ERRORS]
        return Partial(self._result, errors) if errors else Done(self._result)

    def _pass_by(self, phase: Phase, record: PhaseRecord) -> None:
        """It ended in an earlier attempt."""
        if record.error is not None:
            own = [] if record.state is PhaseState.COMPLETED else [_brief(record.error)]
            self._context.blemishes += (*own, *record.error.get("items", []))
        self._keep(phase, None if record.result is None else msgspec.json.encode(record.result).decode())

    async def _run_phase(self, phase: Phase, tried: int) -> Outcome | None:
        """What came of the job, if it ends here."""
        await self._calm_down()
        if self._slot.stop is not None:
            return stopped(self._slot)
        if phase.when is not None and self._ends:
            await self._store()  # before somebody else's code runs
        attempt: int | None = None
        self._context.enter(phase, tried + 1)
        try:
            if not _wanted(phase, self._context):
                self._end(phase, PhaseState.SKIPPED)
                return None
            await self._store(self._mark(phase, PhaseState.RUNNING))
            attempt = tried + 1
            self._slot.begin_phase(phase.timeout)
            arguments = phase_arguments(phase, self._claim.payload, self._context, self._worker.resources)
            value = await self._worker.call(phase, arguments, self._context, self._slot)
            if isinstance(value, (Snooze, Cancel)):
                raise value
            result = self._text(phase, value)
            failed = [{**error, "phase": phase.name} for error in failures(self._context.track.ledgers)]
        except BaseException as error:  # an exit or an interrupt that a handler raises ends the job, not the worker
            return self._failed(phase, attempt, error)
        else:
            self._slot.forgive()  # its time was over, but it came to its end all the same
        finally:
            self._slot.end_phase()
            self._context.free_locks()
        self._context.blemishes += tuple(failed)
        blemish = {"type": "ItemsFailed", "message": "some items have failed", "items": failed} if failed else None
        self._end(phase, PhaseState.COMPLETED, result, blemish)
        return None

    def _text(self, phase: Phase, value: Any) -> str | None:
        what = f"result of phase {phase.name}"
        return None if value is None else encode(value, what=what, limit=self._worker.result_limit)

    def _failed(self, phase: Phase, attempt: int | None, error: BaseException) -> Outcome | None:
        """What becomes of the job; None if it goes on without this phase."""
        retry = phase.retry or self._pipeline.policy.retry
        outcome = ended_by(error, self._slot, retry, self._worker.message_limit)
        if not isinstance(outcome, Failed) and not (isinstance(outcome, TimedOut) and self._slot.hurried):
            return outcome
        if phase.optional and self._slot.stop not in (None, Stop.TIMEOUT if self._slot.hurried else None):
            return stopped(self._slot)  # it fell with the whole job, however it took that
        own = None if phase.retry is None or attempt is None else PhaseTry(phase.retry, attempt)
        outcome = replace(outcome, error={**outcome.error, "phase": phase.name}, phase=own)
        items: list[dict[str, Any]] = []
        if isinstance(error, ItemsFailed) and isinstance(outcome, Failed):
            items = [{**item, "phase": phase.name} for item in item_failures(self._context.track.ledgers)]
            outcome = replace(outcome, error=_brief(outcome.error), more=tuple(items))
        if not phase.optional or _tried_again(outcome):
            return outcome
        if isinstance(of_the_job(error), LockLost):
            return replace(outcome, phase=None)  # the connection's fault: the pipeline's own policy knows what to do
        self._slot.forgive()
        self._context.blemishes += (_brief(outcome.error), *items)
        given_up = {**outcome.error, GIVEN_UP: True}
        self._end(phase, PhaseState.FAILED, error={**given_up, "items": items} if items else given_up)
        return None

    def _end(
        self, phase: Phase, state: PhaseState, result: str | None = None, error: dict[str, Any] | None = None
    ) -> None:
        self._context.track.finish()
        self._ends.append(self._mark(phase, state, result, error))
        self._keep(phase, result)

    def _keep(self, phase: Phase, result: str | None) -> None:
        self._result = result
        self._context.keep(phase.name, result)

    def _mark(
        self, phase: Phase, state: PhaseState, result: str | None = None, error: dict[str, Any] | None = None
    ) -> PhaseMark:
        anew, self._anew = self._anew, False
        return PhaseMark(
            job_id=self._claim.job_id,
            claim_id=self._claim.claim_id,
            name=phase.name,
            position=phase.position,
            state=state,
            result=result,
            error=None if error is None else msgspec.json.encode(error).decode(),
            anew=anew,
        )

    async def _store_rest(self) -> None:
        completed = self._context.settled or self._context.entrusted  # then the last phase ended with its job
        if self._ends and not completed:
            await self._store()

    async def _store(self, *begin: PhaseMark) -> None:
        """Store how phases ended, and that the next one begins; a stop waits a moment for what has ended."""
        ends, self._ends = self._ends, []
        storing = asyncio.ensure_future(self._worker.reporter.mark(self._context.track, [*ends, *begin]))
        try:
            await asyncio.shield(storing)
        except asyncio.CancelledError:
            if ends:
                await asyncio.wait([storing], timeout=LAST_WORDS)
            raise
        finally:
            if not storing.cancel() and not storing.cancelled():
                storing.exception()  # somebody has seen it

    async def _calm_down(self) -> None:
        """A cancellation that a handler brought about itself ends with its phase."""
        task = self._slot.task
        if self._slot.stop is None and task is not None and task.cancelling():
            with self._slot.unmoved():
                await asyncio.sleep(0)


def phase_arguments(
    phase: Phase, payload: str, context: AttemptContext, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """What a phase is called with: its part of the payload, results of earlier phases, resources and the context."""
    signature = phase.signature
    arguments = msgspec.structs.asdict(signature.decode(payload))
    for name in signature.results:
        arguments[name] = signature.result(name, context.kept(name))
    if signature.context is not None:
        arguments[signature.context] = context
    for name, resource in signature.resources.items():
        arguments[name] = resources[resource]
    return arguments


def _wanted(phase: Phase, context: AttemptContext) -> bool:
    answer = True if phase.when is None else phase.when(context)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise UsageError(f"when of phase {phase.name} gave an awaitable, which is always true; use a plain function")
    return bool(answer)


def _passed(phase: Phase, record: PhaseRecord) -> bool:
    """Whether it is over: it ended well, or the pipeline went on without it."""
    if record.state is PhaseState.FAILED:
        return phase.optional and record.error is not None and GIVEN_UP in record.error
    return record.state.over


def _tried_again(outcome: Failed | TimedOut) -> bool:
    """Whether the phase's own policy gives it another try."""
    own = outcome.phase
    if own is None:
        return False
    return delay_after(outcome, own.retry, own.attempt, own.retry.max_attempts, lambda low, high: low) is not None


def _brief(error: Mapping[str, Any]) -> dict[str, Any]:
    """As it is kept with the job: the phase's own record has the traceback."""
    return {name: value for name, value in error.items() if name not in ("traceback", "items", GIVEN_UP)}
