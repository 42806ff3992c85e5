"""Events as a browser gets them: a real server, and a client that speaks over a bare socket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvicorn
from event_jobs import of_type, read_until
from fastapi import FastAPI
from running_workers import eventually, final, working
from starlette.routing import Route

from dutiful import Context, Dutiful
from dutiful.events import EventStream, Item
from dutiful.kind import Kind
from dutiful.web import EventsEndpoint, Subscription


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(asgi: Any) -> AsyncIterator[int]:
    """The port at which it is served."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)  # a client that comes before the server is up waits
        server = Server(uvicorn.Config(asgi, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


class Client:
    """Reads a response frame by frame, when it is asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.last_id: str | None = None
        self._rest = b""

    @classmethod
    async def get(cls, port: int, path: str, *, method: str = "GET", last_id: str | None = None) -> "Client":
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
        client = cls(*await asyncio.open_connection(sock=own, limit=4096))
        again = f"last-event-id: {last_id}\r\n" if last_id else ""
        client._writer.write(f"{method} {path} HTTP/1.1\r\nhost: here\r\n{again}connection: close\r\n\r\n".encode())
        head = (await client._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        client.status = int(head[0].split()[1])
        client.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        return client

    async def frame(self) -> dict[str, Any]:
        """The next event: its fields, with its data read."""
        async with asyncio.timeout(20):
            while b"\n\n" not in self._rest:
                chunk = await self._piece()
                assert chunk, "the stream has ended"
                self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\n\n")
        fields: dict[str, Any] = dict(line.split(": ", 1) for line in text.decode().split("\n"))
        self.last_id = fields.get("id", self.last_id)
        return fields | ({"data": json.loads(fields["data"])} if "data" in fields else {})

    async def until(self, *types: str) -> list[dict[str, Any]]:
        async with asyncio.timeout(30):  # pings keep each frame within its own time
            frames = [await self.frame()]
            while frames[-1].get("event") not in types:
                frames.append(await self.frame())
        return [frame for frame in frames if frame.get("event") not in (None, "ping")]

    async def _piece(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        piece = await self._reader.readexactly(size)
        await self._reader.readexactly(2)
        return piece

    async def rest(self) -> bytes:
        """All that is still to come, to the end of the connection."""
        async with asyncio.timeout(20):
            return await self._reader.read()

    def cut(self) -> None:
        self._writer.transport.abort()


@pytest.fixture
def work(app: Dutiful) -> Kind[..., str]:
    @app.job
    async def work(size: int = 0) -> str:
        return "x" * size

    return work


async def unwatched(app: Dutiful) -> None:
    client = await app.client()

    async def found() -> bool:
        return not client.watcher.streams and not await client.store.events.has_listeners()

    await eventually(found)


@pytest.mark.req("J55", "J56", "J57", "J58")
async def test_a_browser_gets_the_snapshot_first_then_events_then_pings(app: Dutiful) -> None:
    watched, go_on = asyncio.Event(), asyncio.Event()

    @app.job
    async def work(ctx: Context) -> int:
        await watched.wait()  # progress made before the snapshot is part of it, and no event
        ctx.progress(40, "ä\nb")
        await go_on.wait()
        return 7

    api = FastAPI()
    api.routes.append(Route("/jobs/events", EventsEndpoint(app, ping=0.1)))
    async with serving(api) as port, working(app):
        job = await work.enqueue()
        client = await Client.get(port, f"/jobs/events?job={job.public_id}")
        assert (client.status, client.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "no-cache" in client.headers["cache-control"] and client.headers["x-accel-buffering"] == "no"
        assert await client.frame() == {"retry": "2000"}
        first = await client.frame()
        assert first["event"] == "snapshot" and first["data"]["job"]["public_id"] == job.public_id
        assert "payload" not in first["data"]["job"]
        watched.set()
        (progress,) = [f for f in await client.until("progress") if f["event"] == "progress"]
        assert progress["data"]["data"]["message"] == "ä\nb"
        await client.until("ping")
        go_on.set()
        last = (await client.until("completed"))[-1]["data"]
        assert (last["public_id"], last["data"]["result"]) == (job.public_id, 7)
        client.cut()
        await unwatched(app)


@pytest.mark.req("J32", "J56")
async def test_a_client_that_was_cut_finds_the_final_state_when_it_is_back(app: Dutiful, work: Kind[..., str]) -> None:
    job = await work.enqueue()
    async with serving(EventsEndpoint(app)) as port:
        client = await Client.get(port, f"/?job={job.public_id}")
        assert (await client.until("snapshot"))[-1]["data"]["job"]["state"] == "ready"
        client.cut()
        async with working(app):
            await final(app, job)
        again = await Client.get(port, f"/?job={job.public_id}", last_id=client.last_id)
        assert (await again.until("snapshot"))[-1]["data"]["job"]["state"] == "completed"
        again.cut()


async def test_a_client_of_many_jobs_goes_on_where_it_was_cut(app: Dutiful, work: Kind[..., str]) -> None:
    async with serving(EventsEndpoint(app)) as port, working(app):
        client = await Client.get(port, "/?kind=work&type=completed")
        received: list[str] = []
        jobs: list[str] = []
        for _ in range(4):
            assert await client.frame() == {"retry": "2000"}
            more = await work.enqueue_many([{}] * 5)
            jobs += [job.public_id for job in more]
            for _ in range(5 - 2):  # cut in the middle of it
                received.append((await client.until("completed"))[-1]["data"]["public_id"])
            client.cut()
            for job in more:
                await job.result("20s")
            client = await Client.get(port, "/?kind=work&type=completed", last_id=client.last_id)
            assert await client.frame() == {"retry": "2000"}
            received += [(await client.until("completed"))[-1]["data"]["public_id"] for _ in range(2)]
            client.cut()
            client = await Client.get(port, "/?kind=work&type=completed", last_id=client.last_id)
        client.cut()
    assert sorted(received) == sorted(jobs), "none is missing, and none came twice"


@pytest.mark.req("J59", "J60", "J61")
async def test_clients_that_go_leave_nothing_behind(app: Dutiful, work: Kind[..., str]) -> None:
    job = await work.options(delay="1h").enqueue()
    async with serving(EventsEndpoint(app)) as port:
        before = asyncio.all_tasks()
        clients = [await Client.get(port, f"/?job={job.public_id}" if n % 2 else "/") for n in range(20)]
        for client in clients:
            await client.frame()
        assert len((await app.client()).watcher.streams) == 20
        for client in clients:
            client.cut()
        await unwatched(app)

        async def quiet() -> bool:
            return asyncio.all_tasks() <= before

        await eventually(quiet)
    assert (await job.record()).state == "scheduled"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_client_that_stops_reading_is_dropped_and_costs_no_memory(app: Dutiful, work: Kind[..., str]) -> None:
    size, waves, wave = 20_000, 8, 100
    async with serving(EventsEndpoint(app)) as port, working(app):
        client = await Client.get(port, "/?type=completed")
        await client.frame()
        async with app.events(types=["completed"]) as others:
            for _ in range(waves):
                await work.enqueue_many([{"size": size}] * wave)
                async with asyncio.timeout(20):
                    for _ in range(wave):
                        await anext(others)
            assert len((await app.client()).watcher.streams) == 1, "only the one that reads"
        received = len(await client.rest())
    assert 0 < received < size * wave * waves * 0.6


async def test_wrong_questions_are_answered_as_problems(app: Dutiful, work: Kind[..., str]) -> None:
    job = await work.options(tenant="acme").enqueue()

    async def allow(scope: Any) -> Subscription | None:
        return None if b"stranger" in scope["query_string"] else Subscription(tenant="acme")

    async with serving(EventsEndpoint(app, allow=allow)) as port:
        for path, status, detail in (
            (f"/?job={app.new_id()}", 404, "there is no job"),
            ("/?job=nonsense", 422, "not a job's id"),
            ("/?type=ended", 422, "no event type"),
            ("/?since=yesterday", 422, "2030-01-31T12:00:00Z"),
            ("/?since=0001-01-01T00:00:00Z", 422, "is out of range"),
            ("/?since=9999-12-31T23:59:59-12:00", 422, "is out of range"),
            ("/?tenant=other", 422, "tenant is 'other'"),
            ("/?job=", 422, "job is empty"),
            ("/?jobs=1", 422, "there is no parameter 'jobs'"),
            ("/?kind=%ff", 422, "not UTF-8"),
            ("/?stranger", 403, "may not"),
        ):
            client = await Client.get(port, path)
            body = json.loads(await client.rest())
            assert (client.status, client.headers["content-type"]) == (status, "application/problem+json"), path
            assert body["status"] == status and detail in body["detail"]
        assert (await Client.get(port, "/", method="POST")).status == 405
        allowed = await Client.get(port, f"/?job={job.public_id}")
        await allowed.until("snapshot")
        allowed.cut()
    async with serving(EventsEndpoint(app, allow=lambda scope: Subscription(tenant="other"))) as port:
        assert (await Client.get(port, f"/?job={job.public_id}")).status == 404


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_what_is_not_allowed_is_not_a_stream_without_events(app: Dutiful) -> None:
    async with serving(EventsEndpoint(app, allow=lambda scope: Subscription(kinds=frozenset({"ours"})))) as port:
        client = await Client.get(port, "/?kind=theirs")
        assert client.status == 422 and b"kinds: you may ask for none of those" in await client.rest()


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_stream_that_fails_ends_and_is_logged(
    app: Dutiful, work: Kind[..., str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(stream: EventStream, most: int) -> list[Item]:
        raise OverflowError("beyond all time")

    monkeypatch.setattr(EventStream, "several", fail)
    async with serving(EventsEndpoint(app)) as port:
        client = await Client.get(port, "/")
        assert (await client.rest()).endswith(b"\r\n0\r\n\r\n"), "the response is whole"
    assert "beyond all time" in caplog.text


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_served_alone_it_opens_and_closes_the_app(app: Dutiful) -> None:
    said: asyncio.Queue[Any] = asyncio.Queue()
    answered: list[str] = []

    async def send(message: Any) -> None:
        answered.append(message["type"])

    living = asyncio.create_task(EventsEndpoint(app)({"type": "lifespan"}, said.get, send))
    said.put_nowait({"type": "lifespan.startup"})
    await eventually(lambda: _true(answered))
    async with app.events() as stream:
        said.put_nowait({"type": "lifespan.shutdown"})
        assert await read_until(stream, of_type("nothing")) == [], "it ends with the app"
    await living
    assert answered == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def _true(value: Any) -> Any:
    return value
