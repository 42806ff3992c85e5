"""Dead letters, as a principal reviews them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.client import lines
from dutiful.core import ids
from dutiful.core.audit import AuditOutcome
from dutiful.core.errors import DeadLetterNotFound, IllegalTransition, PayloadInvalid, UniqueConflict
from dutiful.core.job import NewJob
from dutiful.core.review import OPEN, ReviewAct, check
from dutiful.operator.door import Act, Door, recordable
from dutiful.production import producing
from dutiful.reprocessing import changed_fields, new_job
from dutiful.reviewing import (
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    Place,
    Review,
    Reviewed,
)

NAMED = 100  # changed fields of a payload that go on record
TRIES = 5  # a key is made of the time in milliseconds, and somebody else may have taken this one


class Reprocessed(msgspec.Struct, frozen=True, kw_only=True):
    dead_letter_id: UUID
    new_job_id: UUID
    new_unique_key: str | None


class DeadLetters(Door):
    # --- reads

    async def dead_letter(self, job_id: UUID) -> DeadLetter:
        return _there(await self._letter(job_id), job_id)

    async def dead_letters(
        self, filter: DeadLetterFilter, *, after: Place | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        """The newest first, beyond `after`."""
        return await self._store.dead_letters(self._within(filter), after=after, limit=limit)

    async def dead_letter_count(self, filter: DeadLetterFilter) -> int:
        return await self._store.dead_letter_count(self._within(filter))

    async def dead_letter_counts(self, filter: DeadLetterFilter) -> DeadLetterCounts:
        return await self._store.dead_letter_counts(self._within(filter))

    async def dead_letter_groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        """Those whose errors are alike, the largest group first."""
        return await self._store.dead_letter_groups(self._within(filter), limit)

    # --- acts

    async def acknowledge(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        """Somebody has seen it, and has not decided yet."""
        return await self._decide(ReviewAct.ACKNOWLEDGE, job_id, notes)

    async def resolve(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        """It has been mended by hand."""
        return await self._decide(ReviewAct.RESOLVE, job_id, notes)

    async def discard(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        """It will not be run again."""
        return await self._decide(ReviewAct.DISCARD, job_id, notes)

    async def reprocess(
        self, job_id: UUID, notes: str | None = None, payload: Mapping[str, Any] | None = None
    ) -> Reprocessed:
        """Run it again as a new job, which is the same but for its key, and for its `payload` if one is given."""
        letter = await self._letter(job_id)
        async with self._reviewing(ReviewAct.REPROCESS, job_id, letter, notes, payload) as act:
            job = await self._reprocess(_there(letter, job_id), notes, payload, act)
        self._client.delivery.hint(lines([job]))
        self._client.delivery.news()
        return Reprocessed(
            dead_letter_id=job_id, new_job_id=job.id, new_unique_key=job.unique.key if job.unique else None
        )

    # --- how

    async def _letter(self, job_id: UUID) -> DeadLetter | None:
        letter = await self._store.dead_letter(job_id)
        return letter if letter is not None and self._ours(letter.tenant) else None

    def _within(self, filter: DeadLetterFilter) -> DeadLetterFilter:
        return msgspec.structs.replace(filter, tenant=self.scope(filter.tenant))

    def _reviewing(
        self,
        act: ReviewAct,
        job_id: UUID,
        letter: DeadLetter | None,
        notes: str | None,
        payload: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[Act]:
        def possible() -> None:
            found = _there(letter, job_id)
            check(found.status, act, _name(job_id))
            if act is ReviewAct.REPROCESS:
                self._new_job(found, payload)

        return self._act(
            f"dead_letter.{act}",
            ids.public(job_id),
            notes,
            tenant=None if letter is None else letter.tenant,
            before=None if letter is None else {"status": letter.status},
            check=possible,
        )

    async def _decide(self, decision: ReviewAct, job_id: UUID, notes: str | None) -> DeadLetter:
        letter = await self._letter(job_id)
        async with self._reviewing(decision, job_id, letter, notes) as act:
            status = check(_there(letter, job_id).status, decision, _name(job_id))
            notes = _there(letter, job_id).notes_for(self.principal.name, notes)
            reviewed = await self._review(decision, job_id, notes, act, {"status": status})
            _check_applied(reviewed, decision)
        return await self.dead_letter(job_id)

    async def _reprocess(
        self, letter: DeadLetter, notes: str | None, payload: Mapping[str, Any] | None, act: Act
    ) -> NewJob:
        taken: list[str] = []
        notes = letter.notes_for(self.principal.name, notes)
        for _ in range(TRIES):
            job = self._new_job(letter, payload, taken)
            after: dict[str, Any] = {"status": "reprocessing", "new_job": ids.public(job.id)}
            if payload is not None:
                after["changed"] = sorted(changed_fields(letter.payload, msgspec.json.decode(job.payload)))[:NAMED]
            with producing(self._client.tracer, [job]) as production:
                (traced,) = production.jobs
                reviewed = await self._review(ReviewAct.REPROCESS, letter.id, notes, act, after, traced)
                production.void = not reviewed.applied
            if reviewed.applied or job.unique is None or reviewed.status not in OPEN:
                _check_applied(reviewed, ReviewAct.REPROCESS)
                return job
            if letter.unique_key is None:
                problem = "the unique key that its payload gives is held by another job; give it another payload"
                raise PayloadInvalid(f"{_name(letter.id)}: {problem}", "payload")
            taken.append(job.unique.key)
        raise UniqueConflict(f"{_name(letter.id)}: the keys made for its new job are all taken; try again", letter.id)

    def _new_job(self, letter: DeadLetter, payload: Mapping[str, Any] | None, taken: Sequence[str] = ()) -> NewJob:
        return new_job(
            letter,
            id=uuid_utils.compat.uuid7(),
            by=self.principal.name,
            at=datetime.now(UTC),
            kinds=self._kinds,
            payload=payload,
            taken=taken,
        )

    async def _review(
        self,
        decision: ReviewAct,
        job_id: UUID,
        notes: str | None,
        act: Act,
        after: Mapping[str, Any],
        job: NewJob | None = None,
    ) -> Reviewed:
        """With its event, so that there is no act without one and no event without its act."""
        review = Review(
            id=job_id,
            act=decision,
            by=self.principal.name,
            notes=None if notes is None else recordable(notes),
            job=job,
            event=act.ended(AuditOutcome.SUCCEEDED, after),
        )
        (reviewed,) = await self._store.review([review])
        act.recorded = reviewed.applied
        return reviewed


def _there(letter: DeadLetter | None, job_id: UUID) -> DeadLetter:
    if letter is None:
        raise DeadLetterNotFound(
            f"there is no {_name(job_id)}: its job did not fail for good, or it was reviewed and removed since"
        )
    return letter


def _check_applied(reviewed: Reviewed, decision: ReviewAct) -> None:
    """Somebody else was faster, if it was not applied: say where it stands now."""
    if reviewed.applied:
        return
    if reviewed.status is None:
        _there(None, reviewed.id)
    else:
        check(reviewed.status, decision, _name(reviewed.id))
    raise IllegalTransition(
        f"{_name(reviewed.id)} was left as it is: somebody else acted on it meanwhile, or another job holds the unique "
        "key that it would have; look at it again"
    )


def _name(job_id: UUID) -> str:
    return f"dead letter {ids.public(job_id)}"
