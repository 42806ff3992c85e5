"""One tenant's view of an app: for it, nothing of another tenant exists."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol, TypeVar, overload
from uuid import UUID

import msgspec

from dutiful.client import Client, JobHandle
from dutiful.core import ids
from dutiful.core.errors import JobNotFound, UsageError
from dutiful.core.job import JobRecord, NewJob
from dutiful.core.payload import check_name
from dutiful.core.tenant import check_tenant
from dutiful.kind import Handle, Kind
from dutiful.options import read_options
from dutiful.reading import JobPage
from dutiful.reviewing import DeadLetter, DeadLetterFilter, Place
from dutiful.store import Store
from dutiful.watcher import EventStream, Snapshot, Wanted

R = TypeVar("R")


class House(Protocol):
    """What the view needs of its app."""

    def kind(self, name: str) -> Kind[Any, Any]: ...

    async def client(self) -> Client: ...

    async def submit(self, job: NewJob, within: Any = None) -> Handle[Any]: ...

    @property
    def jobs(self) -> Callable[..., Awaitable[JobPage]]: ...


class Tenant:
    """`app.tenant("acme")`: enqueue for it, look at what is its own."""

    def __init__(self, app: House, name: str) -> None:
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
        """Enqueue a job of this tenant, by the kind or its name."""
        chosen = self._app.kind(kind) if isinstance(kind, str) else kind
        read = read_options(chosen._defaults, options)
        self._check_own(read.tenant)
        for needed in read.depends_on:
            await self._get(needed)
        job = chosen.prepare(replace(read, tenant=self.name), payload or {})
        handle = await self._app.submit(job, read.within)
        # Only an id that was given can be another tenant's; keys are each tenant's own.
        if read.id is not None and not handle.created and await self.find(handle.id) is None:
            raise UsageError(f"id {ids.public(handle.id)} cannot be used: take another, as app.new_id() makes them")
        return handle

    async def find(self, job_id: UUID | str) -> JobRecord | None:
        record = await (await self._store()).find(_id(job_id))
        return record if record is not None and record.tenant == self.name else None

    async def look(self, job_id: UUID | str) -> Snapshot | None:
        """The job with its phases and whether its webhooks were delivered, of one moment; None if there is none."""
        views = await (await self._store()).views([_id(job_id)])
        return Snapshot.of(views[0]) if views and views[0].job.tenant == self.name else None

    async def jobs(self, **filter: Any) -> JobPage:
        """Its jobs, newest first; by the same filters as app.jobs()."""
        self._check_own(filter.pop("tenant", None))
        return await self._app.jobs(tenant=self.name, **filter)

    async def cancel(self, job_id: UUID | str, reason: str = "cancelled") -> bool:
        record = await self._get(_id(job_id))
        return (await (await self._app.client()).cancel(record.id, reason)).changed

    async def result(self, job_id: UUID | str, timeout: Any = None) -> Any:
        """Wait until the job is final; JobFailed, JobCancelled or ResultTimeout if there is no result."""
        record = await self._get(_id(job_id))
        return await JobHandle[Any](record.id, False, await self._app.client()).result(timeout)

    @asynccontextmanager
    async def events(
        self,
        job: UUID | str | Sequence[UUID | str] | None = None,
        *,
        kinds: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        correlation_id: str | None = None,
        types: Iterable[str] | None = None,
        snapshot: bool = True,
        since: datetime | None = None,
    ) -> AsyncIterator[EventStream]:
        """What happens to its jobs, from now on."""
        named = [job] if isinstance(job, UUID | str) else job
        jobs = None if named is None else frozenset(_id(one) for one in named)
        wanted = Wanted.read(jobs, kinds, queues, self.name, correlation_id, types)
        watcher = (await self._app.client()).watcher
        async with watcher.subscribe(wanted, snapshot=snapshot, since=since) as stream:
            yield stream

    async def dead_letter(self, job_id: UUID | str) -> DeadLetter | None:
        letter = await (await self._store()).dead_letter(_id(job_id))
        return letter if letter is not None and letter.tenant == self.name else None

    async def dead_letters(
        self, filter: DeadLetterFilter | None = None, *, after: Place | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        """Its jobs that failed for good, newest first, beyond `after`."""
        asked = filter or DeadLetterFilter()
        self._check_own(asked.tenant)
        wanted = msgspec.structs.replace(asked, tenant=self.name)
        return await (await self._store()).dead_letters(wanted, after=after, limit=limit)

    async def _store(self) -> Store:
        return (await self._app.client()).store.for_tenant(self.name)

    async def _get(self, job_id: UUID) -> JobRecord:
        record = await self.find(job_id)
        if record is None:
            raise JobNotFound(f"there is no job {ids.public(job_id)}: it never was, or retention has removed it")
        return record

    def _check_own(self, tenant: str | None) -> None:
        if tenant is not None and tenant != self.name:
            raise UsageError(f"tenant is {tenant!r}: this is the view of {self.name!r}, so leave the option out")


def _id(job_id: UUID | str) -> UUID:
    return job_id if isinstance(job_id, UUID) else ids.parse_any(job_id)
