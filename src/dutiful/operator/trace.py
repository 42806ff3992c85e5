"""Jobs with the same correlation id, as a tree."""

from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.correlation_tree import CorrelationTree, Member, Need
from dutiful.core.errors import JobNotFound, MalformedId
from dutiful.core.job import JobRecord
from dutiful.operator.actor import Actor, OperatorPart
from dutiful.operator.jobs import Jobs
from dutiful.store.queries import JobFilter

MOST = 1_000  # jobs of one tree, besides some of their ancestors
PAGE = 100  # few at a time, because a job may have a large payload
PAGES = 50  # most jobs with this correlation id may belong to other tenants
ANCESTORS = 100
NEEDS = 100  # of one job, the newest; a job may depend on any number
MOST_NEEDS = 10_000  # of all jobs together


class Trace(OperatorPart):
    def __init__(self, actor: Actor, jobs: Jobs) -> None:
        super().__init__(actor)
        self._jobs = jobs

    async def find(self, reference: str) -> CorrelationTree:
        """All jobs with this correlation id, or with that of the job that has this id."""
        found, cut = await self._related(reference)
        if not found:
            job = await self._named(reference)
            if job is None:
                raise _no_jobs(reference)
            reference = job.correlation_id
            found, cut = await self._related(reference)
        if cut:
            await self._climb(found, reference)
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
        most = NEEDS if len(edges) <= MOST_NEEDS else MOST_NEEDS // len(found)
        return [msgspec.structs.replace(one, needs=tuple(needs.get(one.id, ())[-most:])) for one in found.values()]

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

    async def _climb(self, found: dict[UUID, Member], correlation_id: str) -> None:
        """Adds ancestors that were cut off, so that the jobs found form a tree."""
        asked: set[UUID] = set()
        missing = _above(found) - found.keys()
        while missing and len(asked) < ANCESTORS:
            asked.add(wanted := missing.pop())
            job = await self._jobs.find(wanted)
            if job is not None and job.correlation_id == correlation_id:
                found[job.id] = Member.of(job)
            missing = _above(found) - found.keys() - asked

    async def _named(self, reference: str) -> JobRecord | None:
        try:
            return await self._jobs.find(ids.parse_any(reference))
        except MalformedId:
            return None


def _no_jobs(reference: str) -> JobNotFound:
    return JobNotFound(
        f"no jobs: none has the correlation id {reference!r:.200}, nor this id; retention may have removed them"
    )


def _above(found: dict[UUID, Member]) -> set[UUID]:
    return {above for one in found.values() for above in (one.parent_id, one.retry_of) if above is not None}
