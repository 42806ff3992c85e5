"""Runs a pipeline: phase by phase, each begin and end stored before the next thing happens."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dutiful.core.errors import ItemsFailed, LockLost, UsageError
from dutiful.core.items import item_errors
from dutiful.core.job import Claim, PhaseRecord, PhaseState
from dutiful.core.outcome import Done, Failed, Outcome, Partial, PhaseTry, TimedOut
from dutiful.core.settle import delay_after
from dutiful.kind import Phase
from dutiful.payload.sealing import open_part, seal_error
from dutiful.pipeline import Pipeline
from dutiful.store.progress import PhaseMark
from dutiful.worker.executor.context import AttemptContext, AttemptDeps, handler_arguments
from dutiful.worker.executor.items import KEPT_ERRORS, failed_items
from dutiful.worker.executor.outcomes import (
    encode_result,
    job_signal,
    outcome_of_error,
    outcome_of_stop,
    part_timed_out,
)
from dutiful.worker.executor.progress import ProgressWriter
from dutiful.worker.slots import Slot, StopReason

Call = Callable[[Phase, dict[str, Any], AttemptContext, Slot], Awaitable[Any]]
GIVEN_UP = "given_up"  # in the error of a failed phase without which the pipeline continued; the stores read it
STORE_TIMEOUT = 1.0  # seconds that a stop waits until the end of a phase is stored


@dataclass(slots=True)
class PipelineRun:
    """One attempt at one pipeline."""

    _progress: ProgressWriter
    _call: Call
    _deps: AttemptDeps
    _claim: Claim
    _pipeline: Pipeline
    _context: AttemptContext
    _slot: Slot
    _anew: bool = False  # the next mark makes the store delete all phases
    _ends: list[PhaseMark] = field(default_factory=list)  # to be stored with what comes next
    _result: str | None = None  # of the phase that ended last

    async def run(self) -> Outcome:
        self._pipeline.signature.decode(self._claim.payload)
        known = await self._progress.phases(self._claim)
        if (seal := self._context.seal) is not None:
            known = [open_part(seal, record) for record in known]
        if not self._pipeline.resumes:
            self._anew, known = bool(known), []
        records = {record.name: record for record in known}
        try:
            for phase in self._pipeline.phases:
                record = records.get(phase.name)
                if record is not None and _is_over(phase, record):
                    self._pass_over(phase, record)
                elif (outcome := await self._run_phase(phase, 0 if record is None else record.attempt)) is not None:
                    return outcome
            self._slot.deadline = None  # no timeout while the end is stored
        finally:
            # The transaction of a job that has completed itself has stored the end of the last phase.
            if self._ends and not (self._context.settled or self._context.completed_by_user):
                await self._store()
        errors = self._context.phase_errors[:KEPT_ERRORS]
        return Partial(self._result, errors) if errors else Done(self._result)

    def _pass_over(self, phase: Phase, record: PhaseRecord) -> None:
        """Passes over a phase that ended in an earlier attempt, and keeps its result and errors."""
        if record.error is not None:
            own = [] if record.state is PhaseState.COMPLETED else [_brief(record.error)]
            self._context.phase_errors += (*own, *record.error.get("items", []))
        self._keep(phase, None if record.result is None else msgspec.json.encode(record.result).decode())

    async def _run_phase(self, phase: Phase, tried: int) -> Outcome | None:
        """Runs one phase; returns the outcome of the job if it ends here."""
        await self._clear_cancellation()
        if self._slot.stop is not None:
            return outcome_of_stop(self._slot)
        if phase.when is not None and self._ends:
            await self._store()  # before the user's condition runs
        attempt: int | None = None
        self._context.enter_phase(phase, tried + 1)
        try:
            if not _wanted(phase, self._context):
                self._end(phase, PhaseState.SKIPPED)
                return None
            await self._store(self._mark(phase, PhaseState.RUNNING))
            attempt = tried + 1
            self._slot.begin_phase(phase, attempt)
            tracker = self._context.ensure_tracker()
            arguments = phase_arguments(phase, self._claim.payload, self._context, self._deps.resources)
            value = await self._call(phase, arguments, self._context, self._slot)
            if self._context.steps is not None:
                self._context.steps.check_ended()
            result = encode_result(value, self._deps.result_limit, f"result of phase {phase.name}")
            failed = [{**error, "phase": phase.name} for error in failed_items(tracker.item_counts)]
        except BaseException as error:  # an exit or an interrupt that a handler raises ends the job, not the worker
            return self._failed(phase, attempt, error)
        else:
            self._slot.clear_phase_timeout()  # it was late, but it has completed
        finally:
            self._slot.end_phase()
            self._context.release_locks()
        self._context.phase_errors += tuple(failed)
        item_error = {"type": "ItemsFailed", "message": "some items have failed", "items": failed} if failed else None
        self._end(phase, PhaseState.COMPLETED, result, item_error)
        return None

    def _failed(self, phase: Phase, attempt: int | None, error: BaseException) -> Outcome | None:
        """The outcome of the job; None if it continues without this phase."""
        retry = phase.retry or self._pipeline.policy.retry
        outcome = outcome_of_error(error, self._slot, retry, self._deps.message_limit)
        in_part = self._slot.stop is None and part_timed_out(error) is not None
        own_deadline = in_part or self._slot.phase_deadline_applies
        if not isinstance(outcome, Failed) and not (isinstance(outcome, TimedOut) and own_deadline):
            return outcome
        if phase.optional and self._slot.stop not in (None, StopReason.TIMEOUT if own_deadline else None):
            return outcome_of_stop(self._slot)  # it failed because the whole job was asked to stop
        own = None if phase.retry is None or attempt is None else PhaseTry(phase.retry, attempt)
        outcome = replace(outcome, error={**outcome.error, "phase": phase.name}, phase=own)
        items: list[dict[str, Any]] = []
        if isinstance(error, ItemsFailed) and isinstance(outcome, Failed):
            counts = self._context.ensure_tracker().item_counts
            items = [{**item, "phase": phase.name} for item in item_errors(counts, KEPT_ERRORS)]
            outcome = replace(outcome, error=_brief(outcome.error), more=tuple(items))
        if not phase.optional or _tried_again(outcome):
            return outcome
        if isinstance(job_signal(error), LockLost):
            return replace(outcome, phase=None)  # caused by the connection, so the pipeline's own policy applies
        self._slot.clear_phase_timeout()
        self._context.phase_errors += (_brief(outcome.error), *items)
        given_up = {**outcome.error, GIVEN_UP: True}
        self._end(phase, PhaseState.FAILED, error={**given_up, "items": items} if items else given_up)
        return None

    def _end(
        self, phase: Phase, state: PhaseState, result: str | None = None, error: dict[str, Any] | None = None
    ) -> None:
        tracker = self._context.ensure_tracker()
        last = None if self._progress.is_stored(tracker) else tracker.report().as_json()
        tracker.finish_phase()
        self._ends.append(self._mark(phase, state, result, error, last))
        self._keep(phase, result)

    def _keep(self, phase: Phase, result: str | None) -> None:
        self._result = result
        self._context.keep_result(phase.name, result)

    def _mark(
        self,
        phase: Phase,
        state: PhaseState,
        result: str | None = None,
        error: dict[str, Any] | None = None,
        progress: str | None = None,
    ) -> PhaseMark:
        anew, self._anew = self._anew, False
        if (seal := self._context.seal) is not None:
            result = seal.seal_text(f"phase {phase.name}", result)
            error = None if error is None else seal_error(seal, error)
        return PhaseMark(
            job_id=self._claim.job_id,
            claim_id=self._claim.claim_id,
            name=phase.name,
            position=phase.position,
            state=state,
            result=result,
            error=None if error is None else msgspec.json.encode(error).decode(),
            anew=anew,
            progress=progress,
        )

    async def _store(self, *begin: PhaseMark) -> None:
        """Stores ended phases and the begin of the next one; a stop waits a moment for the former."""
        ends, self._ends = self._ends, []
        storing = asyncio.ensure_future(self._progress.write(self._context.ensure_tracker(), [*ends, *begin]))
        try:
            await asyncio.shield(storing)
        except asyncio.CancelledError:
            if ends:
                await asyncio.wait([storing], timeout=STORE_TIMEOUT)
            raise
        finally:
            if not storing.cancel() and not storing.cancelled():
                storing.exception()  # marks it as retrieved

    async def _clear_cancellation(self) -> None:
        """Ends a cancellation that a handler caused itself, together with its phase."""
        task = self._slot.task
        if self._slot.stop is None and task is not None and task.cancelling():
            with self._slot.absorb_cancellation():
                await asyncio.sleep(0)


def phase_arguments(
    phase: Phase, payload: str, context: AttemptContext, resources: Mapping[str, Any]
) -> dict[str, Any]:
    arguments = handler_arguments(phase.signature, payload, context, resources)
    results = {name: phase.signature.result(name, context.phase_result(name)) for name in phase.signature.results}
    return arguments | results


def _wanted(phase: Phase, context: AttemptContext) -> bool:
    answer = True if phase.when is None else phase.when(context)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise UsageError(f"when of phase {phase.name} gave an awaitable, which is always true; use a plain function")
    return bool(answer)


def _is_over(phase: Phase, record: PhaseRecord) -> bool:
    """Whether the phase completed or was skipped, or the pipeline continued without it."""
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
    """The error as the job keeps it: the phase's own record has the traceback."""
    return {name: value for name, value in error.items() if name not in ("traceback", "items", GIVEN_UP)}
