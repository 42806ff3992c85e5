"""The questions of the documentation host's operators: each page's command, request and query give the same answer."""

import asyncio
import re
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from command_line import Project
from docverse import CleanDocverse, Host, hosting, installed, until
from docverse_upkeep import sql
from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from databases import Postgres
from dutiful.web import Role, create_app
from examples.docverse.config import Config
from examples.docverse.factory import Docverse, open_docverse
from examples.docverse.ports import Pointer
from examples.docverse.services.hosting import QueueIn
from examples.docverse.storage.edge_client import EdgeClient

PAGE = Path(__file__).parents[2] / "examples/docverse/operators.md"
read: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
BLOCK = re.compile(r"```(sh|http|sql)\n(.*?)\n```", re.DOTALL)
QUESTIONS = {section.split("\n", 1)[0]: dict(BLOCK.findall(section)) for section in PAGE.read_text().split("\n## ")[1:]}


@pytest.fixture(scope="module")
def clean(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@dataclass(frozen=True)
class Desk:
    """An operator, with a shell, an admin token and a database session."""

    host: Host
    project: Project
    http: httpx2.AsyncClient
    running: str
    project_id: int

    async def ask(self, question: str) -> tuple[Any, Any, list[Any]]:
        """The answers of the command, the API and the database."""
        asked = {name: text.replace("PROJECT", str(self.project_id)) for name, text in QUESTIONS[question].items()}
        program, *args = shlex.split(asked["sh"])
        assert program == "dutiful"
        printed = await asyncio.to_thread(self.project.run, *args)
        method, path = asked["http"].split(" ", 1)
        answer = await self.http.request(method, path, headers={"accept": "application/openmetrics-text, */*"})
        assert answer.status_code == 200, answer.text
        page = answer.text if path == "/metrics" else answer.json()
        return printed.json, page, sql(self.host, asked["sql"])


class SlowEdge(EdgeClient):
    """Does not write the keys of the stream v1.x until it is released."""

    free: asyncio.Event

    async def point(self, key: str, pointer: Pointer, fence: int) -> bool:
        if "v1.x" in key:
            await self.free.wait()
        return await super().point(key, pointer, fence)


@pytest.fixture
async def desk(clean: CleanDocverse, tmp_path: Path) -> AsyncIterator[Desk]:
    """A host with a history, a build whose editions are being updated, and jobs that wait."""
    free = asyncio.Event()

    @asynccontextmanager
    async def opened(config: Config, queue_in: QueueIn) -> AsyncIterator[Docverse]:
        async with httpx2.AsyncClient(trust_env=False) as http:

            def edge_for(org: str, token: str) -> SlowEdge:
                edge = SlowEdge(http, config.edge_url, org, token)
                edge.free = free
                return edge

            async with open_docverse(config, queue_in, edge_for=edge_for) as services:
                yield services

    async with hosting(clean.reset(), tmp_path) as host, host.working(opened):
        projects = {}
        for org in ("rubin", "other"):
            await host.add_org(org)
            projects[org] = await host.add_project(org)
        for org, number in (("rubin", 2), ("other", 1)):
            for _ in range(number):
                assert (await projects[org].publish("main"))[1]["status"] == "completed"
        for key, refs, status in (("bad", "bad", "failed"), ("v3.x", "v3.0.0", "completed_with_errors")):
            host.edge.refused.add(f"other/guide/{key}.json")
            assert (await projects["other"].publish(refs))[1]["status"] == status
        for kind in ("lifecycle_eval", "lifecycle_eval", "git_ref_audit"):
            await host.jobs.enqueue(kind, delay="1h")
        job = await projects["rubin"].signal(await projects["rubin"].upload("v1.2.0"))

        async def half_way() -> bool:
            shown = await host.job(job)
            return shown["phase"] == "editions" and len((shown["progress"] or {}).get("editions_completed", [])) == 2

        await until(half_way)
        _, secret = await (await host.jobs.operator()).tokens.create("ada", Role.MANAGER)
        transport = httpx2.ASGITransport(app=create_app(host.jobs))
        headers = {"authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://here", headers=headers) as http:
            public_id = (await host.job(job))["public_id"]
            project = Project(tmp_path, host.config.database_url).write_jobs()
            (row,) = sql(host, "select project_id from docverse.queue_job where public_id = %s", public_id)
            yield Desk(host, project, http, public_id, row[0])
        free.set()
        await host.ended(job)


@pytest.mark.req("D72", "D73", "D74", "D75", "D76", "D77")
async def test_every_question_of_an_operator_has_the_same_answer_three_ways(desk: Desk) -> None:
    queued, progress, project, failed, completed, slow = QUESTIONS

    printed, page, rows = await desk.ask(queued)
    expected = {"lifecycle_eval": 2, "git_ref_audit": 1}
    waiting = ("scheduled", "pending", "blocked")
    by_command: Counter[str] = Counter()
    for sample in printed["metrics"]:
        if sample["metric"] in waiting:
            by_command[sample["labels"]["kind"]] += sample["value"]
    by_api: Counter[str] = Counter()
    for family in read(page):
        for one in family.samples:
            if one.name in {f"dutiful_{name}" for name in waiting}:
                by_api[one.labels["kind"]] += int(one.value)
    assert +by_command == +by_api == dict(rows) == expected

    for question in (progress, project):
        printed, page, rows = await desk.ask(question)
        assert [job["id"] for job in printed["jobs"]] == [desk.running]
        assert [job["job_id"] for job in page["jobs"]] == [desk.running]
        assert [row[0] for row in rows] == [desk.running]
        for shown in (printed["jobs"][0]["progress"], page["jobs"][0]["progress"]):
            assert (shown["phase"], shown["items"]["in_progress"], shown["items"]["total"]) == ("editions", ["v1.x"], 3)
        assert rows[0][-1]["editions_in_progress"] == ["v1.x"]
    listed = await asyncio.to_thread(desk.project.run, "jobs", "list", "--state", "running")
    assert "editions 2/3" in listed.out
    for phase, subject in (("dashboard", desk.project_id), ("editions", desk.project_id + 1)):
        args = ("--state", "running", "--phase", phase, "--subject", f"project_id={subject}", "--json")
        nothing = await asyncio.to_thread(desk.project.run, "jobs", "list", *args)
        assert nothing.json["jobs"] == []

    printed, page, rows = await desk.ask(failed)
    for finished in (printed["finished"], page["finished"]):
        assert finished["failed"] + finished["completed_with_errors"] == 2
    assert rows == [(2,)]

    printed, page, rows = await desk.ask(completed)
    assert {c["tenant"]: c["jobs"] for c in printed["ended"] if c["state"] == "completed"} == {"rubin": 2, "other": 1}
    assert {c["tenant"]: c["jobs"] for c in page["ended"] if c["status"] == "completed"} == {"rubin": 2, "other": 1}
    assert dict(rows) == {"rubin": 2, "other": 1}

    printed, page, rows = await desk.ask(slow)
    assert (printed["jobs"], page["jobs"], rows) == ([], [], [])
    sql(desk.host, "update dutiful.lease set claimed_at = claimed_at - interval '11 minutes'")
    printed, page, rows = await desk.ask(slow)
    assert [job["id"] for job in printed["jobs"]] == [row[0] for row in rows] == [desk.running]
    assert [job["job_id"] for job in page["jobs"]] == [desk.running]
    assert page["jobs"][0]["job_type"] == "build_processing"
