"""Jobs that a person runs again: as a new job, or the same one at once."""

from typing import assert_never
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import IllegalTransition, JobNotFound, UniqueConflict
from dutiful.core.job import JobRecord
from dutiful.core.review.state import BY_HAND, ReviewState
from dutiful.core.states import State
from dutiful.maintenance.requeue import key_of, run_again
from dutiful.operator.actor import Actor, OperatorPart
from dutiful.operator.dead_letters import DeadLetters
from dutiful.operator.jobs.reads import JobReads
from dutiful.store.dead_letters import DeadLetter


class Retried(msgspec.Struct, frozen=True):
    """The job that will run now: a new one (`made`), or the same one, due now."""

    job_id: UUID
    state: State
    made: bool


class JobRetries(OperatorPart):
    def __init__(self, actor: Actor, jobs: JobReads, dead_letters: DeadLetters) -> None:
        super().__init__(actor)
        self._jobs = jobs
        self._dead_letters = dead_letters

    async def run(self, record: JobRecord, letter: DeadLetter | None) -> Retried:
        """Runs the job, unless one that was made from its dead letter does already."""
        return await self._standing_for(letter) or await self._retry(record)

    async def letter_by_now(self, job_id: UUID) -> DeadLetter | None:
        """The dead letter, reopened if its new job has failed and the services have not noticed yet."""
        letter = await self._dead_letters.by_job(job_id)
        if letter is None or letter.status is not ReviewState.REPROCESSING:
            return letter
        resolved = await self._store.dead_letters.resolve_reprocessed(1, new_job_id=letter.new_job_id)
        return await self._dead_letters.by_job(job_id) if resolved else letter

    async def _standing_for(self, letter: DeadLetter | None) -> Retried | None:
        """The job that was already made from this dead letter; there must be no second one."""
        if letter is None or letter.status is not ReviewState.REPROCESSING or letter.new_job_id is None:
            return None
        new = await self._jobs.find(letter.new_job_id)
        if new is None or new.state.final:
            raise IllegalTransition(
                f"job {ids.public(letter.new_job_id)}, made from {ids.public(letter.id)}, has just ended; look at it, "
                "and try again"
            )
        return Retried(new.id, new.state, made=False)

    async def _retry(self, record: JobRecord) -> Retried:
        match record.state:
            case State.SCHEDULED:
                return await self._run_now(record)
            case State.BLOCKED if record.gate == "breaker":
                return await self._run_now(record)
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return await self._again(record)
            case State.READY | State.BLOCKED | State.RUNNING:
                why = await self._jobs.explain(record.id)
                raise IllegalTransition(f"job {ids.public(record.id)} is {record.state} already: it {why.sentence}")
            case _:
                assert_never(record.state)

    async def _run_now(self, record: JobRecord) -> Retried:
        state = await self._store.control.run_now(record.id)
        if state is None:
            raise JobNotFound(f"there is no job {ids.public(record.id)} any more")
        self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return Retried(record.id, state, made=False)

    async def _again(self, record: JobRecord) -> Retried:
        job = run_again(record, id=uuid_utils.compat.uuid7(), by=self._actor.principal.name, kinds=self._actor.kinds)
        try:
            inserted = await self._client.submit(job)
        except UniqueConflict as error:
            return await self._run_already(record, error.existing)
        return Retried(inserted.job_id, (await self._jobs.get(inserted.job_id)).state, made=True)

    async def _run_already(self, record: JobRecord, holder: UUID) -> Retried:
        """The copy that a double click finds; raises if another job holds the key."""
        name, key = ids.public(holder), key_of(record.options)
        held = await self._jobs.find(holder)
        if held is not None and held.retry_of == record.id and (key is None or not held.state.final):
            return Retried(held.id, held.state, made=False)
        raise UniqueConflict(
            f"job {ids.public(record.id)} is not run again: job {name} has its unique key {key!r} and has not ended; "
            "wait for it, or cancel it",
            holder,
        )


def check_undecided(letter: DeadLetter | None) -> None:
    """Refuses a retry that would override a decision made in review."""
    if letter is None:
        return
    by_hand = letter.status is ReviewState.RESOLVED and letter.resolution == BY_HAND
    if letter.status is ReviewState.DISCARDED or by_hand:
        why = f": {letter.notes}" if letter.notes else ""
        raise IllegalTransition(
            f"the dead letter of job {ids.public(letter.id)} was {letter.status}{' by hand' if by_hand else ''} by "
            f"{letter.reviewed_by}{why}; so it is not run again; if it has to be, enqueue a new job"
        )
