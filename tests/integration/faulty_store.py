"""A store whose progress reports are counted, and can be delayed or refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dutiful import Dutiful, StoreUnavailable
from dutiful.client.client import Client
from dutiful.store import Store
from dutiful.store.progress import PhaseMark, ProgressReport


class FaultyStore:
    """The store itself, except for progress."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reports = 0
        self.reads = 0
        self.away = False
        self.held: str | None = None  # the phase whose start waits for `go`
        self.waits = asyncio.Event()
        self.go = asyncio.Event()

    @property
    def progress(self) -> "FaultyStore":
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def report(self, reports: list[ProgressReport], marks: list[PhaseMark], **options: Any) -> frozenset[int]:
        self.reports += 1
        if self.away:
            raise StoreUnavailable("the store is away")
        if any(mark.name == self.held for mark in marks):
            self.waits.set()
            await self.go.wait()
        return await self._store.progress.report(reports, marks, **options)

    async def phases(self, job_id: Any) -> Any:
        self.reads += 1
        return await self._store.progress.phases(job_id)


@asynccontextmanager
async def faulty_store(app: Dutiful) -> AsyncIterator[tuple[Client, FaultyStore]]:
    """A client on such a store, and the store."""
    async with app.opened() as client:
        store = FaultyStore(client.store)
        yield Client(store, client.delivery), store  # type: ignore[arg-type]
