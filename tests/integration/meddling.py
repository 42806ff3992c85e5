"""A store whose reports can be counted, held up and refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dutiful import Dutiful, StoreUnavailable
from dutiful.client import Client
from dutiful.store import Store
from dutiful.tracking import PhaseMark, Report


class Meddler:
    """The store itself, except for what is reported on jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reports = 0
        self.looks = 0
        self.away = False
        self.held: str | None = None  # the phase whose begin waits for `go`
        self.waits = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def report(self, reports: list[Report], marks: list[PhaseMark], **options: Any) -> frozenset[int]:
        self.reports += 1
        if self.away:
            raise StoreUnavailable("the store is away")
        if any(mark.name == self.held for mark in marks):
            self.waits.set()
            await self.go.wait()
        return await self._store.report(reports, marks, **options)

    async def phases(self, job_id: Any) -> Any:
        self.looks += 1
        return await self._store.phases(job_id)


@asynccontextmanager
async def meddled(app: Dutiful) -> AsyncIterator[tuple[Client, Meddler]]:
    """A client for a worker, on such a store."""
    async with app.opened() as client:
        meddler = Meddler(client.store)
        yield Client(meddler, client.delivery), meddler  # type: ignore[arg-type]
