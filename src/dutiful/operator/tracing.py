"""Jobs that belong together, as a principal follows them from one to the next."""

from uuid import UUID

from dutiful.core import ids
from dutiful.core.errors import JobNotFound, MalformedId
from dutiful.core.family import Family, Member
from dutiful.core.job import JobRecord
from dutiful.operator.jobs import Jobs
from dutiful.reading import JobFilter

MOST = 1_000  # jobs of one family that are told, and some ancestors of theirs
PAGE = 100  # a job may have a large payload, so few of them are held at a time
PAGES = 50  # of a tenant: most of what has this correlation id may be somebody else's
ANCESTORS = 100


class Tracing(Jobs):
    async def trace(self, reference: str) -> Family:
        """All jobs with this correlation id, or with that of the job that has this id."""
        found, cut = await self._related(reference)
        if not found:
            job = await self._named(reference)
            if job is None:
                raise JobNotFound(
                    f"no jobs: none has the correlation id {reference!r:.200}, nor that for its own id; retention may "
                    "have removed them"
                )
            reference = job.correlation_id
            found, cut = await self._related(reference)
        if cut:
            await self._climb(found, reference)
        return Family.of(reference, found.values(), cut=cut)

    async def _related(self, correlation_id: str) -> tuple[dict[UUID, Member], bool]:
        """The newest of them, and whether there are more."""
        found: dict[UUID, Member] = {}
        before: UUID | None = None
        for _ in range(PAGES):
            size = min(PAGE, MOST - len(found))
            page = await self.jobs(JobFilter(correlation_id=correlation_id, before=before, limit=size))
            found |= {job.id: Member.of(job) for job in page}
            before = page.next
            if before is None or len(found) >= MOST:
                break
        return found, before is not None

    async def _climb(self, found: dict[UUID, Member], correlation_id: str) -> None:
        """Add the ancestors that were cut off, so that the others hang together."""
        asked: set[UUID] = set()
        missing = _above(found) - found.keys()
        while missing and len(asked) < ANCESTORS:
            asked.add(wanted := missing.pop())
            job = await self._found(wanted)
            if job is not None and job.correlation_id == correlation_id:
                found[job.id] = Member.of(job)
            missing = _above(found) - found.keys() - asked

    async def _named(self, reference: str) -> JobRecord | None:
        try:
            return await self._found(ids.parse_any(reference))
        except MalformedId:
            return None


def _above(found: dict[UUID, Member]) -> set[UUID]:
    return {above for one in found.values() for above in (one.parent_id, one.retry_of) if above is not None}
