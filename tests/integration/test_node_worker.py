"""A worker in Node, as in examples/node_worker, beside one in Python and one in SQL."""

import asyncio
import json
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fault_jobs import app, executions, fleet, gate_of, meeting
from sql_sessions import Session

from databases import missing
from dutiful.core.states import State
from dutiful.store import Store
from faults import Fleet, Process, until
from suite.builders import history, state

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node_worker"
JOBS = 60

pytestmark = pytest.mark.parametrize("backend", ["postgres18"])


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example and this file's jobs, with the packages that npm installs; kept for the next run."""
    if not (shutil.which("node") and shutil.which("npm")):
        missing("Node is not installed: apt-get install nodejs npm")
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("node_worker")
    wanted = (EXAMPLE / "package.json").read_text()
    if not (folder / "package.json").exists() or (folder / "package.json").read_text() != wanted:
        # Another process of the test run may install it, too: the last move wins, and both are complete.
        fresh = tmp_path_factory.mktemp("npm")
        shutil.copy(EXAMPLE / "package.json", fresh)
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
        done = subprocess.run(["npm", "install", *options], cwd=fresh, capture_output=True, text=True)
        if done.returncode != 0:
            missing(f"npm could not install what the worker needs: {done.stderr[-500:]}")
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        shutil.copytree(fresh / "node_modules", folder / "node_modules", symlinks=True, dirs_exist_ok=True)
        (folder / "package.json").write_text(wanted)
    for source in (EXAMPLE / "worker.js", Path(__file__).with_name("node_jobs.js")):
        shutil.copy(source, folder)
    return folder / "node_jobs.js"


class NodeWorker:
    """The worker's process, and what it has printed."""

    def __init__(self, started: Fleet, program: Path, lease: int = 300) -> None:
        self.process: Process = started.run("node", str(program), str(lease))

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.process.output.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    async def starts(self, count: int = 1) -> None:
        async def look() -> bool:
            assert self.process.running, self.process.output
            return len(self.events("started")) >= count

        await until(look, "Node has started a job")

    async def answers(self, job_id: UUID) -> str:
        async def look() -> list[str]:
            return [line["answer"] for line in self.events("settled") if line["job"] == str(job_id)]

        return (await until(look, "Node has settled the job"))[0]


@pytest.fixture
def session(store: Store, pg18_url: str) -> Iterator[Session]:
    opened = Session(pg18_url)
    yield opened
    opened.connection.close()


