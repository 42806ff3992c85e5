"""A house with two tenants, their jobs and dead letters, and a key for everybody; asked over HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import msgspec

from dutiful import Dutiful, JobRecord, Retry, Rules
from dutiful.auditing import AuditFilter
from dutiful.client import Client
from dutiful.core import ids
from dutiful.core.audit import AuditEvent, AuditOutcome
from dutiful.operator import Operator
from dutiful.reading import JobFilter
from dutiful.reviewing import DeadLetterFilter
from dutiful.web import Role, create_app

TENANTS = ("acme", "globex")
ROLES = tuple(Role)
BASE = "/api/jobs"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwwx4oUq4qNzE="


@dataclass(slots=True)
class House:
    app: Dutiful
    client: Client
    http: httpx2.AsyncClient
    api: Any
    tokens: dict[str, str] = field(default_factory=dict)  # "acme manager" -> secret; "manager": of no tenant
    dead: dict[str, list[UUID]] = field(default_factory=dict)
    waiting: dict[str, UUID] = field(default_factory=dict)
    done: dict[str, UUID] = field(default_factory=dict)
    runs: dict[str, UUID] = field(default_factory=dict)

    async def ask(
        self, method: str, path: str, who: str | None = "manager", *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx2.Response:
        given = dict(headers or {})
        if who is not None:
            given["authorization"] = f"Bearer {self.tokens.get(who, who)}"
        return await self.http.request(method, BASE + path, headers=given, **more)

    async def get(self, path: str, who: str | None = "manager", **more: Any) -> httpx2.Response:
        return await self.ask("GET", path, who, **more)

    async def post(self, path: str, body: Any = None, who: str | None = "manager", **more: Any) -> httpx2.Response:
        return await self.ask("POST", path, who, **({"json": body} if body is not None else {}), **more)

    async def follow(
        self, path: str, who: str, until: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Read a response as it comes, and go when it has said `until`, or it has ended."""
        said, gone = bytearray(), asyncio.Event()
        start: dict[str, Any] = {}

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            start.update(message if message["type"] == "http.response.start" else {})
            said.extend(message.get("body", b""))
            if until.encode() in said:
                gone.set()

        scope = {
            "type": "http", "method": "GET", "path": BASE + path, "raw_path": (BASE + path).encode(), "root_path": "",
            "query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("here", 80),
            "headers": [
                (name.encode(), value.encode())
                for name, value in {"authorization": f"Bearer {self.tokens[who]}", **(headers or {})}.items()
            ],
        }  # fmt: skip
        async with asyncio.timeout(20):
            await self.api(scope, receive, send)
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], told, said.decode()

    async def audit(self, outcome: AuditOutcome | None = None, **filters: Any) -> list[AuditEvent]:
        return await self.client.store.audit_events(AuditFilter(outcome=outcome, limit=1000, **filters))

    async def facts(self) -> Any:
        """All that an act could change, for comparison."""
        store = self.client.store
        letters = await store.dead_letters(DeadLetterFilter(), limit=1000)
        return msgspec.to_builtins(
            {
                "letters": [(letter.id, letter.status, letter.notes, letter.reviewed_by) for letter in letters],
                "jobs": [(job.id, job.state, job.run_at) for job in await store.jobs(JobFilter(limit=1000))],
                "runs": [(run.id, run.state) for run in await store.bulk_runs(limit=1000)],
                "pauses": [(pause.scope, pause.name) for pause in await store.pauses()],
                "schedules": [(schedule.name, schedule.enabled) for schedule in await store.schedules()],
                "webhooks": [(webhook.name, webhook.enabled) for webhook in await store.webhooks()],
                "tokens": [(token.id, token.revoked_at) for token in await store.tokens()],
            }
        )


def kinds(app: Dutiful) -> None:
    app.category("ingestion", Rules(required={"connection_id": int}))

    @app.job(category="ingestion", retry=Retry(max_attempts=1))
    async def fetch(connection_id: int) -> None:
        raise ValueError(f"connection {connection_id} is closed")

    @app.job
    async def greet(name: str) -> str:
        return f"Hello {name}"

    app.schedule(greet, every="1h", name="reports/nightly", payload={"name": "Ada"})
    app.webhook("shop", "https://shop.example.com/hook", states=["cancelled"], secrets=SECRET)


@asynccontextmanager
async def house_of(app: Dutiful, **options: Any) -> AsyncIterator[House]:
    """Each tenant has two dead letters, a job that is done and one that waits; and there is a token of each role."""
    kinds(app)
    async with app:
        client = await app.client()
        api = create_app(app, **options)
        transport = httpx2.ASGITransport(app=api, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            house = House(app, client, http, api)
            async with app.embedded(grace="5s"):
                for tenant in TENANTS:
                    await _furnish(house, tenant)
            await _make_tokens(house)
            yield house


async def _furnish(house: House, tenant: str) -> None:
    app = house.app
    options: dict[str, Any] = {"tenant": tenant, "correlation_id": f"of-{tenant}"}
    dead = [await app.enqueue("fetch", {"connection_id": n}, unique=f"{tenant}-{n}", **options) for n in (456, 457)]
    done = await app.enqueue("greet", {"name": f"{tenant}-secret"}, **options)
    waiting = await app.enqueue("greet", {"name": f"{tenant}-later"}, delay="1h", **options)
    for job in (*dead, done):
        await final(app, job.id)
    house.dead[tenant] = [job.id for job in dead]
    house.done[tenant], house.waiting[tenant] = done.id, waiting.id


async def _make_tokens(house: House) -> None:
    operator = Operator(house.client, "root")
    for tenant in (None, *TENANTS):
        for role in ROLES:
            name = role.value if tenant is None else f"{tenant} {role}"
            _, house.tokens[name] = await operator.create_token(name, role, tenant)
    revoked, house.tokens["revoked"] = await operator.create_token("revoked", Role.ADMIN)
    await operator.revoke_token(revoked.id)
    _, house.tokens["expired"] = await operator.create_token("expired", Role.ADMIN, expires=timedelta(milliseconds=1))
    house.tokens["wrong"] = "dtf_" + "A" * 43


async def final(app: Dutiful, job_id: UUID) -> JobRecord:
    async def look() -> JobRecord | None:
        record = await app.find(job_id)
        return record if record is not None and record.state.final else None

    record: JobRecord = await eventually(look)
    return record


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:
    until = time.monotonic() + 60
    while not (answer := await look()):
        assert time.monotonic() < until, "it did not come true in time"
        await asyncio.sleep(0.01)
    return answer


def public(job_id: UUID) -> str:
    return ids.public(job_id)
