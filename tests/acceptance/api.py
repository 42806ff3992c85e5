"""The admin API over HTTP, with jobs and dead letters of two tenants, and a token of each role."""

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
from dutiful.client.client import Client
from dutiful.core import ids
from dutiful.core.review.audit import AuditEvent, AuditOutcome
from dutiful.operator import Operator
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.queries import JobFilter
from dutiful.web import Role, create_app

TENANTS = ("acme", "globex")
ROLES = tuple(Role)
BASE = "/api/jobs"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwwx4oUq4qNzE="


@dataclass(slots=True)
class AdminApi:
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
        """Reads a response until it contains `until`, or ends."""
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
        reported = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], reported, said.decode()

    async def audit(self, outcome: AuditOutcome | None = None, **filters: Any) -> list[AuditEvent]:
        return await self.client.store.audit.search(AuditFilter(outcome=outcome, limit=1000, **filters))

    async def facts(self) -> Any:
        """All that an action could change, for comparison."""
        store = self.client.store
        letters = await store.dead_letters.search(DeadLetterFilter(), limit=1000)
        return msgspec.to_builtins(
            {
                "letters": [(letter.id, letter.status, letter.notes, letter.reviewed_by) for letter in letters],
                "jobs": [(job.id, job.state, job.run_at) for job in await store.queries.jobs(JobFilter(limit=1000))],
                "runs": [(run.id, run.state) for run in await store.dead_letters.bulk_runs(limit=1000)],
                "pauses": [(pause.scope, pause.name) for pause in await store.control.pauses()],
                "schedules": [(schedule.name, schedule.enabled) for schedule in await store.schedules.all()],
                "webhooks": [(webhook.name, webhook.enabled) for webhook in await store.webhooks.all()],
                "tokens": [(token.id, token.revoked_at) for token in await store.tokens.all()],
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
async def admin_api(app: Dutiful, *, by: Dutiful | None = None, **options: Any) -> AsyncIterator[AdminApi]:
    """Each tenant has two dead letters, a finished job and a waiting one; and there is a token of each role.

    `by`: makes the tokens, where the role of `app` may not.
    """
    kinds(app)
    async with app:
        client = await app.client()
        api = create_app(app, **options)
        transport = httpx2.ASGITransport(app=api, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            admin = AdminApi(app, client, http, api)
            async with app.embedded(grace="5s"):
                for tenant in TENANTS:
                    await _create_jobs(admin, tenant)
            await _make_tokens(admin, await (by or app).client())
            yield admin


async def _create_jobs(admin: AdminApi, tenant: str) -> None:
    app = admin.app
    options: dict[str, Any] = {"tenant": tenant, "correlation_id": f"of-{tenant}"}
    dead = [await app.enqueue("fetch", {"connection_id": n}, unique=f"{tenant}-{n}", **options) for n in (456, 457)]
    done = await app.enqueue("greet", {"name": f"{tenant}-secret"}, **options)
    waiting = await app.enqueue("greet", {"name": f"{tenant}-later"}, delay="1h", **options)
    for job in (*dead, done):
        await final(app, job.id)
    admin.dead[tenant] = [job.id for job in dead]
    admin.done[tenant], admin.waiting[tenant] = done.id, waiting.id


async def _make_tokens(admin: AdminApi, client: Client) -> None:
    operator = Operator(client, "root")
    for tenant in (None, *TENANTS):
        for role in ROLES:
            name = role.value if tenant is None else f"{tenant} {role}"
            _, admin.tokens[name] = await operator.tokens.create(name, role, tenant)
    revoked, admin.tokens["revoked"] = await operator.tokens.create("revoked", Role.ADMIN)
    await operator.tokens.revoke(revoked.id)
    _, admin.tokens["expired"] = await operator.tokens.create("expired", Role.ADMIN, expires=timedelta(milliseconds=1))
    admin.tokens["wrong"] = "dtf_" + "A" * 43


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
