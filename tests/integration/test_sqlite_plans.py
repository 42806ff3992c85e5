"""Looks find what they look for without walking past everything else; counted in steps of SQLite's machine."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from dutiful.core.serving import Turns
from dutiful.stores.sqlite import SqliteStore, probing
from dutiful.stores.sqlite.codec import micros
from dutiful.stores.sqlite.driver import connect
from dutiful.testing.store_suite.breaker_probe import serve
from dutiful.testing.store_suite.breaking import MAIL, trip
from dutiful.testing.store_suite.builders import KIND, T0, at, new_job

JOBS = 10_000


@pytest.mark.parametrize("tenants", [["acme", "nobody's"], []], ids=["some tenants", "anybody"])
async def test_letting_probes_out_walks_past_nobody_who_has_to_wait_on(sqlite_path: Path, tenants: list[str]) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    await store.put_breaker_kinds({KIND: MAIL}, now=T0)
    await trip(store)
    others = "elsewhere" if tenants else "acme"
    await serve(store, ours={"queues": ["default"], "tenants": tenants})
    await store.insert([new_job(tenant="acme", run_at=at(900)) for _ in range(JOBS)], now=T0)
    due = [new_job(tenant="acme") for _ in range(3)]
    await store.insert(due, now=at(1))
    await store.insert([new_job(tenant=others) for _ in range(JOBS)], now=T0 if tenants else at(2))

    steps = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    db = connect(str(sqlite_path), "apsw", 1_000)
    assert isinstance(db.raw, apsw.Connection)
    db.raw.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
    (turn,) = probing.look(db, 3, Turns(), micros(at(60)))
    db.close()
    await store.close()

    assert {job_id for _, job_id in turn.jobs} <= {job.id.bytes for job in due} and turn.jobs
    assert steps < 1_500
