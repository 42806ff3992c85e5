"""Jobs start in the order in which they became due, and at the time at which they are due."""

import asyncio
from datetime import UTC, datetime, timedelta, tzinfo
from uuid import uuid4

import asyncpg
import pytest
from running_workers import EVERYWHERE, eventually, running

from dutiful import Context, Dutiful, Fixed, Retry
from dutiful.declare.lane import LaneSettings
from dutiful.maintenance import runner
from dutiful.store import jobs
from dutiful.worker import Worker
from dutiful.worker.lanes.poller import Poller


@pytest.fixture
def started(app: Dutiful) -> list[str]:
    """The names of the jobs that started, in their order, one after the other."""
    names: list[str] = []
    app.configure(lanes=(LaneSettings("all", 1),), batch=1)

    @app.job(name="note")
    async def note(name: str) -> None:
        names.append(name)

    return names


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for jobs after hints only."""

    async def never(_: Poller) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Poller, "poll", never)


def leads(worker: Worker) -> bool:
    return worker._maintenance is not None and worker._maintenance.leading


async def all_started(started: list[str], count: int) -> None:
    async def look() -> bool:
        return len(started) >= count

    await eventually(look)


@pytest.mark.req("W21", "W69")
@pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
async def test_jobs_that_became_due_while_no_worker_ran_start_in_that_order(app: Dutiful, started: list[str]) -> None:
    note, now = app.kind("note"), datetime.now(UTC)
    soon = now + timedelta(seconds=1)
    await note.options(run_at=soon).enqueue(name="scheduled")
    await note.enqueue(name="new")
    await note.options(run_at=now - timedelta(hours=1)).enqueue(name="past")
    await note.options(priority=1, run_at=soon).enqueue(name="urgent")
    await note.options(tenant="acme", run_at=now - timedelta(minutes=1)).enqueue(name="tenant's")
    await asyncio.sleep((soon - datetime.now(UTC)).total_seconds() + 0.1)
    await note.enqueue(name="last")

    async with running(app):
        await all_started(started, 6)

    assert started == ["urgent", "past", "tenant's", "new", "scheduled", "last"]


@pytest.mark.req("W20", "J24")
@pytest.mark.parametrize("own", [True, False], ids=["in the worker's process", "by another client"])
async def test_a_job_that_is_due_before_the_leaders_next_look_starts_without_waiting_for_it(
    app: Dutiful, started: list[str], own: bool, no_poll: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEADER_POLL", 3_600.0)  # it looks once, and would then sleep for an hour
    other = Dutiful(app.settings.database_url)

    @other.job(name="note")
    async def note(name: str) -> None: ...

    async with running(app), other:
        store = (await app.client()).store

        async def leads() -> bool:
            return not (await store.leadership.survey(uuid4(), timedelta(seconds=1))).leading

        await eventually(leads)
        kind = (app if own else other).kind("note")
        await kind.options(delay="200ms").enqueue(name="delayed")
        await kind.options(run_at=datetime.now(UTC) + timedelta(milliseconds=300)).enqueue(name="timed")

        await all_started(started, 2)

    assert started == ["delayed", "timed"]


@pytest.mark.req("W20", "J24")
async def test_a_retry_that_is_due_before_the_leaders_next_look_starts_without_waiting_for_it(
    app: Dutiful, no_poll: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEADER_POLL", 3_600.0)

    @app.job(retry=Retry(max_attempts=3, backoff=Fixed("30ms")))
    async def shaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise LookupError("not yet")
        return ctx.attempt

    async with running(app):
        assert await (await shaky.enqueue()).result("20s") == 3


@pytest.mark.req("W21", "W69")
@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_job_that_was_committed_late_has_its_place_by_when_it_became_due(
    app: Dutiful, started: list[str], app_url: str
) -> None:
    note = app.kind("note")
    connection = await asyncpg.connect(app_url)
    try:
        async with connection.transaction():
            await note.options(within=connection).enqueue(name="late")
            await note.options(within=connection, priority=1).enqueue(name="late and urgent")
            await note.options(tenant="acme").enqueue(name="young")
            await note.options(priority=1).enqueue(name="young and urgent")
    finally:
        await connection.close()

    async with running(app):
        await all_started(started, 4)

    assert started == ["late and urgent", "young and urgent", "late", "young"]


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_job_whose_transaction_was_long_starts_once_it_is_committed(
    app: Dutiful, started: list[str], app_url: str, no_poll: None
) -> None:
    """Its place is below what the worker has claimed meanwhile; no poll helps to find it, only the hint."""
    note = app.kind("note")
    connection = await asyncpg.connect(app_url)
    try:
        async with running(app):
            transaction = connection.transaction()
            await transaction.start()
            await note.options(within=connection).enqueue(name="late")
            await asyncio.sleep(0.7)  # longer than claims search below their floors
            await note.enqueue(name="young")
            await all_started(started, 1)
            await transaction.commit()
            await all_started(started, 2)
    finally:
        await connection.close()

    assert started == ["young", "late"]


@pytest.mark.req("W20", "J24")
@pytest.mark.parametrize("app_url", ["sqlite", "postgres18"], indirect=True)
async def test_a_job_starts_when_it_is_due_though_the_leader_has_just_stopped(
    app: Dutiful, no_poll: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still finishes a job. The other worker would look for a leader in an hour, unless it hears of the stop."""
    monkeypatch.setattr(runner, "FOLLOWER_POLL", 3_600.0)
    names: list[str] = []
    release = asyncio.Event()
    other = Dutiful(app.settings.database_url)
    for each in (app, other):
        each.configure(heartbeat="60s")  # which would tell on SQLite, because it is a commit

        @each.job(name="note")
        async def note(name: str) -> None:
            names.append(name)
            if name == "long":
                await release.wait()

    async with running(app) as first:
        while not leads(first):  # noqa: ASYNC110 (within moments)
            await asyncio.sleep(0.01)
        await app.kind("note").enqueue(name="long")
        await all_started(names, 1)
        async with running(other) as second:
            # Due so late that its own hint is over when the leader stops, and nothing is enqueued after that.
            await app.kind("note").options(delay="2500ms").enqueue(name="delayed")
            await asyncio.sleep(1)
            assert not leads(second)
            first.stop()
            try:
                await all_started(names, 2)
                assert leads(second)
            finally:
                release.set()


