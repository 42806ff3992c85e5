"""Two releases of Dutiful on one database: the schema is migrated while workers of both run and jobs flow."""

import asyncio
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg
import deploy_jobs
import pytest
from deploy_jobs import before

import dutiful
from databases import Postgres
from dutiful.stores.postgres import PostgresStore
from faults import Fleet, WorkerProcess, until

# Far beyond what anything here takes, however slow the machine: no job is given back, and none is lost.
PATIENT = ("--grace", "3m", "--lease", "3m", "--log-level", "warning")
ROUNDS = 40
# What the next release enqueues, in a process of its own.
CLIENT = f"""
import asyncio
from deploy_jobs import after

async def main():
    async with after:
        for _ in range({ROUNDS}):
            print("enqueued", (await after.enqueue("keep")).id, flush=True)
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} has {old!r} {text.count(old)} times"
    file.write_text(text.replace(old, new))


def next_release(folder: Path) -> Path:
    """A copy of this release with a column more, which it writes and shows, and a function that works otherwise."""
    package = folder / "dutiful"
    shutil.copytree(Path(dutiful.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    store = package / "stores/postgres"
    version = int(re.findall(r"^SCHEMA_VERSION = (\d+)$", (store / "migrations.py").read_text(), re.MULTILINE)[0])
    edit(store / "migrations.py", f"\nSCHEMA_VERSION = {version}\n", f"\nSCHEMA_VERSION = {version + 1}\n")
    migration = "alter table {schema}.job add column release text default 'before';\n"
    (store / f"schema/tables/{version + 1:04}_release.sql").write_text(migration)
    fields = "    depends_on: tuple[UUID, ...] = ()\n"
    edit(package / "core/job.py", fields, fields + "    release: str = 'after'\n")
    column = """    Column("release", "text", json="coalesce(v ->> 'release', 'before')"),\n"""
    edit(
        store / "engine/columns.py",
        '    Column("created_by", "text"),\n',
        '    Column("created_by", "text"),\n' + column,
    )
    functions = store / "schema/functions"
    last = " as backend_job_id\nfrom ("
    edit(functions / "views.sql", last, last.replace("\n", ", j.release\n"))
    edit(
        functions / "claims_settle.sql",
        "'completed', g.result::jsonb",
        "'completed', '\"settled by the next release\"'::jsonb",
    )
    return folder


@dataclass
class Site:
    """Both releases on one database, and a diary of what ran."""

    url: str
    store: PostgresStore
    diary: Path
    old: Fleet
    new: Fleet
    enqueued: list[UUID] = field(default_factory=list)

    def ran(self) -> list[tuple[UUID, str]]:
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        runs = [line.split() for line in lines]
        return [(UUID(job), release) for job, release, kind in runs if kind == "keep"]  # the other one is periodic

    async def have_run(self, release: str, jobs: int, *, since: int = 0) -> None:
        async def seen() -> bool:
            return [which for _, which in self.ran()[since:]].count(release) >= jobs

        await until(seen, f"workers of the release {release} have run {jobs} more jobs")

    async def all_settled(self) -> bool:
        return len(await self.store.queries.outcomes(self.enqueued)) == len(self.enqueued)


@pytest.fixture
async def site(postgres18: Postgres, tmp_path: Path) -> AsyncIterator[Site]:
    postgres18.drop_database("upgraded")
    url, here = postgres18.create_database("upgraded"), Path(__file__).parent
    store = PostgresStore(url)
    await store.migrate()
    await store.open()

    def fleet(app: str, environment: dict[str, str]) -> Fleet:
        folder = tmp_path / app
        folder.mkdir()
        environment = {deploy_jobs.DIARY: str(tmp_path / "diary"), **environment}
        return Fleet(f"deploy_jobs:{app}", url, folder=folder, path=here, environment=environment)

    code = next_release(tmp_path / "next")
    before.configure(database_url=url)
    try:
        async with before, fleet("before", {}) as old, fleet("after", {"PYTHONPATH": str(code)}) as new:
            yield Site(url, store, tmp_path / "diary", old, new)
    finally:
        await store.close()
        postgres18.drop_database("upgraded")


@asynccontextmanager
async def enqueueing(site: Site) -> AsyncIterator[None]:
    """An old client that enqueues while the block runs, with and without unique keys."""

    stop = asyncio.Event()

    async def go_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            plain = [before.enqueue("keep") for _ in range(3)]
            handles = await asyncio.gather(*plain, before.enqueue("keep", unique=f"job {number}"))
            site.enqueued += [handle.id for handle in handles]
            await asyncio.sleep(0.02)

    client = asyncio.create_task(go_on())
    try:
        yield
    finally:
        stop.set()
        await client


async def ends(worker: WorkerProcess) -> None:
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within=180) == 0, worker.output


async def test_a_release_with_a_new_column_and_function_is_deployed_while_jobs_flow(site: Site) -> None:
    old = [await site.old.start(*PATIENT).ready(site.store) for _ in range(2)]
    async with enqueueing(site):
        await site.have_run("before", 20)
        migrate = site.new.run(sys.executable, "-m", "dutiful.cli", "migrate")
        assert await migrate.ended() == 0, migrate.output
        migrated = len(site.ran())
        assert "applied 0002_release" in migrate.output and "applied functions/claims_settle" in migrate.output
        assert "functions/claims\n" not in migrate.output, "what has not changed is left alone"
        await site.have_run("before", 20, since=migrated)
        assert await site.store.migrate() == [], "an old process that restarts takes nothing back"
        new = [await site.new.start(*PATIENT).ready(site.store) for _ in range(2)]
        client = site.new.run(sys.executable, "-c", CLIENT)
        both = len(site.ran())
        await site.have_run("before", 20, since=both)
        await site.have_run("after", 20, since=both)
        assert await client.ended() == 0, client.output
        for worker in old:
            await ends(worker)
        await site.have_run("after", 20, since=len(site.ran()))
    newer = [UUID(line.split()[1]) for line in client.output.splitlines() if line.startswith("enqueued")]
    assert len(newer) == ROUNDS
    older, site.enqueued = list(site.enqueued), [*site.enqueued, *newer]
    await until(site.all_settled, "every job is over")
    for worker in new:
        await ends(worker)

    times, ran = Counter(job for job, _ in site.ran()), dict(site.ran())
    assert times == dict.fromkeys(site.enqueued, 1), "each once, and none twice"
    assert await site.store.queries.check_places() == []
    for worker in (*old, *new):
        assert "Traceback" not in worker.output, worker.output
    connection = await asyncpg.connect(site.url)
    rows = await connection.fetch("select id, state, result::text, release from dutiful.jobs where kind = 'keep'")
    await connection.close()
    assert {row["state"] for row in rows} == {"completed"}
    releases = {row["id"]: row["release"] for row in rows}
    assert releases == dict.fromkeys(older, "before") | dict.fromkeys(newer, "after"), "each wrote what it knows"
    settled = {row["id"] for row in rows if row["result"] is not None and "next release" in row["result"]}
    assert {ran[job] for job in settled} == {"before", "after"}, "old workers call the new function, too"
