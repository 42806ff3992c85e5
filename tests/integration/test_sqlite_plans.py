"""Reads find their rows without scanning all others; counted in steps of SQLite's virtual machine."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from dutiful.core.breaker.probes import Turns
from dutiful.core.limits import KindLimit, Limit
from dutiful.store.workers import LaneRecord
from dutiful.stores.sqlite import SqliteStore, breakers_probes
from dutiful.stores.sqlite.engine.codec import micros
from dutiful.stores.sqlite.engine.driver import connect
from suite.breakers import MAIL, trip
from suite.builders import ADA, KIND, LEASE, T0, at, claim, complete, new_job
from suite.workers import serve

JOBS = 10_000


@pytest.mark.parametrize("tenants", [["acme", "unserved"], []], ids=["some tenants", "all tenants"])
async def test_releasing_probes_reads_no_jobs_that_stay_blocked(sqlite_path: Path, tenants: list[str]) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    await store.breakers.put_kinds({KIND: MAIL}, now=T0)
    await trip(store)
    others = "elsewhere" if tenants else "acme"
    await serve(store, ours=LaneRecord(slots=1, queues=("default",), tenants=tuple(tenants)))
    await store.jobs.insert([new_job(tenant="acme", run_at=at(900)) for _ in range(JOBS)], now=T0)
    due = [new_job(tenant="acme") for _ in range(3)]
    await store.jobs.insert(due, now=at(1))
    await store.jobs.insert([new_job(tenant=others) for _ in range(JOBS)], now=T0 if tenants else at(2))

    steps = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    db = connect(str(sqlite_path), "apsw", 1_000)
    assert isinstance(db.raw, apsw.Connection)
    db.raw.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    (turn,) = breakers_probes.find_turns(db, 3, Turns(), micros(at(60)))
    db.close()
    await store.close()

    assert {job_id for _, job_id in turn.jobs} <= {job.id.bytes for job in due} and turn.jobs
    assert steps < 1_500


@pytest.mark.parametrize("waiting", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_jobs_that_wait_for_a_key_are_not_read_past(sqlite_path: Path, waiting: int) -> None:
    store, calls = SqliteStore(sqlite_path), "limited call"
    await store.open()
    await store.limits.put({calls: [KindLimit(Limit("calls", 1))]}, now=T0)
    one = msgspec.json.encode({"limits": {"calls": "acme"}}).decode()
    for _ in range(waiting // 1_000):
        await store.jobs.insert([new_job(kind=calls, options=one) for _ in range(1_000)], now=T0)
    while (await store.limits.admit(1_000, now=T0)).seen >= 1_000:
        pass
    await store.jobs.insert([new_job() for _ in range(20)], now=T0)
    (first,) = await claim(store, kinds=[calls])
    steps = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def trace(db: Any) -> None:
        db.raw.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)

    for thread in (store.engine.write, store.engine.read, store.engine.browse):
        await thread(trace)

    async def cost(call: Awaitable[Any]) -> int:
        nonlocal steps
        steps = 0
        await call
        return steps

    others = await claim(store, limit=1)
    costs = {
        "peek": await cost(store.claims.peek([KIND], now=at(1))),
        "claim 10 others": await cost(claim(store, limit=10, now=at(1))),
        "complete another": await cost(complete(store, *others, now=at(1))),
        "enqueue another": await cost(store.jobs.insert([new_job()], now=at(1))),
        "enqueue one that waits": await cost(store.jobs.insert([new_job(kind=calls, options=one)], now=at(1))),
        "admit it": await cost(store.limits.admit(1_000, now=at(1))),
        "survey": await cost(store.leadership.survey(ADA, LEASE, now=at(1))),
        "sweep": await cost(store.promotion.sweep(100, now=at(1))),
        "end the one that runs": await cost(complete(store, first, now=at(2))),
        "admit the next": await cost(store.limits.admit(1_000, ended=[first.job_id], now=at(2))),
    }
    assert len(await claim(store, kinds=[calls], now=at(2))) == 1
    await store.close()

    # The same for any number of jobs that wait.
    assert {name: steps for name, steps in costs.items() if steps > 2_500} == {}


async def test_new_and_changed_limits_block_all_ready_jobs_in_as_few_statements_as_one(sqlite_path: Path) -> None:
    """All writers wait meanwhile."""
    store = SqliteStore(sqlite_path)
    await store.open()
    ran = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal ran
        ran += 1

    def trace(db: Any) -> None:
        db.raw.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)

    await store.engine.write(trace)

    async def cost(call: Awaitable[Any]) -> int:
        nonlocal ran
        ran = 0
        await call
        return ran

    costs = []
    for kind, jobs in (("one", 1), ("many", 200)):
        await store.jobs.insert([new_job(kind=kind) for _ in range(jobs)], now=T0)
        gained = await cost(store.limits.put({kind: [KindLimit(Limit(kind, 300))]}, now=T0))
        await store.limits.admit(300, now=T0)
        changed = await cost(store.limits.put({kind: [KindLimit(Limit(kind, 250))]}, now=T0))
        await store.limits.admit(300, everywhere=True, now=T0)
        costs.append((gained, changed, await cost(store.limits.choose(kind, 0, now=T0))))
        assert await claim(store, kinds=[kind]) == []
    assert await store.queries.check_places() == []
    await store.close()

    assert costs[0] == costs[1]
