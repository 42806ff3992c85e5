"""Trees: how far all jobs of one correlation id are, cancelling them, and running again what failed."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from graphlib import TopologicalSorter
from itertools import groupby, islice
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import IllegalTransition, UsageError
from dutiful.core.job import Insertion, JobRecord, NewJob, OnFailure
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.review.state import OPEN, ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE
from dutiful.operator.actor import Actor, AuditedAction, OperatorPart, recordable
from dutiful.operator.rewiring import Rewiring
from dutiful.operator.trace import Trace
from dutiful.store.dead_letters import DeadLetter, Review
from dutiful.store.dependents import Edge
from dutiful.store.queries import JobFilter
from dutiful.store.trees import TreeProgress

PAGE = 1_000
PART = 16  # jobs that are read at a time with their payloads, which may be large
PART_BYTES = 4 * 1024 * 1024  # of payloads that are in memory at a time, and one payload more
UNCOMPLETED = (State.FAILED, State.CANCELLED)


class TreeRetried(msgspec.Struct, frozen=True):
    """The new jobs, by those that they run again, each after those that it depends on."""

    correlation_id: str
    jobs: dict[UUID, UUID]


class Trees(OperatorPart):
    def __init__(self, actor: Actor, trace: Trace) -> None:
        super().__init__(actor)
        self._trace = trace

    async def progress(self, reference: str) -> TreeProgress:
        """Of the jobs with this correlation id, or with that of the job that has this id."""
        correlation_id = await self._trace.correlation_of(reference)
        return await self._store.trees.progress(correlation_id, tenant=self._actor.tenant)

    async def cancel(self, reference: str, reason: str | None = None) -> int:
        """Cancels all jobs of a tree that have not ended; returns how many, with those that were asked to stop.

        In bounded steps: what was done stays done, and a repeated call goes on.
        """
        correlation_id = await self._trace.correlation_of(reference)
        async with self._actor.audited("job.cancel_tree", correlation_id, reason, tenant=self._actor.tenant) as action:
            recorded = recordable(reason or f"cancelled by {self._actor.principal.name}")
            count = await self._client.cancel_tree(correlation_id, recorded, tenant=self._actor.tenant)
            action.after, action.done = {"jobs": count}, count > 0
        return count

    async def retry(self, reference: str, reason: str | None = None, *, cancelled: bool = False) -> TreeRetried:
        """Runs again what failed and what was cancelled because of it, as new jobs with the same edges among them.

        `cancelled`: also what was cancelled for another reason. Results of what completed are used again. A job that
        was run again before is left out, as is a dead letter that was decided by a person. If this is interrupted, a
        repeated call goes on.
        """
        correlation_id = await self._trace.correlation_of(reference)
        async with self._actor.audited("job.retry_tree", correlation_id, reason, tenant=self._actor.tenant) as action:
            plan = await self._plan(correlation_id, cancelled)
            if not plan.order:
                raise IllegalTransition(
                    f"nothing of {correlation_id} is to be run again: none of its jobs failed, or all that did were "
                    "run again or decided already"
                    + ("" if cancelled else "; --cancelled includes jobs cancelled by hand")
                )
            made = await self._make(plan, reason, action)
            action.after = {"jobs": len(made)}
        self._client.delivery.hint(EVERYWHERE)
        self._client.delivery.notify_watchers()
        return TreeRetried(correlation_id, made)

    async def _plan(self, correlation_id: str, cancelled: bool) -> "Plan":
        members = await self._members(correlation_id)
        again = {one.retry_of: one.id for one in members if one.retry_of is not None}
        dead = [one for one in members if one.state in UNCOMPLETED and one.id not in again]
        edges = await self._edges([one.id for one in dead])
        letters = await self._letters([one.id for one in dead if one.state is State.FAILED])
        failed = [
            one.id for one in dead if one.state is State.FAILED and (one.id not in letters or letters[one.id] in OPEN)
        ]
        hit = {*failed, *again}
        by_hand = [one.id for one in dead if one.state is State.CANCELLED] if cancelled else []
        order = _order([*failed, *by_hand], hit, {one.id for one in dead if one.state is State.CANCELLED}, edges)
        return Plan(order, letters.keys(), edges, again, {one.id for one in members})

    async def _members(self, correlation_id: str) -> list["Ended"]:
        """Without payloads, whose sum may be larger than memory."""
        found: list[Ended] = []
        wanted = JobFilter(correlation_id=correlation_id, tenant=self._actor.tenant, limit=PAGE, details=False)
        while True:
            page = await self._store.queries.jobs(wanted)
            found += [Ended(job.id, job.state, job.retry_of) for job in page]
            if page.next is None:
                return sorted(found, key=lambda one: one.id)
            wanted = msgspec.structs.replace(wanted, before=page.next)

    async def _letters(self, job_ids: list[UUID]) -> dict[UUID, ReviewState]:
        found: dict[UUID, ReviewState] = {}
        for start in range(0, len(job_ids), PAGE):
            found |= await self._store.dead_letters.states(job_ids[start : start + PAGE])
        return found

    async def _edges(self, job_ids: list[UUID]) -> dict[UUID, list[Edge]]:
        found: dict[UUID, list[Edge]] = {job_id: [] for job_id in job_ids}
        for start in range(0, len(job_ids), PAGE):
            for edge in await self._store.dependents.edges(job_ids[start : start + PAGE]):
                found[edge.job_id].append(edge)
        return found

    async def _make(self, plan: "Plan", reason: str | None, action: AuditedAction) -> dict[UUID, UUID]:
        """Stores the new jobs in order: those of dead letters by reviews of these, others as they are."""
        rewiring = Rewiring(self._actor, plan.again)
        needs = {edge.needs_id for job_id in plan.order for edge in plan.edges[job_id]} - plan.members
        rewiring.gone = needs - await self._existing(sorted(needs))
        made: dict[UUID, UUID] = {}
        for is_letter, run in groupby(plan.order, plan.letters.__contains__):
            async for part in self._parts(run, is_letter, plan, rewiring, reason):
                try:
                    stored = await (self._review(part, action) if is_letter else self._insert(part))
                except UsageError as error:
                    raise IllegalTransition(
                        f"the tree has changed meanwhile ({error}); what was run again by now stays, so try again"
                    ) from error
                made |= {one.old: one.job.id for one, done in zip(part, stored, strict=True) if done}
        return made

    async def _existing(self, job_ids: list[UUID]) -> set[UUID]:
        found: set[UUID] = set()
        for start in range(0, len(job_ids), PAGE):
            found |= {job.id for job in await self._store.queries.records(job_ids[start : start + PAGE], details=False)}
        return found

    async def _parts(
        self, job_ids: Iterable[UUID], is_letter: bool, plan: "Plan", rewiring: Rewiring, reason: str | None
    ) -> AsyncIterator[list["Again"]]:
        """The new jobs, as many at a time as fit into memory; without those that retention has deleted meanwhile."""
        part: list[Again] = []
        size = 0
        async for ended in self._ended(job_ids, is_letter):
            job_id = ended.id
            notes = ended.notes_for(self._actor.principal.name, reason) if isinstance(ended, DeadLetter) else None
            job = rewiring.job(ended, plan.edges[job_id])
            part.append(Again(job_id, job, notes))
            size += len(job.payload)
            if len(part) >= PAGE or size >= PART_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part

    async def _ended(self, job_ids: Iterable[UUID], is_letter: bool) -> AsyncIterator[JobRecord | DeadLetter]:
        """The jobs or dead letters with these ids, in this order."""
        read = self._store.dead_letters.find_all if is_letter else self._store.queries.records
        left = iter(job_ids)
        while few := list(islice(left, PART)):
            found: dict[UUID, JobRecord | DeadLetter] = {one.id: one for one in await read(few)}
            for job_id in few:
                if job_id in found and self._actor.owns(found[job_id].tenant):
                    yield found.pop(job_id)

    async def _insert(self, part: list["Again"]) -> list[bool]:
        return [one.insertion is Insertion.MADE for one in await self._client.submit_many([one.job for one in part])]

    async def _review(self, part: list["Again"], action: AuditedAction) -> list[bool]:
        reviews = [
            Review(
                id=one.old,
                act=ReviewAct.REPROCESS,
                by=self._actor.principal.name,
                notes=None if one.notes is None else recordable(one.notes),
                job=one.job,
                event=action.ended(AuditOutcome.SUCCEEDED, {"dead_letter": str(one.old), "new_job": str(one.job.id)}),
            )
            for one in part
        ]
        return [one.applied for one in await self._store.dead_letters.review(reviews)]


class Ended(msgspec.Struct, frozen=True):
    """What a plan needs of a job of the tree."""

    id: UUID
    state: State
    retry_of: UUID | None


class Again(msgspec.Struct, frozen=True):
    """A job, and the one that it runs again."""

    old: UUID
    job: NewJob
    notes: str | None  # of the dead letter


class Plan(msgspec.Struct, frozen=True):
    """Which jobs of a tree are run again, in which order; ids only."""

    order: list[UUID]
    letters: Collection[UUID]  # those of them that are dead letters, and others
    edges: dict[UUID, list[Edge]]
    again: dict[UUID, UUID]  # jobs that were run again before, and by which
    members: set[UUID]  # all jobs of the tree


def _order(
    wanted: Iterable[UUID], hit: Collection[UUID], cancelled: Collection[UUID], edges: Mapping[UUID, list[Edge]]
) -> list[UUID]:
    """The wanted jobs, and the cancelled ones that depend on what was `hit`, parents first."""
    below: dict[UUID, list[UUID]] = {}
    for job_id in cancelled:
        for edge in edges[job_id]:
            if edge.policy is not OnFailure.RUN:
                below.setdefault(edge.needs_id, []).append(job_id)
    taken, left = dict.fromkeys(wanted), [*wanted, *hit]
    while left:
        for child in below.get(left.pop(), ()):
            if child not in taken:
                taken[child] = None
                left.append(child)
    needs: dict[UUID, list[Any]] = {
        job_id: [edge.needs_id for edge in edges[job_id] if edge.needs_id in taken] for job_id in sorted(taken)
    }
    return list(TopologicalSorter(needs).static_order())
