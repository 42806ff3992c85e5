"""What estimates can be relied on for: no alert goes by chance, and no look costs more the more queues there are."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from dutiful.alert import read_alert
from dutiful.core.transitions import State
from dutiful.observe.measure import measure
from dutiful.services.alerts import Alerts
from dutiful.store import Store
from dutiful.stores.postgres.store import PostgresStore
from dutiful.stores.sqlite import counting
from dutiful.stores.sqlite.driver import Connection, Row, connect
from dutiful.testing.store_suite.builders import claim, new_job
from dutiful.working import Line

LOOK = timedelta(seconds=15)
QUEUES, EACH = 1_000, 200


@pytest.mark.req("L81", "L83")
async def test_alerts_on_a_kind_too_rare_to_be_seen_neither_begin_nor_end_by_chance(store: Store) -> None:
    now = datetime.now(UTC)
    kinds = ["rare" if n % 10_000 == 5_000 else "common" for n in range(30_000)]
    await store.insert([new_job(kind=kind) for kind in kinds], now=now)
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
    alerts = Alerts(store, rules, lambda now: measure(store, now=now), LOOK)

    told: Counter[str] = Counter()
    for look in range(15):
        told.update(change.after.rule for change in await alerts.once(now + look * LOOK) if change.event)

    assert told == {"common": 1, "all": 1}


async def test_of_many_that_run_each_tenant_and_kind_is_told_by_its_own(store: Store) -> None:
    now, many, few = datetime.now(UTC), 21_000, 600
    await store.insert([new_job(queue="bulk", kind="bulk", tenant="large") for _ in range(many)], now=now)
    await store.insert([new_job(queue="mail", kind="mail", tenant="small") for _ in range(few)], now=now)
    lines = [Line("bulk", 100), Line("mail", 100)]
    while await claim(store, limit=5_000, lines=lines, kinds=["bulk", "mail"], now=now):
        pass

    for tenant, expected in (
        (None, {"bulk": many, "mail": few}),
        ("large", {"bulk": many}),
        ("small", {"mail": few}),
    ):
        depths = {one.kind: one for one in await store.depths(tenant=tenant)}
        assert {kind: one.count for kind, one in depths.items()} == {
            kind: pytest.approx(count, rel=0.2) for kind, count in expected.items()
        }
        for kind, one in depths.items():
            assert one.state is State.RUNNING and one.doubt is not None
            assert one.doubt.low <= expected[kind] <= one.doubt.high


async def test_a_look_at_many_queues_costs_what_queues_do_not_what_their_jobs_do(pg18_url: str) -> None:
    store, connection = PostgresStore(pg18_url), await asyncpg.connect(pg18_url)
    await store.open()
    await connection.execute(
        "INSERT INTO dutiful.ready (seq, job_id, priority, attempt, crashes, queue, kind) "
        f"SELECT n, gen_random_uuid(), 100, 0, 0, 'q' || n % {QUEUES}, 'kind' || n % 3 "
        f"FROM generate_series(1, {QUEUES * EACH}) n"
    )

    await store.depths()
    explained = await connection.fetchval("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM dutiful.depths(null)")
    plan = msgspec.json.decode(explained)[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 40 * QUEUES
    depths = await store.depths()
    assert {one.queue for one in depths} == {f"q{n}" for n in range(QUEUES)}
    assert sum(one.count for one in depths) == pytest.approx(QUEUES * EACH, rel=0.1)
    assert all(one.estimated for one in depths)
    await connection.close()
    await store.close()


class Counting(Connection):
    """Counts what is read."""

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


def test_a_look_at_many_queues_of_a_file_reads_a_few_rows_of_each(migrated_path: Path) -> None:
    db = Counting(connect(str(migrated_path), "apsw", 0))
    db.db.run("BEGIN")
    db.db.many(
        "INSERT INTO dutiful_ready (queue, priority, seq, job_id, kind) VALUES (?, 100, ?, randomblob(16), ?)",
        [(f"q{n % QUEUES}", n, f"kind{n % 3}") for n in range(QUEUES * EACH)],
    )
    db.db.run("COMMIT")

    depths = counting.depths(db, None)

    assert db.read < 50 * QUEUES
    assert {one.queue for one in depths} == {f"q{n}" for n in range(QUEUES)}
    assert sum(one.count for one in depths) == pytest.approx(QUEUES * EACH, rel=0.1)
    assert all(one.estimated for one in depths)
