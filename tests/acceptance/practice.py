"""The practice-management example with its two firms, beside the world services that it talks to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID, uuid4

import httpx2

from dutiful import DeadLetter, Dutiful, Role
from dutiful.maintenance import runner
from dutiful.web import create_app
from dutiful.worker import leases
from examples.practice.api_client import ApiClient, token
from examples.practice.fake_services import FakeServices
from examples.practice.firms import Firms
from examples.practice.payload_validator import PayloadValidator
from examples.practice.platform import Addresses
from examples.practice.queue import JobQueue
from examples.practice.record import QueueRecord, Status
from examples.practice.sample_data import (
    CONNECTION,
    SampleData,
    add_mail_and_calendars,
    add_people,
    create_sample_data,
)
from examples.practice.service import practice_app
from examples.practice.site import practice_site
from examples.practice.users import SAMPLE_PASSWORD
from examples.serving import serving

HERE, THERE = 123, 456
DEADLINE = 60.0
T = TypeVar("T")


@dataclass
class Practice:
    """`app` enqueues and looks; workers are started by `working`."""

    app: Dutiful
    database_url: str
    firms: Firms
    services: FakeServices
    addresses: Addresses
    samples: dict[int, SampleData]

    def queue(self, firm: int = HERE) -> JobQueue:
        return JobQueue(self.app, firm)

    async def create(self, job_type: str, key: str, firm: int = HERE, **refs: Any) -> QueueRecord:
        given = {name: refs.pop(name) for name in ("priority", "scheduled_at", "max_attempts") if name in refs}
        payload = PayloadValidator.create_payload(firm, uuid4(), key, **refs)
        return await self.queue(firm).create(job_type, payload, **given)

    async def fetch(self, message: str, firm: int = HERE, **options: Any) -> QueueRecord:
        """A job that fetches a message of the first connection."""
        return await self.create(
            "email_ingestion_fetch",
            f"email_fetch_conn_{CONNECTION}_{message}",
            firm,
            connection_id=CONNECTION,
            external_message_id=message,
            **options,
        )

    def another_app(self, **settings: Any) -> Dutiful:
        """The same as another process would have it."""
        return practice_app(self.database_url, self.firms, self.addresses, **settings)

    def working(self, app: Dutiful | None = None) -> AbstractAsyncContextManager[Any]:
        return (app or self.app).embedded(grace="5s")

    async def seen(self, job_id: UUID, firm: int = HERE) -> QueueRecord:
        found = await self.queue(firm).get(job_id)
        assert found is not None
        return found

    async def ended(self, job_id: UUID, firm: int = HERE) -> QueueRecord:
        async def look() -> QueueRecord | None:
            job = await self.seen(job_id, firm)
            return job if job.status in (Status.COMPLETED, Status.FAILED) else None

        return await until(look)

    async def quiet(self) -> None:
        """Nothing waits and nothing runs."""

        async def look() -> bool:
            return not await (await self.app.client()).store.queries.queues()

        await until(look)

    async def attempts(self, job_id: UUID) -> list[dict[str, Any]]:
        """The errors of the attempts so far."""
        found = await (await self.app.operator()).jobs.attempts(job_id)
        return [attempt.error for attempt in found if attempt.error is not None]

    async def dead_letter(self, job_id: UUID, firm: int = HERE) -> DeadLetter:
        found = await self.app.tenant(str(firm)).dead_letter(job_id)
        assert found is not None
        return found

    async def poisoned(self) -> UUID:
        """The dead letter of a message that cannot be read."""
        async with self.working():
            await self.fetch("msg_790")
            await self.quiet()
        (letter,) = await self.app.tenant(str(HERE)).dead_letters()
        return letter.id


@asynccontextmanager
async def practice(database_url: str, folder: Path) -> AsyncIterator[Practice]:
    """Its workers poll more often than in production, so that tests do not wait for seconds."""
    firms, services = Firms(folder), FakeServices()
    add_mail_and_calendars(services)
    with patch.multiple(runner, LEADER_POLL=0.1, FOLLOWER_POLL=0.2), patch.object(leases, "CHECK_EVERY", 0.2):
        async with services.open() as addresses:
            app = practice_app(database_url, firms, addresses)
            async with app:
                samples = {firm: create_sample_data(firms, firm) for firm in (HERE, THERE)}
                yield Practice(app, database_url, firms, services, addresses, samples)
                assert await (await app.client()).store.queries.check_places() == []
            app.close_sync()
    firms.close()


@asynccontextmanager
async def desk(practice: Practice) -> AsyncIterator[Callable[..., Awaitable[httpx2.AsyncClient]]]:
    """The platform's own site; gives browsers, each signed in as one of its people, or as no one."""
    add_people(practice.firms)
    clients: list[httpx2.AsyncClient] = []
    async with serving(practice_site(practice.app, practice.firms, practice.addresses)) as url:

        async def enter(name: str | None = "mary") -> httpx2.AsyncClient:
            client = httpx2.AsyncClient(base_url=url, timeout=DEADLINE)
            clients.append(client)
            if name is not None:
                answer = await client.post("/site/session", json={"name": name, "password": SAMPLE_PASSWORD})
                assert answer.status_code == 204, answer.text
            return client

        yield enter
        for client in clients:
            await client.aclose()


@asynccontextmanager
async def reception(practice: Practice) -> AsyncIterator[Callable[..., Awaitable[ApiClient]]]:
    """The admin API on a port of its own; gives visitors, each with a token of their role and firm."""
    async with serving(create_app(practice.app)) as url, httpx2.AsyncClient(base_url=url, timeout=DEADLINE) as http:

        async def enter(role: Role | None = Role.MANAGER, firm: int = HERE) -> ApiClient:
            secret = None if role is None else await token(practice.app, f"{role} of {firm}", role, firm)
            return ApiClient(http, secret)

        yield enter


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    async with asyncio.timeout(DEADLINE):
        while True:
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.01)
