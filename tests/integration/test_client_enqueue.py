"""What enqueue stores, what it refuses, and how callers share commits."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest
from running_workers import EVERYWHERE, eventually, state

from dutiful import DataRefused, Dutiful, PayloadInvalid, State, UsageError
from dutiful.client.client import Client
from dutiful.core.job import Inserted, NewJob
from dutiful.kind import Kind

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)


@pytest.fixture
def greet(app: Dutiful) -> Kind[[str], None]:
    @app.job
    async def greet(name: str) -> None: ...

    return greet


async def stored(app: Dutiful) -> int:
    """How many jobs wait."""
    client = await app.client()
    return sum(q.ready + q.scheduled + q.blocked for q in await client.store.queries.queues())


def counted(app_url: str) -> int:
    """The same one by one, because the store estimates the number of many."""
    if app_url.startswith("sqlite"):
        file = sqlite3.connect(app_url.removeprefix("sqlite:///"))
        with closing(file):
            return int(file.execute("SELECT sum(jobs) FROM dutiful_kind_health").fetchone()[0])
    with psycopg.connect(app_url) as connection:
        (count,) = connection.execute("SELECT sum(jobs) FROM dutiful.kind_health").fetchone() or (0,)
        return int(count)


def refused_by_every_database(app: Dutiful) -> NewJob:
    """Past the client's checks: no store can hold this payload."""
    return NewJob(app.new_id(), "greet", "default", '{"name": ')


@everywhere
async def test_a_job_is_stored_as_it_was_asked_for(app: Dutiful, greet: Kind[[str], None]) -> None:
    parent = await greet.enqueue("parent")
    run_at = datetime.now(UTC) + timedelta(hours=1)
    options = {
        "queue": "letters",
        "priority": 7,
        "run_at": run_at,
        "max_attempts": 3,
        "tenant": "acme",
        "correlation_id": "order 42",
        "subject": {"order": 42},
        "created_by": "ada",
        "parent_id": parent.id,
    }
    job = await greet.options(**options).enqueue("Ada — Lovelace")
    record = await app.find(job.public_id)
    assert record is not None and record.id == job.id and job.created
    assert record.payload == {"name": "Ada — Lovelace"} and record.kind == "greet" and record.state is State.SCHEDULED
    assert {name: getattr(record, name) for name in options} == options


async def test_the_defaults_of_a_kind_hold_unless_a_job_says_otherwise(app: Dutiful) -> None:
    @app.job(queue="fast", priority=10)
    async def quick() -> None: ...

    plain = await app.find((await quick.enqueue()).id)
    changed = await app.find((await quick.options(priority=0, queue="other").enqueue()).id)
    assert plain is not None and (plain.queue, plain.priority, plain.max_attempts) == ("fast", 10, 5)
    assert plain.correlation_id == str(plain.id) and plain.parent_id is None
    assert changed is not None and (changed.queue, changed.priority) == ("other", 0)


@everywhere
async def test_enqueue_can_be_repeated_with_its_id(app: Dutiful, greet: Kind[[str], None]) -> None:
    mine = app.new_id()
    first = await greet.options(id=mine).enqueue("first")
    again = await greet.options(id=mine).enqueue("second")
    assert (first.created, again.created) == (True, False) and first.id == again.id == mine
    record = await app.find(mine)
    assert record is not None and record.payload == {"name": "first"} and await stored(app) == 1


@pytest.mark.parametrize("late", ["delay", "run_at"])
async def test_a_time_in_the_past_or_no_delay_is_due_at_once(app: Dutiful, greet: Kind[[str], None], late: str) -> None:
    when = {"delay": 0, "run_at": datetime.now(UTC) - timedelta(days=1)}[late]
    assert await state(app, await greet.options(**{late: when}).enqueue("now")) is State.READY
    assert await state(app, await greet.options(delay="1h").enqueue("later")) is State.SCHEDULED


# --- many


async def test_a_hundred_thousand_jobs_are_stored_by_one_call(
    app: Dutiful, app_url: str, greet: Kind[[str], None]
) -> None:
    jobs = await greet.enqueue_many({"name": f"n{n}"} for n in range(100_000))
    assert len({job.id for job in jobs}) == counted(app_url) == 100_000


@everywhere
async def test_many_are_stored_in_one_transaction_or_not_at_all(app: Dutiful, greet: Kind[[str], None]) -> None:
    client = await app.client()
    good = [NewJob(app.new_id(), "greet", "default", '{"name": "n"}') for _ in range(5_100)]
    with pytest.raises(DataRefused):
        await client.submit_many([*good, refused_by_every_database(app)])
    assert await stored(app) == 0
    await client.submit_many(good)
    assert await stored(app) == 5_100


