"""Faults of the database file and of its disk."""

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
import uuid_utils.compat

from dutiful.core.errors import DataRefused, SchemaMismatch, StoreUnavailable, UsageError
from dutiful.core.job import Inserted, Insertion, NewJob, Unique
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel
from dutiful.store.queries import JobFilter
from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite.engine import schema
from dutiful.stores.sqlite.engine.driver import Connection

LEASE = timedelta(seconds=60)
BIG = '"' + "x" * 100_000 + '"'


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": uuid_utils.compat.uuid7(), "kind": "greet", "queue": "default", "payload": "{}", **fields})


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(store: SqliteStore) -> list[NewJob]:
    """Insert until there is no space left; returns the acknowledged jobs."""
    stored: list[NewJob] = []
    with pytest.raises(StoreUnavailable, match=r"full|space"):
        while len(stored) < 10_000:
            job = new_job(payload=BIG)
            await store.jobs.insert([job])
            stored.append(job)
    return stored


async def assert_whole(store: SqliteStore, stored: list[NewJob]) -> None:
    assert await store.queries.check_places() == []
    assert {record.id for record in await store.queries.jobs(JobFilter(limit=10_000))} == {job.id for job in stored}


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB; only root can make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


async def test_a_full_disk_stores_nothing_partially_and_is_used_again_when_there_is_space(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    async with opened(small_disk / "jobs.db") as store:
        stored = await fill(store)
        await assert_whole(store, stored)

        ballast.unlink()
        stored.append(new_job(payload=BIG))
        await store.jobs.insert(stored[-1:])

        await assert_whole(store, stored)


async def test_a_database_that_may_not_grow_refuses_new_jobs_and_keeps_the_old(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 400

    def prepare(db: Connection, synchronous: str) -> None:
        original(db, synchronous)
        db.value(f"PRAGMA max_page_count = {pages}")

    original = schema.prepare
    monkeypatch.setattr(schema, "prepare", prepare)
    async with opened(sqlite_path) as store:
        stored = await fill(store)
        await assert_whole(store, stored)
        await store.jobs.insert([small := new_job()])
        await assert_whole(store, [*stored, small])

    pages = 100_000
    async with opened(sqlite_path) as store:
        await store.jobs.insert([another := new_job(payload=BIG)])
        await assert_whole(store, [*stored, small, another])


# Not a database of ours


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(sqlite_path: Path) -> None:
    sqlite_path.write_text("Dear diary, today I learnt about write-ahead logs. " * 50)
    before = sqlite_path.read_bytes()

    with pytest.raises(UsageError, match="is not an SQLite database"):
        asyncio.run(SqliteStore(sqlite_path).open())

    assert sqlite_path.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "is a directory: give the path of a file"),
        ("missing/jobs.db", "does not exist: make it"),
        ("file/jobs.db", "not a directory"),
        ("/dev/null", "is not a regular file"),
    ],
)
async def test_a_path_that_cannot_hold_a_database_is_refused_with_the_reason(
    tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match=reason):
        await SqliteStore(tmp_path / path).open()


@pytest.mark.parametrize("path", ["", ":memory:"])
async def test_jobs_are_not_kept_in_memory(path: str) -> None:
    with pytest.raises(UsageError, match="jobs are kept in a file"):
        await SqliteStore(path).open()


async def test_a_directory_that_cannot_be_written_is_reported() -> None:
    with pytest.raises((StoreUnavailable, UsageError), match="permissions"):
        await SqliteStore("/proc/jobs.db").open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_is_reported(sqlite_path: Path) -> None:
    sqlite_path.touch(mode=0o400)

    with pytest.raises(UsageError, match="cannot be written to"):
        asyncio.run(SqliteStore(sqlite_path).open())


async def test_a_newer_schema_that_leaves_this_release_behind_is_refused(sqlite_path: Path) -> None:
    async with opened(sqlite_path):
        pass
    with_newer_schema(sqlite_path, version=schema.SCHEMA_VERSION + 5, oldest=schema.SCHEMA_VERSION + 1)

    with pytest.raises(SchemaMismatch, match=r"newer than this release can work with.*upgrade dutiful"):
        await SqliteStore(sqlite_path).open()


async def test_a_newer_schema_that_this_release_can_use_is_used(sqlite_path: Path) -> None:
    async with opened(sqlite_path):
        pass
    with_newer_schema(sqlite_path, version=schema.SCHEMA_VERSION + 5, oldest=schema.SCHEMA_VERSION)

    async with opened(sqlite_path) as store:
        await store.jobs.insert([new_job()])
        assert (await store.queries.health())["schema_version"] == schema.SCHEMA_VERSION + 5


def with_newer_schema(path: Path, *, version: int, oldest: int) -> None:
    db = apsw.Connection(str(path))
    db.executemany(
        "UPDATE dutiful_meta SET value = ? WHERE key = ?",
        [(str(version), "schema_version"), (str(oldest), "oldest_version")],
    )
    db.close()


async def test_a_migration_that_was_applied_in_another_form_is_refused(sqlite_path: Path) -> None:
    async with opened(sqlite_path):
        pass
    db = apsw.Connection(str(sqlite_path))
    db.execute("UPDATE dutiful_migration SET checksum = 'other'")
    db.close()

    with pytest.raises(SchemaMismatch, match="applied in another form"):
        await SqliteStore(sqlite_path).open()


async def test_tables_of_the_user_in_the_same_file_are_left_alone(sqlite_path: Path) -> None:
    db = apsw.Connection(str(sqlite_path))
    db.execute("CREATE TABLE job (title TEXT); INSERT INTO job VALUES ('gardener')").fetchall()
    db.close()

    async with opened(sqlite_path) as store:
        await store.jobs.insert([new_job()])

    db = apsw.Connection(str(sqlite_path))
    assert db.execute("SELECT title FROM job").fetchall() == [("gardener",)]
    db.close()


