"""The story: builds are published, race, fail and are rolled back; a worker is killed; then the results are checked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import httpx2
from cryptography.fernet import Fernet
from rich.console import Console

from dutiful import Dutiful
from examples.docverse.api.app import create_api
from examples.docverse.client import Client, Json, path_of
from examples.docverse.config import Config
from examples.docverse.factory import Docverse, open_docverse
from examples.docverse.installation import install
from examples.docverse.jobs import docverse_app
from examples.docverse.processes import worker
from examples.docverse.queue_backend import DutifulQueueBackend
from examples.docverse.sample_data import delete_branch, make_repository, pages
from examples.docverse.storage.edge import EdgeServer
from examples.schemas import connect
from examples.serving import serving

DEADLINE = 180.0
GUIDE, NOTES = "rubin/guide", "lsst/notes"  # in pointer mode, and in copy mode
RULES = [{"match": "tickets/*", "slug": "*"}, {"match": "dependabot/*", "ignore": True}]
WORKER = ("--lease", "2s", "--poll", "200ms", "--grace", "10s", "--log-level", "info")
COUNTS = "select kind, status, count(*) from docverse.queue_job group by kind, status order by kind, status"
DELIVERED = "select bool_and(backend_job_id is not null) from docverse.queue_job"
Checklist = dict[str, bool]


@dataclass(frozen=True)
class Servers:
    """The URLs of a Postgres and, if Arq delivers the jobs, of a Redis."""

    postgres: str
    redis: str | None = None


@asynccontextmanager
async def new_database(server_url: str) -> AsyncIterator[str]:
    """The URL of a database that is dropped at the end."""
    name = f"docverse_{uuid4().hex[:8]}"
    connection = await connect(server_url)
    try:
        await connection.execute(f"create database {name}")
        try:
            yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
        finally:
            await connection.execute(f"drop database {name} with (force)")
    finally:
        await connection.close()


@asynccontextmanager
async def opened(console: Console, folder: Path, servers: Servers, ports: tuple[int, int]) -> AsyncIterator["Story"]:
    """A new database, the edge and the API in this process."""
    secret, superuser = token_urlsafe(24), token_urlsafe(24)
    edge = EdgeServer(folder, secret)
    async with new_database(servers.postgres) as url, serving(edge.app, ports[0]) as edge_url:
        config = Config(
            database_url=url, folder=folder, edge_url=edge_url, edge_secret=secret, superuser_token=superuser,
            fernet_keys=(Fernet.generate_key().decode(),), backoff="200ms",
            redis_url=servers.redis,
        )  # fmt: skip
        jobs = docverse_app(config)
        await install(jobs, url)
        async with (
            jobs,
            open_docverse(config, lambda connection: DutifulQueueBackend(jobs, connection)) as services,
            serving(create_api(services, jobs), ports[1]) as api_url,
            httpx2.AsyncClient(base_url=api_url, timeout=30, trust_env=False) as http,
            httpx2.AsyncClient(base_url=edge_url, timeout=30, trust_env=False) as site,
        ):
            yield Story(console, config, jobs, services, edge, Client(http, superuser), site, api_url)


async def run_story(console: Console, folder: Path, servers: Servers) -> Checklist:
    """Plays everything; returns the checklist."""
    async with asyncio.timeout(DEADLINE), opened(console, folder, servers, (0, 0)) as story:
        async with story.working(), story.working():
            await story.set_up()
            await story.publish()
            await story.race()
            await story.fail_and_repair()
            await story.roll_back()
        await story.crash()
        await story.upkeep()
        await story.look_around()
        story.chapter("Checks")
        for sentence, passed in story.checks.items():
            console.print(f"  {'[green]✓[/]' if passed else '[red]✗[/]'} {sentence}", highlight=False)
        return story.checks


async def serve(console: Console, folder: Path, servers: Servers, ports: tuple[int, int]) -> None:
    """Publishes the sample documentation, then serves it until it is interrupted."""
    async with opened(console, folder, servers, ports) as story, story.working() as working:
        watching = asyncio.create_task(working.watch())  # no page would be published any more
        publishing = asyncio.create_task(story.publish_samples())
        await asyncio.wait([watching, publishing], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            publishing.cancel()
            watching.result()
        publishing.result()
        site = f"{story.config.edge_url}/{GUIDE}"
        for line in (
            f"\nOpen {site}/, and its dashboard {site}/v/",
            f"The API is at {story.api_url}/docs; the superuser's token is {story.client.token}",
        ):
            console.print(line, highlight=False, soft_wrap=True)
        await watching


@dataclass
class Story:
    console: Console
    config: Config
    jobs: Dutiful
    services: Docverse
    edge: EdgeServer
    client: Client
    site: httpx2.AsyncClient
    api_url: str
    checks: Checklist = field(default_factory=dict)

    def working(self, config: Config | None = None) -> Any:
        """A worker process."""
        arq = () if self.config.redis_url is None else ("--arq",)
        return worker(self.config.folder, (config or self.config).environment(), *WORKER, *arq)

    async def publish_samples(self) -> None:
        await self.set_up()
        await self.publish()

    async def set_up(self) -> None:
        self.chapter("Two organizations: one points its editions to builds, one copies builds to them")
        make_repository(self.config.repositories / "rubin/guide", ["main", "tickets/DM-1"])
        for project, mode in ((GUIDE, "pointer"), (NOTES, "copy")):
            org, _, slug = project.partition("/")
            body = {"slug": org, "title": org.title(), "publishing_mode": mode, "rewrite_rules": RULES}
            await self.client.call("POST", "/orgs", json=body)
            body = {"slug": slug, "title": f"{org.title()} {slug}", "source_repository": "rubin/guide"}
            await self.client.call("POST", f"/orgs/{org}/projects", json=body)

    async def publish(self) -> None:
        self.chapter("Builds: of the main branch, of a ticket, of releases")
        for project in (GUIDE, NOTES):
            for ref in ("main", "tickets/DM-1", "dependabot/x", "v2.1.0", "v2.0.1"):
                build, job = await self.client.publish(project, ref, pages(project, ref))
                self.say(f"{project} {ref}: build {build} {job['status']}, {_editions(job)}")
            served = [await self.page(project, path) for path in ("", "v/DM-1/install.html", "v/v2.x/", "v/v2.0.x/")]
            self.checks[f"{project}: editions follow branches, tickets and streams of releases"] = [
                ref in text for ref, text in zip(("main", "tickets/DM-1", "v2.1.0", "v2.0.1"), served, strict=True)
            ] == [True] * 4
            dashboard, missing = await self.page(project, "v/"), await self.page(project, "v/DM-1/none.html", 404)
            self.checks[f"{project}: dashboard, 404 page and switcher are served"] = (
                "v2.0.x" in dashboard
                and "does not exist" in missing
                and len(await self.json(project, "__switcher.json")) == 7
            )

    async def race(self) -> None:
        self.chapter("A race: the older of two builds is processed last, by another worker")
        older = [await self.client.build(project, "main", pages(project, "older")) for project in (GUIDE, NOTES)]
        newer = [await self.client.build(project, "main", pages(project, "newer")) for project in (GUIDE, NOTES)]
        both = list(zip((GUIDE, NOTES), older, newer, strict=True))
        for project, old, new in both:
            started = [await self.client.signal(project, build) for build in (new, old)]
            jobs = [await self.client.ended(job) for job in started]
            self.say(f"{project}: newer {_editions(jobs[0])}; older {_editions(jobs[1])}")
            skipped = jobs[1]["progress"]["editions_skipped"]
            shown = await self.json(project, "__editions/__main.json")
            self.checks[f"{project}: the newer build stays, and a skip says why"] = (
                "newer" in await self.page(project, "")
                and shown["build"] == new
                and (not skipped or skipped == [{"slug": "__main", "reason": f"superseded by build {new}"}])
            )

    async def fail_and_repair(self) -> None:
        self.chapter("The edge refuses one edition: the others are published, and an admin repairs it")
        key = f"{GUIDE}/v3.x.json"
        self.edge.refused.add(key)
        build, job = await self.client.publish(GUIDE, "v3.0.0", pages(GUIDE, "v3.0.0"))
        self.say(f"{job['status']}: {_editions(job)}")
        self.edge.refused.remove(key)
        repaired = await self.client.assign(GUIDE, "v3.x", build)
        self.checks["an edition that fails stops no other, and is repaired"] = (
            job["status"] == "completed_with_errors"
            and [failure["slug"] for failure in job["progress"]["editions_failed"]] == ["v3.x"]
            and repaired["status"] == "completed"
            and "v3.0.0" in await self.page(GUIDE, "v/v3.x/")
        )

    async def roll_back(self) -> None:
        self.chapter("An admin rolls the main edition back, and the next build replaces that")
        for project in (GUIDE, NOTES):
            old = (await self.client.call("GET", f"{path_of(project)}/editions/__main/history"))[-1]["build"]
            job = await self.client.assign(project, "__main", old)
            self.say(f"{project}: {job['kind']} {job['status']}")
            back = await self.page(project, "")
            await self.client.publish(project, "main", pages(project, "newest"))
            self.checks[f"{project}: a rollback is served, and tracking goes on after it"] = (
                ", main<" in back and "newest" in await self.page(project, "")
            )

    async def crash(self) -> None:
        self.chapter("A worker is killed while it publishes: another one takes the build over")
        async with AsyncExitStack() as stack:
            doomed = await stack.enter_async_context(self.working())
            self.edge.answering.clear()
            self.edge.asked.clear()
            build = await self.client.build(NOTES, "main", pages(NOTES, "survivor"))
            job = await self.client.signal(NOTES, build)
            await self.edge.asked.wait()
            await doomed.kill()
        self.edge.answering.set()
        async with self.working():
            ended = await self.client.ended(job)
        self.say(f"build {build}: {ended['status']}")
        history = await self.client.call("GET", f"{path_of(NOTES)}/editions/__main/history")
        self.checks["a killed worker's build is published by another one, and logged once"] = (
            ended["status"] == "completed"
            and "survivor" in await self.page(NOTES, "")
            and [entry["build"] for entry in history].count(build) == 1
        )

    async def upkeep(self) -> None:
        self.chapter("Upkeep: a template, a deleted branch, purgatory, and credentials under a new key")
        new_key = Fernet.generate_key().decode()
        await self.client.call("PUT", "/orgs/rubin/rules/ref_deleted", json={"action": "delete"})
        await self.client.call("PUT", "/orgs/rubin/retention", json={"days": 0})
        delete_branch(self.config.repositories / GUIDE, "tickets/DM-1")
        both = replace(self.config, fernet_keys=(new_key, *self.config.fernet_keys))
        ended = []
        async with self.working(both):
            template = await self.client.call("PUT", "/orgs/rubin/template", json={"repository": GUIDE})
            ended.append(await self.client.ended(template["queue_job"]))
            for kind in ("git_ref_audit", "lifecycle_eval", "purgatory_cleanup", "credential_reencrypt"):
                ended.append(await self.client.ended(str((await self.jobs.enqueue(kind)).id)))
        for job in ended:
            self.say(f"{job['kind']}: {job['status']}")
        async with self.working(replace(self.config, fernet_keys=(new_key,))):
            _, job = await self.client.publish(GUIDE, "main", pages(GUIDE, "under the new key"))
        gone, kept = await self.page(GUIDE, "v/DM-1/", 404), await self.page(NOTES, "v/DM-1/")
        self.checks["the five kinds of upkeep completed"] = [job["status"] for job in ended] == ["completed"] * 5
        self.checks["the dashboard is rendered by the organization's template"] = (
            "the house's own template" in await self.page(GUIDE, "v/")
            and "own template" not in await self.page(NOTES, "v/")
        )
        self.checks["the edition of a deleted branch is gone, where a rule says so"] = bool(gone and kept)
        self.checks["builds are published with credentials under the new key alone"] = job[
            "status"
        ] == "completed" and "under the new key" in await self.page(GUIDE, "")

    async def look_around(self) -> None:
        """What holds for all jobs and editions at the end."""
        rows = await self.services.database.source.fetch(
            "select kind, status, count(*) from docverse.queue_job group by 1, 2"
        )
        for row in rows:
            self.say(f"{row['count']} {row['kind']} {row['status']}")
        shown = [
            (await self.json(project, f"__editions/{edition['slug']}.json"))["build"] == edition["build"]
            for project in (GUIDE, NOTES)
            for edition in await self.client.call("GET", f"{path_of(project)}/editions")
        ]
        self.checks["every edition's metadata says what it shows"] = all(shown) and len(shown) >= 12
        delivered = await self.services.database.source.fetchval(DELIVERED)
        self.checks["every job was delivered, by Arq or by the store"] = delivered is (
            self.config.redis_url is not None
        )
        self.checks["the storage is consistent"] = await (await self.jobs.client()).store.queries.check_places() == []

    async def page(self, project: str, path: str, expected: int = 200) -> str:
        answer = await self.site.get(f"/{project}/{path}", follow_redirects=True)
        return answer.text if answer.status_code == expected else ""

    async def json(self, project: str, path: str) -> Any:
        return (await self.site.get(f"/{project}/{path}")).json()

    def say(self, text: str) -> None:
        self.console.print(f"         {text}", style="dim", highlight=False, markup=False, soft_wrap=True)

    def chapter(self, title: str) -> None:
        name, colon, about = title.partition(":")
        self.console.print(f"\n[bold]{name}[/]{colon}{about}", highlight=False, soft_wrap=True)


def _editions(job: Json) -> str:
    progress = job["progress"]
    parts = [" ".join(sorted(progress["editions_completed"])) or "no edition updated"]
    parts += [f"{skip['slug']} {skip['reason']}" for skip in progress["editions_skipped"]]
    parts += [f"{failure['slug']} failed" for failure in progress["editions_failed"]]
    return ", ".join(parts)