async def test_one_wrong_payload_among_many_is_named_and_nothing_is_stored(
    app: Dutiful, greet: Kind[[str], None]
) -> None:
    payloads: list[dict[str, Any]] = [{"name": "n"}] * 100
    with pytest.raises(PayloadInvalid, match="field 'name'"):
        await greet.enqueue_many([*payloads, {"name": 5}])
    assert await stored(app) == 0


async def test_many_of_nothing_is_nothing(app: Dutiful, greet: Kind[[str], None]) -> None:
    assert await greet.enqueue_many([]) == []


async def test_many_with_one_key_for_all_is_refused(app: Dutiful, greet: Kind[[str], None]) -> None:
    with pytest.raises(UsageError, match="one by one"):
        await greet.options(unique="k").enqueue_many([{"name": "a"}, {"name": "b"}])


# --- shared commits


class Counted:
    """Counts the inserts of a client, and lets a test see the first one begin."""

    def __init__(self, client: Client) -> None:
        self.sizes: list[int] = []
        self.began = asyncio.Event()
        self._insert = client.store.jobs.insert

    async def __call__(self, jobs: Sequence[NewJob], **options: Any) -> list[Inserted]:
        self.sizes.append(len(jobs))
        self.began.set()
        return await self._insert(jobs, **options)


@everywhere
async def test_callers_that_enqueue_at_once_share_a_commit(app: Dutiful, greet: Kind[[str], None]) -> None:
    client = await app.client()
    counted = Counted(client)
    with patch.object(client.store.jobs, "insert", counted):
        first = asyncio.create_task(greet.enqueue("first"))
        await counted.began.wait()
        jobs = await asyncio.gather(*(greet.enqueue(f"n{n}") for n in range(300)))
        await first
    assert counted.sizes == [1, 300]
    assert len({job.id for job in jobs}) == 300 and await stored(app) == 301


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_the_database_sees_as_few_transactions_as_there_are_batches(
    app: Dutiful, greet: Kind[[str], None], app_url: str
) -> None:
    await greet.enqueue("warm")

    def committed() -> int:
        """How many transactions wrote a job since the table was made, by their ids."""
        with psycopg.connect(app_url) as connection:
            row = connection.execute("select count(distinct xmin::text) from dutiful.job").fetchone()
            assert row is not None
            return int(row[0])

    before = committed()
    await asyncio.gather(*(greet.enqueue(f"n{n}") for n in range(500)))
    assert committed() - before <= 2


@everywhere
async def test_one_bad_job_in_a_shared_batch_fails_alone(app: Dutiful, greet: Kind[[str], None]) -> None:
    client = await app.client()
    bad = refused_by_every_database(app)
    answers = await asyncio.gather(
        *(greet.enqueue(f"n{n}") for n in range(50)),
        client.submit(bad),
        *(greet.enqueue(f"m{n}") for n in range(50)),
        return_exceptions=True,
    )
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [50]
    assert isinstance(answers[50], DataRefused)
    assert await stored(app) == 100 and await app.find(bad.id) is None


async def test_a_caller_that_gives_up_does_not_hurt_those_who_share_its_batch(
    app: Dutiful, greet: Kind[[str], None]
) -> None:
    client = await app.client()
    counted = Counted(client)
    with patch.object(client.store.jobs, "insert", counted):
        tasks = [asyncio.create_task(greet.enqueue(f"n{n}")) for n in range(20)]
        await counted.began.wait()
        tasks[3].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert counted.sizes == [20]
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [3]
    # It was under way already, so the job of the one who gave up is there too.
    assert await stored(app) == 20
    await greet.enqueue("and on it goes")


async def test_a_second_event_loop_gets_connections_of_its_own(app_url: str) -> None:
    app = Dutiful(app_url)

    @app.job
    async def greet(name: str) -> None: ...

    async def once() -> tuple[UUID, bool]:
        async with app:
            job = await greet.enqueue("again")
            return job.id, await app.find(job.id) is not None

    def twice() -> list[tuple[UUID, bool]]:
        return [asyncio.run(once()), asyncio.run(once())]

    (first, found), (second, found_too) = await asyncio.to_thread(twice)
    assert first != second and found and found_too


@pytest.mark.parametrize("turns", [1, 2, 3, 6])
async def test_a_caller_that_gives_up_does_not_withdraw_its_job(
    app: Dutiful, greet: Kind[[str], None], turns: int
) -> None:
    await greet.enqueue("first")
    enqueueing = asyncio.create_task(greet.enqueue("second"))
    for _ in range(turns):
        await asyncio.sleep(0)
    enqueueing.cancel()
    await asyncio.wait([enqueueing])

    async def both() -> bool:
        return await stored(app) == 2

    await eventually(both)
