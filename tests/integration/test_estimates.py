"""Estimates are reliable: no alert fires by chance, and a count of many queues stays cheap."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from dutiful.core.states import State
from dutiful.declare.alert import read_alert
from dutiful.maintenance.alerts import AlertChecker
from dutiful.observe.measure import measure
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.stores.postgres.store import PostgresStore
from dutiful.stores.sqlite import metrics_depths
from dutiful.stores.sqlite.engine.driver import Connection, Row, connect
from suite.builders import claim, new_job

LOOK = timedelta(seconds=15)
QUEUES, EACH = 1_000, 200


@pytest.mark.req("L81", "L83")
async def test_alerts_on_a_kind_too_rare_for_the_sample_neither_fire_nor_clear_by_chance(store: Store) -> None:
    now = datetime.now(UTC)
    kinds = ["rare" if n % 10_000 == 5_000 else "common" for n in range(30_000)]
    await store.jobs.insert([new_job(kind=kind) for kind in kinds], now=now)
    rare = {"queue": "default", "kind": "rare"}
    rules = {
        rule.name: rule
        for rule in (
            read_alert("rare-many", "pending", where=rare, above=5),
            read_alert("rare-gone", "pending", where=rare, below=1),
            read_alert("common", "pending", where={"kind": "common"}, above=20_000),
            read_alert("all", "pending_total", above=20_000),
        )
    }
    alerts = AlertChecker(store.alerts, rules, lambda now: measure(store, now=now), LOOK)

    announced: Counter[str] = Counter()
    for look in range(15):
        announced.update(change.after.rule for change in await alerts.check(now + look * LOOK) if change.event)

    assert announced == {"common": 1, "all": 1}


async def test_many_running_jobs_are_counted_for_each_tenant_and_kind(store: Store) -> None:
    now, many, few = datetime.now(UTC), 21_000, 600
    await store.jobs.insert([new_job(queue="bulk", kind="bulk", tenant="large") for _ in range(many)], now=now)
    await store.jobs.insert([new_job(queue="mail", kind="mail", tenant="small") for _ in range(few)], now=now)
    levels = [QueueLevel("bulk", 100), QueueLevel("mail", 100)]
    while await claim(store, limit=5_000, levels=levels, kinds=["bulk", "mail"], now=now):
        pass

    for tenant, expected in (
        (None, {"bulk": many, "mail": few}),
        ("large", {"bulk": many}),
        ("small", {"mail": few}),
    ):
        depths = {one.kind: one for one in await store.metrics.depths(tenant=tenant)}
        assert {kind: one.count for kind, one in depths.items()} == {
            kind: pytest.approx(count, rel=0.2) for kind, count in expected.items()
        }
        for kind, one in depths.items():
            assert one.state is State.RUNNING and one.bounds is not None
            assert one.bounds.low <= expected[kind] <= one.bounds.high


async def test_counting_many_queues_costs_by_queue_and_not_by_job(pg18_url: str) -> None:
    store, connection = PostgresStore(pg18_url), await asyncpg.connect(pg18_url)
    await store.open()
    await connection.execute(
        "INSERT INTO dutiful.ready (seq, job_id, priority, attempt, crashes, queue, kind) "
        f"SELECT n, gen_random_uuid(), 100, 0, 0, 'q' || n % {QUEUES}, 'kind' || n % 3 "
        f"FROM generate_series(1, {QUEUES * EACH}) n"
    )

    await store.metrics.depths()
    explained = await connection.fetchval(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM dutiful.depths(null, array[]::text[], 1000)"
    )
    plan = msgspec.json.decode(explained)[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 40 * QUEUES
    depths = await store.metrics.depths()
    assert {one.queue for one in depths} == {f"q{n}" for n in range(QUEUES)}
    assert sum(one.count for one in depths) == pytest.approx(QUEUES * EACH, rel=0.1)
    assert all(one.estimated for one in depths)
    await connection.close()
    await store.close()


class Counting(Connection):
    """Counts the rows that are read."""

    def __init__(self, db: Connection) -> None:
        self.db, self.read = db, 0

    def rows(self, sql: str, bindings: Any = ()) -> list[Row]:
        found = self.db.rows(sql, bindings)
        self.read += len(found)
        return found

    def row(self, sql: str, bindings: Any = ()) -> Row | None:
        self.read += 1
        return self.db.row(sql, bindings)

    def value(self, sql: str, bindings: Any = ()) -> Any:
        self.read += 1
        return self.db.value(sql, bindings)


def test_counting_many_queues_of_a_file_reads_a_few_rows_of_each(migrated_path: Path) -> None:
    db = Counting(connect(str(migrated_path), "apsw", 0))
    db.db.run("BEGIN")
    db.db.many(
        "INSERT INTO dutiful_ready (queue, priority, seq, job_id, kind) VALUES (?, 100, ?, randomblob(16), ?)",
        [(f"q{n % QUEUES}", n, f"kind{n % 3}") for n in range(QUEUES * EACH)],
    )
    db.db.run("COMMIT")

    depths = metrics_depths.depths(db, None)

    assert db.read < 50 * QUEUES
    assert {one.queue for one in depths} == {f"q{n}" for n in range(QUEUES)}
    assert sum(one.count for one in depths) == pytest.approx(QUEUES * EACH, rel=0.1)
    assert all(one.estimated for one in depths)
