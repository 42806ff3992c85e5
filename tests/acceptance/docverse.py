"""The documentation host for tests: its database, edge, API and workers."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import uuid4

import httpx2
import psycopg
from cryptography.fernet import Fernet

from databases import Postgres, reset_statement
from dutiful import Dutiful
from dutiful.maintenance import runner
from examples.docverse.api.app import create_api
from examples.docverse.client import tarball
from examples.docverse.config import Config
from examples.docverse.factory import Docverse, open_docverse
from examples.docverse.installation import install
from examples.docverse.jobs import Opened, docverse_app
from examples.docverse.processes import Worker, worker
from examples.docverse.queue_backend import DutifulQueueBackend
from examples.docverse.storage.edge import EdgeServer
from examples.serving import serving

HERE = Path(__file__).parent
DATABASE = "docverse_test"
SUPERUSER, SECRET = "superuser-of-the-tests", "secret-of-the-edge"
DEADLINE = 60.0
T = TypeVar("T")
Json = dict[str, Any]


class CleanDocverse:
    """A database with everything installed, emptied before each test."""

    def __init__(self, server: Postgres) -> None:
        # A name of its own, because another installation on this server would drop it.
        self.name = f"{DATABASE}_{uuid4().hex}"
        self.url = server.create_database(self.name)
        asyncio.run(install(Dutiful(self.url), self.url))
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._reset = reset_statement(self._connection, "docverse", "dutiful")

    def reset(self) -> str:
        self._connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        self._connection.execute(self._reset)
        return self.url

    def close(self) -> None:
        self._connection.close()


@contextmanager
def installed(server: Postgres) -> Iterator[CleanDocverse]:
    clean = CleanDocverse(server)
    try:
        yield clean
    finally:
        clean.close()
        server.drop_database(clean.name)


@dataclass
class Host:
    """The host as tests use it: over HTTP, as its superuser, unless another token is given."""

    config: Config
    jobs: Dutiful
    services: Docverse
    edge: EdgeServer
    http: httpx2.AsyncClient
    site: httpx2.AsyncClient  # the edge, without a token

    def working(self, opened: Opened = open_docverse, **settings: Any) -> AbstractAsyncContextManager[Any]:
        """A worker in this process, whose services are made by `opened`."""
        return docverse_app(self.config, opened, **settings).embedded(grace="5s")

    def process(self, *options: str, **windows: Any) -> AbstractAsyncContextManager[Worker]:
        """A worker in a process of its own, with these windows of `docverse_worker`; of Arq, if there is a Redis."""
        environment = {
            **self.config.environment(),
            "DOCVERSE_WINDOWS": json.dumps(windows),
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
        }
        arq = () if self.config.redis_url is None else ("--arq",)
        return worker(self.config.folder, environment, *options, *arq, app="docverse_worker:app")

    async def call(self, method: str, path: str, expected: int = 200, *, token: str = SUPERUSER, **given: Any) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        if isinstance(given.get("content"), str):
            headers["content-type"] = "application/json"
        answer = await self.http.request(method, path, headers=headers, **given)
        assert answer.status_code == expected, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def add_org(self, slug: str = "rubin", mode: str = "pointer", rules: list[Json] | None = None) -> None:
        body = {"slug": slug, "title": slug.title(), "publishing_mode": mode, "rewrite_rules": rules or []}
        await self.call("POST", "/orgs", 201, json=body)

    async def add_project(self, org: str = "rubin", slug: str = "guide", **given: Any) -> "HostedProject":
        await self.call("POST", f"/orgs/{org}/projects", 201, json={"slug": slug, "title": slug.title(), **given})
        return HostedProject(self, org, slug)

    async def job(self, job_id: str) -> Json:
        found: Json = await self.call("GET", f"/queue/jobs/{job_id}")
        return found

    async def ended(self, job_id: str) -> Json:
        async def look() -> Json | None:
            job = await self.job(job_id)
            return job if job["date_completed"] else None

        return await until(look)

    async def page(self, path: str, expected: int = 200) -> str:
        answer = await self.site.get(path, follow_redirects=True)
        assert answer.status_code == expected, f"{path}: {answer.status_code} {answer.text}"
        return answer.text


@dataclass
class HostedProject:
    host: Host
    org: str
    slug: str

    @property
    def path(self) -> str:
        return f"/orgs/{self.org}/projects/{self.slug}"

    async def upload(self, git_ref: str, pages: Mapping[str, str | bytes] | None = None) -> str:
        """A build with content, which is not processed yet; its id."""
        build: str = (await self.host.call("POST", f"{self.path}/builds", 201, json={"git_ref": git_ref}))["id"]
        content = tarball(pages or {"index.html": f"<h1>{git_ref}</h1>", "style.css": "h1 {}"})
        await self.host.call("PUT", f"{self.path}/builds/{build}/content", 201, content=content)
        return build

    async def signal(self, build: str) -> str:
        """Signals that a build is uploaded; the id of its job."""
        patched = await self.host.call("PATCH", f"{self.path}/builds/{build}", 202, json={"status": "uploaded"})
        return str(patched["queue_job"])

    async def publish(self, git_ref: str, pages: Mapping[str, str | bytes] | None = None) -> tuple[str, Json]:
        """A build that is processed; its id, and its job when it has ended."""
        build = await self.upload(git_ref, pages)
        return build, await self.host.ended(await self.signal(build))

    async def build(self, build: str) -> Json:
        found: Json = await self.host.call("GET", f"{self.path}/builds/{build}")
        return found

    async def edition(self, slug: str) -> Json:
        found: Json = await self.host.call("GET", f"{self.path}/editions/{slug}")
        return found

    async def history(self, slug: str) -> list[Json]:
        found: list[Json] = await self.host.call("GET", f"{self.path}/editions/{slug}/history")
        return found

    async def assign(self, slug: str, build: str) -> str:
        path = f"{self.path}/editions/{slug}"
        return str((await self.host.call("PATCH", path, 202, json={"build": build}))["queue_job"])

    async def page(self, path: str = "", expected: int = 200) -> str:
        return await self.host.page(f"/{self.org}/{self.slug}/{path}", expected)


@asynccontextmanager
async def hosting(database_url: str, folder: Path, **settings: Any) -> AsyncIterator[Host]:
    """Everything but a worker."""
    edge = EdgeServer(folder, SECRET)
    with patch.multiple(runner, LEADER_POLL=0.1, FOLLOWER_POLL=0.2):
        async with serving(edge.app) as edge_url:
            config = Config(
                database_url=database_url, folder=folder, edge_url=edge_url, edge_secret=SECRET,
                fernet_keys=(Fernet.generate_key().decode(),), superuser_token=SUPERUSER, backoff="50ms",
            )  # fmt: skip
            jobs = docverse_app(config, **settings)
            async with (
                jobs,
                open_docverse(config, lambda connection: DutifulQueueBackend(jobs, connection)) as services,
                serving(create_api(services, jobs)) as url,
                httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
                httpx2.AsyncClient(base_url=edge_url, timeout=30, trust_env=False) as site,
            ):
                yield Host(config, jobs, services, edge, http, site)
                misplaced = await (await jobs.client()).store.queries.check_places()
                assert misplaced == [], misplaced


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    async with asyncio.timeout(DEADLINE):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.01)
