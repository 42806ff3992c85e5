"""The register's queue asked by SQL, in the text of the people who run it."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import asyncpg
import pytest
from sports import Register, register, until

from dutiful import PauseScope, State
from dutiful.client.claimed import ClaimedJob
from dutiful.core.breaker.state import BreakerPolicy, CallResult, Entry
from dutiful.core.job import ClaimToken
from examples.sports_sites import jobs
from examples.sports_sites.jobs import Stats

COLUMNS = {
    "id", "type", "payload", "status", "priority", "attempts", "max_attempts", "scheduled_at", "run_at", "started_at",
    "completed_at", "error_message", "last_error", "last_error_at", "correlation_id", "parent_job_id", "created_by",
    "dedup_key", "created_at", "updated_at",
}  # fmt: skip
NEWS: dict[str, Any] = {"lipas-ids": [12345], "operation-type": "update", "initiated-by": "ada"}
ROOT = Path(__file__).parents[2]
REFUSED = (apsw.Error, asyncpg.PostgresError)


@pytest.fixture
async def sports(app_url: str, tmp_path: Path) -> AsyncIterator[Register]:
    async with register(app_url, tmp_path, retry_base="1h", retry_max="2h") as made:
        yield made


def _moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


@pytest.mark.req("L1", "L9", "L10", "L11", "L12", "L13", "L14", "L18", "L19", "L20", "L43")
async def test_a_new_job_has_every_column_with_its_default(sports: Register) -> None:
    before = datetime.now(UTC)
    made = await sports.jobs.enqueue("produce-reminders")
    plain = await sports.row(made.id)
    assert set(plain) == COLUMNS
    assert (plain["type"], plain["payload"], plain["status"]) == ("produce-reminders", {}, "pending")
    assert (plain["priority"], plain["attempts"], plain["max_attempts"]) == (100, 0, 3)
    for name in ("scheduled_at", "run_at", "created_at", "updated_at"):
        assert abs(_moment(plain[name]) - before) < timedelta(minutes=1)
    for name in ("started_at", "completed_at", "error_message", "last_error", "last_error_at", "parent_job_id"):
        assert plain[name] is None
    assert (plain["created_by"], plain["dedup_key"]) == ("ada", None)
    assert UUID(plain["correlation_id"]) == made.id, "an id of its own"
    assert [job.id for job in await sports.jobs.by_correlation(plain["correlation_id"])] == [made.id]
    for text in ("user-action-123", "Käyttäjä 7 / ☃", "x" * 200):
        given = await sports.jobs.enqueue("produce-reminders", correlation_id=text)
        assert (await sports.row(given.id))["correlation_id"] == text
        assert [job.id for job in await sports.jobs.by_correlation(text)] == [given.id]


@pytest.mark.req("L12", "L13", "L14", "L16", "L18", "L34", "L35", "L36", "L37", "L38")
async def test_what_was_asked_for_is_in_its_columns(sports: Register) -> None:
    due = datetime.now(UTC) + timedelta(minutes=5)
    asked = await sports.jobs.enqueue(
        "analysis", {"lipas-id": 12345}, priority=50, run_at=due, correlation_id="user-action-123",
        dedup_key="analysis-12345", max_attempts=7,
    )  # fmt: skip
    row = await sports.row(asked.id)
    assert (row["payload"], row["priority"], row["max_attempts"]) == ({"lipas-id": 12345}, 50, 7)
    assert (row["correlation_id"], row["dedup_key"]) == ("user-action-123", "analysis-12345")
    for name in ("scheduled_at", "run_at"):
        assert abs(_moment(row[name]) - due) < timedelta(milliseconds=2)
    again = await sports.jobs.enqueue("analysis", {"lipas-id": 12345}, dedup_key="analysis-12345")
    assert (again.id, again.created) == (asked.id, False)
    other = await sports.jobs.enqueue("elevation", {"lipas-id": 12345}, dedup_key="analysis-12345")
    assert other.created, "a key is combined with the type"


@pytest.mark.req("L15", "L17", "L20", "L21", "L22", "L23", "L24", "L26", "L28", "L29", "L47", "L88")
async def test_a_job_is_pending_processing_completed_failed_or_dead(sports: Register) -> None:
    sports.services.hold("copy")
    sports.services.fail("mail")
    sports.services.closed.add("nobody@club.example")
    welcome: dict[str, Any] = {"to": "ada@club.example", "template": "welcome", "data": {"name": "Ada"}}
    async with sports.working():
        failed = await sports.jobs.enqueue("email", welcome)
        await sports.becomes(failed.id, State.SCHEDULED)
        sports.services.repair("mail")
        dead = await sports.jobs.enqueue("email", {**welcome, "to": "nobody@club.example"})
        await sports.becomes(dead.id, State.FAILED)
        processing = await sports.jobs.enqueue("integration", {"lipas-id": 12345}, correlation_id="user-action-123")
        await sports.becomes(processing.id, State.RUNNING)
        started = await sports.row(processing.id)
        sports.services.release("copy")
        await sports.becomes(processing.id, State.COMPLETED)
        (_, reported) = await sports.jobs.by_correlation("user-action-123")
        await sports.becomes(reported.id, State.COMPLETED)
    assert (started["status"], started["attempts"], started["completed_at"]) == ("processing", 1, None)
    done = await sports.row(processing.id)
    assert (done["status"], done["error_message"], done["last_error"]) == ("completed", None, None)
    assert done["started_at"] <= done["completed_at"] == done["updated_at"]
    # A claim looks at the clock first, and may then find what was made a moment later.
    assert _moment(done["created_at"]) <= _moment(done["started_at"]) + timedelta(seconds=1)
    child = await sports.row(reported.id)
    assert (child["status"], child["type"], str(child["parent_job_id"])) == ("completed", "webhook", str(processing.id))

    retried = await sports.row(failed.id)
    assert (retried["status"], retried["attempts"], retried["completed_at"]) == ("failed", 1, None)
    assert "421" in retried["error_message"] and retried["last_error"] == retried["error_message"]
    assert retried["last_error_at"] == retried["updated_at"] and retried["run_at"] > retried["last_error_at"]
    shown = await sports.row(dead.id)
    assert (shown["status"], shown["attempts"]) == ("dead", 1) and "550" in shown["error_message"]

    (letter,) = await sports.views.rows("select * from dead_letter_jobs")
    assert set(letter) == {
        "id", "original_job", "error_message", "error_details", "died_at", "acknowledged", "acknowledged_by",
        "acknowledged_at",
    }  # fmt: skip
    assert str(letter["id"]) == str(dead.id) and letter["error_message"] == shown["error_message"]
    assert (letter["original_job"]["type"], letter["original_job"]["payload"]["to"]) == ("email", "nobody@club.example")
    assert letter["error_details"]["errors"][0]["type"] == "SMTPRecipientsRefused" and not letter["acknowledged"]

    metrics = await sports.views.rows("select * from job_metrics")
    assert sorted((row["job_type"], row["status"]) for row in metrics) == [
        ("email", "dead"), ("email", "failed"), ("integration", "completed"), ("webhook", "completed"),
    ]  # fmt: skip
    assert all(row["duration_ms"] >= 0 and row["queue_time_ms"] >= 0 and row["recorded_at"] for row in metrics)
    health = await sports.views.rows("select * from job_queue_health order by type, status")
    assert [(row["type"], row["status"], row["jobs"]) for row in health] == [
        ("email", "dead", 1), ("email", "failed", 1), ("integration", "completed", 1), ("webhook", "completed", 1),
    ]  # fmt: skip


@pytest.mark.req("L28", "L35")
async def test_a_job_waits_from_when_it_is_due_and_runs_from_its_claim(sports: Register) -> None:
    sports.services.hold("copy")
    async with sports.working():
        due = datetime.now(UTC) + timedelta(milliseconds=400)
        job = await sports.jobs.enqueue("integration", {"lipas-id": 12345}, run_at=due)
        await sports.becomes(job.id, State.RUNNING)
        sports.services.release("copy")
        record = await sports.becomes(job.id, State.COMPLETED)
    assert record.started_at is not None and record.finished_at is not None and record.started_at >= due
    (row,) = await sports.views.rows("select * from job_metrics where job_type = 'integration'")
    milliseconds = timedelta(milliseconds=1)
    assert row["queue_time_ms"] == pytest.approx((record.started_at - due) / milliseconds, abs=1)
    assert row["duration_ms"] == pytest.approx((record.finished_at - record.started_at) / milliseconds, abs=1)


@pytest.mark.req("L28")
async def test_metrics_of_jobs_stay_when_the_jobs_are_removed(sports: Register) -> None:
    sports.services.closed.add("nobody@club.example")
    async with sports.working():
        done = await sports.jobs.enqueue("produce-reminders")
        dead = await sports.jobs.enqueue("email", {"to": "nobody@club.example", "template": "welcome"})
        await sports.becomes(done.id, State.COMPLETED)
        await sports.becomes(dead.id, State.FAILED)
    order = "select * from job_metrics order by recorded_at, job_type"
    before = await sports.views.rows(order)

    assert await sports.jobs.remove_finished(timedelta(0)) == len(before)
    await sports.views.install()

    assert sorted((row["job_type"], row["status"]) for row in before) == [
        ("email", "dead"), ("produce-reminders", "completed"),
    ]  # fmt: skip
    assert await sports.views.rows(order) == before
    assert await sports.views.rows("select * from jobs") == []


@pytest.mark.req("L28")
async def test_metrics_of_removed_jobs_are_kept_for_a_time_and_not_for_ever(sports: Register) -> None:
    await sports.views.install(metrics_days=30)

    async def run_and_remove(count: int) -> int:
        async with sports.working():
            for _ in range(count):
                await sports.becomes((await sports.jobs.enqueue("produce-reminders")).id, State.COMPLETED)
        return await sports.jobs.remove_finished(timedelta(0))

    assert await run_and_remove(3) == 3
    recorded = [row["recorded_at"] for row in await sports.views.rows("select recorded_at from job_metrics order by 1")]
    for at, days in zip(recorded, (29, 31, 400), strict=True):
        aged = _moment(at) - timedelta(days=days)
        if sports.database_url.startswith("postgres"):
            await sports.views.rows("update kept_metrics set recorded_at = $1 where recorded_at = $2", aged, at)
        else:
            moved = aged.strftime("%Y-%m-%dT%H:%M:%S.%f")[:23] + "Z"
            await sports.views.rows("update kept_metrics set recorded_at = ? where recorded_at = ?", moved, at)
    assert await run_and_remove(1) == 1

    kept = [_moment(row["recorded_at"]) for row in await sports.views.rows("select * from job_metrics order by 5")]
    assert [(datetime.now(UTC) - at).days for at in kept] == [29, 0]


@pytest.mark.req("L19")
async def test_a_job_was_updated_when_it_last_changed(sports: Register) -> None:
    async def age(job_id: UUID) -> timedelta:
        row = await sports.row(job_id)
        return _moment(row["updated_at"]) - _moment(row["created_at"])

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    waiting = await sports.jobs.enqueue("produce-reminders", run_at=tomorrow)
    paused = await sports.jobs.enqueue("webhook", NEWS)
    operator = await sports.app.operator("ada")
    await operator.fleet.pause(PauseScope.KIND, "webhook", "the partner moves")
    await operator.breakers.open("email-service", reason="the mail server moves")
    async with sports.working():
        rejected = await sports.jobs.enqueue("email", {"to": "ada@club.example", "template": "welcome"})
        for job in (paused, rejected):
            await sports.becomes(job.id, State.BLOCKED)
    assert await age(waiting.id) == timedelta(0)
    assert await age(paused.id) > timedelta(0) and await age(rejected.id) > timedelta(0)
    assert (await sports.row(rejected.id))["status"] == "pending", "no attempt was counted"


@pytest.mark.req("L19", "L20", "L95")
async def test_a_job_that_was_released_is_pending_whatever_attempt_it_was(sports: Register) -> None:
    async def claimed() -> ClaimedJob:
        claim = await sports.app.claim(await operator.jobs.get(job.id), "worker-1")
        assert claim is not None
        return claim

    operator = await sports.app.operator("ada")
    job = await sports.jobs.enqueue("webhook", NEWS)
    await (await claimed()).fail("transient", "the partner is away")
    await operator.jobs.retry(job.id)  # now, not in an hour
    assert (await sports.row(job.id))["status"] == "failed"

    await claimed()
    started = await sports.row(job.id)
    await operator.jobs.release(job.id, older_than=timedelta(0))

    row = await sports.row(job.id)
    assert (started["status"], row["status"], row["error_message"]) == ("processing", "pending", None)
    assert row["last_error"] == "the partner is away" and _moment(row["updated_at"]) > _moment(started["updated_at"])


@pytest.mark.req("L40", "L60", "L86", "L97")
async def test_lists_are_complete_and_in_order_however_long_they_are(
    sports: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 3)
    made = [(await sports.jobs.enqueue("webhook", NEWS, correlation_id="user-action-123")).id for _ in range(7)]
    await sports.jobs.enqueue("webhook", NEWS, correlation_id="user-action-124")
    assert [job.id for job in await sports.jobs.by_correlation("user-action-123")] == made
    for job in made[:6]:
        await sports.jobs.move_to_dead_letter(job, "Permanent validation error")
    assert [letter.id for letter in await sports.jobs.dead_letters()] == made[5::-1], "the newest first"
    await sports.jobs.acknowledge(made[0])
    rows = await sports.views.rows(
        "select id, original_job->>'type' as job_type, error_message, died_at from dead_letter_jobs"
        " where acknowledged = false order by died_at desc, id desc"  # two may die within a millisecond
    )
    assert [str(row["id"]) for row in rows] == [str(job) for job in made[5:0:-1]]
    assert {(row["job_type"], row["error_message"]) for row in rows} == {
        ("webhook", "failed by ada: Permanent validation error")
    }


@pytest.mark.req("L39")
async def test_the_queue_is_summed_up_in_four_numbers(sports: Register) -> None:
    assert await sports.jobs.stats(sports.views) == Stats(0, 0, 0, 0)
    sports.services.hold("copy")
    sports.services.fail("mail")
    sports.services.closed.add("nobody@club.example")
    some = sports.another_app(kinds=("email", "integration", "cleanup-jobs"), retry_base="1h", retry_max="2h")
    now = datetime.now(UTC)
    async with some, sports.working(some):
        failed = await sports.jobs.enqueue("email", {"to": "ada@club.example", "template": "welcome"})
        await sports.becomes(failed.id, State.SCHEDULED)
        sports.services.repair("mail")
        dead = await sports.jobs.enqueue("email", {"to": "nobody@club.example", "template": "welcome"})
        await sports.becomes(dead.id, State.FAILED)
        done = await sports.jobs.enqueue("cleanup-jobs", {"days-old": 7})
        await sports.becomes(done.id, State.COMPLETED)
        running = await sports.jobs.enqueue("integration", {"lipas-id": 12345})
        await sports.becomes(running.id, State.RUNNING)
        assert await sports.jobs.stats(sports.views) == Stats(0, 1, 1, 0)
        await sports.jobs.enqueue("produce-reminders", run_at=now + timedelta(hours=1))
        assert await sports.jobs.stats(sports.views) == Stats(1, 1, 1, 0), "it is not due yet"
        for minutes in (90, 20):
            await sports.jobs.enqueue("produce-reminders", run_at=now - timedelta(minutes=minutes))
        stats = await sports.jobs.stats(sports.views)
        assert (stats.pending, stats.processing, stats.failed) == (3, 1, 1)
        assert 90 <= stats.oldest_pending_minutes < 95
        sports.services.release("copy")
        await sports.becomes(running.id, State.COMPLETED)


@pytest.mark.req("L12", "L25")
async def test_the_database_refuses_any_other_status_and_a_negative_priority(sports: Register) -> None:
    job = await sports.jobs.enqueue("produce-reminders")
    dead = await sports.jobs.enqueue("produce-reminders")
    await sports.jobs.move_to_dead_letter(dead.id, "Permanent validation error")
    await (await sports.app.operator("ada")).breakers.open("email-service")
    tables = "dutiful." if sports.database_url.startswith("postgres") else "dutiful_"
    for statement in (
        "update jobs set status = 'paused'",
        "update jobs set priority = -1",
        "insert into jobs (type, status) values ('email', 'limbo')",
        "update circuit_breakers set state = 'limbo'",
        "update dead_letter_jobs set acknowledged_by = 'ada'",
        "delete from job_metrics",
        f"update {tables}job set priority = -1",
        f"update {tables}breaker set state = 'limbo'",
        f"update {tables}dead_letter set status = 'limbo'",
        f"update {tables}finished set state = 'limbo'",
        f"insert into {tables}finished (job_id, state, attempt, crashes, finished_at)"
        f" select id, 'limbo', 0, 0, created_at from {tables}job",
    ):
        with pytest.raises(REFUSED, match=r"view|check constraint|CHECK constraint"):
            await sports.views.rows(statement)
    assert (await sports.row(job.id))["status"] == "pending"
    assert (await sports.row(dead.id))["status"] == "dead"
    assert len(await sports.views.rows("select * from jobs")) == 2


@pytest.mark.req("L27", "L75")
async def test_breakers_are_rows_that_all_processes_share(sports: Register) -> None:
    store, policy = (await sports.app.client()).store, BreakerPolicy(failures=2)
    other = sports.another_app()
    async with other:
        theirs = (await other.client()).store
        token = ClaimToken(sports.app.new_id(), 1)
        for _ in range(2):
            entry = await theirs.breakers.enter("email-service", policy, token)
            assert isinstance(entry, Entry)
            await theirs.breakers.exit("email-service", policy, token, entry, CallResult.BAD)
    (row,) = await sports.views.rows("select * from circuit_breakers where state <> 'closed'")
    assert set(row) == {
        "service_name", "state", "failure_count", "success_count", "last_failure_at", "opened_at", "half_opened_at",
        "updated_at",
    }  # fmt: skip
    assert (row["service_name"], row["state"], row["failure_count"]) == ("email-service", "open", 2)
    assert row["success_count"] == 0 and row["half_opened_at"] is None
    assert row["last_failure_at"] == row["opened_at"] == row["updated_at"]
    assert (await store.breakers.reset("email-service")) is not None
    assert await sports.views.rows("select * from circuit_breakers where state <> 'closed'") == []


@pytest.mark.req("L73", "L74", "L75", "L97", "L98")
async def test_the_questions_that_people_ask_are_answered(sports: Register) -> None:
    """On Postgres exactly as users have always written them."""
    sports.services.fail("mail")
    hour_ago = (
        "now() - interval '1 hour'"
        if sports.database_url.startswith("postgres")
        else ("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')")
    )
    async with sports.working():
        parent = await sports.jobs.enqueue("integration", {"lipas-id": 12345}, correlation_id="user-action-123")
        await sports.becomes(parent.id, State.COMPLETED)
        failing = await sports.jobs.enqueue(
            "email", {"to": "a@b.example", "template": "welcome", "data": {"name": "A"}}
        )
        await sports.becomes(failing.id, State.SCHEDULED)

        async def reported() -> bool:
            return len(sports.services.received) == 1

        await until(reported)
        await until(lambda: _all_completed(sports))
        sports.services.hold("copy")
        held = await sports.jobs.enqueue("integration", {"lipas-id": 12346})
        await sports.becomes(held.id, State.RUNNING)
        stuck = (
            "select id, type, status, attempts, created_at, started_at from jobs"
            f" where status = 'processing' and started_at < {hour_ago}"
        )
        assert await sports.views.rows(stuck) == [], "it has only begun"
        await sports.views.rows(
            "update dutiful.lease set claimed_at = claimed_at - interval '2 hours'"
            if sports.database_url.startswith("postgres")
            else "update dutiful_lease set claimed_at = claimed_at - 2 * 3600 * 1000000"
        )
        (row,) = await sports.views.rows(stuck)
        assert (str(row["id"]), row["type"], row["status"]) == (str(held.id), "integration", "processing")
        assert row["attempts"] == 1 and _moment(row["started_at"]) < _moment(row["created_at"]) - timedelta(hours=1)
        sports.services.release("copy")
        await sports.becomes(held.id, State.COMPLETED)
    (failures,) = await sports.views.rows(
        "select type, count(*) as failures, max(last_error_at) as latest_failure from jobs"
        f" where status = 'failed' and last_error_at > {hour_ago} group by type"
    )
    assert (failures["type"], failures["failures"]) == ("email", 1) and failures["latest_failure"] is not None
    traced = await sports.views.rows(
        "select id, type, status, created_at, completed_at, error_message from jobs"
        " where correlation_id = 'user-action-123' order by created_at"
    )
    assert [(row["type"], row["status"]) for row in traced] == [("integration", "completed"), ("webhook", "completed")]
    (pair,) = await sports.views.rows(
        "select j1.id as parent_id, j1.type as parent_type, j2.id as child_id, j2.type as child_type"
        " from jobs j1 join jobs j2 on j1.id = j2.parent_job_id where j1.correlation_id = 'user-action-123'"
    )
    assert (pair["parent_type"], pair["child_type"]) == ("integration", "webhook")
    assert [str(pair[name]) for name in ("parent_id", "child_id")] == [str(row["id"]) for row in traced]


async def _all_completed(sports: Register) -> bool:
    jobs = await sports.jobs.by_correlation("user-action-123")
    return len(jobs) == 2 and all(job.state is State.COMPLETED for job in jobs)


@pytest.mark.req("L28", "L29")
def test_a_command_creates_the_views_for_the_processes_of_the_readme(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    own = {"DUTIFUL_DATABASE_URL": f"sqlite:///{database}", "SPORTS_FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "examples.sports_sites", "--views"]
    for _ in range(2):  # it may be repeated
        made = subprocess.run(command, env=os.environ | own, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (made.returncode, made.stderr) == (0, "")
    assert "job_queue_health" in made.stdout
    own |= {"DUTIFUL_APP": "examples.sports_sites.main:app"}
    enqueue = [sys.executable, "-m", "dutiful.cli", "enqueue", "integration", "lipas-id=12345"]
    subprocess.run(enqueue, env=os.environ | own, cwd=ROOT, check=True, timeout=60)
    # A person's own SQLite may be old, as Python's is; it has to know the words of the views, too.
    with closing(sqlite3.connect(database)) as connection:
        (found,) = connection.execute("select * from job_queue_health order by type, status").fetchall()
        (times,) = connection.execute("select scheduled_at, run_at, created_at, updated_at from jobs").fetchall()
    assert found[:3] == ("integration", "pending", 1) and found[3] == found[4] == times[2]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]{12}Z", time) for time in times), times
