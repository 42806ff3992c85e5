"""The register of sports sites, beside the world services that it talks to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID

from dutiful import Dutiful, JobRecord, State
from dutiful.maintenance import runner
from dutiful.worker import leases
from examples.sports_sites.config import Config
from examples.sports_sites.fake_services import FakeServices
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.service import sports_app
from examples.sports_sites.sites import Site, Sites
from examples.sports_sites.views import Row, Views, views

SITES = [
    Site(12345, "Harbour pool", "swimming", 385_000, 6_672_000),
    Site(12346, "Hill tracks", "skiing", 385_300, 6_672_200),
    Site(12347, "School field", "football", 384_900, 6_671_700),
    Site(12348, "Beach courts", "volleyball", 386_500, 6_672_000),
]
DEADLINE = 60.0
T = TypeVar("T")


@dataclass
class Register:
    """`app` enqueues and looks; workers are started by `working`."""

    app: Dutiful
    database_url: str
    config: Config
    services: FakeServices
    sites: Sites
    jobs: Jobs
    views: Views

    def working(self, app: Dutiful | None = None) -> AbstractAsyncContextManager[Any]:
        return (app or self.app).embedded(grace="5s")

    def another_app(self, **settings: Any) -> Dutiful:
        """The same as another process would have it."""
        return sports_app(self.config, self.database_url, **settings)

    async def row(self, job_id: UUID, view: str = "jobs") -> Row:
        (found,) = [row for row in await self.views.rows(f"select * from {view}") if str(row["id"]) == str(job_id)]
        return found

    async def record(self, job_id: UUID) -> JobRecord:
        found = await self.app.find(job_id)
        assert found is not None
        return found

    async def becomes(self, job_id: UUID, *states: State) -> JobRecord:
        async def look() -> JobRecord | None:
            job = await self.record(job_id)
            return job if job.state in states else None

        return await until(look)

    async def quiet(self) -> None:
        """Nothing waits and nothing runs."""

        async def look() -> bool:
            return not await (await self.app.client()).store.queries.queues()

        await until(look)


@asynccontextmanager
async def register(database_url: str, folder: Path, **settings: Any) -> AsyncIterator[Register]:
    """Its workers poll more often than in production, so that tests do not wait for seconds."""
    services = FakeServices()
    with patch.multiple(runner, LEADER_POLL=0.1, FOLLOWER_POLL=0.2), patch.object(leases, "CHECK_EVERY", 0.2):
        async with services.open() as addresses:
            config = Config(folder=folder, services=addresses.services, smtp_port=addresses.smtp_port)
            app = sports_app(config, database_url, **settings)
            sites = Sites(folder)
            for site in SITES:
                sites.add(site)
            async with app, views(app) as opened:
                await opened.install()
                yield Register(app, database_url, config, services, sites, Jobs(app, "ada"), opened)
                assert await (await app.client()).store.queries.check_places() == []
                if database_url.startswith("postgres"):
                    await opened.rows("drop schema sports cascade")
            sites.close()


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    async with asyncio.timeout(DEADLINE):
        while True:
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.01)
