"""The contract of enqueueing."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from dutiful.core.errors import UnknownDependency
from dutiful.core.ids import public
from dutiful.core.job import Inserted, NewJob
from dutiful.payload.sql_rules import KindDefault, PayloadRule

SOON = timedelta(seconds=2)
MANY = 5_000  # jobs whose insert may take longer than claims search below their floors
Levels: TypeAlias = frozenset[tuple[str, int]]


def hinted_levels(jobs: Sequence[NewJob]) -> Levels | None:
    """The queue levels that a hint of new jobs names; empty: any; None: no hint is worth while.

    Any, if a job may be below the floors of workers, or due before the leader's next look at what is scheduled.
    """
    if len(jobs) > MANY:
        return frozenset()
    timed = [job for job in jobs if job.run_at is not None or job.delay is not None]
    if not timed:
        return frozenset((job.queue, job.priority) for job in jobs)
    soon = datetime.now(UTC) + SOON
    if any(
        job.run_at < soon if job.run_at is not None else job.delay is not None and job.delay < SOON for job in timed
    ):
        return frozenset()
    return frozenset((job.queue, job.priority) for job in jobs if job.run_at is None and job.delay is None) or None


def unknown_dependency(job_id: UUID) -> UnknownDependency:
    """The same error for another tenant's job as for a job that does not exist."""
    return UnknownDependency(
        f"depends_on: there is no job {public(job_id)}; it never existed, or retention has deleted it", job_id
    )


class JobStore(Protocol):
    async def insert(
        self, jobs: Sequence[NewJob], *, hint: Levels | None = None, now: datetime | None = None
    ) -> list[Inserted]:
        """Stores all of `jobs` in one transaction, or none; a job whose id exists is not changed.

        `hint`: the queue levels that the commit names to other processes, where the database can; None: it names none.
        """

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same in the open transaction of the user's own async `connection`."""

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same for the user's own blocking connection or session."""

    async def put_payload_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        """Stores the payload rules of kinds, for jobs enqueued by SQL; None deletes them. Does nothing where SQL cannot
        enqueue."""

    async def put_defaults(self, defaults: Sequence[KindDefault]) -> None:
        """Stores what kinds declare, for jobs enqueued by SQL without those options. Does nothing where it cannot."""
