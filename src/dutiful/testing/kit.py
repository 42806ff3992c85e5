"""An app on a temporary database, and what a test does with it."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dutiful.app import Dutiful
from dutiful.client import Client
from dutiful.composition import make_retention
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.deliveries.in_process import InProcess
from dutiful.services.scheduler import Scheduler
from dutiful.store import Store
from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.assertions import Assertions
from dutiful.testing.clock import Clock, ClockedStore
from dutiful.testing.drain import Drain, Ran
from dutiful.worker.attempt import Attempts
from dutiful.worker.opening import open_attempts


@asynccontextmanager
async def app_on(
    app: Dutiful,
    *,
    clock: Clock | None = None,
    path: str | Path | None = None,
    resources: Mapping[str, Any] | None = None,
) -> AsyncIterator["Kit"]:
    """Keep the app's jobs in a temporary SQLite file (or in `path`) for the length of a test.

    With a `clock`, time stands still until the test moves it. `resources` stand in for those of the same name that the
    app would make. What is enqueued waits for `kit.drain()`.
    """
    if app._clients.open:
        raise UsageError("the app is open on its own database; close it first, or enter app_on before it is used")
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dutiful-test-"))
        file = Path(path or Path(folder) / "jobs.db")

        def make_store() -> Store:
            # A power cut in the middle of a test loses nothing that anybody misses.
            store = SqliteStore(file, synchronous="OFF")
            return store if clock is None else ClockedStore(store, clock)

        def make_delivery(store: Any) -> InProcess:
            return InProcess(store.data_version)

        stack.enter_context(patch.multiple(app, make_store=make_store, make_delivery=make_delivery))
        stack.callback(app.close_sync)
        client = await stack.enter_async_context(_opened(app))
        yield await stack.enter_async_context(_kit(app, client, clock, resources or {}))


@asynccontextmanager
async def _opened(app: Dutiful) -> AsyncIterator[Client]:
    async with app:
        yield await app.client()


@asynccontextmanager
async def _kit(app: Dutiful, client: Client, clock: Clock | None, resources: Mapping[str, Any]) -> AsyncIterator["Kit"]:
    async with AsyncExitStack() as stack:
        yield Kit(app, client, clock, resources, stack)


class Kit(Assertions):
    """What `app_on` gives: run what is due, and say what must have been enqueued."""

    def __init__(
        self,
        app: Dutiful,
        client: Client,
        clock: Clock | None,
        resources: Mapping[str, Any],
        stack: AsyncExitStack,
    ) -> None:
        super().__init__(client.store)
        self.app = app
        self.client = client
        self.store = client.store
        self.clock = clock
        self._resources = resources
        self._stack = stack
        self._attempts: Attempts | None = None

    async def drain(
        self, until: datetime | Duration | None = None, *, advance: bool = False, limit: int = 1_000
    ) -> list[Ran]:
        """Run every job that is due, and those they enqueue; returns each attempt in the order in which it was made.

        With a clock: `until` moves it to that moment (or by that length of time), through every retry, scheduled job
        and schedule on the way; `advance=True` moves it through retries and scheduled jobs until none is left.
        A handler's error is an outcome here, it is not raised. More than `limit` attempts are an error.
        """
        attempts, scheduler = await self._opened_attempts(), Scheduler(self.store, self.app.new_id)
        drain = Drain(self.store, self.app.kinds, self.app.settings, attempts, scheduler, self.clock)
        return await drain.run(self._moment(until, advance), advance, limit)

    async def retain(self) -> None:
        """One pass of retention, by the app's settings: what is due becomes stale or is deleted, callbacks included."""
        await make_retention(self.app, self.client).once()

    def _moment(self, until: datetime | Duration | None, advance: bool) -> datetime | None:
        if self.clock is None and (until is not None or advance):
            raise UsageError("to move time, give the test a clock: app_on(app, clock=Clock())")
        if isinstance(until, datetime):
            return until
        return None if self.clock is None or until is None else self.clock.now() + duration(until, "until")

    async def _opened_attempts(self) -> Attempts:
        """Opened when first needed: by then every kind is registered."""
        if self._attempts is None:
            makers = {**self.app.resources, **{name: _always(value) for name, value in self._resources.items()}}
            policies = self.app.breaker_policies()
            await self.store.put_breaker_kinds(self.app.breaker_kinds(), policies)
            self._attempts = await open_attempts(
                self._stack,
                self.store,
                self.app.settings,
                self.app.kinds.values(),
                makers,
                policies,
                self.client.delivery.news,
                threads=1,
                processes=1,
            )
            if self.clock is not None:
                await self.store.put_schedules(self.app.schedule_records(self.clock.now()))
        return self._attempts


def _always(value: Any) -> Any:
    return lambda: value
