"""Lists cost what they show: payloads, results and subjects that they do not show are not loaded."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx2
import pytest

from dutiful import Dutiful, PayloadInvalid, State
from dutiful.core.errors import DataRefused
from dutiful.core.outcome import Failed
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.queries import JobFilter
from dutiful.web import Principal, Role, create_app
from suite.builders import OOPS, change, claim, complete, new_job

JOBS, SIZE = 40, 1_000_000
SMALL = 400_000  # bytes for any list here; one payload has more


class Wire:
    """A relay in front of Postgres that counts what the server sends."""

    def __init__(self) -> None:
        self.received = 0

    @asynccontextmanager
    async def before(self, url: str) -> AsyncIterator[str]:
        parts = urlsplit(url)

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up, down = await asyncio.open_connection(parts.hostname, parts.port)

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, counted: bool) -> None:
                while data := await source.read(65536):
                    self.received += len(data) if counted else 0
                    target.write(data)
                    await target.drain()
                target.close()

            await asyncio.gather(
                copy(reader, down, counted=False), copy(up, writer, counted=True), return_exceptions=True
            )

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        yield urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        server.close()


@pytest.fixture
async def counted(app_url: str) -> AsyncIterator[tuple[Dutiful, Wire]]:
    wire = Wire()
    if app_url.startswith("sqlite"):
        async with Dutiful(app_url) as app:
            yield app, wire
        return
    async with wire.before(app_url) as url, Dutiful(url) as app:
        yield app, wire


async def fill(store: Store) -> None:
    """Large jobs: a quarter completed, a quarter dead letters, a quarter running, a quarter waiting."""
    large, now = '{"text":"' + "x" * SIZE + '"}', datetime.now(UTC) - timedelta(hours=2)
    for start in range(0, JOBS, 5):
        jobs = [new_job(payload=large, correlation_id="order-7", subject='{"order":7}') for _ in range(5)]
        await store.jobs.insert(jobs, now=now)
        quarter = start * 4 // JOBS
        if quarter < 3:
            claims = await claim(store, limit=5, now=now)
        if quarter == 0:
            await complete(store, *claims, result=large, now=now)
        elif quarter == 1:
            await store.claims.settle([change(one, Failed(OOPS, final=True)) for one in claims], now=now)


PATHS = [
    "GET /admin/queue/?limit=40",
    "GET /admin/queue/?limit=40&subject=%7B%22order%22:7%7D",
    "GET /admin/dlq/?limit=40",
    "GET /admin/jobs/stuck/",
    "GET /admin/trace/order-7/",
    "GET /admin/drain/?everything=true",
    "POST /admin/dlq/bulk/preview/",
]


async def test_a_list_of_large_jobs_costs_no_more_than_one_of_small_ones(
    counted: tuple[Dutiful, Wire], app_url: str
) -> None:
    app, wire = counted
    await fill((await app.client()).store)
    principal = Principal(name="root", role=Role.ADMIN)
    transport = httpx2.ASGITransport(app=create_app(app, authenticate=lambda _: principal))
    client = await app.client()
    operator = Operator(client, "root")
    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "events": lambda: client.store.events.views([job.id for job in failed]),
        "newest dead letters": lambda: operator.dead_letters.search(DeadLetterFilter(), details=False),
        "page": lambda: operator.jobs.search(JobFilter(details=False)),
    }
    failed = (await operator.jobs.search(JobFilter(state=State.FAILED, details=False))).jobs
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
        for path in PATHS:
            method, _, rest = path.partition(" ")
            body = {"json": {"act": "discard", "filter": {}}} if method == "POST" else {}
            reads[path] = lambda method=method, rest=rest, body=body: http.request(  # type: ignore[misc]
                method, f"/api/jobs{rest}", headers={"origin": "http://here"}, **body
            )
        costs: dict[str, int] = {}
        for name, read in reads.items():
            await read()  # opens connections, fills caches
            costs[name] = await _cost(read, wire if app_url.startswith("postgres") else None)
    assert {name: cost for name, cost in costs.items() if cost > SMALL} == {}


async def _cost(read: Callable[[], Awaitable[Any]], wire: Wire | None) -> int:
    """Bytes from the server; of SQLite, the most memory that Python had at a time."""
    if wire is not None:
        before = wire.received
        answer = await read()
        assert getattr(answer, "status_code", 200) == 200, answer.text
        return wire.received - before
    tracemalloc.start()
    try:
        answer = await read()
        assert getattr(answer, "status_code", 200) == 200, answer.text
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [8_192, 8_193])
async def test_a_subject_has_a_limit_in_python_and_over_http(app: Dutiful, size: int) -> None:
    @app.job
    async def work() -> None: ...

    subject = {"order": "x" * (size - len('{"order":""}'))}
    principal = Principal(name="root", role=Role.ADMIN)
    transport = httpx2.ASGITransport(app=create_app(app, authenticate=lambda _: principal))
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
        answer = await http.post("/api/jobs/admin/jobs/", json={"kind": "work", "options": {"subject": subject}})
    if size <= 8_192:
        assert answer.status_code == 201
        await work.options(subject=subject).enqueue()
        return
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["errors"]] == ["subject"]
    with pytest.raises(PayloadInvalid, match="the subject has 8,193 bytes, more than the limit of 8,192") as refused:
        await work.options(subject=subject).enqueue()
    assert refused.value.field == "subject"


async def test_the_table_refuses_a_large_subject_whoever_writes_it(app: Dutiful, app_url: str) -> None:
    store = (await app.client()).store
    with pytest.raises(DataRefused, match="job_subject_size"):
        await store.jobs.insert([new_job(subject='{"order":"' + "x" * 70_000 + '"}')])
    assert len(await store.queries.jobs(JobFilter())) == 0
    if app_url.startswith("postgres"):
        connection = await asyncpg.connect(app_url)
        with pytest.raises(asyncpg.CheckViolationError, match="job_subject_size"):
            await connection.execute(
                "select dutiful.enqueue('work', p_subject => jsonb_build_object('order', repeat('x', 70000)))"
            )
        await connection.close()


async def test_every_subject_that_python_accepts_fits_the_table(app: Dutiful) -> None:
    @app.job
    async def work() -> None: ...

    values: list[Any] = [
        [1] * 4_080,
        {f"{n:03}": 1 for n in range(900)},
        [[]] * 2_700,
        1e300,
        "\u00e9" * 4_000,
    ]
    for value in values:
        await work.options(subject={"order": value}).enqueue()
    assert len(await app.jobs()) == 5
