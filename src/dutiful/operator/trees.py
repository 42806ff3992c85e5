"""Trees: how far all jobs of one correlation id are, cancelling them, and running again what failed."""

from collections.abc import Collection, Iterable, Mapping
from graphlib import TopologicalSorter
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import IllegalTransition, UsageError
from dutiful.core.job import Insertion, JobRecord, NewJob, OnFailure
from dutiful.core.review.audit import AuditOutcome
from dutiful.core.review.state import OPEN, ReviewAct
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE
from dutiful.operator.actor import Actor, AuditedAction, OperatorPart, recordable
from dutiful.operator.dead_letters import DeadLetters
from dutiful.operator.rewiring import Rewiring
from dutiful.operator.trace import Trace
from dutiful.store.dead_letters import DeadLetter, Review
from dutiful.store.dependents import Edge
from dutiful.store.queries import JobFilter
from dutiful.store.trees import TreeProgress

PAGE = 1_000
UNCOMPLETED = (State.FAILED, State.CANCELLED)


class TreeRetried(msgspec.Struct, frozen=True):
    """The new jobs, by those that they run again, each after those that it depends on."""

    correlation_id: str
    jobs: dict[UUID, UUID]


class Trees(OperatorPart):
    def __init__(self, actor: Actor, trace: Trace, dead_letters: DeadLetters) -> None:
        super().__init__(actor)
        self._trace = trace
        self._dead_letters = dead_letters

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
        again = {job.retry_of: job.id for job in members if job.retry_of is not None}
        dead = [job for job in members if job.state in UNCOMPLETED and job.id not in again]
        edges = await self._edges([job.id for job in dead])
        letters = {job.id: await self._dead_letters.by_job(job.id) for job in dead if job.state is State.FAILED}
        failed = [job_id for job_id, letter in letters.items() if letter is None or letter.status in OPEN]
        hit = {*failed, *again}
        by_hand = [job.id for job in dead if job.state is State.CANCELLED] if cancelled else []
        order = _order([*failed, *by_hand], hit, {job.id for job in dead if job.state is State.CANCELLED}, edges)
        details = {job.id: job for job in await self._members(correlation_id, *UNCOMPLETED)}
        records = {job_id: details[job_id] for job_id in order if job_id in details}
        return Plan(list(records), records, letters, edges, again)

    async def _members(self, correlation_id: str, *states: State) -> list[JobRecord]:
        """Without details, unless of these states."""
        found: list[JobRecord] = []
        for state in states or (None,):
            before: UUID | None = None
            while True:
                page = await self._store.queries.jobs(
                    JobFilter(
                        correlation_id=correlation_id,
                        state=state,
                        tenant=self._actor.tenant,
                        before=before,
                        limit=PAGE,
                        details=bool(states),
                    )
                )
                found += page
                if (before := page.next) is None:
                    break
        return sorted(found, key=lambda job: job.id)

    async def _edges(self, job_ids: list[UUID]) -> dict[UUID, list[Edge]]:
        found: dict[UUID, list[Edge]] = {job_id: [] for job_id in job_ids}
        for start in range(0, len(job_ids), PAGE):
            for edge in await self._store.dependents.edges(job_ids[start : start + PAGE]):
                found[edge.job_id].append(edge)
        return found

    async def _make(self, plan: "Plan", reason: str | None, action: AuditedAction) -> dict[UUID, UUID]:
        """Stores the new jobs in order: those of dead letters by reviews of these, others as they are."""
        rewiring = Rewiring(self._actor, plan.again)
        needs = {edge.needs_id for job_id in plan.order for edge in plan.edges[job_id]} - set(plan.order)
        rewiring.gone = await self._gone(needs)
        made: dict[UUID, UUID] = {}
        for is_letter, run in groupby(plan.order, lambda job_id: plan.letters.get(job_id) is not None):
            old = list(run)
            jobs = [rewiring.job(plan.records[one], plan.letters.get(one), plan.edges[one]) for one in old]
            try:
                stored = await (self._review(old, jobs, plan, reason, action) if is_letter else self._insert(jobs))
            except UsageError as error:
                raise IllegalTransition(
                    f"the tree has changed meanwhile ({error}); what was run again by now stays, so try again"
                ) from error
            made |= {one: job.id for one, job, done in zip(old, jobs, stored, strict=True) if done}
        return made

    async def _insert(self, jobs: list[NewJob]) -> list[bool]:
        return [one.insertion is Insertion.MADE for one in await self._client.submit_many(jobs)]

    async def _review(
        self, old: list[UUID], jobs: list[NewJob], plan: "Plan", reason: str | None, action: AuditedAction
    ) -> list[bool]:
        reviews = []
        for job_id, job in zip(old, jobs, strict=True):
            letter = plan.letters[job_id]
            assert letter is not None
            notes = letter.notes_for(self._actor.principal.name, reason)
            event = action.ended(AuditOutcome.SUCCEEDED, {"dead_letter": str(job_id), "new_job": str(job.id)})
            reviews.append(
                Review(
                    id=job_id,
                    act=ReviewAct.REPROCESS,
                    by=self._actor.principal.name,
                    notes=None if notes is None else recordable(notes),
                    job=job,
                    event=event,
                )
            )
        return [one.applied for one in await self._store.dead_letters.review(reviews)]

    async def _gone(self, needs: Collection[UUID]) -> set[UUID]:
        there = {job.id for job in await self._store.queries.outcomes(list(needs))}
        return {one for one in needs if one not in there and await self._store.queries.job(one) is None}


class Plan(msgspec.Struct, frozen=True):
    """Which jobs of a tree are run again, in which order."""

    order: list[UUID]
    records: dict[UUID, JobRecord]
    letters: dict[UUID, DeadLetter | None]
    edges: dict[UUID, list[Edge]]
    again: dict[UUID, UUID]  # jobs that were run again before, and by which


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
