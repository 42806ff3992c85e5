"""Jobs, as a principal looks at them and acts on them."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import assert_never
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.acting import CancelResult
from dutiful.core import ids
from dutiful.core.endpoint import origin
from dutiful.core.errors import IllegalTransition, JobNotFound
from dutiful.core.job import AttemptRecord, Insertion, JobRecord, NewJob, PhaseRecord, Unique
from dutiful.core.review import BY_HAND, OPEN, ReviewState
from dutiful.core.transitions import State
from dutiful.explanation import Explanation, Fleet, finished, gate, in_line, later, running, unserved
from dutiful.operator.dead_letters import DeadLetters
from dutiful.operator.door import Act, recordable
from dutiful.outbox import WebhookPost
from dutiful.reading import JobFilter, JobPage, QueueRecord, Stats
from dutiful.reprocessing import json_text
from dutiful.reviewing import DeadLetter

COUNTED = 200  # ready jobs of a queue up to which those ahead are counted one by one


class Retried(msgspec.Struct, frozen=True):
    """The job that will run now: a new one (`made`), or one that waited and is due now."""

    job_id: UUID
    state: State
    made: bool


class Jobs(DeadLetters):
    # --- reads

    async def job(self, job_id: UUID) -> JobRecord:
        return _there(await self._found(job_id), job_id)

    async def jobs(self, filter: JobFilter) -> JobPage:
        return await self._store.jobs(msgspec.structs.replace(filter, tenant=self.scope(filter.tenant)))

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        await self.job(job_id)
        return await self._store.attempts(job_id)

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        await self.job(job_id)
        return await self._store.phases(job_id)

    async def needs(self, job_id: UUID) -> list[JobRecord]:
        """The jobs that it depends on."""
        await self.job(job_id)
        return [need for need in await self._store.dependencies(job_id) if self._ours(need.tenant)]

    async def posts_of(self, job_id: UUID) -> list[WebhookPost]:
        """The messages to webhooks about it."""
        await self.job(job_id)
        posts = await self._store.posts(job_id=job_id)
        return posts if self.tenant is None else [_without_address(post) for post in posts]

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        return await self._store.queues(tenant=self.scope(tenant))

    async def stats(self, since: timedelta, tenant: str | None = None) -> Stats:
        return await self._store.stats(since, tenant=self.scope(tenant))

    async def explain(self, job_id: UUID) -> Explanation:
        """Why it is not running, or what it is doing."""
        record, now = await self.job(job_id), datetime.now(UTC)
        match record.state:
            case State.RUNNING:
                return running(record, now)
            case State.SCHEDULED if record.run_at is not None and record.run_at > now:
                return later(record, record.run_at, await self._store.attempts(job_id), now)
            case State.SCHEDULED | State.READY | State.BLOCKED:
                house = self.tenant is None
                fleet = Fleet.of(
                    await self._store.workers(),
                    await self._store.pauses(),
                    house=house,
                    breakers=await self._client.store.breakers(),  # nobody's; a tenant hears no more than that it waits
                )
                needs = await self.needs(job_id) if record.gate == "dependency" else []
                if record.state is State.BLOCKED and (held := gate(record, needs, fleet, now)):
                    return held
                if found := unserved(record, fleet, now):
                    return found
                ahead, exact = await self._ahead(record)
                return in_line(record, fleet, ahead, exact=exact)
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return finished(record, now)
            case _:
                assert_never(record.state)

    async def _ahead(self, record: JobRecord) -> tuple[int, bool]:
        """How many start before it, by priority and age; with False, only how many more its queue has.

        Of the principal's own, if they have a tenant: how busy others are is not theirs to know.
        """
        ready = next((q.ready for q in await self.queues() if q.queue == record.queue), 0)
        if ready > COUNTED:
            return ready - 1, False
        waiting = await self.jobs(JobFilter(state=State.READY, queue=record.queue, limit=COUNTED))
        return sum((job.priority, job.id) < (record.priority, record.id) for job in waiting), True

    # --- acts

    async def cancel(self, job_id: UUID, reason: str | None = None) -> CancelResult:
        """Cancel it if it waits, ask it to stop if it runs."""
        found = await self._found(job_id)
        async with self._acting("job.cancel", job_id, found, reason) as act:
            result = await self._client.cancel(job_id, recordable(reason or f"cancelled by {self.principal.name}"))
            act.after = {"state": result.state, "changed": result.changed, "requested": result.requested}
            act.done = result.changed or result.requested
        return result

    async def retry(self, job_id: UUID, reason: str | None = None) -> Retried:
        """Run a finished job again as a new one; make one due that is scheduled, or that a breaker refused.

        Any other is left alone. One that failed for good is reprocessed, so that its dead letter knows of the new one.
        """
        letter = await self._letter_by_now(job_id)
        if letter is not None and letter.status in OPEN:
            new = (await self.reprocess(job_id, reason)).new_job_id
            return Retried(new, (await self.job(new)).state, made=True)
        found = await self._found(job_id)
        async with self._acting("job.retry", job_id, found, reason, lambda _: _check_undecided(letter)) as act:
            retried = await self._standing_for(letter) or await self._retry(_there(found, job_id))
            act.after = {"job": ids.public(retried.job_id), "state": retried.state, "made": retried.made}
        return retried

    async def _letter_by_now(self, job_id: UUID) -> DeadLetter | None:
        """With the end of its new job, which the services may not have seen yet: it may be open again."""
        letter = await self._letter(job_id)
        if letter is None or letter.status is not ReviewState.REPROCESSING:
            return letter
        resolved = await self._store.resolve_reprocessed(1, new_job_id=letter.new_job_id)
        return await self._letter(job_id) if resolved else letter

    async def _standing_for(self, letter: DeadLetter | None) -> Retried | None:
        """The job that was made of it already; never another one beside that, for it may be open again then."""
        if letter is None or letter.status is not ReviewState.REPROCESSING or letter.new_job_id is None:
            return None
        new = await self._found(letter.new_job_id)
        if new is None or new.state.final:
            raise IllegalTransition(
                f"job {ids.public(letter.new_job_id)}, which stands for {ids.public(letter.id)}, has just ended; look "
                "at it, and try again"
            )
        return Retried(new.id, new.state, made=False)

    async def _found(self, job_id: UUID) -> JobRecord | None:
        record = await self._store.find(job_id)
        return record if record is not None and self._ours(record.tenant) else None

    def _acting(
        self,
        action: str,
        job_id: UUID,
        record: JobRecord | None,
        reason: str | None,
        check: Callable[[JobRecord], object] = lambda _: None,
    ) -> AbstractAsyncContextManager[Act]:
        """`check` raises if it cannot be done to the job as it was found."""

        def possible() -> None:
            check(_there(record, job_id))

        return self._act(
            action,
            ids.public(job_id),
            reason,
            tenant=None if record is None else record.tenant,
            before=None if record is None else {"state": record.state},
            check=possible,
        )

    async def _retry(self, record: JobRecord) -> Retried:
        match record.state:
            case State.SCHEDULED:
                return await self._expedite(record)
            case State.BLOCKED if record.gate == "breaker":
                return await self._expedite(record)
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return await self._again(record)
            case State.READY | State.BLOCKED | State.RUNNING:
                why = await self.explain(record.id)
                raise IllegalTransition(f"job {ids.public(record.id)} is {record.state} already: it {why.sentence}")
            case _:
                assert_never(record.state)

    async def _expedite(self, record: JobRecord) -> Retried:
        state = await self._store.expedite(record.id)
        if state is None:
            raise JobNotFound(f"there is no job {ids.public(record.id)} any more")
        self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return Retried(record.id, state, made=False)

    async def _again(self, record: JobRecord) -> Retried:
        # Two people, or one double click, must not run it twice at the same time; its own key is still the old job's.
        unique = Unique(f"retry of {record.id}")
        kept = {name: value for name, value in (record.options or {}).items() if name != "unique_field"}
        job = NewJob(
            id=uuid_utils.compat.uuid7(),
            kind=record.kind,
            queue=record.queue,
            payload=json_text(record.payload) or "{}",
            priority=record.priority,
            max_attempts=record.max_attempts,
            tenant=record.tenant,
            correlation_id=record.correlation_id,
            parent_id=record.parent_id,
            retry_of=record.id,
            subject=json_text(record.subject),
            created_by=self.principal.name,
            options=json_text({**kept, "unique": unique.key}),
            unique=unique,
        )
        inserted = await self._client.submit(job)
        made = inserted.insertion is Insertion.MADE
        return Retried(inserted.job_id, (await self.job(inserted.job_id)).state, made)


def _without_address(post: WebhookPost) -> WebhookPost:
    """For a tenant: the house's own endpoints may have a secret in their path, and errors may repeat it."""
    if post.webhook is None:
        return post
    where = origin(post.url)
    return msgspec.structs.replace(post, url=where, error=post.error and post.error.replace(post.url, where))


def _there(record: JobRecord | None, job_id: UUID) -> JobRecord:
    """The same words for another tenant's: whoever asks must not learn that it is there."""
    if record is None:
        raise JobNotFound(f"there is no job {ids.public(job_id)}: it never was, or retention has removed it")
    return record


def _check_undecided(letter: DeadLetter | None) -> None:
    """Whoever has closed it had a reason; a retry by somebody else must not go round that."""
    if letter is None:
        return
    by_hand = letter.status is ReviewState.RESOLVED and letter.resolution == BY_HAND
    if letter.status is ReviewState.DISCARDED or by_hand:
        why = f": {letter.notes}" if letter.notes else ""
        raise IllegalTransition(
            f"the dead letter of job {ids.public(letter.id)} was {letter.status}{' by hand' if by_hand else ''} by "
            f"{letter.reviewed_by}{why}; so it is not run again: if it has to be, enqueue a new job"
        )
