"""The five queues of old are taken over: each row once, whatever happens meanwhile."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sports import Register, register, until

from databases import Postgres
from dutiful import Dutiful, State
from examples.sports_sites.importing import importer
from examples.sports_sites.importing.database import Database, database
from examples.sports_sites.importing.importer import Imported, import_queues

ROOT = Path(__file__).parents[2]
LEGACY = Path(importer.__file__).parent / "legacy.sql"
NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=30)
WELCOME = {"to": "ada@club.example", "template": "welcome", "data": {"name": "Ada"}}
NEWS = {"lipas-ids": [12345], "operation-type": "create", "initiated-by": "ada"}
TABLES = ("analysis_queue", "elevation_queue", "email_out_queue", "integration_out_queue", "webhook_queue")

# In every state that there was, and some that there should not have been.
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "analysis_queue (lipas_id, status, added_at)": [
        (12345, "pending", NOW), (12346, "in-progress", NOW), (12347, "done", NOW), (12348, "limbo", NOW),
    ],
    "elevation_queue (lipas_id, status, retries, last_error, added_at)": [
        (12345, "pending", 0, None, NOW), (12346, "in-progress", 1, "503", NOW), (12347, "done", 0, None, NOW),
        (12348, "failed", 3, "no such tile", NOW), (12349, "pending", -1, None, NOW),
    ],
    "email_out_queue (id, message, attempts, send_after, sent_at, error)": [
        (1, json.dumps(WELCOME), 0, None, None, None), (2, json.dumps(WELCOME), 1, LATER, None, "421"),
        (3, json.dumps(WELCOME), 3, None, None, "mailbox full"), (4, json.dumps(WELCOME), 1, None, NOW, None),
        (5, json.dumps({"to": "ada@club.example"}), 0, None, None, None), (6, "[]", 0, None, None, None),
    ],
    "integration_out_queue (id, lipas_id, added_at, synced_at)": [
        (1, 12345, NOW, None), (2, 12345, NOW, NOW), (3, None, NOW, None),
    ],
    "webhook_queue (id, batch, status, last_error, added_at)": [
        (1, json.dumps(NEWS), "new", None, NOW), (2, json.dumps(NEWS), "sending", None, NOW),
        (3, json.dumps(NEWS), "sent", None, NOW), (4, json.dumps(NEWS), "dead", "410 gone", NOW),
        (5, json.dumps({"lipas-ids": "all"}), "new", None, NOW),
    ],
}  # fmt: skip


@pytest.fixture
async def sports(app_url: str, tmp_path: Path) -> AsyncIterator[Register]:
    async with register(app_url, tmp_path) as made, database(made.app) as old:
        await _script(old, LEGACY.read_text())
        for table, rows in ROWS.items():
            for row in rows:
                await _insert(old, table, row)
        yield made
        await _script(old, "".join(f"drop table if exists {table};" for table in (*TABLES, "imported_rows")))


async def _script(old: Database, text: str) -> None:
    done = old.connection.execute(text)
    if asyncio.iscoroutine(done):
        await done


async def _insert(old: Database, table: str, row: tuple[Any, ...]) -> None:
    if _is_postgres(old):
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        await old.connection.execute(f"insert into {table} values ({places})", *row)
    else:
        plain = [value.isoformat() if isinstance(value, datetime) else value for value in row]
        old.connection.execute(f"insert into {table} values ({', '.join('?' * len(row))})", plain)


def _import_by_itself(app: Dutiful) -> None:
    """As another process would."""

    async def run() -> None:
        async with app:
            await import_queues(app)

    asyncio.run(run())


def _is_postgres(old: Database) -> bool:
    return type(old.connection).__module__.startswith("asyncpg")


def _counts(runs: list[Imported]) -> dict[str, tuple[int, int, int, int]]:
    return {run.queue: (run.jobs, run.dead, run.over, len(run.bad)) for run in runs}


@pytest.mark.req("L100")
async def test_each_row_becomes_a_job_or_a_dead_letter_or_is_called(sports: Register) -> None:
    runs = await import_queues(sports.app)
    assert _counts(runs) == {
        "analysis_queue": (2, 0, 1, 1),
        "elevation_queue": (2, 1, 1, 1),
        "email_out_queue": (2, 1, 1, 2),
        "integration_out_queue": (1, 0, 1, 1),
        "webhook_queue": (2, 1, 1, 1),
    }
    problems = {run.queue: run.bad for run in runs}
    assert "limbo" in problems["analysis_queue"][12348] and "retries" in problems["elevation_queue"][12349]
    assert "template" in problems["email_out_queue"][5] and "object" in problems["email_out_queue"][6]
    assert "lipas-id" in problems["integration_out_queue"][3] and "operation-type" in problems["webhook_queue"][5]

    jobs = {row["correlation_id"]: row for row in await sports.views.rows("select * from jobs")}
    assert len(jobs) == 12 and {row["created_by"] for row in jobs.values()} == {"import"}
    first = jobs["analysis_queue-12345"]
    assert (first["type"], first["payload"], first["status"]) == ("analysis", {"lipas-id": 12345}, "pending")
    assert first["dedup_key"] == "analysis-12345"
    assert jobs["elevation_queue-12346"]["max_attempts"] == 2, "one of its three attempts was spent"
    later = (await sports.jobs.by_correlation("email_out_queue-2"))[0]
    assert (
        later.state is State.SCHEDULED and later.run_at is not None and abs(later.run_at - LATER) < timedelta(seconds=1)
    )
    letters = {letter.correlation_id: letter for letter in await sports.jobs.dead_letters()}
    assert set(letters) == {"elevation_queue-12348", "email_out_queue-3", "webhook_queue-4"}
    assert "mailbox full" in (letters["email_out_queue-3"].message or "")
    assert letters["email_out_queue-3"].payload == WELCOME


@pytest.mark.req("L100")
async def test_a_second_import_takes_nothing_twice_also_when_the_jobs_are_gone(sports: Register) -> None:
    before = await import_queues(sports.app)
    async with sports.working():
        await sports.jobs.enqueue("email", WELCOME)  # beside what was imported
        later = (await sports.jobs.by_correlation("email_out_queue-2"))[0]
        await sports.app.cancel(later.id)
        await sports.quiet()
    assert {message["To"] for message in sports.services.delivered} == {"ada@club.example"}
    assert len(sports.services.delivered) == 2
    assert await sports.jobs.remove_finished(timedelta(0)) > 0
    again = await import_queues(sports.app)
    assert [(run.jobs, run.same, run.dead) for run in again] == [(0, 0, 0)] * 5
    assert [run.bad for run in again] == [run.bad for run in before], "those are reported until they are fixed"
    assert await sports.views.rows("select * from jobs") == []
    assert len(await sports.jobs.dead_letters()) == 3


@pytest.mark.req("L100")
async def test_an_import_that_is_cut_short_goes_on_where_it_ended(
    sports: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "BATCH", 2)
    enqueue, taken = type(sports.jobs).enqueue, 0

    async def fragile(*args: Any, **options: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 4:  # the second row of a batch: the first one's job must go with it
            raise ConnectionError("the network is gone")
        return await enqueue(*args, **options)

    monkeypatch.setattr(type(sports.jobs), "enqueue", fragile)
    with pytest.raises(ConnectionError):
        await import_queues(sports.app)
    assert len(await sports.views.rows("select * from jobs")) == 2
    await import_queues(sports.app)
    rows = await sports.views.rows("select * from jobs")
    assert len({row["correlation_id"] for row in rows}) == len(rows) == 12


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
@pytest.mark.req("L100")
async def test_what_had_been_given_up_is_never_run_though_the_import_dies_before_it_is_failed(
    sports: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise ConnectionError("killed")

    with monkeypatch.context() as patch, suppress(ConnectionError):
        patch.setattr(importer, "_fail_given_up", die)
        await import_queues(sports.app)
    assert await sports.jobs.dead_letters() == []
    (waiting,) = await sports.jobs.by_correlation("email_out_queue-3")
    assert waiting.run_at is not None and waiting.run_at > NOW + timedelta(days=300)
    await import_queues(sports.app)
    assert len(await sports.jobs.dead_letters()) == 3


@pytest.mark.req("L100")
async def test_rows_are_found_from_the_lowest_number_that_there_can_be(sports: Register) -> None:
    async with database(sports.app) as old:
        for site in (-(2**31), -1, 0):
            await _insert(old, "elevation_queue", (site, "pending", 0, None, NOW))
        await _insert(old, "email_out_queue", (-(2**31), json.dumps(WELCOME), 0, None, None, None))
    runs = {run.queue: run for run in await import_queues(sports.app)}
    assert runs["elevation_queue"].jobs + len(runs["elevation_queue"].bad) == 2 + 1 + 3
    assert runs["email_out_queue"].jobs == 2 + 1


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
@pytest.mark.req("L100")
async def test_an_unexpected_row_is_reported_and_delays_no_other(sports: Register) -> None:
    async with database(sports.app) as old:
        for row in (
            (7, "[" * 100_000, 0, None, None, None),
            (8, json.dumps(WELCOME | {"data": {"name": "a\0b"}}), 0, None, None, None),
            (9, json.dumps(WELCOME), "often", None, None, None),
            (10, json.dumps(WELCOME), 0, None, "", None),  # is that sent?
            (11, json.dumps(WELCOME), 3, None, None, "a\0b\x1b[2J" + "x" * 100_000),
            (12, json.dumps(WELCOME), 0, None, None, None),
        ):
            await _insert(old, "email_out_queue", row)
        for number, synced in ((4, "soon"), (5, "2020-01-31 09:00:00")):
            await _insert(old, "integration_out_queue", (number, 12345, NOW, synced))
    runs = {run.queue: run for run in await import_queues(sports.app)}
    mails, sites = runs["email_out_queue"], runs["integration_out_queue"]
    assert set(mails.bad) >= {7, 9, 10} and all(mails.bad.values())
    assert mails.jobs + mails.dead + len(mails.bad) == 5 + 6 and mails.over == 1
    assert "sent_at" in mails.bad[10] and len(await sports.jobs.by_correlation("email_out_queue-12")) == 1
    assert set(sites.bad) == {3, 4} and sites.over == 2
    (lost,) = await sports.jobs.by_correlation("email_out_queue-11")
    assert lost.state is State.FAILED


@pytest.mark.req("L100")
async def test_an_import_that_is_killed_goes_on_where_it_ended(sports: Register) -> None:
    environment = {**os.environ, **sports.config.environment(), "DUTIFUL_DATABASE_URL": sports.database_url}
    command = [sys.executable, "-m", "examples.sports_sites.importing"]
    async with database(sports.app) as old:
        async with old.transaction():
            for number in range(1_000, 3_000):
                spent, error = (3, "mailbox full") if number % 10 == 0 else (0, None)
                await _insert(old, "email_out_queue", (number, json.dumps(WELCOME), spent, None, None, error))
            await old.run("make_imported_rows")

        async def mails_are_noted() -> bool:
            return any(row["source"] == "email_out_queue" for row in await _ledger(old))

        running = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            await until(mails_are_noted)
        finally:
            with suppress(ProcessLookupError):
                running.kill()
        assert await running.wait() == -signal.SIGKILL, "it was in the middle"
        half = await _ledger(old)
        assert len(half) < 12 + 2_000 and {row["job_id"] for row in half} == await _jobs(sports)
        await import_queues(sports.app)
        noted = await _ledger(old)
    assert len(noted) == 12 + 2_000 and {row["job_id"] for row in noted} == await _jobs(sports)
    given_up = {row["job_id"] for row in noted if row["error"] is not None}
    assert len(given_up) == 3 + 200 and given_up == {str(letter.id) for letter in await sports.jobs.dead_letters()}


async def _ledger(old: Database) -> list[dict[str, Any]]:
    statement = "select source, job_id, error from imported_rows"
    if _is_postgres(old):
        return [dict(row) for row in await old.connection.fetch(statement)]
    return [dict(zip(("source", "job_id", "error"), row, strict=True)) for row in old.connection.execute(statement)]


async def _jobs(sports: Register) -> set[str]:
    """Also those that have become dead letters."""
    rows = await sports.views.rows("select id from jobs")
    return {str(UUID(str(row["id"]))) for row in rows} | {str(one.id) for one in await sports.jobs.dead_letters()}


@pytest.mark.req("L100")
async def test_two_imports_at_once_make_each_job_once(sports: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue, both = type(sports.jobs).enqueue, threading.Barrier(2)

    async def together(*args: Any, **options: Any) -> Any:
        # If the second one gets so far while the first has not committed, both have found the same rows.
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return await enqueue(*args, **options)

    monkeypatch.setattr(type(sports.jobs), "enqueue", together)
    await asyncio.gather(*(asyncio.to_thread(_import_by_itself, sports.another_app()) for _ in range(2)))
    rows = await sports.views.rows("select * from jobs")
    assert len({row["correlation_id"] for row in rows}) == len(rows) == 12
    assert len(await sports.jobs.dead_letters()) == 3


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
@pytest.mark.req("L100")
async def test_the_command_prints_what_it_imported_and_what_it_left(sports: Register) -> None:
    environment = {**os.environ, **sports.config.environment(), "DUTIFUL_DATABASE_URL": sports.database_url}
    command = [sys.executable, "-m", "examples.sports_sites.importing"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, "rows were left"
    assert "email_out_queue: 2 jobs, 0 enqueued already, 1 dead letters, 1 done, 2 bad" in done.stdout
    assert done.stderr.count("was left") == 6 and "row 12348 was left: status 'limbo' is none of" in done.stderr


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
@pytest.mark.req("L37", "L100")
async def test_a_row_whose_job_is_there_already_is_not_asked_for_a_second_time(sports: Register) -> None:
    asked = await sports.jobs.enqueue("analysis", {"lipas-id": 12345}, dedup_key="analysis-12345")
    runs = await import_queues(sports.app)
    assert (runs[0].jobs, runs[0].same) == (1, 1)
    assert [UUID(str(row["id"])) for row in await sports.views.rows("select * from jobs")].count(asked.id) == 1


@pytest.mark.req("L100")
def test_a_database_without_the_old_queues_is_reported_in_a_line_and_not_changed(
    tmp_path: Path, postgres18: Postgres
) -> None:
    name = f"bare_{uuid4().hex}"
    for url, reported in (
        (f"sqlite:///{tmp_path}/dutiful.db", "there is no database"),
        (postgres18.create_database(name), "this database has no analysis_queue, elevation_queue"),
        ("postgresql://127.0.0.1:1/nowhere", "cannot connect to the database"),
    ):
        environment = {**os.environ, "SPORTS_FOLDER": str(tmp_path), "DUTIFUL_DATABASE_URL": url}
        command = [sys.executable, "-m", "examples.sports_sites.importing"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith(reported)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    with psycopg.connect(postgres18.dsn(name)) as connection:
        assert connection.execute("select count(*) from pg_stat_user_tables").fetchone() == (0,)
    postgres18.drop_database(name)
