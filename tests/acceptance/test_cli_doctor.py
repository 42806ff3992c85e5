"""`doctor` behind a lock: it says what it could not check, and who holds the lock."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import psycopg
from command_line import Project

from dutiful.store.workers import LaneRecord, WorkerRecord
from dutiful.stores.sqlite import SqliteStore
from postgres_locks import blocked

WORKER = UUID(int=7)


@contextmanager
def locked(url: str, *tables: str) -> Iterator[int]:
    """Another session has these tables to itself; yields its process."""
    with psycopg.connect(url, application_name="a long migration") as other:
        for table in tables:
            other.execute(f"LOCK TABLE dutiful.{table} IN ACCESS EXCLUSIVE MODE".encode())
        yield other.info.backend_pid


def test_doctor_names_what_it_could_not_check_and_who_holds_the_lock(tmp_path: Path, pg18_url: str) -> None:
    project = Project(tmp_path, pg18_url).write_jobs()

    with locked(pg18_url, "job") as pid:
        answer = project.run("doctor")

    assert answer.code == 1
    (problem,) = [line for line in answer.out.splitlines() if line.startswith("problem:")]
    assert "not checked: the places of jobs, " in problem
    assert f"locked by process {pid} (role " in problem
    assert "application a long migration" in problem and "its last statement at " in problem
    assert f"pg_terminate_backend({pid})" in answer.out
    assert "server version  18" in answer.out and "audit events kept  forever" in answer.out, "the rest is checked"


def test_doctor_does_not_wait_for_a_lock_on_what_it_reads_first(tmp_path: Path, pg18_url: str) -> None:
    project = Project(tmp_path, pg18_url).write_jobs()

    with locked(pg18_url, "meta", "migration") as pid:
        answer = project.run("doctor")

    assert answer.code == 1
    assert f"locked by process {pid} (role " in answer.out


async def test_workers_of_which_none_leads_are_a_problem_after_a_minute(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs()
    store = SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    await store.open()
    problem = "problem: 1 worker is alive, and none leads: nothing is promoted"

    async def report(age: timedelta) -> str:
        moment = datetime.now(UTC)
        lanes = {"general": LaneRecord(slots=1, queues=("*",))}
        worker = WorkerRecord(
            id=WORKER, name="w1", host=socket.gethostname(), pid=os.getpid(), started_at=moment - age, seen_at=moment,
            lanes=lanes, kinds=["greet"], locks="rows",
        )  # fmt: skip
        await store.workers.heartbeat(worker, timedelta(minutes=5))
        return (await asyncio.to_thread(project.run, "doctor")).out

    assert problem in await report(timedelta(minutes=2))
    await store.leadership.survey(WORKER, timedelta(minutes=1))
    assert problem not in await report(timedelta(minutes=2))
    await store.workers.remove(WORKER)
    assert problem not in await report(timedelta(seconds=30)), "it may be about to take the lead"
    await store.close()


def test_a_missing_database_is_a_problem_and_no_lock(tmp_path: Path, pg18_url: str) -> None:
    answer = Project(tmp_path, f"{pg18_url}_that_is_missing").write_jobs().run("doctor")

    assert answer.code == 1
    assert "problem: the database " in answer.out and "does not exist" in answer.out and "locked" not in answer.out


def test_doctor_says_nothing_of_workers_that_it_could_not_read(tmp_path: Path, pg18_url: str) -> None:
    project = Project(tmp_path, pg18_url).write_jobs()
    assert project.run("enqueue", "greet", "name=Ada").code == 0
    assert "and no worker is alive" in project.run("doctor").out

    with locked(pg18_url, "worker"):
        answer = project.run("doctor")

    assert answer.code == 1
    assert "not checked: workers" in answer.out and "no worker is alive" not in answer.out


async def test_a_session_that_waits_for_readers_and_keeps_new_ones_waiting_is_named(
    tmp_path: Path, pg18_url: str
) -> None:
    project = Project(tmp_path, pg18_url).write_jobs()
    reader, changer = await asyncpg.connect(pg18_url), await asyncpg.connect(pg18_url)
    try:
        await reader.execute("BEGIN; SELECT FROM dutiful.job")
        changing = asyncio.create_task(changer.execute("BEGIN; LOCK TABLE dutiful.job IN ACCESS EXCLUSIVE MODE"))
        await blocked(pg18_url)

        answer = await asyncio.to_thread(project.run, "doctor")

        assert answer.code == 1
        assert f"locked by process {changer.get_server_pid()} (role " in answer.out
    finally:
        reader.terminate()
        await changing
        changer.terminate()
