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
    """The same answer for a job of another tenant as for none."""
    return UsageError(f"depends_on: there is no job {public(job_id)}; it never existed, or retention has deleted it")


class JobStore(Protocol):
    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        """Store all of `jobs` in one transaction, or none; an id that is there already is left as it is.

        `hint`: let the commit notify other processes, where the database can.
        """

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same inside the transaction that is open on the user's own async `connection`."""

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same for the user's own blocking connection or session."""

    async def put_payload_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        """By kind, the rules for jobs that come by SQL; None: it has none any more. Where none can come so, this is
        nothing to do."""
