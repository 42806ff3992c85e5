"""The example accounts: its command plays its story once on each server, and its checklist is read path by path."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from databases import Postgres
from examples.accounts import story

ROOT = Path(__file__).parents[2]
Checked = dict[str, list[str]]


def _run_story(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}
    command = [sys.executable, "-m", "examples.accounts", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def checked(request: pytest.FixtureRequest) -> Checked:
    """The marks of the checklist, by path."""
    server: Postgres = request.getfixturevalue(request.param)
    before = _databases_and_roles(server)
    done = _run_story("--database-url", server.dsn())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert _databases_and_roles(server) == before, "it removes what it made"
    found: Checked = {}
    for line in done.stdout.splitlines():
        if heading := re.match(r"Checks: (.*)", line):
            found[heading[1]] = []
        elif mark := re.match(r"  ([✓✗]) ", line):
            found[list(found)[-1]].append(mark[1])
    return found


@pytest.mark.req("S21", "S22", "S23", "S26", "S51", "S64", "S66", "S67", "S68", "S69", "S98")
def test_messages_arrive_at_once_or_later_or_are_given_up(checked: Checked) -> None:
    assert checked["messages"] == ["✓"] * 5


@pytest.mark.req("S70", "S71", "S72", "S73", "S82", "S83", "S84", "S85", "S86", "S87", "S88", "S89")
def test_an_account_is_deleted_with_its_files_and_anonymised(checked: Checked) -> None:
    assert checked["the happy path"] == ["✓"] * 8


@pytest.mark.req("S74", "S90", "S91", "S92", "S96", "S97")
def test_a_file_that_cannot_be_deleted_ends_the_deletion(checked: Checked) -> None:
    assert checked["the file is stuck"] == ["✓"] * 5


@pytest.mark.req("S61", "S93", "S94", "S95", "S96")
def test_an_account_that_cannot_be_anonymised_ends_the_deletion(checked: Checked) -> None:
    assert checked["the anonymisation is stuck"] == ["✓"] * 5


@pytest.mark.req("S56", "S80", "S81")
def test_a_killed_worker_leaves_facts_once_and_its_claim_on_record(checked: Checked) -> None:
    assert checked["the crash"] == ["✓"] * 4


@pytest.mark.req("S7", "S24", "S25", "S27")
def test_every_task_is_completed_once_and_every_error_logged(checked: Checked) -> None:
    assert checked["the queue"] == ["✓"] * 4


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_a_line_of_the_checklist_that_fails_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, passed: bool, code: int
) -> None:
    async def play(*_: Any) -> dict[str, dict[str, bool]]:
        return {"a path": {"one": True, "two": passed}}

    monkeypatch.setattr(story, "run_story", play)
    monkeypatch.setattr(sys, "argv", ["accounts", "--database-url", "postgresql://nowhere"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("examples.accounts", run_name="__main__")
    assert ended.value.code == code


def test_an_address_where_nothing_answers_is_reported_in_a_line() -> None:
    done = _run_story("--database-url", "postgresql://127.0.0.1:1/nowhere")
    assert done.returncode == 2 and "cannot connect to the database" in done.stderr
    assert "Traceback" not in done.stderr


def _databases_and_roles(server: Postgres) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn()) as connection:
        return connection.execute("select datname from pg_database union all select rolname from pg_roles").fetchall()
