"""Who may enqueue may invent any number of queues: what operators see stays bounded, and real trouble is still seen."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from dutiful.core.metrics.alert import AlertRule, AlertState
from dutiful.core.states import State
from dutiful.declare.alert import BUILT_IN
from dutiful.maintenance.alerts import AlertChecker
from dutiful.observe import prometheus
from dutiful.observe.measure import MOST_SERIES, folded, measure, samples, take_snapshot
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.metrics import MOST_LEVELS, OTHERS, Depth
from dutiful.store.queries import MOST_QUEUES
from dutiful.stores.counting import EXACT
from dutiful.stores.sqlite import metrics_depths
from dutiful.stores.sqlite.engine import Connection, Row
from dutiful.stores.sqlite.engine.driver import connect
from suite.builders import claim, enqueue, new_job

JUNK = 12_000  # queues, each with one job: more than are counted exactly
LEVELS = 40_000
HOUR = timedelta(hours=1)
FIRING = AlertState.FIRING
RULES = BUILT_IN | {"mail": AlertRule(name="mail", metric="pending", where={"queue": "mail"}, above=10)}


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def crowded(store: Store, now: datetime) -> Store:
    """Queues that were invented, whose names and jobs come before and after all others, and one with a backlog."""
    for first in range(0, JUNK, 2_000):
        names = [f"{'a' if n % 2 else 'z'}-{n}" for n in range(first, first + 2_000)]
        await enqueue(store, *(new_job(queue=name, kind="junk") for name in names), now=now)
        if first == 0:
            await enqueue(store, *(new_job(queue="mail") for _ in range(30)), now=now - 2 * HOUR)
    return store


async def fired(store: Store, now: datetime) -> set[str]:
    checker = AlertChecker(store.alerts, RULES, lambda at: measure(store, now=at, queues=["mail"]), HOUR)
    await checker.check(now)
    await checker.check(now + timedelta(minutes=6))
    return {f"{one.rule} {one.series}".strip() for one in await store.alerts.all() if one.state is FIRING}


async def test_alerts_fire_for_real_trouble_among_invented_queues(crowded: Store, now: datetime) -> None:
    found = await fired(crowded, now)

    assert {"backlog", "late queue=mail", "mail kind=greet, queue=mail"} <= found
    assert len(found) == 3, "no alert of its own for an invented queue"


async def test_an_alert_of_a_queue_outside_of_the_code_fires_for_all_others_together(
    crowded: Store, now: datetime
) -> None:
    await enqueue(crowded, new_job(queue="m-adhoc"), now=now)
    assert 'late queue=""' in await fired(crowded, now + 2 * HOUR), "the junk is late by now"


async def test_an_alert_ends_though_invented_queues_are_there(crowded: Store, now: datetime) -> None:
    await fired(crowded, now)
    page = await crowded.queries.queues(named=["mail"])
    assert next(one.ready for one in page if one.queue == "mail") == 30
    assert len(await claim(crowded, levels=[QueueLevel("mail", 100)], now=now)) == 30

    assert await fired(crowded, now) == {"backlog"}


async def test_an_alert_does_not_end_because_queues_were_invented(store: Store, now: datetime) -> None:
    await enqueue(store, new_job(queue="m-adhoc"), now=now - 2 * HOUR)
    checker = AlertChecker(store.alerts, BUILT_IN, lambda at: measure(store, now=at), HOUR)
    await checker.check(now)
    junk = (new_job(queue=f"a-{n}", kind="junk") for n in range(MOST_LEVELS + 1))
    await enqueue(store, *junk, now=now - HOUR * 3)

    await checker.check(now)

    states = {alert.series: alert.state for alert in await store.alerts.all()}
    assert states["queue=m-adhoc"] is FIRING


async def test_a_list_of_queues_is_bounded_and_counts_the_rest(crowded: Store) -> None:
    found = await crowded.queries.queues(named=["mail"])

    assert len(found) == MOST_QUEUES + 1
    *listed, others = found
    assert [one.queue for one in listed] == sorted(one.queue for one in listed)
    assert next(one for one in listed if one.queue == "mail").ready == 30
    assert others.queue == OTHERS and others.estimated
    assert 0 < others.queues <= JUNK - MOST_QUEUES + 1
    assert sum(one.queues for one in found) <= JUNK + 1
    stats = await crowded.queries.stats(HOUR, named=["mail"])
    assert stats.estimated and len(stats.queues) == MOST_QUEUES + 1
    assert stats.live["ready"] > JUNK / 2


async def test_a_tenant_that_invents_queues_has_a_bounded_list(store: Store, now: datetime) -> None:
    for first in range(0, 6_000, 2_000):
        jobs = (new_job(queue=f"q-{n}", tenant="acme") for n in range(first, first + 2_000))
        await enqueue(store, *jobs, now=now)
    await enqueue(store, *(new_job(queue="mail", tenant="acme") for _ in range(3)), now=now)

    found = await store.queries.queues(tenant="acme", named=["mail"])

    assert len(found) == MOST_QUEUES + 1
    assert next(one.ready for one in found if one.queue == "mail") == 3
    assert found[-1].queue == OTHERS


async def test_metrics_have_a_bounded_number_of_series(crowded: Store, now: datetime) -> None:
    fleet = await take_snapshot(crowded, now=now, queues=["mail"])

    assert len(samples(fleet)) < MOST_SERIES + 100
    mail = next(one for one in fleet.depths if one.queue == "mail")
    assert (mail.count, mail.bounds) == (30, None)
    page = prometheus.page(fleet, (), "1")
    assert b'dutiful_pending{queue="",kind=""}' in page.text
    assert page.text.count(b"\n") < MOST_SERIES + 200


def test_the_smallest_depths_are_added_up_and_known_ones_stay() -> None:
    junk = [Depth(queue=f"q-{n}", kind="junk", state=State.READY, count=5) for n in range(MOST_SERIES)]
    kinds = [Depth(queue="mail", kind=f"junk-{n}", state=State.READY, count=5) for n in range(MOST_SERIES)]
    real = Depth(queue="mail", kind="send", state=State.READY, count=1)

    found = folded([*junk, *kinds, real], {"mail"}, {"send"})

    assert real in found and len(found) == MOST_SERIES + 2
    rest = {one.queue: one.count for one in found if one.kind == OTHERS}
    assert rest == {"mail": 5, OTHERS: 5 * MOST_SERIES}
    assert sum(one.count for one in found) == 10 * MOST_SERIES + 1


async def test_many_queue_levels_touch_a_bounded_number_of_pages(pg18_url: str) -> None:
    connection = await asyncpg.connect(pg18_url)
    await connection.execute(
        "insert into dutiful.ready (seq, job_id, priority, attempt, crashes, queue, kind) "
        "select n, gen_random_uuid(), 100, 0, 0, 'q' || n, 'junk' from generate_series(1, $1::int) n",
        LEVELS,
    )
    for call in ("depths(null, '{mail}', 1000)", "queue_level_heads(null, '{mail}', 1000)"):
        explained = await connection.fetchval(f"explain (analyze, buffers, format json) select * from dutiful.{call}")
        plan = msgspec.json.decode(explained)[0]["Plan"]
        # Among them are pages of index entries that tests before have left.
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < LEVELS
    await connection.close()


class Counting(Connection):
    """Counts the steps of a walk."""

    def __init__(self, db: Connection) -> None:
        self.db, self.steps = db, 0

    def rows(self, sql: str, bindings: Any = ()) -> list[Row]:
        return self.db.rows(sql, bindings)

    def row(self, sql: str, bindings: Any = ()) -> Row | None:
        self.steps += 1
        return self.db.row(sql, bindings)

    def value(self, sql: str, bindings: Any = ()) -> Any:
        self.steps += 1
        return self.db.value(sql, bindings)


def test_many_queue_levels_of_a_file_are_read_in_bounded_steps(migrated_path: Path) -> None:
    db = Counting(connect(str(migrated_path), "apsw", 0))
    db.db.run("BEGIN")
    db.db.many(
        "INSERT INTO dutiful_ready (queue, priority, seq, job_id, kind) VALUES (?, 100, ?, randomblob(16), 'junk')",
        [(f"q{n}", n) for n in range(LEVELS)],
    )
    db.db.run("COMMIT")

    assert len(metrics_depths.depths(db, None, ["mail"])) == EXACT
    with suppress(TypeError):  # the jobs themselves are not there
        metrics_depths.due_since(db, None, ["mail"])
    assert db.steps < 5 * MOST_LEVELS
