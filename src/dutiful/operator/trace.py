"""Jobs with the same correlation id, as a tree."""

from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.correlation_tree import CorrelationTree, Member, Need
from dutiful.core.errors import JobNotFound, MalformedId
from dutiful.core.job import JobRecord
from dutiful.core.sealed import shown_record
from dutiful.operator.actor import Actor, OperatorPart
from dutiful.operator.jobs.jobs import Jobs
from dutiful.store.queries import JobFilter

MOST = 1_000  # jobs of one tree, besides some of their ancestors
FAILED, OLDEST = 300, 10  # of a larger tree, so many of these are shown whatever else is
PAGE = 100  # few at a time, because errors may be large
PAGES = 50  # most jobs with this correlation id may belong to other tenants
ANCESTORS = 100
NEEDS = 100  # of one job, the newest; a job may depend on any number
MOST_NEEDS = 10_000  # of all jobs together


class Trace(OperatorPart):
    def __init__(self, actor: Actor, jobs: Jobs) -> None:
        super().__init__(actor)
        self._jobs = jobs

    async def find(self, reference: str) -> CorrelationTree:
        """All jobs with this correlation id, or with that of the job that has this id.

        Of more than `MOST`: the first that failed, the oldest, the newest, and ancestors of these.
        """
        found, cut = await self._related(reference)
        if not found:
            job = await self._named(reference)
            if job is None:
                raise _no_jobs(reference)
            reference = job.correlation_id
            found, cut = await self._related(reference)
        if cut:
            found = await self._chosen(found, reference)
        return CorrelationTree.of(reference, await self._with_needs(found), cut=cut)

    async def correlation_of(self, reference: str) -> str:
        """The correlation id itself, or that of the job that has this id."""
        job = await self._named(reference)
        if job is not None:
            return job.correlation_id
        if not await self._jobs.search(JobFilter(correlation_id=reference, limit=1, details=False)):
            raise _no_jobs(reference)
        return reference

    async def _with_needs(self, found: dict[UUID, Member]) -> list[Member]:
        """The jobs, with those that each depends on, as far as they are not too many to be read."""
        needs: dict[UUID, list[Need]] = {}
        edges = await self._store.dependents.edges(list(found), newest=NEEDS)
        for edge in edges:
            needs.setdefault(edge.job_id, []).append(Need(edge.needs_id, edge.policy))
        counts = {job_id: len(some) for job_id, some in needs.items()}
        if full := [job_id for job_id, count in counts.items() if count >= NEEDS]:
            counts |= await self._store.dependents.counts(full)
        most = NEEDS if len(edges) <= MOST_NEEDS else MOST_NEEDS // len(found)
        return [
            msgspec.structs.replace(one, needs=tuple(needs.get(one.id, ())[-most:]), needs_total=counts.get(one.id, 0))
            for one in found.values()
        ]

    async def _related(self, correlation_id: str) -> tuple[dict[UUID, Member], bool]:
        """The newest jobs, and whether there are more."""
        found: dict[UUID, Member] = {}
        before: UUID | None = None
        for _ in range(PAGES):
            size = min(PAGE, MOST - len(found))
            page = await self._jobs.search(
                JobFilter(correlation_id=correlation_id, before=before, limit=size, details=False)
            )
            found |= {job.id: Member.of(job) for job in page}
            before = page.next
            if before is None or len(found) >= MOST:
                break
        return found, before is not None

    async def _chosen(self, newest: dict[UUID, Member], correlation_id: str) -> dict[UUID, Member]:
        """Of a tree with more jobs than are shown: those that say what went wrong, and what it began with."""
        oldest, tenant = self._store.trees.oldest, self._actor.tenant
        failed = await oldest(correlation_id, min(FAILED, MOST), failed=True, tenant=tenant)
        first = await oldest(correlation_id, OLDEST, tenant=tenant)
        wanted = [job_id for job_id in dict.fromkeys((*failed, *first)) if job_id not in newest]
        chosen = {job_id: newest[job_id] for job_id in (*failed, *first) if job_id in newest}
        chosen |= await self._members(wanted, correlation_id)
        for job_id, member in newest.items():
            if len(chosen) >= MOST:
                break
            chosen[job_id] = member
        await self._climb(chosen, set(failed), correlation_id)
        return chosen

    async def _climb(self, found: dict[UUID, Member], failed: set[UUID], correlation_id: str) -> None:
        """Adds parents, level by level, and above what failed also the newest job that each depends on."""
        level, left = dict(found), ANCESTORS
        while level and left > 0:
            above = {one for member in level.values() for one in (member.parent_id, member.retry_of) if one is not None}
            troubled = [job_id for job_id in level if job_id in failed]
            needs = await self._store.dependents.edges(troubled, newest=1) if troubled else []
            causes = {one for job_id in troubled for one in (level[job_id].parent_id, level[job_id].retry_of)}
            failed |= {edge.needs_id for edge in needs} | {one for one in causes if one is not None}
            wanted = sorted((above | {edge.needs_id for edge in needs}) - found.keys())[:left]
            left -= len(wanted)
            level = await self._members(wanted, correlation_id)
            found |= level

    async def _members(self, job_ids: list[UUID], correlation_id: str) -> dict[UUID, Member]:
        found: dict[UUID, Member] = {}
        for start in range(0, len(job_ids), PAGE):
            for job in await self._store.queries.records(job_ids[start : start + PAGE], details=False):
                if job.correlation_id == correlation_id and self._actor.owns(job.tenant):
                    found[job.id] = Member.of(shown_record(job))
        return found

    async def _named(self, reference: str) -> JobRecord | None:
        try:
            return await self._jobs.find(ids.parse_any(reference))
        except MalformedId:
            return None


def _no_jobs(reference: str) -> JobNotFound:
    return JobNotFound(
        f"no jobs: none has the correlation id {reference!r:.200}, nor this id; retention may have removed them"
    )
