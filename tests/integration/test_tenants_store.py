"""The store with tenants enabled: for one tenant, for all tenants, and in a user's own transaction."""

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
from dutiful.client.client import Client
from dutiful.core.errors import DataRefused, StoreUnavailable, UsageError
from dutiful.core.review.state import ReviewAct
from dutiful.core.states import State
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.store.audit import AuditFilter
from dutiful.store.claims import QueueLevel
from dutiful.store.dead_letters import DeadLetterFilter, Review
from dutiful.store.queries import JobFilter
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from servers import PgBouncer, PostgresServer
from suite.audit import event
from suite.builders import OOPS, T0, claim, enqueue, made, new_job, start_one, state, token
from tenanted import World, isolated

pytestmark = pytest.mark.req("W67")

DATABASE = "dutiful_tenants_store"


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[World]:
    with isolated(postgres18, DATABASE) as found:
        yield found


@pytest.fixture
async def all_tenants(world: World) -> AsyncIterator[PostgresStore]:
    async with world.store("operator") as store:
        yield store


@pytest.fixture
def acme(all_tenants: PostgresStore) -> PostgresStore:
    return all_tenants.for_tenant("acme")


@pytest.fixture
def foreign(world: World) -> dict[str, UUID]:
    """The jobs of another tenant."""
    return world.jobs["globex"]


async def test_for_a_tenant_nothing_of_another_can_be_read(
    acme: PostgresStore, world: World, foreign: dict[str, UUID]
) -> None:
    ids = [*foreign.values(), *world.jobs[None].values()]

    for job_id in ids:
        assert await acme.queries.job(job_id) is None
        assert await acme.queries.attempts(job_id) == []
        assert await acme.progress.phases(job_id) == []
        assert await acme.queries.dependencies(job_id) == []
        assert await acme.dead_letters.find(job_id) is None
        assert await acme.webhooks.posts(job_id=job_id) == []
    assert await acme.queries.outcomes(ids) == []
    assert await acme.events.views(ids) == []
    own = set(world.jobs["acme"].values())
    for wanted in (None, *State):
        assert {job.tenant for job in await acme.queries.jobs(JobFilter(state=wanted, limit=100))} <= {"acme"}
    assert own <= {job.id for job in await acme.queries.jobs(JobFilter(limit=100))}
    assert {post.tenant for post in await acme.webhooks.posts(limit=100)} == {"acme"}
    assert {letter.tenant for letter in await acme.dead_letters.search(DeadLetterFilter())} == {"acme"}
    assert (await acme.dead_letters.counts(DeadLetterFilter())).total == 1
    assert {one.tenant for one in await acme.audit.search(AuditFilter())} == {"acme"}
    assert {run.filter.tenant for run in await acme.dead_letters.bulk_runs()} == {"acme"}
    assert {one.tenant for one in await acme.tokens.all()} == {"acme"}
    assert {one.job["tenant"] for one in await acme.schedules.all()} == {"acme"}
    assert {queue.queue for queue in await acme.queries.queues()} == {"of_acme"}
    assert (await acme.queries.stats(timedelta(days=5000))).dead_letters == 1
    assert not {change.job_id for change in (await acme.events.changes_since(T0, 1000)).changes} & set(ids)


async def test_for_a_tenant_nothing_of_another_can_be_changed(
    acme: PostgresStore, all_tenants: PostgresStore, foreign: dict[str, UUID]
) -> None:
    assert await acme.control.cancel(foreign[State.READY], "no") is None
    assert await acme.control.run_now(foreign[State.SCHEDULED]) is None
    assert not await acme.control.fail(foreign[State.READY], OOPS)
    assert await acme.claims.held(foreign[State.RUNNING]) is None
    [reviewed] = await acme.dead_letters.review([Review(id=foreign[State.FAILED], act=ReviewAct.DISCARD, by="ada")])
    assert (reviewed.status, reviewed.applied) == (None, False)
    assert await claim(acme, levels=[QueueLevel("of_globex", 100)]) == []
    with pytest.raises(DataRefused, match="row-level security"):
        await acme.jobs.insert([new_job(tenant="globex")])
    with pytest.raises(DataRefused, match="row-level security"):
        await acme.audit.append([event(tenant="globex")])

    for place in (State.READY, State.SCHEDULED, State.FAILED):
        assert await state(all_tenants, foreign[place]) is place
    letter = await all_tenants.dead_letters.find(foreign[State.FAILED])
    assert letter is not None and letter.status == "pending_review"


async def test_for_a_tenant_its_own_jobs_can_be_used(acme: PostgresStore, all_tenants: PostgresStore) -> None:
    await enqueue(acme, waiting := new_job(tenant="acme", queue="own"), doomed := new_job(tenant="acme", queue="other"))

    assert await state(acme, waiting.id) is State.READY
    cancelled = await acme.control.cancel(doomed.id, "not needed")
    assert cancelled is not None and cancelled.state is State.CANCELLED
    [claimed] = await claim(acme, levels=[QueueLevel("own", 100)])
    assert claimed.job_id == waiting.id
    assert await all_tenants.queries.job(waiting.id) is not None


