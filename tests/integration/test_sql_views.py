"""The SQL views for people show the right facts on both databases."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import apsw
import asyncpg
import pytest

from dutiful.core.breaker.state import BreakerPolicy, CallResult, Entry
from dutiful.core.metrics.sketch import bucket, quantiles
from dutiful.core.outcome import Failed, Snoozed
from dutiful.store import Store
from dutiful.store.control import Pause, PauseScope
from dutiful.store.metrics import AttemptStats
from dutiful.store.workers import LaneRecord, WorkerRecord
from suite.builders import (
    ADA,
    OOPS,
    claim_one,
    complete,
    enqueue_one,
    finish_one,
    settle,
    start_one,
    token,
)

Rows = list[dict[str, Any]]
Ask = Callable[[str], Awaitable[Rows]]

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def ago(span: timedelta) -> datetime:
    return datetime.now(UTC) - span


@pytest.fixture
def view(backend: str, request: pytest.FixtureRequest) -> Ask:
    """All rows of a view by column name, as a user's SQL would read them."""

    async def of_sqlite(name: str) -> Rows:
        connection = apsw.Connection(str(request.getfixturevalue("sqlite_path")), flags=apsw.SQLITE_OPEN_READONLY)
        cursor = connection.execute(f"SELECT * FROM dutiful_{name}")
        rows = [dict(zip((column[0] for column in cursor.get_description()), row, strict=True)) for row in cursor]
        connection.close()
        return rows

    async def of_postgres(name: str) -> Rows:
        connection = await asyncpg.connect(request.getfixturevalue("pg18_url"))
        rows = [dict(row) for row in await connection.fetch(f"SELECT * FROM dutiful.{name}")]
        await connection.close()
        return rows

    return of_sqlite if backend == "sqlite" else of_postgres