class SqlWorker(threading.Thread):
    """Claims and completes jobs of the kind meet one by one, until it is stopped."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__()
        self._session = Session(url)
        self._folder = folder
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            jobs = self._session.dequeue("meet")
            for job in jobs:
                with (self._folder / "diary").open("a") as diary:
                    diary.write(f"{job['job_id']}\n")
                while meeting(str(self._folder), "sql") < 3 and not self.stopped.wait(0.01):
                    pass
                self._session.ask("complete_job(%s, %s, %s)", job["job_id"], job["claim_id"], '"sql"')
            if not jobs:
                self.stopped.wait(0.01)
        self._session.connection.close()


@asynccontextmanager
async def sql_worker(url: str, folder: Path) -> AsyncIterator[None]:
    worker = SqlWorker(url, folder)
    worker.start()
    try:
        yield
    finally:
        worker.stopped.set()
        await asyncio.to_thread(worker.join)


@pytest.mark.req("S8")
async def test_workers_in_node_sql_and_python_share_a_queue_run_each_job_once_and_in_order(
    store: Store, session: Session, pg18_url: str, program: Path, tmp_path: Path
) -> None:
    async with fleet(store, tmp_path) as started:
        payload = json.dumps({"folder": str(tmp_path), "workers": 3})
        jobs = {session.ask("enqueue('meet', %s, p_priority => %s)", payload, n % 3) for n in range(JOBS)}
        async with sql_worker(pg18_url, tmp_path):
            NodeWorker(started, program)
            started.start("--fast", "0", "--general", "1", "--batch", "1")
            await until(lambda: _all_final(store, jobs), "all jobs have ended")

    assert sorted(executions(tmp_path)) == sorted(jobs)
    ended = session.rows(
        "select f.state, f.result, j.priority from dutiful.finished f join dutiful.job j on j.id = f.job_id"
        " order by f.claim_id"
    )
    assert {row["state"] for row in ended} == {"completed"}
    assert {row["result"] for row in ended} == {"node", "sql", "python"}
    for name in ("node", "sql", "python"):
        priorities = [row["priority"] for row in ended if row["result"] == name]
        assert priorities == sorted(priorities)
    assert await store.queries.check_places() == []


@pytest.mark.req("S5", "S6")
@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_the_job_of_a_node_worker_that_dies_is_rescued_and_its_late_completion_changes_nothing(
    store: Store, session: Session, program: Path, tmp_path: Path, fault: str
) -> None:
    gate = tmp_path / "gate"
    async with fleet(store, tmp_path, lease="2s") as started:
        node = NodeWorker(started, program, lease=1)
        handle = await app.enqueue("wait", {"gate": str(gate)})
        await node.starts()
        if fault == "killed":
            node.process.kill()
        else:
            node.process.stop()
        python = await started.start().ready(store)

        async def taken_over() -> bool:
            return len(executions(tmp_path)) == 2 and bool(await store.claims.held_by(python.id))

        await until(taken_over, "the Python worker runs it again")
        if fault == "frozen":
            (tmp_path / f"{gate.name}.{node.process.pid}").touch()
            node.process.resume()
            assert await node.answers(handle.id) == "lost"
            assert [claim.job_id for claim in await store.claims.held_by(python.id)] == [handle.id]
        gate_of(gate, python).touch()
        assert await handle.result(timeout="60s") == python.pid

    outcomes = [outcome for _, outcome in await history(store, handle.id)]
    assert outcomes == (["lost"] if fault == "killed" else ["lost", "refused"])
    assert await state(store, handle.id) is State.COMPLETED
    assert await store.queries.check_places() == []


async def test_a_node_worker_renews_fails_cancels_and_drains(
    store: Store, session: Session, program: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with fleet(store, tmp_path) as started:
        node = NodeWorker(started, program, lease=1)
        failing = session.ask("enqueue('fails', p_max_attempts => 1)")
        assert await node.answers(failing) == "failed"
        (error,) = session.look_up(failing)["errors"]
        assert (error["type"], error["message"]) == ("TypeError", "no such mailbox")

        unwanted = session.ask("enqueue('stoppable')")
        await node.starts(2)
        session.rows("select * from dutiful.cancel(%s, 'no use', null)", unwanted)
        assert await node.answers(unwanted) == "cancelled"

        waiting = await app.enqueue("wait", {"gate": str(gate)})
        await node.starts(3)
        first = session.look_up(waiting.id)["expires_at"]

        async def renewed() -> bool:
            return bool(session.look_up(waiting.id)["expires_at"] > first)

        await until(renewed, "the lease is renewed")
        node.process.signal(signal.SIGTERM)
        gate.touch()
        assert await node.process.ended() == 0
        assert await node.answers(waiting.id) == "applied"


async def test_what_a_node_worker_cannot_store_fails_its_job_at_once(
    store: Store, session: Session, program: Path, tmp_path: Path
) -> None:
    unfit = {
        '{"answer": "large"}': "p_result has",
        '{"answer": "nul"}': "unsupported Unicode escape sequence",
        '{"answer": "endless"}': "BigInt",
        '{"thrown": "nothing"}': "null",
        '{"thrown": "text"}': "a text",
        '{"thrown": "nul"}': "a\N{REPLACEMENT CHARACTER}b",
    }
    async with fleet(store, tmp_path) as started:
        node = NodeWorker(started, program)
        for payload, message in unfit.items():
            job = session.ask("enqueue('unfit', %s, p_max_attempts => 1)", payload)
            assert await node.answers(job) == "failed"
            (error,) = session.look_up(job)["errors"]
            assert message in error["message"], payload


async def _all_final(store: Store, jobs: set[UUID]) -> bool:
    return all([(await state(store, job_id)).final for job_id in jobs])
