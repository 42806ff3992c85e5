"""Reads find their rows without scanning all others; counted in steps of SQLite's virtual machine."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from dutiful.core.breaker.probes import Turns
from dutiful.store.workers import LaneRecord
from dutiful.stores.sqlite import SqliteStore, breakers_probes
from dutiful.stores.sqlite.engine.codec import micros
from dutiful.stores.sqlite.engine.driver import connect
from suite.breakers import MAIL, trip
from suite.builders import KIND, T0, at, new_job
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
