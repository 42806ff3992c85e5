"""Reads use their indexes, even with misleading planner statistics."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from databases import Postgres
from dutiful.core.job import Claim
from dutiful.core.limits import KindLimit, Limit
from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.store.claims import QueueLevel
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.stores.listing import Index
from dutiful.stores.postgres import PostgresStore, dead_letters
from dutiful.stores.postgres.engine.sql import statements
from suite.breakers import MAIL, trip
from suite.builders import (
    ADA,
    KIND,
    LEASE,
    OOPS,
    T0,
    at,
    change,
    claim,
    complete,
    enqueue_one,
    new_job,
    states,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLES = ("job", "ready", "scheduled", "blocked", "lease", "finished", "dependency", "attempt", "progress", "stale",
          "dead_letter")  # fmt: skip
JOBS = 20_000
ASKED = 100
LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
SQL = statements("dutiful")


def calling(function: str, args: Sequence[Any]) -> str:
    return f"select * from dutiful.{function}({', '.join(f'${n}' for n in range(1, len(args) + 1))})"


class MisledStore:
    """A store whose statistics were taken while its tables were empty, and one session with it."""

    def __init__(self, store: PostgresStore, url: str, connection: Any, finished: list[UUID], dependent: UUID) -> None:
        self.store = store
        self.url = url
        self.connection = connection
        self.finished = finished
        self.dependent = dependent

    async def buffers(self, name: str, *args: Any, where: str = "") -> int:
        """How many pages this statement or function touches, apart from those of the first call in a session."""
        statement = SQL[name].replace("{where}", where) if name in SQL else calling(name, args)
        return await self.touched_again(statement, *args)

    async def touched_again(self, statement: str, *args: Any) -> int:
        await self.connection.fetch(statement, *args)
        return await self.touched(statement, *args)

    async def touched(self, statement: str, *args: Any) -> int:
        explained = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *args)
        plan = msgspec.json.decode(explained)[0]["Plan"]
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["postgres18", "postgres16"])
async def misled(request: pytest.FixtureRequest) -> AsyncIterator[MisledStore]:
    server: Postgres = request.getfixturevalue(request.param)
    url = server.create_database("misled")
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    connection = await asyncpg.connect(url)
    for table in TABLES:  # the snapshot of an autovacuum would keep dead entries in the indexes
        await connection.execute(f"ALTER TABLE dutiful.{table} SET (autovacuum_enabled = off)")
    await store.jobs.insert([new_job(tenant="acme", correlation_id="order-7") for _ in range(1_000)])
    await finish(store, 500)
    for table in TABLES:
        await connection.execute(f"DELETE FROM dutiful.{table}")
    for table in TABLES:
        await connection.execute(f"VACUUM (TRUNCATE OFF, ANALYZE) dutiful.{table}")
    await store.jobs.insert([new_job(tenant="acme", correlation_id="order-7") for _ in range(JOBS)])
    finished = await finish(store, 1_000)
    dependent = await enqueue_one(store, tenant="acme", depends_on=tuple(finished[:3]))
    yield MisledStore(store, url, connection, finished, dependent)
    await connection.close()
    await store.close()
    server.drop_database("misled")


async def finish(store: PostgresStore, count: int) -> list[UUID]:
    """Complete that many jobs, and fail as many."""
    done, failed = await claim(store, limit=count), await claim(store, limit=count)
    await complete(store, *done)
    await store.claims.settle([change(claimed, Failed(OOPS, final=True)) for claimed in failed])
    return [claimed.job_id for claimed in done + failed]


async def test_looking_jobs_up_touches_a_few_pages_for_each(misled: MisledStore) -> None:
    asked = misled.finished[:: len(misled.finished) // ASKED][:ASKED]
    everything = (asked, "completed", [KIND], "default", "acme", '{"order": 7}', "transient", "text", "upload")

    assert await misled.buffers("job_records", asked) < 40 * ASKED
    assert await misled.buffers("outcomes", asked) < 40 * ASKED
    assert await misled.buffers("filter_ids", *everything) < 20 * ASKED
    assert await misled.buffers("dependencies", misled.dependent) < 200
    assert await misled.buffers("attempts", asked[0]) < 20


@pytest.mark.parametrize("index", Index)
async def test_a_page_of_ids_is_walked_along_its_own_index(misled: MisledStore, index: Index) -> None:
    name = {
        Index.KIND_QUEUE: KIND,
        Index.TENANT: "acme",
        Index.CORRELATION: "order-7",
        Index.CORRELATION_ROOT: str(uuid4()),
        Index.NOT_COMPLETED: "failed",
    }.get(index, "")

    middle = misled.finished[len(misled.finished) // 2]
    for high in (HIGHEST, middle):
        assert await misled.buffers("walk_ids", [index.value], [name], ["default"], LOWEST, high, 50) < 150


async def test_a_wait_for_an_event_reads_none_of_other_tenants_and_a_delivery_as_many_steps_as_it_may(
    misled: MisledStore,
) -> None:
    (claimed,) = await claim(misled.store, limit=1)
    waits = (claimed.job_id, claimed.claim_id, "paid", 0, "event", "c", "f", None, "paid", "7", None)
    async with misled.connection.transaction():
        await misled.connection.execute(
            "insert into dutiful.sent_event (id, sent_at, expires_at, delivered, name, key, tenant) "
            "select gen_random_uuid(), now(), now() + interval '1 day', true, 'paid', '7', 'globex' "
            f"from generate_series(1, {JOBS})"
        )
        assert await misled.buffers("wait_in_step", *waits) < 50
        await misled.connection.execute(
            "insert into dutiful.step (job_id, claim_id, started_at, position, name, kind, state, code, fingerprint, "
            "event, key, of_tenant) select gen_random_uuid(), 1, now(), 0, 'paid', 'event', 'waiting', 'c', 'f', "
            f"'paid', '8', '' from generate_series(1, {JOBS})"
        )
        await misled.connection.fetchval("select dutiful.send_event('paid', '8')")
        assert await misled.buffers("deliver_events", 10, None) < 500
    await complete(misled.store, claimed)


async def test_listing_kinds_and_queues_costs_by_their_number_and_not_by_their_jobs(misled: MisledStore) -> None:
    assert await misled.buffers("kind_queue_pairs", None, None) < 50
    assert await misled.buffers("kind_queue_pairs", [KIND], None) < 50


async def test_a_dead_letter_is_looked_up_by_its_id_and_a_page_of_them_along_an_index(misled: MisledStore) -> None:
    (newest,) = await misled.store.dead_letters.search(DeadLetterFilter(), limit=1)

    assert await misled.buffers("dead_letters", 1, newest.id, where="job_id = $2") < 20
    async with misled.connection.transaction():
        await misled.connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
        looked_up = "EXPLAIN SELECT status FROM dutiful.dead_letter WHERE job_id = any ($1)"  # as functions do
        plan = str(await misled.connection.fetch(looked_up, misled.finished[-20:]))
        assert "dead_letter_pkey" in plan, plan
    for wanted in (
        DeadLetterFilter(),
        DeadLetterFilter(status=[newest.status]),
        DeadLetterFilter(kinds=[newest.kind]),
        DeadLetterFilter(tenant=newest.tenant),
        DeadLetterFilter(fingerprint=newest.fingerprint),
    ):
        where, args = dead_letters._where(wanted, 50)
        assert await misled.buffers("dead_letters", *args, where=where) < 150


async def test_counts_of_many_jobs_touch_as_many_pages_as_counts_of_some(misled: MisledStore) -> None:
    for tenant in (None, "acme"):
        assert await misled.buffers("queue_level_heads", tenant, ["default"], 1_000) < 200
    assert await misled.buffers("depths", None, ["default"], 1_000) < 5_000
    assert await misled.buffers("count_finished", T0, None, 100) < 300
    assert await misled.buffers("count_finished", T0, "acme", 100) < 1_500


async def test_releasing_probes_reads_no_jobs_that_stay_blocked(misled: MisledStore) -> None:
    store = misled.store
    await store.breakers.put_kinds({"protected": MAIL}, now=T0)
    await trip(store)
    await store.jobs.insert([new_job(kind="protected", tenant="elsewhere") for _ in range(JOBS // 2)], now=T0)
    await store.jobs.insert(
        [new_job(kind="protected", tenant="acme", run_at=at(900)) for _ in range(JOBS // 2)], now=T0
    )
    due = [new_job(kind="protected", tenant="acme") for _ in range(6)]
    await store.jobs.insert(due, now=at(1))

    async def may_probe(*tenants: str | None) -> int:
        asked = len(tenants)
        return await misled.buffers(
            "probe_candidates", ["protected"] * asked, ["default"] * asked, list(tenants), [10] * asked
        )

    assert await misled.buffers("waiting_levels", [MAIL]) < 60
    assert await may_probe("acme", "unserved") < 60
    assert await may_probe("unserved") < 30
    assert await may_probe(None) < 30
    assert await misled.touched_again("SELECT dutiful.assign_due_seqs($1, $2)", 100, at(60)) < 30
    assert await misled.buffers("unblock_resumed", 100, at(60)) < 100

    await store.promotion.unblock(0, now=at(60))  # it becomes half-open, and no job is released
    version = await misled.connection.fetchval("SELECT version FROM dutiful.breaker WHERE name = $1", MAIL)
    jobs = [job.id for job in due]
    named = [MAIL] * 3
    admit = calling("admit_probes", range(7))
    await misled.connection.fetch(admit, [MAIL], [version], jobs[:3], named, [], [], at(60))
    assert await misled.touched(admit, [MAIL], [version + 1], jobs[3:], named, [], [], at(60)) < 250
    assert await states(store, jobs) == [State.READY] * 6


@pytest.mark.parametrize("call", ["complete_job($1, $2)", "fail_job($1, $2, 'no')", "release_job($1, $2)"])
async def test_a_session_that_works_in_sql_touches_a_few_pages_for_each_job(misled: MisledStore, call: str) -> None:
    await claim(misled.store, limit=3_000)  # beside many leases
    transaction = misled.connection.transaction()
    await transaction.start()
    dequeue = "select job_id, claim_id from dutiful.dequeue(array['greet'])"
    jobs = [tuple(await misled.connection.fetchrow(dequeue)) for _ in range(2)]

    touched = {
        "dequeue": await misled.touched(dequeue),
        "look_up_job": await misled.touched_again("select * from dutiful.look_up_job($1)", jobs[0][0]),
    }
    for name in ("renew_job($1, $2)", call):
        await misled.connection.fetch(f"select dutiful.{name}", *jobs[0])
        touched[name] = await misled.touched(f"select dutiful.{name}", *jobs[1])

    await transaction.rollback()
    assert max(touched.values()) < 200, touched


@pytest.mark.parametrize(
    ("waiting", "limits"), [(5_000, 1), (5_000, 2), pytest.param(100_000, 2, marks=pytest.mark.soak)]
)
async def test_jobs_that_wait_for_a_key_are_not_read_past(misled: MisledStore, waiting: int, limits: int) -> None:
    store, calls, rate = misled.store, f"one of {waiting}, {limits}", f"rate of {waiting}, {limits}"
    declared = [KindLimit(Limit(calls, 1)), KindLimit(Limit(rate, 5, timedelta(seconds=1)))]
    await store.limits.put({calls: declared[:limits]})
    before = await cost_of_others(misled)
    one = msgspec.json.encode({"limits": {calls: "acme", rate: "acme"}}).decode()
    for _ in range(waiting // 1_000):
        await store.jobs.insert([new_job(kind=calls, options=one) for _ in range(1_000)], now=T0)
    while (await store.limits.admit(1_000, now=T0)).seen >= 1_000:
        pass
    (first,) = await claim(store, kinds=[calls])

    assert await misled.buffers("admit_limited", False, 1_000, [], at(1)) < 250
    assert await misled.buffers("admit_limited", True, 1_000, None, at(1)) < 400
    admit = calling("admit_limited", range(4))
    await complete(store, first, now=at(1))
    await misled.touched(admit, False, 1_000, [first.job_id], at(2))  # the first call plans its statements
    (first,) = await claim(store, kinds=[calls])
    await complete(store, first, now=at(2))
    assert await misled.touched(admit, False, 1_000, [first.job_id], at(2)) < 400, "one ended, and the next is admitted"
    assert await misled.buffers("hold_limits", [first.job_id], [timedelta(seconds=1)], at(2)) < 150
    assert await misled.buffers("count_starts", [first.job_id], [at(1)]) < 50
    await misled.connection.execute("VACUUM dutiful.blocked")  # of what it held before the limit was asked
    after = await cost_of_others(misled)
    assert {name: (before[name], pages) for name, pages in after.items() if pages > before[name] + 40} == {}


async def cost_of_others(misled: MisledStore) -> dict[str, int]:
    """The pages that jobs without a limit touch on their way, and those of what looks for work each second."""
    levels = ["default"], [100], [0]
    claims = (ADA, "general", *levels, [KIND], 10, 0, LEASE, None, at(3))
    calls: dict[str, tuple[Any, ...]] = {
        "peek": ([KIND],),
        "claim": claims,
        "survey": (uuid4(), LEASE, None, None, LEASE, LEASE, at(3)),
        "unblock_resumed": (100, at(3)),
        "deliver_events": (10, at(3)),
    }
    cost: dict[str, int] = {}
    for name, args in calls.items():
        async with rolled_back(misled.connection):
            cost[name] = await misled.buffers(name, *args)
    return cost


@asynccontextmanager
async def rolled_back(connection: Any) -> AsyncIterator[None]:
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


@pytest.mark.parametrize("tenants", [None, ["acme"]], ids=["all", "of a tenant"])
async def test_under_an_old_snapshot_a_claim_of_jobs_with_one_time_walks_over_none_that_were_claimed(
    misled: MisledStore, tenants: list[str] | None
) -> None:
    queue = f"one time, {tenants}"
    await misled.store.jobs.insert([new_job(queue=queue, run_at=T0, tenant="acme") for _ in range(5_000)], now=T0)
    reader = await asyncpg.connect(misled.url)
    await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await reader.fetch("SELECT count(*) FROM dutiful.ready")
    ask: dict[str, Any] = {"levels": [QueueLevel(queue, 100)], "suspects": 0, "now": at(9), "tenants": tenants or ()}
    (first,) = await claim(misled.store, limit=1, **ask)

    async def touched(last: Claim) -> int:
        beyond = [queue], [100], [last.seq - 1], [KIND], 10, 0, LEASE, tenants, at(9), [last.job_id]
        async with rolled_back(misled.connection):
            return await misled.buffers("claim", ADA, "general", *beyond)

    before = await touched(first)
    claims = await claim(misled.store, limit=4_000, **ask)
    after = await touched(claims[-1])
    reader.terminate()
    await complete(misled.store, first, *claims)

    assert after < before + 30, "the rows that were claimed are on more pages"


async def test_a_limit_that_a_kind_gets_reads_what_runs_and_not_all_jobs_for_each(misled: MisledStore) -> None:
    running = 400
    await misled.store.limits.put({"limited": [KindLimit(Limit("first", running))]})
    await misled.store.jobs.insert([new_job(kind="limited") for _ in range(running)], now=T0)
    await misled.store.limits.admit(running, now=T0)
    assert len(await claim(misled.store, kinds=["limited"], limit=running)) == running

    put = calling("put_limits", range(11))
    assert await misled.buffers("announce_limits", ["idle"], at(1)) < 50
    # The walk over what is ready, where tests before have left dead rows, is not counted.
    walk = await misled.touched(
        put, ["idle"], ["idle"], ["third"], [None], ["third"], [1], [None], [None], [False], [False], at(1)
    )
    no, kinds = [None, None], ["limited", "limited"]
    rules = (["first", "second"], [running, running], no, no, [False, False], [False, False])
    assert await misled.touched(put, ["limited"], kinds, rules[0], no, *rules, at(1)) < walk + 40 * running
    used = {one.limit.name: one.used for one in await misled.store.limits.all(now=at(1))}
    assert (used["first"], used["second"]) == (running, running)
