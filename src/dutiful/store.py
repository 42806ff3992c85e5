"""The contract of a store: where jobs live.

Every store passes one conformance suite. What they all promise:

- A call that returned has been committed durably; a call that raised StoreUnavailable may or may not have been, and
  every call may be repeated safely.
- A live job stands in exactly one place (scheduled, ready, blocked or a lease); a final one has one `finished` row.
- Only the holder of (job_id, claim_id) moves a running job.
- Every `now` is for tests: production passes None and the store's own clock holds.
- Times are aware, in UTC. JSON travels as text.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from dutiful.access import Access
from dutiful.acting import Acts
from dutiful.alerting import Alerting
from dutiful.auditing import Auditing
from dutiful.breaking import Breaking
from dutiful.core.job import Inserted, NewJob
from dutiful.duties import Duties
from dutiful.locking import Locking
from dutiful.measuring import Measuring
from dutiful.outbox import Outbox
from dutiful.reading import Reader
from dutiful.reviewing import Reviewing
from dutiful.tracking import Tracking
from dutiful.watching import Watching
from dutiful.working import Work


class Schema(Protocol):
    """The tables themselves."""

    async def open(self) -> None:
        """Connect and check that the schema can be worked with; SchemaMismatch says what to run."""

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; returns the names of the migrations that were applied. Can be repeated."""

    def migration_sql(self) -> str:
        """All migrations as a script, for a DBA."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether the database itself keeps tenants apart for us; then a batch holds the jobs of one tenant only."""
        ...

    async def check_made(self) -> None:
        """SchemaMismatch if it has none of our tables and `open` would make them; for whoever only wants to look."""

    def check_worker(self) -> None:
        """UsageError if a worker could not do all of its work with the rights that we have here."""

    def for_tenant(self, tenant: str) -> "Store":
        """The same store, for calls on behalf of one tenant; where the database can, it lets them see nothing else.

        A second net: who calls it has to ask for nothing else, too. It shares this store's connections and is closed
        with it.
        """
        ...


class Intake(Protocol):
    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        """Store all of `jobs` in one transaction, or none; an id that is there already is left as it is.

        `hint`: let the commit tell other processes, where the database can (see Delivery.rides).
        """
        ...

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same inside the transaction that is open on the user's own async `connection`."""
        ...

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same for the user's own blocking connection or session."""
        ...


class Store(
    Schema,
    Intake,
    Work,
    Tracking,
    Locking,
    Duties,
    Outbox,
    Acts,
    Reader,
    Reviewing,
    Auditing,
    Access,
    Watching,
    Breaking,
    Measuring,
    Alerting,
    Protocol,
):
    """All of it."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...
