"""The register by every door: Python, the command line, HTTP and SQL ask for the same, and refuse the same."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from bad_bodies import check_refusals
from command_line import Answer, Project
from sports import Register, register

from dutiful import PayloadInvalid, Role, UsageError
from dutiful.web import create_app
from examples.sports_sites.site import sports_site

ROOT = Path(__file__).parents[2]
WELCOME: dict[str, Any] = {"to": "ada@club.example", "template": "welcome"}
FIELDS = ("to=ada@club.example", "template=welcome")
SITE = {"lipas-id": 12345}
EDIT = {"name": "Harbour pool", "type": "swimming", "east": 385000, "north": 6672000, "editor": "ada@club.example"}
Command = Callable[..., Awaitable[Answer]]


@pytest.fixture
async def sports(app_url: str, tmp_path: Path) -> AsyncIterator[Register]:
    async with register(app_url, tmp_path) as made:
        if app_url.startswith("postgres"):
            await made.app.migrate()  # stores what the kinds declare, for those who enqueue by SQL
        yield made


@pytest.fixture
def command(sports: Register) -> Command:
    environment = {**sports.config.environment(), "DUTIFUL_APP": "examples.sports_sites.main:app"}
    project = Project(ROOT, sports.database_url)
    return lambda *words: asyncio.to_thread(project.run, *words, **environment)


@asynccontextmanager
async def http(sports: Register) -> AsyncIterator[httpx2.AsyncClient]:
    _, secret = await (await sports.app.operator("ada")).tokens.create("web", Role.MANAGER)
    transport = httpx2.ASGITransport(app=create_app(sports.app), client=("127.0.0.1", 1))
    headers = {"authorization": f"Bearer {secret}"}
    base = "http://127.0.0.1/api/jobs/admin/"
    async with httpx2.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
        yield client


@pytest.mark.req("L13", "L33")
async def test_every_type_has_three_attempts_by_whatever_door(sports: Register, command: Command) -> None:
    await sports.app.enqueue("email", WELCOME)
    async with sports.another_app() as other:
        await other.kind("analysis").enqueue(**SITE)
        (scheduled, _) = (spec.record(datetime.now(UTC)).job for spec in other.schedules.values())
    assert (await command("enqueue", "email", *FIELDS)).code == 0
    async with http(sports) as api:
        assert (await api.post("jobs/", json={"kind": "email", "payload": WELCOME})).status_code == 201
    expected = 4
    if sports.database_url.startswith("postgres"):
        await sports.views.rows("select dutiful.enqueue('elevation', $1)", SITE)
        expected += 1
    rows = await sports.views.rows("select status, attempts, max_attempts, priority from jobs")
    assert [tuple(row.values()) for row in rows] == [("pending", 0, 3, 100)] * expected
    assert scheduled["max_attempts"] == 3


@pytest.mark.req("L12", "L25", "L32")
async def test_what_does_not_exist_is_refused_by_every_door(sports: Register, command: Command) -> None:
    for door in (sports.app.enqueue("email", WELCOME, priority=-1), sports.app.jobs(state="limbo")):
        with pytest.raises(UsageError, match="must be"):
            await door
    with pytest.raises(PayloadInvalid, match="lipas-id"):
        await sports.app.enqueue("analysis", {})

    for words in (
        ("enqueue", "email", *FIELDS, "--priority", "-1"),
        ("enqueue", "analysis"),
        ("jobs", "list", "--state", "limbo"),
        ("dead-letters", "list", "--status", "limbo"),
    ):
        answer = await command(*words)
        assert (answer.code, answer.out) == (2, ""), words
        assert any(what in answer.err for what in ("priority -1", "lipas-id", "limbo")), answer.err

    async with http(sports) as api:
        for body in (
            {"kind": "email", "payload": WELCOME, "options": {"priority": -1}},
            {"kind": "email", "payload": WELCOME, "options": {"status": "limbo"}},
            {"kind": "analysis", "payload": {}},
        ):
            assert (await api.post("jobs/", json=body)).status_code == 422, body
        for listed in ("queue/?status=limbo", "dlq/?status=limbo"):
            assert (await api.get(listed)).status_code == 422

    if sports.database_url.startswith("postgres"):
        with pytest.raises(asyncpg.CheckViolationError, match="priority"):
            await sports.views.rows("select dutiful.enqueue('email', $1, p_priority => -1)", WELCOME)
        for kind, payload in (
            ("analysis", {}),
            ("analysis", {"lipas-id": "one"}),
            ("email", {"to": "ada@club.example"}),
        ):
            with pytest.raises(asyncpg.CheckViolationError, match=rf"kind {kind}: .*payload"):
                await sports.views.rows("select dutiful.enqueue($1, $2)", kind, payload)
    assert await sports.views.rows("select * from jobs") == []


@asynccontextmanager
async def page(sports: Register) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=sports_site(sports.app, sports.config), client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def test_an_edit_that_cannot_be_right_changes_nothing_and_enqueues_nothing(sports: Register) -> None:
    before = sports.sites.all()
    wrong = [("name", "  "), ("name", "Pool\r\nBcc: eve"), ("name", "Pool\0"), ("type", "\u2028"), ("east", -1)]
    wrong += [("editor", "eve,ada@club.example"), ("editor", "ada@"), ("editor", "ädä@club.example")]
    async with page(sports) as client:
        for field, value in wrong:
            refused = await client.put("/api/sites/12345", json={**EDIT, field: value})
            assert (refused.status_code, refused.json()["detail"][0]["loc"][-1]) == (422, field)
        assert (await client.put(f"/api/sites/{2**64}", json=EDIT)).status_code == 404
        await check_refusals(client, "PUT", "/api/sites/12345", EDIT)
        await check_refusals(client, "PUT", "/api/outside/grid", {"failing": False})
        refused = await client.put("/api/outside/%00", json={"failing": False})
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["path", "service"])
    assert sports.sites.all() == before
    assert len(await sports.app.jobs()) == 0


async def test_a_job_that_only_looks_as_if_an_edit_had_made_it_keeps_no_edit_from_the_page(sports: Register) -> None:
    async with page(sports) as client:
        assert (await client.put("/api/sites/12345", json=EDIT)).status_code == 202
        await sports.jobs.enqueue("integration", SITE, correlation_id="edit-by-hand")
        shown = (await client.get("/api/edits")).json()
    assert [(one["site"], len(one["jobs"])) for one in shown] == [(12345, 1), (12345, 4)]
