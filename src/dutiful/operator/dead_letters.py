"""Dead letters: searching and reviewing them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import DeadLetterNotFound, IllegalTransition, PayloadInvalid, UniqueConflict
from dutiful.core.job import NewJob
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.review.state import OPEN, ReviewAct, check
from dutiful.maintenance.requeue import changed_fields, key_of, new_job
from dutiful.observe.producer import producing
from dutiful.operator.actor import AuditedAction, OperatorPart, recordable
from dutiful.store.dead_letters import (
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    LetterCursor,
    Review,
    Reviewed,
    shown_letter,
)

NAMED = 100  # changed fields of a payload in an audit event
TRIES = 5  # a key contains the time in milliseconds, so another reprocess may have taken it


class Reprocessed(msgspec.Struct, frozen=True, kw_only=True):
    dead_letter_id: UUID
    new_job_id: UUID
    new_unique_key: str | None


class DeadLetters(OperatorPart):
    # --- reads

    async def get(self, job_id: UUID) -> DeadLetter:
        return shown_letter(_there(await self.by_job(job_id), job_id))

    async def search(
        self, filter: DeadLetterFilter, *, after: LetterCursor | None = None, limit: int = 50, details: bool = True
    ) -> list[DeadLetter]:
        """Dead letters after the cursor `after`, the newest first; without `details`, as a list shows them."""
        letters = self._store.dead_letters
        found = await letters.search(self.within(filter), after=after, limit=limit, details=details)
        return [shown_letter(letter) for letter in found]

    async def count(self, filter: DeadLetterFilter) -> int:
        return await self._store.dead_letters.count(self.within(filter))

    async def counts(self, filter: DeadLetterFilter) -> DeadLetterCounts:
        return await self._store.dead_letters.counts(self.within(filter))

    async def groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        """Groups of similar errors, the largest first."""
        return await self._store.dead_letters.groups(self.within(filter), limit)

    # --- acts

    async def acknowledge(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        """Marks it as seen and not decided yet."""
        return await self._decide(ReviewAct.ACKNOWLEDGE, job_id, notes)

    async def resolve(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        """Marks it as fixed by hand."""
        return await self._decide(ReviewAct.RESOLVE, job_id, notes)

    async def discard(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        """Decides that it is not run again."""
        return await self._decide(ReviewAct.DISCARD, job_id, notes)

    async def reprocess(
        self, job_id: UUID, notes: str | None = None, payload: Mapping[str, Any] | None = None
    ) -> Reprocessed:
        """Runs it again as a new job with a key of its own, and with `payload` if one is given."""
        letter = await self.by_job(job_id)
        async with self._reviewing(ReviewAct.REPROCESS, job_id, letter, notes, payload) as action:
            job = await self._reprocess(_there(letter, job_id), notes, payload, action)
        self._client.delivery.hint(frozenset({(job.queue, job.priority)}))
        self._client.delivery.notify_watchers()
        return Reprocessed(
            dead_letter_id=job_id, new_job_id=job.id, new_unique_key=job.unique.key if job.unique else None
        )

    # --- how

    async def by_job(self, job_id: UUID) -> DeadLetter | None:
        letter = await self._store.dead_letters.find(job_id)
        return letter if letter is not None and self._actor.owns(letter.tenant) else None

    def within(self, filter: DeadLetterFilter) -> DeadLetterFilter:
        return msgspec.structs.replace(filter, tenant=self._actor.scope(filter.tenant))

    def _reviewing(
        self,
        act: ReviewAct,
        job_id: UUID,
        letter: DeadLetter | None,
        notes: str | None,
        payload: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[AuditedAction]:
        def possible() -> None:
            found = _there(letter, job_id)
            check(found.status, act, _name(job_id))
            if act is ReviewAct.REPROCESS:
                self._new_job(found, payload)

        return self._actor.audited(
            f"dead_letter.{act}",
            ids.public(job_id),
            notes,
            tenant=None if letter is None else letter.tenant,
            before=None if letter is None else {"status": letter.status},
            check=possible,
        )

    async def _decide(self, decision: ReviewAct, job_id: UUID, notes: str | None) -> DeadLetter:
        letter = await self.by_job(job_id)
        async with self._reviewing(decision, job_id, letter, notes) as action:
            status = check(_there(letter, job_id).status, decision, _name(job_id))
            notes = _there(letter, job_id).notes_for(self._actor.principal.name, notes)
            reviewed = await self._review(decision, job_id, notes, action, {"status": status})
            _check_applied(reviewed, decision)
        return await self.get(job_id)

    async def _reprocess(
        self, letter: DeadLetter, notes: str | None, payload: Mapping[str, Any] | None, action: AuditedAction
    ) -> NewJob:
        taken: list[str] = []
        notes = letter.notes_for(self._actor.principal.name, notes)
        for _ in range(TRIES):
            job = self._new_job(letter, payload, taken)
            after: dict[str, Any] = {"status": "reprocessing", "new_job": ids.public(job.id)}
            if payload is not None:
                after["changed"] = sorted(changed_fields(letter.payload, msgspec.json.decode(job.payload)))[:NAMED]
            with producing(self._client.tracer, [job]) as production:
                (traced,) = production.jobs
                reviewed = await self._review(ReviewAct.REPROCESS, letter.id, notes, action, after, traced)
                production.void = not reviewed.applied
            if reviewed.holder is not None and not await self._has_key(reviewed.holder, job):
                raise UniqueConflict(
                    f"{_name(letter.id)} is not run again: job {ids.public(reviewed.holder)} holds its unique key "
                    f"{letter.unique_key!r}; wait for it, or cancel it",
                    reviewed.holder,
                )
            if reviewed.applied or job.unique is None or reviewed.status not in OPEN:
                _check_applied(reviewed, ReviewAct.REPROCESS)
                return job
            if letter.unique_key is None:
                problem = "the unique key that its payload gives is held by another job; give it another payload"
                raise PayloadInvalid(f"{_name(letter.id)}: {problem}", "payload")
            taken.append(job.unique.key)
        raise UniqueConflict(f"{_name(letter.id)}: the keys made for its new job are all taken; try again", letter.id)

    async def _has_key(self, holder: UUID, job: NewJob) -> bool:
        """Whether a job holds the key that was made for `job`, not the one that this inherits."""
        held = await self._store.queries.job(holder)
        return held is None or job.unique is None or key_of(held.options) == job.unique.key

    def _new_job(self, letter: DeadLetter, payload: Mapping[str, Any] | None, taken: Sequence[str] = ()) -> NewJob:
        return new_job(
            letter,
            id=uuid_utils.compat.uuid7(),
            by=self._actor.principal.name,
            at=datetime.now(UTC),
            kinds=self._actor.kinds,
            payload=payload,
            taken=taken,
        )

    async def _review(
        self,
        decision: ReviewAct,
        job_id: UUID,
        notes: str | None,
        action: AuditedAction,
        after: Mapping[str, Any],
        job: NewJob | None = None,
    ) -> Reviewed:
        """Stores the decision and its audit event in one transaction."""
        review = Review(
            id=job_id,
            act=decision,
            by=self._actor.principal.name,
            notes=None if notes is None else recordable(notes),
            job=job,
            event=action.ended(AuditOutcome.SUCCEEDED, after),
        )
        (reviewed,) = await self._store.dead_letters.review([review])
        action.recorded = reviewed.applied
        return reviewed


def _there(letter: DeadLetter | None, job_id: UUID) -> DeadLetter:
    if letter is None:
        raise DeadLetterNotFound(
            f"there is no {_name(job_id)}: its job did not fail for good, or it was reviewed and removed since"
        )
    return letter


def _check_applied(reviewed: Reviewed, decision: ReviewAct) -> None:
    """Raises if the review was not applied, because another one was faster."""
    if reviewed.applied:
        return
    if reviewed.status is None:
        _there(None, reviewed.id)
    else:
        check(reviewed.status, decision, _name(reviewed.id))
    raise IllegalTransition(
        f"{_name(reviewed.id)} was not changed: another review was faster, or another job holds the unique key that "
        "it would get; look at it again"
    )


def _name(job_id: UUID) -> str:
    return f"dead letter {ids.public(job_id)}"