# A file that is deleted, or stays locked


async def test_a_file_that_was_deleted_while_open_takes_no_more_jobs(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.jobs.insert([new_job()])
        await asyncio.to_thread(sqlite_path.unlink)

        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await store.jobs.insert([new_job()])


async def test_another_program_that_keeps_the_database_locked_is_an_error_that_passes(sqlite_path: Path) -> None:
    async with opened(sqlite_path, busy_timeout=timedelta(milliseconds=50)) as store:
        locking = apsw.Connection(str(sqlite_path))
        locking.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="kept the database locked"):
            await store.jobs.insert([new_job()])
        locking.execute("ROLLBACK")
        locking.close()

        await store.jobs.insert([new_job()])
        assert await store.queries.check_places() == []


async def test_one_process_cannot_open_a_file_with_two_libraries(sqlite_path: Path) -> None:
    async with opened(sqlite_path, driver="apsw"):
        with pytest.raises(UsageError, match="two SQLite libraries in one process"):
            await SqliteStore(sqlite_path, driver="sqlite3").open()

    async with opened(sqlite_path, driver="sqlite3") as store:
        await store.jobs.insert([new_job()])


async def test_a_closed_store_raises_that_it_is_closed(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        renewer = store.claims.renewer()

    with pytest.raises(StoreUnavailable, match="not open"):
        await store.jobs.insert([new_job()])
    with pytest.raises(StoreUnavailable, match="not open"):
        renewer.renew([], LEASE)


async def test_a_store_can_be_opened_again(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.jobs.insert([new_job()])
    await store.open()

    assert len(await store.queries.jobs(JobFilter())) == 1
    await store.close()


# Data that SQLite would store but that could not be read


@pytest.mark.parametrize("payload", ["", "nonsense", '{"half":', '"\\ud800"', '"\ud800"'])
async def test_text_that_is_no_json_is_refused_and_nothing_is_stored(sqlite_path: Path, payload: str) -> None:
    async with opened(sqlite_path) as store:
        with pytest.raises(DataRefused):
            await store.jobs.insert([new_job(), new_job(payload=payload)])

        assert (await store.queries.jobs(JobFilter())).jobs == []


@pytest.mark.parametrize("fields", [{"priority": -1}, {"max_attempts": 0}, {"priority": 2**70}, {"kind": "\ud800"}])
async def test_a_job_that_breaks_a_rule_of_the_tables_is_refused(sqlite_path: Path, fields: dict[str, Any]) -> None:
    async with opened(sqlite_path) as store:
        with pytest.raises(DataRefused):
            await store.jobs.insert([new_job(), new_job(**fields)])

        assert (await store.queries.jobs(JobFilter())).jobs == []
        await store.jobs.insert([new_job()])


async def test_a_key_whose_holder_has_ended_is_free(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.jobs.insert([first := new_job()])
        (done,) = await store.claims.claim(
            ClaimRequest(first.id, "lane", [QueueLevel("default", 100)], ["greet"], 1, LEASE)
        )
        await store.claims.complete([Completion(done.job_id, done.claim_id)])
        left = "INSERT INTO dutiful_unique_key VALUES ('', 'greet', 'k', 'active', ?, NULL)"
        await store.engine.write(lambda db: db.run(left, (first.id.bytes,)))

        second = new_job(unique=Unique("k"))

        assert await store.jobs.insert([second]) == [Inserted(second.id, Insertion.MADE)]
        assert await store.queries.check_places() == []


async def test_check_places_describes_what_is_broken(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await store.jobs.insert([nowhere := new_job(), twice := new_job(), gone := new_job()])
        (done,) = await store.claims.claim(
            ClaimRequest(nowhere.id, "lane", [QueueLevel("default", 100)], ["greet"], 1, LEASE)
        )
        await store.claims.complete([Completion(done.job_id, done.claim_id)])
        db = apsw.Connection(str(sqlite_path))
        db.execute("DELETE FROM dutiful_finished WHERE job_id = ?", (nowhere.id.bytes,))
        db.execute("DELETE FROM dutiful_job WHERE id = ?", (gone.id.bytes,))
        db.execute(
            "INSERT INTO dutiful_finished (job_id, state, attempt, crashes, finished_at) VALUES (?, 'failed', 1, 0, 0)",
            (twice.id.bytes,),
        )
        db.execute("INSERT INTO dutiful_unique_key VALUES ('', 'greet', 'k', 'active', ?, NULL)", (twice.id.bytes,))
        db.execute("INSERT INTO dutiful_dependency (job_id, needs_id) VALUES (?, ?)", (gone.id.bytes, twice.id.bytes))
        db.execute(
            "INSERT INTO dutiful_dead_letter (job_id, status, died_at, kind, queue, correlation_id, created_at,"
            " attempt, max_attempts) VALUES (?, 'reprocessing', 0, 'k', 'q', 'c', 0, 1, 1)",
            (nowhere.id.bytes,),
        )
        db.close()

        violations = "\n".join(await store.queries.check_places())

    for text in (
        "stands in no place", "stands in ready and finished", "which is no job", "the unique key 'k'",
        "is gone", "which is not final", "failed without a dead letter", "without a new job",
    ):  # fmt: skip
        assert text in violations


def test_the_migrations_are_a_script_for_a_dba(sqlite_path: Path) -> None:
    db = sqlite3.connect(":memory:")
    db.executescript(SqliteStore(sqlite_path).migration_sql())

    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {"dutiful_job", "dutiful_ready", "dutiful_finished"} <= tables