@pytest.mark.req("W20", "J24")
@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
@pytest.mark.parametrize("way", ["one", "several", "several and a new one", "unique"])
@pytest.mark.parametrize("seconds", [-30.0, 0.4], ids=["past", "near"])
async def test_a_job_of_a_client_whose_clock_is_behind_starts_when_it_is_due(
    app: Dutiful, started: list[str], no_poll: None, monkeypatch: pytest.MonkeyPatch, way: str, seconds: float
) -> None:
    """To that client its time seems to be far; on SQLite, client and store have one clock."""
    monkeypatch.setattr(runner, "LEADER_POLL", 3_600.0)

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Behind":
            return super().now(tz) - timedelta(minutes=1)

    other = Dutiful(app.settings.database_url)

    @other.job(name="note")
    async def note(name: str) -> None: ...

    async with running(app) as worker, other:
        while not leads(worker):  # noqa: ASYNC110 (within moments)
            await asyncio.sleep(0.01)
        await note.enqueue(name="before")  # so that the worker has a floor
        await all_started(started, 1)
        await asyncio.sleep(0.6)  # longer than claims search below their floors
        monkeypatch.setattr(jobs, "datetime", Behind)
        timed = note.options(run_at=datetime.now(UTC) + timedelta(seconds=seconds))
        if way == "one":
            await timed.enqueue(name="timed")
        elif way == "unique":
            await timed.options(unique="key").enqueue(name="timed")
        else:
            also = note if way == "several and a new one" else timed
            await asyncio.gather(timed.enqueue(name="timed"), also.enqueue(name="also"))  # they share a commit

        await all_started(started, 2 if way in ("one", "unique") else 3)

    assert "timed" in started


@pytest.mark.req("W21", "W69")
@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_job_that_waited_for_its_unique_key_starts_once_it_is_stored(
    app: Dutiful, started: list[str], app_url: str, no_poll: None
) -> None:
    """It was enqueued before what has been claimed meanwhile, so that a claim alone would not find it."""
    note, other = app.kind("note"), Dutiful(app.settings.database_url)

    @other.job(name="note")
    async def theirs(name: str) -> None: ...

    connection = await asyncpg.connect(app_url)
    try:
        async with running(app), other:
            transaction = connection.transaction()
            await transaction.start()
            await note.options(within=connection, unique="key").enqueue(name="holder")
            waiting = asyncio.create_task(theirs.options(unique="key").enqueue(name="waiting"))
            await asyncio.sleep(1)
            await theirs.enqueue(name="young")
            await all_started(started, 1)
            await transaction.rollback()
            await waiting
            await all_started(started, 2)
    finally:
        await connection.close()

    assert started == ["young", "waiting"]
