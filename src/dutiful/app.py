"""Dutiful, the app: what it declares, bound to a store; enqueue, look up, watch, work."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import UUID

import uuid_utils.compat

from dutiful import composition
from dutiful.client import Client, JobHandle, checked
from dutiful.clients import Clients
from dutiful.core import ids
from dutiful.core.duration import Duration
from dutiful.core.error_class import ErrorClass
from dutiful.core.errors import UsageError
from dutiful.core.job import Inserted, Insertion, JobRecord, NewJob
from dutiful.core.principal import Principal
from dutiful.core.transitions import State
from dutiful.delivery import Delivery
from dutiful.kind import Handle, Kind, SyncHandle
from dutiful.options import read_options
from dutiful.reading import JobFilter, JobPage
from dutiful.registry import Registry
from dutiful.settings import Settings, load, read_profile
from dutiful.store import Store
from dutiful.sync import Portal, SyncJobHandle
from dutiful.tenant import Tenant
from dutiful.watcher import EventStream, Snapshot, Wanted
from dutiful.watcher.items import name_of

if TYPE_CHECKING:
    from dutiful.embedded import Embedded
    from dutiful.operator import Operator
    from dutiful.worker.worker import Worker

JobRef = UUID | str | Handle[Any] | SyncHandle[Any]
JobRefs = JobRef | Iterable[JobRef] | None
LARGEST_PAGE = 10_000
opening = logging.getLogger("dutiful.opening")


class Dutiful(Registry):
    """The app: `app = Dutiful()` keeps jobs in ./dutiful.db, `Dutiful("postgresql://…")` in Postgres."""

    def __init__(self, database_url: str | None = None, **settings: Any) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"database_url": database_url, **settings}
        self._profiles: dict[str, dict[str, Any]] = {}
        self._settings: Settings | None = None
        self._clients = Clients(self._open_client, self._close_client)
        self._portal = Portal(self._open_client, self._close_client)

    @property
    def settings(self) -> Settings:
        # Read when first needed, so that a process may set its environment after importing the app.
        if self._settings is None:
            self._settings = load(self._given, profiles=self._profiles)
        return self._settings

    def configure(self, **settings: Any) -> None:
        """Change settings before the app is opened; what is given here wins over file and environment."""
        self._forget_settings()
        self._given.update({k: v for k, v in settings.items() if v is not None})

    def profile(self, name: str, base: str | None = None, **settings: Any) -> None:
        """Name a set of settings, on those of `base`: the setting `profile` chooses it, and all others win over it.

        To one that is there already, as `development` and `production` are, it adds these.
        """
        self._forget_settings()
        self._profiles[name] = {**self._profiles.get(name, {}), **read_profile(name, base, settings)}

    def _forget_settings(self) -> None:
        if self._clients.open:
            raise UsageError("configure() and profile() come before the app is opened")
        self._settings = None

    # --- producing side

    def new_id(self) -> UUID:
        return uuid_utils.compat.uuid7()

    async def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> JobHandle[Any]:
        """Enqueue by the kind's name; the payload is checked as it would be by the kind itself."""
        chosen = self.kind(kind)
        read = read_options(chosen._defaults, options)
        return cast(JobHandle[Any], await self.submit(chosen.prepare(read, payload or {}), read.within))

    async def submit(self, job: NewJob, within: Any = None) -> Handle[Any]:
        client = await self.client()
        if within is not None:
            return (await self._submit_within(client, [job], within))[0]
        return self._handle(await client.submit(job), job, client)

    async def submit_many(self, jobs: list[NewJob], within: Any = None) -> list[Handle[Any]]:
        client = await self.client()
        if within is not None:
            return await self._submit_within(client, jobs, within)
        inserted = await client.submit_many(jobs)
        return [self._handle(i, j, client) for i, j in zip(inserted, jobs, strict=True)]

    async def _submit_within(self, client: Client, jobs: list[NewJob], within: Any) -> list[Handle[Any]]:
        inserted = await client.submit_within(within, jobs)
        return [self._handle(i, j, client) for i, j in zip(inserted, jobs, strict=True)]

    def submit_sync(self, job: NewJob, within: Any = None) -> SyncHandle[Any]:
        return self.submit_many_sync([job], within)[0]

    def submit_many_sync(self, jobs: list[NewJob], within: Any = None) -> list[SyncHandle[Any]]:
        async def submit(client: Client) -> tuple[list[Inserted], Client]:
            if within is not None:
                return [], client
            if len(jobs) == 1:
                return [await client.submit(jobs[0])], client
            return await client.submit_many(jobs), client

        inserted, client = self._portal.run(submit)
        if within is not None:
            # On the caller's thread: the connection is the caller's.
            inserted = client.submit_within_sync(within, jobs)
        return [SyncJobHandle(self._handle(i, j, client), self._portal) for i, j in zip(inserted, jobs, strict=True)]

    def _handle(self, inserted: Inserted, job: NewJob, client: Client) -> JobHandle[Any]:
        made = inserted.insertion in (Insertion.MADE, Insertion.REPLACED)
        return JobHandle(checked(inserted, job).job_id, made, client)

    async def find(self, job_id: UUID | str) -> JobRecord | None:
        return await (await self.client()).find(_id(job_id))

    async def look(self, job_id: UUID | str) -> Snapshot | None:
        """The job with its phases and whether its webhooks were delivered, of one moment; None if there is none."""
        views = await (await self.client()).store.views([_id(job_id)])
        return Snapshot.of(views[0]) if views else None

    async def jobs(
        self,
        *,
        state: State | str | None = None,
        kind: str | Kind[Any, Any] | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        correlation_id: str | None = None,
        kinds: Iterable[str | Kind[Any, Any]] | None = None,
        subject: Mapping[str, Any] | None = None,
        error_class: ErrorClass | str | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: UUID | str | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Jobs, newest first; `before` is the `next` of the page before.

        A page may hold fewer than `limit`, even none, and not be the last: that is one whose `next` is None.
        """
        wanted = JobFilter(
            state=None if state is None else _state(state),
            kind=None if kind is None else name_of(kind),
            queue=queue,
            tenant=tenant,
            correlation_id=correlation_id,
            kinds=None if kinds is None else [name_of(one) for one in kinds],
            subject=None if subject is None else dict(subject),
            error_class=None if error_class is None else _error_class(error_class),
            text=text,
            since=_aware(since, "since"),
            until=_aware(until, "until"),
            before=None if before is None else _id(before),
            limit=_page(limit),
        )
        return await (await self.client()).store.jobs(wanted)

    async def cancel(self, job_id: UUID | str, reason: str = "cancelled") -> bool:
        return (await (await self.client()).cancel(_id(job_id), reason)).changed

    async def operator(self, principal: Principal | str | None = None) -> "Operator":
        """What people look at and do, as one of them; by default the user of this process."""
        from dutiful.operator import Operator

        return Operator(await self.client(), principal, self.kinds, self.alert_rules(), self.breaker_policies())

    def tenant(self, name: str) -> Tenant:
        """This app as one tenant sees it: nothing of another one exists there."""
        return Tenant(self, name)

    @asynccontextmanager
    async def events(
        self,
        job: JobRefs = None,
        *,
        kinds: Iterable[str | Kind[Any, Any]] | None = None,
        queues: Iterable[str] | None = None,
        tenant: str | None = None,
        correlation_id: str | None = None,
        types: Iterable[str] | None = None,
        snapshot: bool = True,
        since: datetime | None = None,
    ) -> AsyncIterator[EventStream]:
        """What happens to jobs, from now on: `async with app.events(job) as stream: async for item in stream: …`.

        Of given jobs, a Snapshot each comes first. With `since`, what happened from then on is told, too.
        """
        wanted = Wanted.read(_refs(job), kinds, queues, tenant, correlation_id, types)
        watcher = (await self.client()).watcher
        async with watcher.subscribe(wanted, snapshot=snapshot, since=since) as stream:
            yield stream

    # --- life

    async def __aenter__(self) -> Self:
        await self._clients.hold()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._clients.release()

    async def client(self) -> Client:
        """The open client of this event loop; opened when first asked for."""
        return await self._clients.current()

    async def close(self) -> None:
        """Close the client of this event loop; a block or an embedded worker that still holds it keeps it open."""
        await self._clients.close()

    def close_sync(self) -> None:
        """Close what blocking code opened."""
        self._portal.close()

    async def _open_client(self) -> Client:
        store, tracer = self.make_store(), composition.make_tracer(self.settings)
        await store.open()
        return Client(store, self.make_delivery(store), tracer)

    async def _close_client(self, client: Client) -> None:
        await client.close()
        await client.delivery.close()
        await client.store.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Client]:
        """A client of its own, for whoever must not share: a supervisor, a test."""
        client = await self._open_client()
        try:
            yield client
        finally:
            await self._close_client(client)

    def embedded(self, grace: Duration | None = None) -> "Embedded":
        """A worker in this process: `async with app.embedded():` runs jobs in the background until the block ends."""
        from dutiful.embedded import Embedded

        async def opened() -> Client:
            self.settings  # noqa: B018 - read first, so that what is wrong with them is told before anything is opened
            opening.debug("settings read")
            return await self._clients.hold()

        return Embedded(opened, partial(self.make_worker, embedded=True), self._clients.release, grace)

    # --- parts, which tests replace

    def make_store(self) -> Store:
        return composition.make_store(self.settings)

    def make_delivery(self, store: Store) -> Delivery:
        return composition.make_delivery(self.settings, store)

    def make_worker(
        self, client: Client, *, services: bool = True, worker_id: UUID | None = None, embedded: bool = False
    ) -> "Worker":
        """A worker on an open client; `await worker.run()` until `worker.stop()`."""
        return composition.make_worker(self, client, services=services, worker_id=worker_id, embedded=embedded)


def _id(job_id: UUID | str) -> UUID:
    if not isinstance(job_id, UUID | str):
        raise UsageError(f"job_id {job_id!r:.80} must be a job's id: a UUID, or its text")
    return job_id if isinstance(job_id, UUID) else ids.parse_any(job_id)


def _state(name: State | str) -> State:
    try:
        return State(name)
    except ValueError:
        raise UsageError(f"there is no state {name!r}; there are: {', '.join(State)}") from None


def _error_class(name: ErrorClass | str) -> str:
    try:
        return ErrorClass(name).value
    except ValueError:
        raise UsageError(f"there is no error class {name!r}; there are: {', '.join(ErrorClass)}") from None


def _aware(moment: datetime | None, name: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise UsageError(f"{name} {moment.isoformat()} has no time zone: give it one, as in datetime.now(UTC)")
    return moment


def _page(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
        raise UsageError(f"limit {limit!r:.80} must be a whole number from 1 to {LARGEST_PAGE:,}; `before` leads on")
    return limit


def _refs(job: JobRefs) -> frozenset[UUID] | None:
    """The jobs that are meant, whichever way they are named."""
    match job:
        case None:
            return None
        case UUID() | str():
            return frozenset({_ref(job)})
        case Iterable():
            return frozenset(_ref(one) for one in job)
        case _:
            return frozenset({_ref(job)})


def _ref(job: Any) -> UUID:
    return _id(getattr(job, "id", job))


__all__ = ["Dutiful"]
