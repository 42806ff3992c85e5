"""Dutiful: the registry of kinds and the composition root; the only file that knows concrete stores."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, cast, overload
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.client import Client, JobHandle, checked
from dutiful.context import Context
from dutiful.core import ids
from dutiful.core.cron import CatchUp, Cron, Every
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UnknownKind, UsageError
from dutiful.core.job import Inserted, Insertion, JobRecord, NewJob
from dutiful.core.retry import Retry
from dutiful.core.settle import Policy
from dutiful.deliveries.in_process import InProcess
from dutiful.delivery import Delivery
from dutiful.kind import Handle, Kind, Mode, SyncHandle
from dutiful.options import Options, read_options
from dutiful.schedule import ScheduleSpec, read_schedule_options
from dutiful.settings import Settings, load
from dutiful.store import ScheduleRecord, Store
from dutiful.sync import Portal, SyncJobHandle

if TYPE_CHECKING:
    from dutiful.service import Service
    from dutiful.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
Resource = Callable[[], Any]


class JobDecorator:
    """What @app.job(…) with arguments returns; typed so that `enqueue` has the handler's parameters."""

    def __init__(self, register: Callable[[Callable[..., Any]], Kind[Any, Any]]) -> None:
        self._register = register

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Kind[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Kind[Any, Any]:
        return self._register(function)


class Dutiful:
    """The app: `app = Dutiful()` keeps jobs in ./dutiful.db, `Dutiful("postgresql://…")` in Postgres."""

    def __init__(self, database_url: str | None = None, **settings: Any) -> None:
        self._given: dict[str, Any] = {"database_url": database_url, **settings}
        self._settings: Settings | None = None
        self.kinds: dict[str, Kind[Any, Any]] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self.resources: dict[str, Resource] = {}
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._portal = Portal(self._open_client, self._close_client)

    @property
    def settings(self) -> Settings:
        # Read when first needed, so that a process may set its environment after importing the app.
        if self._settings is None:
            self._settings = load(self._given)
        return self._settings

    def configure(self, **settings: Any) -> None:
        """Change settings before the app is opened; what is given here wins over file and environment."""
        if self._client is not None:
            raise UsageError("configure() comes before the app is opened")
        self._given.update({k: v for k, v in settings.items() if v is not None})
        self._settings = None

    # --- registry

    @overload
    def job(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, Awaitable[R]], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Kind[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Kind[P, R]: ...
    @overload
    def job(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 100,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        process: bool = False,
        max_crashes: int = 3,
        on_crash: Literal["retry", "fail"] = "retry",
        unique: Any = None,
    ) -> JobDecorator: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 100,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        process: bool = False,
        max_crashes: int = 3,
        on_crash: Literal["retry", "fail"] = "retry",
        unique: Any = None,
    ) -> Any:
        """Make a function a kind; its parameters' types are the payload's schema."""
        if on_crash not in ("retry", "fail"):
            raise UsageError(f'on_crash {on_crash!r} must be "retry" or "fail"')

        def register(function: Callable[..., Any]) -> Kind[Any, Any]:
            chosen = name or function.__name__
            if chosen in self.kinds:
                raise UsageError(f"there is a kind {chosen!r} already; give one of them another name: @app.job(name=…)")
            self.kinds[chosen] = Kind(
                function,
                self,
                name=chosen,
                queue=queue,
                priority=priority,
                policy=Policy(retry or Retry(), max_crashes, on_crash == "retry"),
                timeout=None if timeout is None else duration(timeout, "timeout"),
                mode=_mode(function, process=process, name=chosen),
                options=read_options(Options(), {"unique": unique}),
            )
            return self.kinds[chosen]

        return JobDecorator(register) if function is None else register(function)

    def kind(self, name: str) -> Kind[Any, Any]:
        try:
            return self.kinds[name]
        except KeyError:
            known = ", ".join(sorted(self.kinds)) or "none yet"
            raise UnknownKind(f"there is no kind {name!r}; this app has: {known}") from None

    def resource(self, function: Resource) -> Resource:
        """Make a function (plain, async, or a generator that cleans up after its yield) a shared resource."""
        self.resources[function.__name__] = function
        return function

    def schedule(
        self,
        kind: Kind[Any, Any],
        cron: str | None = None,
        *,
        every: Duration | None = None,
        name: str | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp | str = CatchUp.ONE,
        payload: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ScheduleSpec:
        """Enqueue `kind` again and again: by a cron expression in a time zone, or every so often."""
        if (cron is None) == (every is None):
            raise UsageError("give a schedule either a cron expression or every=…")
        when = Cron(cron, timezone) if cron is not None else Every(every if every is not None else 0)
        try:
            policy = CatchUp(catch_up)
        except ValueError:
            raise UsageError(f"catch_up {catch_up!r} must be one of: skip, one, all") from None
        text = kind.signature.encode(payload or {}, self.settings.payload_limit)
        chosen = read_schedule_options(options)
        spec = ScheduleSpec(name or kind.name, kind, when, policy, msgspec.json.decode(text), chosen)
        if spec.name in self.schedules:
            raise UsageError(f"there is a schedule {spec.name!r} already; give one of them another name=…")
        self.schedules[spec.name] = spec
        return spec

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
        inserted = await client.store.insert_within(within, jobs)
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
            inserted = client.store.insert_within_sync(within, jobs)
        return [SyncJobHandle(self._handle(i, j, client), self._portal) for i, j in zip(inserted, jobs, strict=True)]

    def _handle(self, inserted: Inserted, job: NewJob, client: Client) -> JobHandle[Any]:
        made = inserted.insertion in (Insertion.MADE, Insertion.REPLACED)
        return JobHandle(checked(inserted, job).job_id, made, client)

    async def find(self, job_id: UUID | str) -> JobRecord | None:
        return await (await self.client()).find(_id(job_id))

    async def cancel(self, job_id: UUID | str, reason: str = "cancelled") -> bool:
        return (await (await self.client()).cancel(_id(job_id), reason)).changed

    # --- life

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def client(self) -> Client:
        """The open client of this event loop; opened when first asked for."""
        loop = asyncio.get_running_loop()
        if self._client is not None and self._loop is loop:
            return self._client
        if self._loop is not loop:
            # A new loop (a second asyncio.run): what belonged to the old one is gone with it.
            self._client, self._loop, self._opening = None, loop, asyncio.Lock()
        assert self._opening is not None
        async with self._opening:
            if self._client is None:
                self._client = await self._open_client()
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await self._close_client(client)

    def close_sync(self) -> None:
        """Close what blocking code opened."""
        self._portal.close()

    async def _open_client(self) -> Client:
        store = self.make_store()
        await store.open()
        return Client(store, self.make_delivery(store))

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

    def make_worker(self, client: Client, *, services: bool = True, worker_id: UUID | None = None) -> "Worker":
        """A worker on an open client; `await worker.run()` until `worker.stop()`."""
        # Imported here, for a process that only enqueues needs none of it.
        from dutiful.services.gates import Gates
        from dutiful.services.promoter import Promoter
        from dutiful.services.rescuer import Rescuer
        from dutiful.services.retention import Retention
        from dutiful.services.runner import Runner
        from dutiful.services.scheduler import Scheduler
        from dutiful.worker.worker import Worker

        store = client.store
        duties: list[Service] = [
            Promoter(store),
            Rescuer(store, self.kinds),
            Gates(store),
            Scheduler(store, self.new_id),
        ]
        slow = [Retention(store, self.settings.retention)]
        runner = Runner(store, duties, slow, client.delivery, self._schedule_records)
        return Worker(
            store,
            client.delivery,
            self.kinds,
            self.settings,
            resources=self.resources,
            duties=runner if services else None,
            worker_id=worker_id,
        )

    def _schedule_records(self, now: datetime) -> list[ScheduleRecord]:
        return [spec.record(now) for spec in self.schedules.values()]

    def make_store(self) -> Store:
        settings = self.settings
        scheme = urlsplit(settings.database_url).scheme
        match scheme:
            case "sqlite" | "":
                from dutiful.stores.sqlite import SqliteStore

                return SqliteStore(
                    _sqlite_path(settings.database_url), driver=cast(Literal["apsw", "sqlite3"], settings.sqlite_driver)
                )
            case "postgresql" | "postgres":
                try:
                    from dutiful.stores.postgres import PostgresStore
                except ImportError as error:
                    raise UsageError(f"Postgres needs an extra ({error}): pip install 'dutiful[postgres]'") from error
                return PostgresStore(
                    settings.database_url,
                    schema=settings.schema,
                    direct_dsn=settings.direct_url,
                    pool_size=settings.pool_size,
                    notify_within=settings.notify_in_transaction,
                )
            case _:
                raise UsageError(
                    f"database_url has the scheme {scheme!r}; use sqlite:///jobs.db or postgresql://user@host/database"
                )

    def make_delivery(self, store: Store) -> Delivery:
        from dutiful.stores.sqlite import SqliteStore

        if isinstance(store, SqliteStore):
            return InProcess(store.data_version)
        from dutiful.deliveries.notify import Notify
        from dutiful.stores.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        direct = self.settings.direct_url is not None or not store.pooled
        return Notify(self.settings.schema, store.notify, store.connect_direct if direct else None)


def _mode(function: Callable[..., Any], *, process: bool, name: str) -> Mode:
    if inspect.iscoroutinefunction(function):
        if process:
            raise UsageError(f"kind {name}: process=True is for plain functions; an async one runs on the event loop")
        return Mode.LOOP
    return Mode.PROCESS if process else Mode.THREAD


def _id(job_id: UUID | str) -> UUID:
    return job_id if isinstance(job_id, UUID) else ids.parse_any(job_id)


def _sqlite_path(url: str) -> Path:
    """sqlite:///relative.db, sqlite:////absolute.db, or a bare path."""
    parts = urlsplit(url)
    if parts.scheme == "":
        return Path(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise UsageError(f"database_url {url!r}: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return Path(path)


__all__ = ["Dutiful", "JobDecorator"]
