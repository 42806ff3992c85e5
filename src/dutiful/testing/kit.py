"""An app on a temporary database, with a drain and assertions."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec

from dutiful.app import Dutiful
from dutiful.client.client import Client
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.job import JobRecord
from dutiful.delivery.backend import StoreBackend
from dutiful.delivery.file_changes import FileChanges
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.events.items import kind_name
from dutiful.factory import make_retention
from dutiful.kind import Kind
from dutiful.maintenance.deliveries import redeliver
from dutiful.maintenance.scheduler import Scheduler
from dutiful.payload.sealing import open_job
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.backend import InProcessBackend
from dutiful.testing.clock import Clock, ClockedStore
from dutiful.testing.drain import WORKER, DrainRunner, RanAttempt
from dutiful.worker.assembly import open_executor
from dutiful.worker.config import WorkerConfig
from dutiful.worker.executor.attempt import Executor

PAGE = 500
SHOWN = 5


@asynccontextmanager
async def app_on(
    app: Dutiful,
    *,
    clock: Clock | None = None,
    path: str | Path | None = None,
    resources: Mapping[str, Any] | None = None,
    deliver: bool = False,
) -> AsyncIterator["Kit"]:
    """Keeps the app's jobs in a temporary SQLite file (or in `path`) for the length of a test.

    With a `clock`, time stands still until the test moves it. `resources` replace those of the same name that the app
    would make. Enqueued jobs wait for `kit.drain()`. With `deliver`, they are also delivered to an InProcessBackend,
    and `kit.run_delivered()` runs them; Redis is never used.
    """
    if app._clients.open:
        raise UsageError("the app is open on its own database; close it first, or enter app_on before it is used")
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dutiful-test-"))
        file = Path(path or Path(folder) / "jobs.db")

        def make_store() -> Store:
            # A power cut in the middle of a test may lose its data.
            store = SqliteStore(file, synchronous="OFF")
            return store if clock is None else ClockedStore(store, clock)

        def make_delivery(store: Any) -> InProcessDelivery:
            return InProcessDelivery(FileChanges(store.data_version, written=store.wal_path, signal=store.turn_path))

        backend = InProcessBackend if deliver else StoreBackend
        stack.enter_context(
            patch.multiple(app, make_store=make_store, make_delivery=make_delivery, make_backend=backend)
        )
        stack.callback(app.close_sync)
        await stack.enter_async_context(app)
        yield Kit(app, await app.client(), clock, resources or {}, stack)


class Kit:
    """Returned by `app_on`: runs due jobs, and asserts what was enqueued."""

    def __init__(
        self,
        app: Dutiful,
        client: Client,
        clock: Clock | None,
        resources: Mapping[str, Any],
        stack: AsyncExitStack,
    ) -> None:
        self.app = app
        self.client = client
        self.store = client.store
        self.clock = clock
        self._resources = resources
        self._stack = stack
        self._executor: Executor | None = None

    async def drain(
        self, until: datetime | Duration | None = None, *, advance: bool = False, limit: int = 1_000
    ) -> list[RanAttempt]:
        """Runs every job that is due, and those they enqueue; returns the attempts in order.

        With a clock: `until` moves it to that moment (or by that length of time), through every retry, scheduled job
        and schedule on the way; `advance=True` moves it through retries and scheduled jobs until none is left.
        A handler's error is an outcome, it is not raised. More than `limit` attempts are an error.
        """
        executor, scheduler = await self._opened_executor(), Scheduler(self.store, self.app.new_id)
        drain = DrainRunner(self.store, self.app.kinds, self.app.settings, executor, scheduler, self.clock)
        return self._opened(await drain.run(self._moment(until, advance), advance, limit))

    async def run_delivered(self, limit: int = 1_000) -> list[RanAttempt]:
        """Runs delivered jobs in the order of their delivery, each claimed by its id; returns the attempts in order.

        What is due and was not delivered, as a retry or what a lost broker has held, is delivered first.
        """
        backend, dispatcher = self.client.backend, self.client.dispatcher
        if not isinstance(backend, InProcessBackend) or dispatcher is None:
            raise UsageError("jobs are not delivered in this test: enter it with app_on(app, deliver=True)")
        executor, scheduler = await self._opened_executor(), Scheduler(self.store, self.app.new_id)
        drain = DrainRunner(self.store, self.app.kinds, self.app.settings, executor, scheduler, self.clock)

        async def next_jobs() -> list[UUID]:
            await dispatcher.flush()
            await redeliver(self.store.deliveries, dispatcher)
            return backend.take()

        return self._opened(await drain.run_delivered(next_jobs, limit))

    async def run_retention(self) -> None:
        """Runs one pass of retention by the app's settings: marks jobs stale and deletes them, callbacks included."""
        await make_retention(self.app, self.client).run_once()

    async def enqueued(self, kind: Kind[Any, Any] | str, /, **payload: Any) -> list[JobRecord]:
        """Returns the jobs of `kind` whose payload has at least these fields, in order, whatever became of them."""
        wanted = msgspec.to_builtins(payload)
        return [job for job in await self._jobs(kind_name(kind)) if job.payload | wanted == job.payload]

    async def assert_enqueued(self, kind: Kind[Any, Any] | str, /, **payload: Any) -> JobRecord:
        """Fails unless such a job was enqueued; returns the last of them."""
        found = await self.enqueued(kind, **payload)
        if found:
            return found[-1]
        others = "".join(f"\n  {job.payload}" for job in (await self._jobs(kind_name(kind)))[-SHOWN:])
        rest = f"the last that were have:{others}" if others else "nor with anything else"
        raise AssertionError(f"no job of {kind_name(kind)} was enqueued with {payload}, {rest}")

    async def refute_enqueued(self, kind: Kind[Any, Any] | str, /, **payload: Any) -> None:
        """Fails if such a job was enqueued."""
        if found := await self.enqueued(kind, **payload):
            raise AssertionError(
                f"{len(found)} jobs of {kind_name(kind)} were enqueued, the last with {found[-1].payload}"
            )

    async def _jobs(self, kind: str) -> list[JobRecord]:
        jobs: list[JobRecord] = []
        before = None
        while page := await self.store.queries.jobs(JobFilter(kind=kind, before=before, limit=PAGE)):
            jobs += page
            before = page[-1].id
        ring = self.app.key_ring
        return jobs[::-1] if ring is None else [open_job(ring, job) for job in reversed(jobs)]

    def _opened(self, attempts: list[RanAttempt]) -> list[RanAttempt]:
        """The attempts with their jobs as a test wants to see them, if they are encrypted."""
        if (ring := self.app.key_ring) is None:
            return attempts
        return [msgspec.structs.replace(one, job=open_job(ring, one.job)) for one in attempts]

    def _moment(self, until: datetime | Duration | None, advance: bool) -> datetime | None:
        if self.clock is None and (until is not None or advance):
            raise UsageError("to move time, give the test a clock: app_on(app, clock=Clock())")
        if isinstance(until, datetime):
            return until
        return None if self.clock is None or until is None else self.clock.now() + duration(until, "until")

    async def _opened_executor(self) -> Executor:
        """Opened when first needed, because by then every kind is registered."""
        if self._executor is None:
            makers = {**self.app.resources, **{name: _always(value) for name, value in self._resources.items()}}
            policies, kinds = self.app.breaker_policies(), self.app.breaker_kinds()
            await self.store.breakers.put_kinds(kinds, policies)
            config = WorkerConfig(
                worker_id=WORKER,
                store=self.store,
                delivery=self.client.delivery,
                settings=self.app.settings,
                kinds=self.app.kinds,
                resources=makers,
                breakers=policies,
                breaker_kinds=kinds,
                key_ring=self.app.key_ring,
            )
            self._executor = await open_executor(self._stack, config, threads=1, processes=1)
            if self.clock is not None:
                await self.store.schedules.put(self.app.schedule_records(self.clock.now()))
        return self._executor


def _always(value: Any) -> Any:
    return lambda: value