def when(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


@pytest.mark.req("L28")
async def test_every_finished_job_shows_how_long_it_waited_and_ran(store: Store, view: Ask) -> None:
    made = ago(HOUR)
    job_id = await enqueue_one(store, now=made, kind="mail")
    claimed = await claim_one(store, now=made + 2 * SECOND, kinds=["mail"])
    assert await complete(store, claimed, now=made + 5 * SECOND) == []

    (run,) = await view("job_runs")

    assert (UUID(str(run["id"])), run["kind"], run["state"], run["attempt"]) == (job_id, "mail", "completed", 1)
    assert (run["duration_ms"], run["queue_time_ms"]) == (3_000, 2_000)
    assert abs(when(run["recorded_at"]) - (made + 5 * SECOND)) < timedelta(milliseconds=2)


@pytest.mark.req("L28")
async def test_the_wait_of_a_retried_job_ends_with_its_first_claim(store: Store, view: Ask) -> None:
    made = ago(HOUR)
    await enqueue_one(store, now=made)
    first = await claim_one(store, now=made + SECOND)
    assert await settle(store, first, Failed(OOPS), now=made + 2 * SECOND) == []
    assert (await store.promotion.promote(10, now=made + MINUTE)).moved == 1
    assert await complete(store, await claim_one(store, now=made + MINUTE), now=made + MINUTE + SECOND) == []

    (run,) = await view("job_runs")

    assert (run["attempt"], run["queue_time_ms"], run["duration_ms"]) == (2, 1_000, 1_000)


@pytest.mark.req("L28")
async def test_the_wait_of_a_snoozed_job_ends_with_its_first_attempt(store: Store, view: Ask) -> None:
    made = ago(HOUR)
    await enqueue_one(store, now=made)
    snoozed = await claim_one(store, now=made + SECOND)
    assert await settle(store, snoozed, Snoozed(MINUTE), now=made + 2 * SECOND) == []
    assert (await store.promotion.promote(10, now=made + 2 * MINUTE)).moved == 1
    claimed = await claim_one(store, now=made + 2 * MINUTE)
    assert await complete(store, claimed, now=made + 2 * MINUTE + SECOND) == []

    (run,) = await view("job_runs")

    assert (run["attempt"], run["queue_time_ms"] / 1000) == (1, claimed.waited)


@pytest.mark.req("L28")
async def test_a_job_that_was_run_now_did_not_wait(store: Store, view: Ask) -> None:
    made = ago(HOUR)
    job_id = await enqueue_one(store, now=made, run_at=made + timedelta(days=300))
    await store.control.run_now(job_id, now=made + SECOND)
    claimed = await claim_one(store, now=made + MINUTE)
    assert await complete(store, claimed, now=made + MINUTE) == []
    cancelled = await enqueue_one(store, now=made)
    await store.control.cancel(cancelled, "enough", now=made)

    runs = {run["state"]: run["queue_time_ms"] for run in await view("job_runs")}

    assert runs == {"completed": 0, "cancelled": None}


@pytest.mark.req("L28")
@pytest.mark.parametrize("tombstones", [True, False])
async def test_metrics_outlive_their_jobs(store: Store, view: Ask, tombstones: bool) -> None:
    hour = ago(48 * HOUR).replace(minute=0, second=0, microsecond=0)

    async def run(wait: timedelta, length: timedelta, **fields: Any) -> UUID:
        await enqueue_one(store, now=hour, **fields)
        claimed = await claim_one(store, now=hour + wait)
        assert await complete(store, claimed, now=hour + wait + length) == []
        return claimed.job_id

    await run(SECOND, 2 * SECOND)
    needed = await run(3 * SECOND, 8 * SECOND)
    await run(2 * SECOND, SECOND, tenant="acme")
    cancelled = await enqueue_one(store, now=hour)
    await store.control.cancel(cancelled, "enough", now=hour)
    dependent = await enqueue_one(store, depends_on=(needed, (await start_one(store)).job_id))

    async def shown() -> dict[str, tuple[int, Any, Any, Any]]:
        return {
            row["state"]: (row["jobs"], *(
                row[name] if row[name] is None else pytest.approx(float(row[name]), abs=1e-3)
                for name in ("mean_wait_s", "mean_run_s", "longest_run_s")))
            for row in await view("job_metrics") if when(row["hour"]) == hour
        }  # fmt: skip

    expected = {"completed": (3, 2.0, 11 / 3, 8.0), "cancelled": (1, None, None, None)}
    assert await shown() == expected
    for deleted in (3, 0):
        step = await store.retention.delete(HOUR, 10, None, tombstones=tombstones, sent=True)
        assert step.count == deleted
        assert await shown() == expected, "each job counts once, deleted or not"
    await store.control.cancel(dependent, "enough")
    assert (await store.retention.delete(HOUR, 10, None)).count == 1
    assert await shown() == expected
    await store.retention.delete_leftovers(HOUR, 10, now=hour + timedelta(days=364))
    assert await shown() == expected
    await store.retention.delete_leftovers(HOUR, 10, now=hour + timedelta(days=367))
    assert await shown() == {}


@pytest.mark.req("L29", "L39", "L76")
async def test_jobs_are_counted_by_kind_and_state(store: Store, view: Ask) -> None:
    for _ in range(2):
        await enqueue_one(store, kind="mail")
    await enqueue_one(store, kind="mail", run_at=datetime.now(UTC) + HOUR, now=datetime.now(UTC))
    await store.control.pause(Pause(PauseScope.KIND, "stopped", datetime.now(UTC)))
    await enqueue_one(store, kind="stopped")
    await start_one(store, kind="report", queue="slow")
    await finish_one(store, kind="report", queue="slow", now=ago(MINUTE))
    await finish_one(store, Failed(OOPS, final=True), kind="report", queue="slow", now=ago(MINUTE))
    await finish_one(store, kind="report", queue="slow", now=ago(timedelta(days=2)))

    counts = {(row["kind"], row["state"]): row["jobs"] for row in await view("kind_health")}

    assert counts == {
        ("mail", "ready"): 2,
        ("mail", "scheduled"): 1,
        ("stopped", "blocked"): 1,
        ("report", "running"): 1,
        ("report", "completed"): 1,
        ("report", "failed"): 1,
    }


@pytest.mark.req("L73")
async def test_a_job_is_stuck_when_it_has_run_for_over_an_hour(store: Store, view: Ask) -> None:
    await start_one(store, now=ago(30 * MINUTE))
    started = ago(90 * MINUTE)
    old = await start_one(store, kind="report", now=started)

    (stuck,) = await view("stuck_jobs")

    assert (UUID(str(stuck["id"])), stuck["kind"], stuck["state"], stuck["attempt"]) == (
        old.job_id, "report", "running", 1,
    )  # fmt: skip
    assert abs(when(stuck["started_at"]) - started) < timedelta(milliseconds=2)
    assert abs(when(stuck["created_at"]) - started) < timedelta(milliseconds=2)


@pytest.mark.req("L74")
async def test_a_kind_is_failing_while_its_jobs_wait_to_be_tried_again(store: Store, view: Ask) -> None:
    latest = ago(MINUTE)
    for failed_at in (ago(2 * HOUR), ago(10 * MINUTE), latest):
        assert await settle(store, await start_one(store, now=failed_at), Failed(OOPS), now=failed_at) == []
    await finish_one(store, Failed(OOPS, final=True), kind="report", now=latest)

    (failing,) = await view("failing_kinds")

    assert (failing["kind"], failing["jobs"]) == ("greet", 2)
    assert abs(when(failing["latest_error_at"]) - latest) < timedelta(milliseconds=2)


@pytest.mark.req("L77", "L78")
async def test_a_kind_shows_its_times_and_its_errors_of_the_last_hour(store: Store, view: Ask) -> None:
    run = {bucket(milliseconds * 1000): 10 for milliseconds in range(50, 1050, 50)}
    wait = {bucket(1): 98, bucket(30_000_000): 2}
    before = [AttemptStats(kind="mail", outcome="failed", count=1_000, run={bucket(9_000_000): 1_000})]
    await store.metrics.add(ADA, 1, before, now=ago(-6 * HOUR))  # by a clock that was ahead
    await store.metrics.roll_up(timedelta(days=1), now=ago(-6 * HOUR))
    await store.metrics.add(ADA, 2, before, now=ago(2 * HOUR))
    await store.metrics.add(
        ADA, 3, [AttemptStats(kind="mail", outcome="completed", count=150, run=run, wait=wait)], now=ago(MINUTE)
    )
    await store.metrics.roll_up(timedelta(days=1))
    failures = [
        AttemptStats(kind="mail", outcome="retried", count=40),
        AttemptStats(kind="mail", outcome="failed", count=10),
    ]
    await store.metrics.add(ADA, 4, [*failures, AttemptStats(kind="mail", outcome="snoozed", count=800)])

    (found,) = await view("kind_metrics")

    assert (found["kind"], found["attempts"], found["failed"], found["error_percent"]) == ("mail", 200, 50, 25.0)
    for name, sketch in (("run", run), ("wait", wait)):
        for share in (0.50, 0.95, 0.99):
            assert found[f"{name}_p{share * 100:.0f}_s"] == pytest.approx(quantiles(sketch, [share])[0])
    assert found["wait_p95_s"] < 0.001 < 28 < found["wait_p99_s"] < 34


@pytest.mark.req("L79")
async def test_a_lane_is_as_busy_as_its_slots_in_all_workers_that_are_alive(store: Store, view: Ask) -> None:
    general = LaneRecord(slots=5, busy=5, queues=("*",))
    await beat(store, timedelta(days=1), fast=LaneRecord(slots=3, busy=3, queues=()), general=general)
    await beat(store, timedelta(days=1), fast=LaneRecord(slots=1, utilisation=0.2, queues=()))
    await beat(store, timedelta(days=-1), fast=LaneRecord(slots=96, queues=()))

    lanes = {row["lane"]: row for row in await view("lane_utilisation")}

    assert {name: (lane["workers"], lane["slots"], lane["busy"]) for name, lane in lanes.items()} == {
        "fast": (2, 4, 3),
        "general": (1, 5, 5),
    }
    assert lanes["fast"]["utilisation"] == pytest.approx(0.8)
    assert lanes["general"]["utilisation"] == 1


@pytest.mark.req("L75", "L80")
async def test_a_breaker_shows_its_state_and_how_often_it_has_opened(store: Store, view: Ask) -> None:
    policy, failed_at = BreakerPolicy(failures=1, open_for=MINUTE), ago(MINUTE)
    claimed = await start_one(store, now=failed_at)
    entry = await store.breakers.enter("email-service", policy, token(claimed), now=failed_at)
    assert isinstance(entry, Entry)
    await store.breakers.exit("email-service", policy, token(claimed), entry, CallResult.BAD, now=failed_at)

    (breaker,) = await view("breaker_status")

    assert (breaker["name"], breaker["state"], breaker["failures"], breaker["trips"]) == ("email-service", "open", 1, 1)
    assert abs(when(breaker["last_failure_at"]) - failed_at) < timedelta(milliseconds=2)
    assert abs(when(breaker["opened_at"]) - failed_at) < timedelta(milliseconds=2)


async def beat(store: Store, ttl: timedelta, **lanes: LaneRecord) -> None:
    now = datetime.now(UTC)
    await store.workers.heartbeat(
        WorkerRecord(id=uuid4(), name="w", host="h", pid=1, started_at=now, seen_at=now, lanes=lanes, kinds=[]), ttl
    )
