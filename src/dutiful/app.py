"""The app: declares jobs, enqueues and finds them, streams their events, runs workers."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import UUID, SafeUUID

import msgspec
import uuid_utils

from dutiful import factory
from dutiful.client.claimed import ClaimedJob, claim_job
from dutiful.client.client import Client, JobHandle, check_inserted
from dutiful.client.per_loop import Clients
from dutiful.client.sync import Portal, SyncJobHandle
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.job import Inserted, Insertion, JobRecord, NewJob
from dutiful.core.json import check_name
from dutiful.core.principal import Principal, check_tenant
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.settle import Policy
from dutiful.core.states import State
from dutiful.core.steps import make_event
from dutiful.delivery.backend import QueueBackend
from dutiful.delivery.base import Delivery
from dutiful.events import EventStream, Snapshot, Subscription
from dutiful.events.items import kind_name
from dutiful.kind import Handle, Kind, SyncHandle
from dutiful.options import Options, one_of, read_id, read_options, whole_number
from dutiful.payload.key_ring import KeyRing, no_keys
from dutiful.payload.sealing import open_job, seal_of_record
from dutiful.registry import Registry
from dutiful.settings import WITHHELD, Settings, check_given, load, read_profile
from dutiful.store import Store
from dutiful.store.queries import JobFilter, JobPage
from dutiful.store.trees import TreeProgress
from dutiful.tenant import Tenant
from dutiful.workflow.graph import Workflow

if TYPE_CHECKING:
    from dutiful.embedded import Embedded
    from dutiful.operator import Operator
    from dutiful.worker.lanes.inbox import Inbox
    from dutiful.worker.worker import Worker

JobRef = UUID | str | Handle[Any] | SyncHandle[Any]
JobRefs = JobRef | Iterable[JobRef] | None
LARGEST_PAGE = 10_000
_CREATED = (Insertion.MADE, Insertion.REPLACED)
_UNKNOWN = SafeUUID.unknown
_new, _set = object.__new__, object.__setattr__
opening = logging.getLogger("dutiful.startup")


class Dutiful(Registry):
    """The app: `app = Dutiful()` keeps jobs in ./dutiful.db, `Dutiful("postgresql://…")` in Postgres."""

    def __init__(
        self,
        database_url: str | None = None,
        *,
        backend: Callable[[Store], QueueBackend] | None = None,
        encryption: KeyRing | None = None,
        **settings: Any,
    ) -> None:
        """`backend` makes a queue backend of your own for an open store, once for each event loop.

        With `encryption`, all kinds are encrypted by these keys, but those that declare encrypted=False.
        """
        super().__init__()
        if encryption is not None:
            if not isinstance(encryption, KeyRing):  # never shown: it may be a key
                raise UsageError('encryption must be a KeyRing, as in KeyRing({"2026-11": key})')
            settings.setdefault("encrypted", True)
        self._own_ring = encryption
        self._ring: tuple[Settings, KeyRing | None] | None = None
        self._backend = backend
        self._given: dict[str, Any] = {"database_url": database_url, **settings}
        check_given(self._given)
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

    @property
    def key_ring(self) -> KeyRing | None:
        """The keys of encrypted kinds: those given to the app, or those of the settings."""
        if self._own_ring is not None:
            return self._own_ring
        settings = self.settings
        if self._ring is None or self._ring[0] is not settings:
            texts = settings.encryption_keys
            self._ring = settings, KeyRing.read(texts) if texts and texts != (WITHHELD,) else None
        return self._ring[1]

    def open(self, job: JobRecord) -> JobRecord:
        """The job with its payload, result, errors and progress opened; CannotOpen without the right key."""
        if self.key_ring is None:
            raise no_keys("sealed values are opened with their key")
        return open_job(self.key_ring, job)

    def configure(self, **settings: Any) -> None:
        """Changes settings before the app is opened; they take precedence over file and environment."""
        self._forget_settings()
        check_given(settings)
        self._given.update({k: v for k, v in settings.items() if v is not None})

    def profile(self, name: str, base: str | None = None, **settings: Any) -> None:
        """Defines a named set of settings, based on `base`, which the setting `profile` selects; others override it.

        These are added to an existing profile of that name, such as `development` or `production`.
        """
        self._forget_settings()
        self._profiles[name] = {**self._profiles.get(name, {}), **read_profile(name, base, settings)}

    def _forget_settings(self) -> None:
        if self._clients.open:
            raise UsageError("configure() and profile() come before the app is opened")
        self._settings = None

    # --- enqueueing and reading

    def new_id(self) -> UUID:
        # As uuid_utils.compat.uuid7 does, in half the time: bulk enqueues make one for each job.
        made = _new(UUID)
        _set(made, "int", uuid_utils.uuid7().int)
        _set(made, "is_safe", _UNKNOWN)
        return made

    async def enqueue(self, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> JobHandle[Any]:
        """Enqueues a job by its kind's name; the payload is validated as by the kind itself."""
        chosen = self.kind(kind)
        read = read_options(chosen._defaults, options)
        return cast(JobHandle[Any], await self.submit(chosen.prepare(read, payload or {}), read.within))

    async def submit(self, job: NewJob, within: Any = None) -> Handle[Any]:
        if within is not None:
            return (await self.submit_many([job], within))[0]
        client = await self.client()
        return _handle(await client.submit(job), job, client)

    async def submit_many(self, jobs: list[NewJob], within: Any = None) -> list[Handle[Any]]:
        client = await self.client()
        inserted = await (client.submit_many(jobs) if within is None else client.submit_within(within, jobs))
        return [_handle(i, j, client) for i, j in zip(inserted, jobs, strict=True)]

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
        return [SyncJobHandle(_handle(i, j, client), self._portal) for i, j in zip(inserted, jobs, strict=True)]

    def workflow(
        self, name: str | None = None, *, tenant: str | None = None, correlation_id: str | None = None
    ) -> Workflow:
        """A graph of jobs: `flow.add(…)` each, and `await flow.enqueue()` stores all of them or none."""
        read = read_options(Options(), {"tenant": tenant, "correlation_id": correlation_id})
        return Workflow(self, name, tenant=read.tenant, correlation_id=read.correlation_id)

    async def tree_progress(self, correlation_id: str, *, tenant: str | None = None) -> TreeProgress:
        """How many jobs of this correlation id, and of this tenant if one is named, are in which state."""
        return await (await self.client()).tree_progress(correlation_id, tenant=tenant)

    async def cancel_tree(self, correlation_id: str, reason: str = "cancelled", *, tenant: str | None = None) -> int:
        """Cancels all jobs of this correlation id, and of this tenant if one is named, that have not ended.

        Returns how many, with those that were asked to stop.
        """
        return await (await self.client()).cancel_tree(correlation_id, reason, tenant=tenant)

    async def find(self, job_id: UUID | str) -> JobRecord | None:
        return await (await self.client()).find(read_id(job_id))

    async def snapshot(self, job_id: UUID | str) -> Snapshot | None:
        """A consistent snapshot of a job, its phases and the delivery of its webhooks; None if there is none."""
        store, wanted = (await self.client()).store, read_id(job_id)
        views, record = await store.events.views([wanted]), await store.queries.job(wanted)
        if not views or record is None:
            return None
        # Views leave it out, because streams do not show it. It never changes, so it is of the same snapshot.
        job = msgspec.structs.replace(views[0].job, payload=record.payload)
        return Snapshot.of(msgspec.structs.replace(views[0], job=job))

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
        phase: str | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: UUID | str | None = None,
        limit: int = 50,
        details: bool = True,
    ) -> JobPage:
        """Jobs, newest first; `before` is the `next` of the previous page.

        Without `details`, they have no payload, result and subject, which may be large.
        A page with fewer jobs than `limit`, even none, is the last one only if its `next` is None.
        """
        wanted = JobFilter(
            state=None if state is None else one_of(State, state, "state"),
            kind=None if kind is None else kind_name(kind),
            queue=queue,
            tenant=tenant,
            correlation_id=correlation_id,
            kinds=None if kinds is None else [kind_name(one) for one in kinds],
            subject=None if subject is None else dict(subject),
            error_class=None if error_class is None else one_of(ErrorClass, error_class, "error_class").value,
            phase=phase,
            text=text,
            since=_aware(since, "since"),
            until=_aware(until, "until"),
            before=None if before is None else read_id(before),
            limit=whole_number(limit, "limit", 1, LARGEST_PAGE, f" to {LARGEST_PAGE:,}; for more, use `before`"),
            details=details,
        )
        return await (await self.client()).store.queries.jobs(wanted)

    async def cancel(self, job_id: UUID | str, reason: str = "cancelled") -> bool:
        return (await (await self.client()).cancel(read_id(job_id), reason)).changed

    async def send_event(
        self, name: str, key: str, data: Any = None, *, tenant: str | None = None, keep: Duration | None = None
    ) -> UUID:
        """Sends an event to the jobs that wait for it, or will within `keep`, and returns its id.

        By default it is kept for the setting `event_retention`. Jobs of other tenants do not get it.
        """
        return await self._send_event(await self.client(), name, key, data, tenant, keep)

    def send_event_sync(
        self, name: str, key: str, data: Any = None, *, tenant: str | None = None, keep: Duration | None = None
    ) -> UUID:
        return self._portal.run(lambda client: self._send_event(client, name, key, data, tenant, keep))

    async def _send_event(
        self, client: Client, name: str, key: str, data: Any, tenant: str | None, keep: Duration | None
    ) -> UUID:
        length = self.settings.event_retention if keep is None else duration(keep, "keep")
        owner = None if tenant is None else check_tenant(check_name(tenant, "tenant"))
        event = make_event(self.new_id(), name, key, data, self.settings.payload_limit, tenant=owner)
        await client.send_event(event, length, None if owner is None else client.store.for_tenant(owner))
        return event.id

    async def claim(self, job: JobRecord, worker: str, lease: Duration = "5m") -> ClaimedJob | None:
        """Claims this job, for a loop without a worker; None if it is not ready, is paused, or another one was faster.

        The lease is not renewed: give one that is longer than the work.
        """
        kind = self.kinds.get(job.kind)
        store = (await self.client()).store
        # Before the claim, so that a process without keys holds no job that it cannot complete.
        seal = seal_of_record(kind.key_ring, job) if kind is not None and kind.encrypted else None
        policy, limit = kind.policy if kind else Policy(), self.settings.error_message_limit
        return await claim_job(store, job, worker, duration(lease, "lease"), policy, seal, limit)

    async def operator(self, principal: Principal | str | None = None) -> "Operator":
        """The operations of a person or service; by default of the user of this process."""
        from dutiful.operator import Operator

        return Operator(await self.client(), principal, self.kinds, self.alert_rules(), self.breaker_policies())

    def tenant(self, name: str) -> Tenant:
        """This app, limited to one tenant."""
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
        """Streams events from now on: `async with app.events(job) as stream: async for item in stream: …`.

        For given jobs, a Snapshot of each comes first. With `since`, events since then come first.
        """
        wanted = Subscription.read(_refs(job), kinds, queues, tenant, correlation_id, types)
        watcher = (await self.client()).watcher
        async with watcher.subscribe(wanted, snapshot=snapshot, since=since) as stream:
            yield stream

    # --- opening and closing

    async def __aenter__(self) -> Self:
        await self._clients.hold()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._clients.release()

    async def client(self) -> Client:
        """The client of this event loop, opened when first used."""
        return await self._clients.current()

    async def close(self) -> None:
        """Closes the client of this event loop, unless a block or an embedded worker still uses it."""
        await self._clients.close()

    def close_sync(self) -> None:
        """Closes the client of blocking code."""
        self._portal.close()

    async def _open_client(self) -> Client:
        store, tracer = self.make_store(), factory.make_tracer(self.settings)
        await store.open()
        return Client(store, self.make_delivery(store), tracer, self.make_backend(store), self)

    async def _close_client(self, client: Client) -> None:
        await client.close()
        await client.delivery.close()
        await client.store.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Client]:
        """A separate client, for callers that must not share one, such as a supervisor."""
        client = await self._open_client()
        try:
            yield client
        finally:
            await self._close_client(client)

    async def migrate(self, wait: Duration = "1m") -> list[str]:
        """Creates or updates the tables, stores the rules and defaults of all kinds, and returns what was applied.

        `wait`: for locks of other sessions.
        """
        store = self.make_store()
        applied = await store.migrate(duration(wait, "wait"))
        if self.kinds:
            # So that SQL is held to them before the first worker starts.
            async with self.opened() as client:
                await client.store.jobs.put_payload_rules(self.payload_rules())
                await client.store.jobs.put_defaults(self.kind_defaults())
        return applied

    def embedded(self, grace: Duration | None = None) -> "Embedded":
        """A worker in this process: `async with app.embedded():` runs jobs in the background until the block ends."""
        from dutiful.embedded import Embedded

        async def opened() -> Client:
            self.settings  # noqa: B018 - read first, so that bad settings raise before anything is opened
            opening.debug("settings read")
            return await self._clients.hold()

        return Embedded(opened, partial(self.make_worker, embedded=True), self._clients.release, grace)

    # --- parts, which tests replace

    def make_store(self) -> Store:
        return factory.make_store(self.settings)

    def make_delivery(self, store: Store) -> Delivery:
        return factory.make_delivery(self.settings, store)

    def make_backend(self, store: Store) -> QueueBackend:
        return factory.make_backend(self.settings, store) if self._backend is None else self._backend(store)

    def make_worker(
        self,
        client: Client,
        *,
        services: bool = True,
        worker_id: UUID | None = None,
        embedded: bool = False,
        inbox: "Inbox | None" = None,
    ) -> "Worker":
        """A worker on an open client; `await worker.run()` until `worker.stop()`."""
        return factory.make_worker(self, client, services=services, worker_id=worker_id, embedded=embedded, inbox=inbox)


def _handle(inserted: Inserted, job: NewJob, client: Client) -> JobHandle[Any]:
    made = inserted.insertion in _CREATED
    return JobHandle(inserted.job_id if made else check_inserted(inserted, job).job_id, made, client)


def _aware(moment: datetime | None, name: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise UsageError(f"{name} {moment.isoformat()} has no time zone: give it one, as in datetime.now(UTC)")
    return moment


def _refs(job: JobRefs) -> frozenset[UUID] | None:
    """The ids of the jobs, given as ids, texts or handles."""
    if job is None:
        return None
    several = job if isinstance(job, Iterable) and not isinstance(job, str) else [job]
    return frozenset(map(read_id, several))


__all__ = ["Dutiful"]
