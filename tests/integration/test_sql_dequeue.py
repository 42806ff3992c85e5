"""A session remembers how far it has claimed, and still claims in order: what others add, change or take back."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sql_sessions import Session

from databases import CleanDatabase, Postgres
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.stores.postgres import PostgresStore
from suite.builders import KIND, pause

pytestmark = pytest.mark.parametrize("backend", ["postgres18", "postgres16"])

MANY = 3_000


@pytest.fixture
def url(backend: str, store: Store, request: pytest.FixtureRequest) -> str:
    clean: CleanDatabase = request.getfixturevalue(backend.replace("postgres", "clean"))
    return clean.url


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    opened = Session(url)
    yield opened
    opened.connection.close()


@pytest.fixture
def other(url: str) -> Iterator[Session]:
    opened = Session(url)
    yield opened
    opened.connection.close()


def due_before(session: Session, minutes: float, **options: Any) -> UUID:
    """Enqueues a job that became due minutes ago, so that what is committed late does not count as recent."""
    return session.enqueue(run_at=datetime.now(UTC) - timedelta(minutes=minutes), **options)


def due_now(session: Session) -> UUID:
    """Enqueues a job that stays recent for an hour, however slow the machine is."""
    job_id = session.enqueue()
    session.connection.execute("update dutiful.ready set seq = seq + 3600000000 where job_id = %s", [job_id])
    return job_id


def set_look(session: Session, ago: float, counts: float | None = None) -> None:
    """Sets when the session looked at all levels, and for how long that counts, instead of waiting or being quick."""
    session.connection.execute(
        "select set_config('dutiful.looked_at', (current_setting('dutiful.looked_at')::bigint - %s)::text, false),"
        " set_config('dutiful.counts_for', coalesce(%s::text, current_setting('dutiful.counts_for')), false)",
        [int(ago * 1_000_000), None if counts is None else int(counts * 1_000_000)],
    )


def slow_down_looks(session: Session, seconds: float) -> None:
    """Makes each look at all levels take that long, as one that waits for a lock or a disk does."""
    session.connection.execute("alter function dutiful.look_at_levels rename to look_quickly")
    session.connection.execute(f"""
        create function dutiful.look_at_levels(
            p_kinds text[], p_suspects boolean, p_recent bigint, out queues text[], out priorities int[],
            out floors bigint[]
        ) language plpgsql as $$
        begin
            perform pg_sleep({seconds});
            select l.* into queues, priorities, floors from dutiful.look_quickly(p_kinds, p_suspects, p_recent) l;
        end $$""")


def remembers(session: Session) -> bool:
    (row,) = session.rows("select current_setting('dutiful.levels', true) as kept")
    return bool(row["kept"])


@pytest.mark.req("S13", "S14")
async def test_the_next_job_is_the_first_of_all_that_were_committed_whatever_was_claimed_before(
    store: Store, session: Session, other: Session
) -> None:
    """Two sessions against a list of what waits, which is as exact as the functions are."""
    order = random.Random(7)
    waiting: list[tuple[int, int, UUID, str, str]] = []  # priority, seq, id, queue, kind
    for _ in range(400):
        if order.random() < 0.5:
            queue, priority, kind = order.choice("abc"), order.choice([0, 5, 100]), order.choice([KIND, "rare"])
            job_id = other.enqueue(kind, queue=queue, priority=priority)
            (row,) = other.rows("select seq from dutiful.ready where job_id = %s", job_id)
            waiting.append((priority, row["seq"], job_id, queue, kind))
        else:
            kinds = order.choice([[KIND], ["rare"], [KIND, "rare"]])
            queues = order.choice([None, None, ["a"], ["c", "b"]])
            fitting = [job for job in waiting if job[4] in kinds and (queues is None or job[3] in queues)]
            expected = min(fitting, default=None)
            found = order.choice([session, other]).next_job(*kinds, queues=queues)

            assert found == (expected[2] if expected else None)
            waiting = [job for job in waiting if job[2] != found]


@pytest.mark.req("S14")
@pytest.mark.parametrize("level", [("default", 1), ("a", 100), ("z", 100), ("z", 0)])
async def test_a_job_of_a_better_priority_or_another_queue_comes_next(
    store: Store, session: Session, other: Session, level: tuple[str, int]
) -> None:
    first, last = due_before(other, 60), due_before(other, 50)
    assert session.next_job() == first and remembers(session)

    worse = due_before(other, 90, priority=200)
    better = due_before(other, 55, queue=level[0], priority=level[1])

    assert [session.next_job() for _ in range(4)] == [better, last, worse, None]


async def test_a_job_below_the_floor_is_found_by_the_next_look_and_before_none_is_reported(
    store: Store, session: Session, other: Session
) -> None:
    jobs = [due_before(other, 60 - n) for n in range(4)]
    assert session.next_job() == jobs[0]

    late = due_before(other, 90)
    set_look(session, ago=1, counts=0.1)
    assert session.next_job() == late

    again = due_before(other, 95)
    assert {session.next_job() for _ in range(4)} == {*jobs[1:], again}
    assert session.next_job() is None
    last = due_before(other, 99)
    assert session.next_job() == last


async def test_a_slow_look_hides_a_job_below_the_floor_for_5_seconds_at_most(store: Store, session: Session) -> None:
    with session.connection.transaction(force_rollback=True):
        slow_down_looks(session, 0.3)
        first, second = due_before(session, 60), due_before(session, 50)
        assert session.next_job() == first
        late = due_before(session, 90)
        assert session.next_job() == second

        set_look(session, ago=5)
        assert session.next_job() == late
        assert session.next_job() is None
        again = due_before(session, 95)
        set_look(session, ago=5)
        assert session.next_job() == again


async def test_a_job_that_was_committed_after_a_younger_one_was_claimed_comes_next(
    store: Store, session: Session, other: Session
) -> None:
    due_before(other, 60)
    assert session.next_job()
    with other.connection.transaction():
        late = due_now(other)
        first, last = due_now(session), due_now(session)
        assert session.next_job() == first
    assert [session.next_job(), session.next_job()] == [late, last]


async def test_a_rollback_takes_back_how_far_the_session_has_claimed(
    store: Store, session: Session, other: Session
) -> None:
    jobs = [due_before(other, 60 - n) for n in range(3)]
    assert session.next_job() == jobs[0]
    with session.connection.transaction(force_rollback=True):
        assert session.next_job() == jobs[1]

    assert [session.next_job(), session.next_job()] == jobs[1:]


async def test_a_session_whose_first_look_was_rolled_back_dequeues_at_a_given_time_and_now(
    store: Store, session: Session, other: Session
) -> None:
    """Its settings are empty then, which is no number."""
    jobs = [due_before(other, 60 - n) for n in range(2)]
    with session.connection.transaction(force_rollback=True):
        assert session.next_job() == jobs[0] and remembers(session)

    assert session.next_job(now=datetime.now(UTC)) == jobs[0]
    assert session.next_job() == jobs[1]


async def test_kinds_queues_and_suspects_have_floors_of_their_own(
    store: Store, session: Session, other: Session
) -> None:
    rare, suspect = due_before(other, 90, kind="rare"), due_before(other, 80)
    other.connection.execute("update dutiful.ready set crashes = 1 where job_id = %s", [suspect])
    first, second, third = (due_before(other, 60 - n) for n in range(3))
    due_before(other, 10, kind="rare")

    assert session.next_job(suspects=False) == first
    assert session.next_job() == suspect
    assert session.next_job(queues=["other"]) is None
    assert session.next_job(queues=["default"]) == second
    assert session.next_job("rare") == rare
    assert [row["job_id"] for row in session.dequeue(limit=9)] == [third]


@pytest.mark.parametrize("first", ["paused_queue", "paused_kind", "another_tenant"])
async def test_a_suspect_comes_in_its_turn_behind_what_cannot_be_claimed(
    store: Store, session: Session, other: Session, first: str
) -> None:
    """Jobs of its own level and worse ones keep arriving, and would always be taken before it."""
    blocked = {"queue": "a"} if first == "paused_queue" else {"kind": "rare"} if first == "paused_kind" else {}
    due_before(other, 90, **{"tenant": "theirs", "priority": 1} | blocked)
    options: dict[str, Any] = {"tenants": ["ours"]} if first == "another_tenant" else {}
    if first == "paused_queue":
        await pause(store, PauseScope.QUEUE, "a")
    elif first == "paused_kind":
        other.connection.execute("insert into dutiful.pause values ('kind', 'rare', now(), 'me', 'a test')")
    level: dict[str, Any] = {"tenant": "ours", "priority": 10}
    before, suspect, worse = (
        due_before(other, 80, **level),
        due_before(other, 70, **level),
        due_before(other, 99, tenant="ours", priority=100),
    )
    other.connection.execute("update dutiful.ready set crashes = 1 where job_id = %s", [suspect])
    behind = due_before(other, 60, **level)

    assert [session.next_job(KIND, "rare", **options) for _ in range(5)] == [before, suspect, behind, worse, None]


async def test_a_suspect_is_not_passed_by_worse_jobs_while_better_ones_arrive(
    store: Store, session: Session, other: Session
) -> None:
    suspects = [due_before(other, 70, priority=priority) for priority in (10, 50)]
    other.connection.execute("update dutiful.ready set crashes = 1")
    worse = [due_before(other, 60 - n, priority=100) for n in range(3)]
    better = due_before(other, 50, priority=1)

    assert [row["job_id"] for row in session.dequeue(limit=9)] == [better]
    with other.connection.transaction(force_rollback=True):
        assert other.next_job() == suspects[0]
        assert [row["job_id"] for row in session.dequeue(limit=9)] == [suspects[1]]
        assert [row["job_id"] for row in session.dequeue(limit=9)] == worse
    assert [row["job_id"] for row in session.dequeue(limit=9)] == [suspects[0]]


async def test_a_pause_holds_at_once_for_a_session_that_remembers(
    store: Store, session: Session, other: Session
) -> None:
    jobs = [due_before(other, 60 - n) for n in range(2)]
    assert session.next_job() == jobs[0] and remembers(session)
    for scope, name in ((PauseScope.LANE, "sql"), (PauseScope.LANE, "*"), (PauseScope.QUEUE, "default")):
        await pause(store, scope, name)
        assert session.next_job() is None
        await store.control.resume(scope, name)

    await pause(store, PauseScope.LANE, "another")
    assert session.next_job() == jobs[1]


async def test_a_key_is_free_once_its_job_is_claimed_or_completed_by_a_session(
    store: Store, session: Session, other: Session
) -> None:
    due_before(other, 90)
    assert session.next_job()
    for scope, freed in (("queued", "dequeue"), ("active", "complete_job")):
        first = due_before(other, 60, unique="one", unique_scope=scope)
        assert due_before(other, 60, unique="one", unique_scope=scope) == first
        job = session.dequeue_one()
        assert job["job_id"] == first
        if freed == "complete_job":
            assert due_before(other, 60, unique="one", unique_scope=scope) == first
            session.ask("complete_job(%s, %s)", first, job["claim_id"])
        assert other.rows("select key from dutiful.unique_key") == []
        second = due_before(other, 60, unique="one", unique_scope=scope)
        assert second != first and session.next_job() == second


async def test_a_session_is_as_quick_behind_many_dead_entries(
    store: Store, session: Session, other: Session, url: str
) -> None:
    """Vacuum may remove nothing while an older snapshot is in use, and each claim leaves an entry."""
    session.connection.execute(
        "select dutiful.enqueue('greet', p_run_at => now() - n * interval '1 second') from generate_series(1, %s) n",
        [MANY + 30],
    )
    with psycopg.connect(url) as pinned:
        pinned.execute("set transaction isolation level repeatable read")
        pinned.execute("select count(*) from dutiful.ready")
        assert session.next_job() and session.next_job()
        few = pages(session)
        assert len(session.dequeue(limit=MANY)) == MANY
        session.next_job()

        assert pages(session) <= few + 10
        due_before(session, 90, queue="a", priority=200)
        session.next_job()
        assert pages(session) <= few + 30  # of two levels
        assert pages(other) > few + 60  # it looks for the first time


def pages(session: Session) -> int:
    """How many pages a dequeue touches; no look is due, unless it is the session's first."""
    if remembers(session):
        set_look(session, ago=0, counts=3600)
    (row,) = session.rows(f"explain (analyze, buffers, format json) select * from dutiful.dequeue(array['{KIND}'])")
    plan = row["QUERY PLAN"][0]["Plan"]
    assert plan["Actual Rows"] == 1
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_sessions_dequeue_in_a_database_without_an_encoding(backend: str, request: pytest.FixtureRequest) -> None:
    server: Postgres = request.getfixturevalue(backend)
    server.drop_database("plain_ascii")
    with psycopg.connect(server.dsn(), autocommit=True) as root:
        root.execute("create database plain_ascii encoding 'SQL_ASCII' template template0 locale 'C'")
    try:
        await PostgresStore(server.dsn("plain_ascii")).migrate()
        session = Session(server.dsn("plain_ascii") + "?client_encoding=UTF8")
        first, second = due_before(session, 60), due_before(session, 50)
        assert session.next_job() == first
        worse, better = due_before(session, 70, queue="z", priority=200), due_before(session, 40, queue="ü", priority=1)
        assert [session.next_job() for _ in range(4)] == [better, second, worse, None]
        session.connection.close()
    finally:
        server.drop_database("plain_ascii")