async def test_a_store_for_all_tenants_takes_jobs_of_all_in_one_call(all_tenants: PostgresStore) -> None:
    jobs = [new_job(tenant=tenant, queue="mixed") for tenant in ("acme", "globex", None, "acme")]

    assert await all_tenants.jobs.insert(jobs) == made(*jobs)

    assert [await state(all_tenants, job.id) for job in jobs] == [State.READY] * 4


async def test_calls_that_share_a_commit_share_it_with_their_own_tenant_only(
    all_tenants: PostgresStore, world: World
) -> None:
    client = Client(all_tenants, InProcessDelivery())
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
    all_tenants: PostgresStore, world: World, foreign: dict[str, UUID]
) -> None:
    own = world.jobs["acme"][State.READY]
    fine = new_job(tenant="acme", depends_on=(own,))

    assert await all_tenants.jobs.insert([fine]) == made(fine)
    with pytest.raises(UsageError, match="there is no job"):
        await all_tenants.jobs.insert([new_job(tenant="acme", depends_on=(foreign[State.READY],))])


@pytest.mark.parametrize("before", ["acme", "*", ""])
async def test_a_users_transaction_keeps_the_tenant_that_it_had_named(
    all_tenants: PostgresStore, world: World, before: str
) -> None:
    jobs = [new_job(tenant="globex", queue="within"), new_job(tenant="acme", queue="within")]
    with psycopg.connect(world.roles.url("operator")) as connection:
        connection.execute("SELECT set_config('dutiful.tenant', %s, true)", [before])
        assert all_tenants.jobs.insert_within_sync(connection, jobs) == made(*jobs)
        left = connection.execute("SELECT current_setting('dutiful.tenant')").fetchone()

    assert left == (before,)
    assert [await state(all_tenants, job.id) for job in jobs] == [State.READY] * 2


async def test_a_job_is_completed_in_a_transaction_of_the_applications(
    all_tenants: PostgresStore, world: World
) -> None:
    async with world.store("worker") as worker:
        claimed = await start_one(worker, tenant="acme", queue="completing")
        with psycopg.connect(world.roles.url("operator")) as connection:
            worker.claims.complete_within_sync(connection, token(claimed), '"done"')
            left = connection.execute("SELECT current_setting('dutiful.tenant')").fetchone()

    assert left == ("",)
    assert await state(all_tenants, claimed.job_id) is State.COMPLETED


async def test_within_for_one_tenant_no_other_is_written(acme: PostgresStore, world: World) -> None:
    connection = await asyncpg.connect(world.roles.url("operator"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await acme.jobs.insert_within(connection, [new_job(tenant="globex")])
    await connection.close()


async def test_a_statement_that_fails_costs_no_connection(acme: PostgresStore, world: World) -> None:
    sessions = "SELECT pid FROM pg_stat_activity WHERE usename = {} ORDER BY pid"
    user = sql.Literal(world.roles.name("operator"))
    await acme.control.pauses()
    before = world.roles.run(sessions, user)

    with pytest.raises(DataRefused):
        await acme.jobs.insert([new_job(tenant="globex")])

    assert await acme.queries.jobs(JobFilter(limit=1))
    assert world.roles.run(sessions, user) == before


@pytest.mark.parametrize("name", ["", "*", "a\0b"])
async def test_a_tenant_name_with_a_special_meaning_is_refused(all_tenants: PostgresStore, name: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        all_tenants.for_tenant(name)


async def test_a_name_is_never_read_as_sql(all_tenants: PostgresStore) -> None:
    odd = "'; drop table x; -- \\' $$ {hex} ü😀"
    job = new_job(tenant=odd, queue="odd")

    await enqueue(all_tenants.for_tenant(odd), job)

    assert [found.id for found in await all_tenants.for_tenant(odd).queries.jobs(JobFilter())] == [job.id]


async def test_a_tenants_store_shares_the_connections_and_closes_with_the_store(world: World) -> None:
    async with world.store("operator") as store:
        acme = store.for_tenant("acme")
        await acme.close()
        assert await acme.queries.jobs(JobFilter(limit=1))
    with pytest.raises(StoreUnavailable, match="not open"):
        await acme.queries.jobs(JobFilter(limit=1))
    with pytest.raises(StoreUnavailable, match="not open"):
        store.for_tenant("acme")


async def test_without_tenants_no_statement_is_sent_first(pg18_url: str) -> None:
    store = PostgresStore(pg18_url)
    await store.open()
    try:
        assert store.for_tenant("acme") is store
        await enqueue(store, job := new_job(tenant="globex"))
        assert await store.for_tenant("acme").queries.job(job.id) is not None
    finally:
        await store.close()


async def shout(name: str) -> str:
    return name.upper()


async def test_a_file_is_the_same_for_every_tenant(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)

    assert store.for_tenant("acme") is store
    with pytest.raises(UsageError, match="is not a name"):
        store.for_tenant("*")


async def test_a_job_goes_from_an_operator_to_a_worker_through_pgbouncer(world: World, postgres18: Postgres) -> None:
    if not isinstance(postgres18, PostgresServer):
        missing("PgBouncer is tested in front of a bundled server only: unset DUTIFUL_TEST_PG18_URL")
    if reason := PgBouncer.available():
        missing(reason)
    with (
        PgBouncer(postgres18, user=world.roles.name("operator")) as front,
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

            assert await store.for_tenant("acme").queries.job(handles[1].id) is None
