"""The contract of enqueueing."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from dutiful.core.errors import UsageError
from dutiful.core.ids import public
from dutiful.core.job import Inserted, NewJob
from dutiful.payload.sql_rules import PayloadRule


def unknown_dependency(job_id: UUID) -> UsageError:
    """The same error for another tenant's job as for a job that does not exist."""
    return UsageError(f"depends_on: there is no job {public(job_id)}; it never existed, or retention has deleted it")


class JobStore(Protocol):
    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        """Stores all of `jobs` in one transaction, or none; a job whose id exists is not changed.

        `hint`: the commit notifies other processes, where the database can.
        """

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same in the open transaction of the user's own async `connection`."""

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same for the user's own blocking connection or session."""

    async def put_payload_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        """Stores the payload rules of kinds, for jobs enqueued by SQL; None deletes them. Does nothing where SQL cannot
        enqueue."""
