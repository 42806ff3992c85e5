"""The store with tenants on: on behalf of one tenant, of everybody, and in a transaction of the user's own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg import sql

from databases import Postgres, missing
from dutiful import Dutiful
from dutiful.auditing import AuditFilter
from dutiful.client import Client
from dutiful.core.errors import DataRefused, StoreUnavailable, UsageError
from dutiful.core.review import ReviewAct
from dutiful.core.transitions import State
from dutiful.deliveries.in_process import InProcess
from dutiful.reading import JobFilter
from dutiful.reviewing import DeadLetterFilter, Review
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.servers import PgBouncer, PostgresServer
from dutiful.testing.store_suite.audit import event
from dutiful.testing.store_suite.builders import OOPS, T0, claim, enqueue, made, new_job, start_one, state, token
from dutiful.working import Line
from tenanted import World, guarded

pytestmark = pytest.mark.req("W67")

DATABASE = "dutiful_tenants_store"


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[World]:
    with guarded(postgres18, DATABASE) as found:
        yield found


@pytest.fixture
async def everybody(world: World) -> AsyncIterator[PostgresStore]:
    async with world.store("application") as store:
        yield store


@pytest.fixture
def acme(everybody: PostgresStore) -> PostgresStore:
    return everybody.for_tenant("acme")


@pytest.fixture
def foreign(world: World) -> dict[str, UUID]:
    """The jobs of another tenant."""
    return world.jobs["globex"]


async def test_for_a_tenant_nothing_of_another_can_be_read(
    acme: PostgresStore, world: World, foreign: dict[str, UUID]
) -> None:
    ids = [*foreign.values(), *world.jobs[None].values()]

    for job_id in ids:
        assert await acme.find(job_id) is None
        assert await acme.attempts(job_id) == []
        assert await acme.phases(job_id) == []
        assert await acme.dependencies(job_id) == []
        assert await acme.dead_letter(job_id) is None
        assert await acme.posts(job_id=job_id) == []
    assert await acme.outcomes(ids) == []
    assert await acme.views(ids) == []
    own = set(world.jobs["acme"].values())
    for wanted in (None, *State):
        assert {job.tenant for job in await acme.jobs(JobFilter(state=wanted, limit=100))} <= {"acme"}
    assert own <= {job.id for job in await acme.jobs(JobFilter(limit=100))}
    assert {post.tenant for post in await acme.posts(limit=100)} == {"acme"}
    assert {letter.tenant for letter in await acme.dead_letters(DeadLetterFilter())} == {"acme"}
    assert (await acme.dead_letter_counts(DeadLetterFilter())).total == 1
    assert {one.tenant for one in await acme.audit_events(AuditFilter())} == {"acme"}
    assert {run.filter.tenant for run in await acme.bulk_runs()} == {"acme"}
    assert {one.tenant for one in await acme.tokens()} == {"acme"}
    assert {one.job["tenant"] for one in await acme.schedules()} == {"acme"}
    assert {queue.queue for queue in await acme.queues()} == {"of_acme"}
    assert (await acme.stats(timedelta(days=5000))).dead_letters == 1
    assert not {stir.job_id for stir in (await acme.stirred(T0, 1000)).stirs} & set(ids)


async def test_for_a_tenant_nothing_of_another_can_be_changed(
    acme: PostgresStore, everybody: PostgresStore, foreign: dict[str, UUID]
) -> None:
    assert await acme.cancel(foreign[State.READY], "no") is None
    assert await acme.expedite(foreign[State.SCHEDULED]) is None
    assert not await acme.bury(foreign[State.READY], OOPS)
    assert await acme.held(foreign[State.RUNNING]) is None
    [reviewed] = await acme.review([Review(id=foreign[State.FAILED], act=ReviewAct.DISCARD, by="ada")])
    assert (reviewed.status, reviewed.applied) == (None, False)
    assert await claim(acme, lines=[Line("of_globex", 100)]) == []
    with pytest.raises(DataRefused, match="row-level security"):
        await acme.insert([new_job(tenant="globex")])
    with pytest.raises(DataRefused, match="row-level security"):
        await acme.append_audit([event(tenant="globex")])

    for place in (State.READY, State.SCHEDULED, State.FAILED):
        assert await state(everybody, foreign[place]) is place
    letter = await everybody.dead_letter(foreign[State.FAILED])
    assert letter is not None and letter.status == "pending_review"


async def test_for_a_tenant_its_own_work_goes_on(acme: PostgresStore, everybody: PostgresStore) -> None:
    await enqueue(acme, waiting := new_job(tenant="acme", queue="own"), doomed := new_job(tenant="acme", queue="other"))

    assert await state(acme, waiting.id) is State.READY
    cancelled = await acme.cancel(doomed.id, "not needed")
    assert cancelled is not None and cancelled.state is State.CANCELLED
    [claimed] = await claim(acme, lines=[Line("own", 100)])
    assert claimed.job_id == waiting.id
    assert await everybody.find(waiting.id) is not None


async def test_a_store_that_acts_for_everybody_takes_jobs_of_all_in_one_call(everybody: PostgresStore) -> None:
    jobs = [new_job(tenant=tenant, queue="mixed") for tenant in ("acme", "globex", None, "acme")]

    assert await everybody.insert(jobs) == made(*jobs)

    assert [await state(everybody, job.id) for job in jobs] == [State.READY] * 4


async def test_calls_that_share_a_commit_share_it_with_their_own_tenant_only(
    everybody: PostgresStore, world: World
) -> None:
    client = Client(everybody, InProcess())
    jobs = [new_job(tenant=tenant, queue="split") for tenant in ("acme", "globex", None) * 10]

    await asyncio.gather(*(client.submit(job) for job in jobs))
    await client.close()

    commits: dict[str, set[str | None]] = {}
    stored = world.roles.run("SELECT xmin::text, tenant FROM {}.job WHERE queue = 'split'", world.roles.schema)
    for commit, tenant in stored:
        commits.setdefault(commit, set()).add(tenant)
    assert len(stored) == 30 and len(commits) < 10
    assert all(len(tenants) == 1 for tenants in commits.values())


async def test_a_job_cannot_depend_on_one_of_another_tenant(
    everybody: PostgresStore, world: World, foreign: dict[str, UUID]
) -> None:
    own = world.jobs["acme"][State.READY]
    fine = new_job(tenant="acme", depends_on=(own,))

    assert await everybody.insert([fine]) == made(fine)
    with pytest.raises(UsageError, match="there is no job"):
        await everybody.insert([new_job(tenant="acme", depends_on=(foreign[State.READY],))])


@pytest.mark.parametrize("before", ["acme", "*", ""])
async def test_a_users_transaction_keeps_the_tenant_that_it_had_named(
    everybody: PostgresStore, world: World, before: str
) -> None:
    jobs = [new_job(tenant="globex", queue="within"), new_job(tenant="acme", queue="within")]
    with psycopg.connect(world.roles.url("application")) as connection:
        connection.execute("SELECT set_config('dutiful.tenant', %s, true)", [before])
        assert everybody.insert_within_sync(connection, jobs) == made(*jobs)
        left = connection.execute("SELECT current_setting('dutiful.tenant')").fetchone()

    assert left == (before,)
    assert [await state(everybody, job.id) for job in jobs] == [State.READY] * 2


async def test_a_job_is_completed_in_a_transaction_of_the_applications(everybody: PostgresStore, world: World) -> None:
    async with world.store("worker") as worker:
        claimed = await start_one(worker, tenant="acme", queue="completing")
        with psycopg.connect(world.roles.url("application")) as connection:
            worker.complete_within_sync(connection, token(claimed), '"done"')
            left = connection.execute("SELECT current_setting('dutiful.tenant')").fetchone()

    assert left == ("",)
    assert await state(everybody, claimed.job_id) is State.COMPLETED


async def test_within_for_one_tenant_no_other_is_written(acme: PostgresStore, world: World) -> None:
    connection = await asyncpg.connect(world.roles.url("application"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await acme.insert_within(connection, [new_job(tenant="globex")])
    await connection.close()


async def test_a_statement_that_fails_costs_no_connection(acme: PostgresStore, world: World) -> None:
    sessions = "SELECT pid FROM pg_stat_activity WHERE usename = {} ORDER BY pid"
    user = sql.Literal(world.roles.name("application"))
    await acme.pauses()
    before = world.roles.run(sessions, user)

    with pytest.raises(DataRefused):
        await acme.insert([new_job(tenant="globex")])

    assert await acme.jobs(JobFilter(limit=1))
    assert world.roles.run(sessions, user) == before


@pytest.mark.parametrize("name", ["", "*", "a\0b"])
async def test_a_name_that_means_everybody_or_nobody_is_refused(everybody: PostgresStore, name: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        everybody.for_tenant(name)


async def test_a_name_is_never_read_as_sql(everybody: PostgresStore) -> None:
    odd = "'; drop table x; -- \\' $$ {hex} ü😀"
    job = new_job(tenant=odd, queue="odd")

    await enqueue(everybody.for_tenant(odd), job)

    assert [found.id for found in await everybody.for_tenant(odd).jobs(JobFilter())] == [job.id]


async def test_it_shares_the_connections_and_closes_with_the_whole(world: World) -> None:
    async with world.store("application") as store:
        acme = store.for_tenant("acme")
        await acme.close()
        assert await acme.jobs(JobFilter(limit=1))
    with pytest.raises(StoreUnavailable, match="not open"):
        await acme.jobs(JobFilter(limit=1))
    with pytest.raises(StoreUnavailable, match="not open"):
        store.for_tenant("acme")


async def test_without_tenants_nothing_is_said_first(pg18_url: str) -> None:
    store = PostgresStore(pg18_url)
    await store.open()
    try:
        assert store.for_tenant("acme") is store
        await enqueue(store, job := new_job(tenant="globex"))
        assert await store.for_tenant("acme").find(job.id) is not None
    finally:
        await store.close()


async def shout(name: str) -> str:
    return name.upper()


async def test_a_file_is_the_same_for_every_tenant(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)

    assert store.for_tenant("acme") is store
    with pytest.raises(UsageError, match="is not a name"):
        store.for_tenant("*")


async def test_a_job_goes_from_an_application_to_a_worker_through_pgbouncer(world: World, postgres18: Postgres) -> None:
    if not isinstance(postgres18, PostgresServer):
        missing("PgBouncer is tested in front of a bundled server only: unset DUTIFUL_TEST_PG18_URL")
    if reason := PgBouncer.available():
        missing(reason)
    with (
        PgBouncer(postgres18, user=world.roles.name("application")) as front,
        PgBouncer(postgres18, user=world.roles.name("worker")) as back,
    ):
        enqueuing = Dutiful(front.dsn(DATABASE), schema=world.schema)
        working = Dutiful(back.dsn(DATABASE), schema=world.schema, poll="50ms")
        working.job(shout)
        kind = enqueuing.job(shout)
        async with enqueuing, working.embedded():
            handles = [await kind.options(tenant=tenant).enqueue(name=tenant) for tenant in ("acme", "globex")]
            assert [await handle.result(timeout="20s") for handle in handles] == ["ACME", "GLOBEX"]
            store = (await enqueuing.client()).store

            assert await store.for_tenant("acme").find(handles[1].id) is None
