"""One tenant's view of an app, which shows nothing of other tenants."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.job import JobRecord, job_not_found
from dutiful.core.json import check_name
from dutiful.core.principal import check_tenant
from dutiful.events import EventStream, Snapshot
from dutiful.kind import Handle, Kind
from dutiful.options import read_id, read_options
from dutiful.store import Store
from dutiful.store.dead_letters import DeadLetter, DeadLetterFilter, LetterCursor
from dutiful.store.queries import JobPage
from dutiful.workflow.graph import Workflow

if TYPE_CHECKING:
    from dutiful.app import Dutiful

R = TypeVar("R")


class Tenant:
    """`app.tenant("acme")`: enqueues for this tenant, and shows only its jobs."""

    def __init__(self, app: "Dutiful", name: str) -> None:
        self.name = check_tenant(check_name(name, "tenant"))
        self._app = app

    def __repr__(self) -> str:
        return f"<tenant {self.name}>"

    @overload
    async def enqueue(
        self, kind: Kind[Any, R], payload: Mapping[str, Any] | None = None, **options: Any
    ) -> Handle[R]: ...
    @overload
    async def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Handle[Any]: ...
    async def enqueue(
        self, kind: str | Kind[Any, Any], payload: Mapping[str, Any] | None = None, **options: Any
    ) -> Handle[Any]:
        """Enqueues a job of this tenant, by the kind or its name."""
        chosen = self._app.kind(kind) if isinstance(kind, str) else kind
        read = read_options(chosen._defaults, options)
        self._check_own(read.tenant)
        for needed in read.depends_on:
            await self._get(needed)
        job = chosen.prepare(replace(read, tenant=self.name), payload or {})
        handle = await self._app.submit(job, read.within)
        # Only a given id can belong to another tenant; unique keys are per tenant.
        if read.id is not None and not handle.created and await self.find(handle.id) is None:
            raise UsageError(f"id {ids.public(handle.id)} cannot be used: take another, as app.new_id() makes them")
        return handle

    def workflow(self, name: str | None = None, *, correlation_id: str | None = None) -> Workflow:
        """A graph of jobs of this tenant."""
        return self._app.workflow(name, tenant=self.name, correlation_id=correlation_id)

    async def find(self, job_id: UUID | str) -> JobRecord | None:
        record = await (await self._store()).queries.job(read_id(job_id))
        return record if record is not None and record.tenant == self.name else None

    async def snapshot(self, job_id: UUID | str) -> Snapshot | None:
        """A consistent snapshot of the job with its phases and webhook deliveries; None if there is no such job."""
        views = await (await self._store()).events.views([read_id(job_id)])
        return Snapshot.of(views[0]) if views and views[0].job.tenant == self.name else None

    async def jobs(self, **filter: Any) -> JobPage:
        """Its jobs, newest first, with the same filters as app.jobs()."""
        self._check_own(filter.pop("tenant", None))
        return await self._app.jobs(tenant=self.name, **filter)

    async def cancel(self, job_id: UUID | str, reason: str = "cancelled") -> bool:
        return await self._app.cancel((await self._get(job_id)).id, reason)

    async def result(self, job_id: UUID | str, timeout: Any = None) -> Any:
        """Waits until the job is final; raises JobFailed, JobCancelled or ResultTimeout if there is no result."""
        record = await self._get(job_id)
        return await (await self._app.client()).result(record.id, timeout)

    async def send_event(self, name: str, key: str, data: Any = None, **options: Any) -> UUID:
        """Sends an event to its jobs, with the same options as app.send_event()."""
        self._check_own(options.pop("tenant", None))
        return await self._app.send_event(name, key, data, tenant=self.name, **options)

    def events(
        self, job: UUID | str | Sequence[UUID | str] | None = None, **filter: Any
    ) -> AbstractAsyncContextManager[EventStream]:
        """Events of its jobs, from now on, with the same filters as app.events()."""
        self._check_own(filter.pop("tenant", None))
        return self._app.events(job, tenant=self.name, **filter)

    async def dead_letter(self, job_id: UUID | str) -> DeadLetter | None:
        letter = await (await self._store()).dead_letters.find(read_id(job_id))
        return letter if letter is not None and letter.tenant == self.name else None

    async def dead_letters(
        self, filter: DeadLetterFilter | None = None, *, after: LetterCursor | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        """Its dead letters, newest first, after the cursor `after`."""
        asked = filter or DeadLetterFilter()
        self._check_own(asked.tenant)
        wanted = msgspec.structs.replace(asked, tenant=self.name)
        return await (await self._store()).dead_letters.search(wanted, after=after, limit=limit)

    async def _store(self) -> Store:
        return (await self._app.client()).store.for_tenant(self.name)

    async def _get(self, job_id: UUID | str) -> JobRecord:
        record = await self.find(job_id)
        if record is None:
            raise job_not_found(read_id(job_id))
        return record

    def _check_own(self, tenant: str | None) -> None:
        if tenant is not None and tenant != self.name:
            raise UsageError(f"tenant is {tenant!r}: this is the view of {self.name!r}, so leave the option out")
