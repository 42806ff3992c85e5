"""The example practice: dead letters, who may see them, and what a manager makes of them."""

import gzip
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from practice import HERE, THERE, Practice, practice, reception, until

from dutiful import ReviewState, Role, State
from dutiful.core import ids
from examples.practice.audit_names import audit_name
from examples.practice.firms import Firm
from examples.practice.payload_validator import PayloadValidator
from examples.practice.record import Status
from examples.practice.sample_data import CLOSED_CALENDAR, CONNECTION

NOTES = "Fixed validation issue in source data, safe to reprocess"
SKEW = timedelta(seconds=1)  # between the clocks of the database and of the test


@pytest.fixture
async def platform(app_url: str, tmp_path: Path) -> AsyncIterator[Practice]:
    async with practice(app_url, tmp_path) as made:
        yield made


# --- how a job becomes one


@pytest.mark.req("W32", "W34", "W35", "W36", "W37", "W38", "W39", "W66", "W68")
async def test_an_error_that_cannot_pass_makes_a_dead_letter_at_once(platform: Practice) -> None:
    before, key, correlation_id = datetime.now(UTC), "email_parse_conn_456_msg_790", str(uuid4())
    references = {"connection_id": CONNECTION, "external_message_id": "msg_790"}
    fetched = await platform.fetch("msg_790")
    async with platform.working():
        await platform.ended(fetched.id)
        await platform.quiet()
    (first,) = await platform.app.tenant(str(HERE)).dead_letters()
    assert first.correlation_id == str(fetched.correlation_id), "which its chain began with"
    after = datetime.now(UTC)

    payload = PayloadValidator.create_payload(HERE, correlation_id, f"{key}_again", **references)
    async with platform.working():
        job = await platform.ended((await platform.queue().create("email_ingestion_parse", payload)).id)
    letter = await platform.dead_letter(job.id)
    assert (letter.status, letter.error_class, letter.attempt) == (ReviewState.PENDING_REVIEW, "non_retryable", 1)
    assert letter.payload == payload and letter.correlation_id == correlation_id
    assert before - SKEW < first.created_at <= first.died_at < after + SKEW
    assert after - SKEW < letter.created_at <= letter.died_at < datetime.now(UTC) + SKEW
    assert (first.unique_key, letter.unique_key) == (key, f"{key}_again")
    assert "does not say who wrote it" in str(letter.message)
    assert [error["message"] for error in letter.errors] == [letter.message] and letter.history == []


@pytest.mark.req("W33", "W34", "W35", "W36", "W37", "W66", "W69")
async def test_the_fifth_failure_makes_a_dead_letter_with_all_five_errors(platform: Practice) -> None:
    visit = platform.samples[HERE].appointments[1]
    job = await platform.create("calendar_sync_push", "push", calendar_id=CLOSED_CALENDAR, appointment_id=visit)
    operator = await platform.app.operator()
    async with platform.working():
        for attempt in range(1, 5):

            async def waits(attempt: int = attempt) -> bool:
                record = await platform.app.find(job.id)
                return record is not None and (record.state, record.attempt) == (State.SCHEDULED, attempt)

            await until(waits)
            await operator.jobs.retry(job.id, "not in the mood to wait")
        failed = await platform.ended(job.id)
    letter = await platform.dead_letter(job.id)
    assert (failed.attempt_count, letter.attempt, letter.max_attempts) == (5, 5, 5)
    assert [one["attempt"] for one in letter.history] == [1, 2, 3, 4]
    assert all("503" in one["error"]["message"] for one in letter.history)
    assert (letter.error_class, letter.created_at, letter.payload) == ("transient", job.created_at, job.payload)


# --- review


@pytest.mark.req("W40", "W41", "W42", "W50", "W51", "W52", "W53")
async def test_a_manager_lists_looks_and_counts_over_http(platform: Practice) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    letter = await platform.dead_letter(await platform.poisoned())
    async with reception(platform) as enter:
        manager = await enter()
        listed = (await manager.get("/dlq/")).json()
        (item,) = listed["dlq_items"]
        assert listed["total_count"] == 1
        assert item == {
            "dlq_id": ids.public(letter.id),
            "tenant": letter.tenant,
            "category": "ingestion",
            "job_type": "email_ingestion_parse",
            "status": "pending_review",
            "idempotency_key": "email_parse_conn_456_msg_790",
            "correlation_id": letter.correlation_id,
            "error_class": "non_retryable",
            "error_message": letter.message,
            "attempt_count": 1,
            "original_created_at": _json_time((await platform.seen(letter.id)).created_at),
            "created_at": _json_time(letter.died_at),
        }
        assert before < letter.created_at <= letter.died_at < datetime.now(UTC) + timedelta(seconds=1)
        detail = (await manager.get(f"/dlq/{item['dlq_id']}/")).json()
        assert item.items() <= detail.items()
        assert detail["payload"] == {
            "tenant_id": HERE,
            "correlation_id": letter.correlation_id,
            "idempotency_key": "email_parse_conn_456_msg_790",
            "payload_version": "1.0",
            "connection_id": CONNECTION,
            "external_message_id": "msg_790",
        }
        counts = (await manager.get("/dlq/statistics/")).json()
        assert (counts["by_category"], counts["by_status"]["pending_review"]) == ({"ingestion": 1}, 1)

        for given, found in (
            ({"status": "completed"}, ["email_ingestion_fetch"]),
            ({"category": "ingestion"}, ["email_ingestion_parse", "email_ingestion_fetch"]),
            ({"category": "sync"}, []),
            ({"job_type": "email_ingestion_parse"}, ["email_ingestion_parse"]),
            ({"correlation_id": letter.correlation_id}, ["email_ingestion_parse", "email_ingestion_fetch"]),
            ({"tenant": str(HERE), "error_class": "non_retryable"}, ["email_ingestion_parse"]),
        ):
            jobs = (await manager.get("/queue/", **given)).json()["jobs"]
            assert [job["job_type"] for job in jobs] == found, given
        stats = (await manager.get("/queue/statistics/")).json()
        assert (stats["finished"], stats["dead_letters"]) == ({"completed": 1, "failed": 1}, 1)


def _json_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


@pytest.mark.req("W43", "W44", "W45", "W46", "W47", "W48", "W66", "W68")
async def test_reprocessing_makes_a_new_job_that_differs_by_its_key_alone_and_is_on_record(platform: Practice) -> None:
    letter = await platform.dead_letter(await platform.poisoned())
    async with reception(platform) as enter:
        manager, path, asked = await enter(), f"/dlq/{ids.public(letter.id)}", datetime.now(UTC)
        answer = (await manager.post(f"{path}/reprocess/", {"notes": NOTES})).json()
        assert (answer["message"], answer["dlq_id"]) == ("DLQ item reprocessed successfully", ids.public(letter.id))
        key = answer["new_idempotency_key"]
        assert re.fullmatch(r"email_parse_conn_456_msg_790_retry_\d{10}\.\d{3}", key)
        made = datetime.fromtimestamp(float(key.rpartition("_")[2]), UTC)
        assert asked - SKEW < made < datetime.now(UTC) + SKEW, "with the time at which it was asked for"
        new = await platform.seen(ids.parse_any(answer["new_job_id"]))
        assert new.payload == {**letter.payload, "idempotency_key": key}
        old = await platform.seen(letter.id)
        assert (new.idempotency_key, new.correlation_id, new.tenant) == (key, old.correlation_id, HERE)
        assert (new.job_type, new.priority, new.max_attempts) == (old.job_type, old.priority, old.max_attempts)

        for act in ("reprocess", "discard"):
            assert (await manager.post(f"{path}/{act}/", {"notes": "once more"})).status_code == 409
        after = await platform.dead_letter(letter.id)
        assert after.status is ReviewState.REPROCESSING and after.new_job_id == new.id
        assert (after.payload, after.errors, after.history) == (letter.payload, letter.errors, letter.history)

        events = (await manager.get("/audit/", target=ids.public(letter.id))).json()["events"][::-1]
        names = [(audit_name(one["action"], one["outcome"]), one["principal"], one["reason"]) for one in events]
        assert names[:2] == [
            ("job_dlq_reprocess_requested", "manager of 123", NOTES),
            ("job_dlq_reprocess_success", "manager of 123", NOTES),
        ]
        assert events[1]["after"]["new_job"] == answer["new_job_id"], "success is recorded once the new job exists"
        assert [name for name, *_ in names if name.endswith("success")] == ["job_dlq_reprocess_success"]


@pytest.mark.req("W49")
async def test_a_discarded_dead_letter_is_kept_and_on_record(platform: Practice) -> None:
    letter = await platform.dead_letter(await platform.poisoned())
    async with reception(platform) as enter:
        manager, path = await enter(), f"/dlq/{ids.public(letter.id)}"
        answer = await manager.post(f"{path}/discard/", {"notes": "an advertisement"})
        assert (answer.status_code, answer.json()["status"]) == (200, "discarded")
        events = (await manager.get("/audit/", action="dead_letter.discard")).json()["events"][::-1]
        assert [audit_name(one["action"], one["outcome"]) for one in events] == [
            "job_dlq_discard_requested",
            "job_dlq_discard_success",
        ]
    after = await platform.dead_letter(letter.id)
    assert (after.status, after.notes, after.payload) == (ReviewState.DISCARDED, "an advertisement", letter.payload)


@pytest.mark.req("W53", "W54", "W55", "W67", "W68")
async def test_every_endpoint_is_for_managers_of_the_firm_alone(platform: Practice) -> None:
    letter = await platform.dead_letter(await platform.poisoned())
    one = f"/dlq/{ids.public(letter.id)}"
    reads = ("/queue/", "/queue/statistics/", "/dlq/", "/dlq/statistics/", f"{one}/")
    acts = (f"{one}/reprocess/", f"{one}/discard/")
    async with reception(platform) as enter:
        for role, status in ((None, 401), (Role.VIEWER, 403), (Role.STAFF, 403)):
            who = await enter(role)
            answers = [await who.get(path) for path in reads]
            answers += [await who.post(path, {"notes": NOTES}) for path in acts]
            assert [answer.status_code for answer in answers] == [status] * 7
        other = await enter(Role.MANAGER, THERE)
        assert [(await other.get(path)).status_code for path in reads] == [200, 200, 200, 200, 404]
        assert [(await other.post(path, {"notes": NOTES})).status_code for path in acts] == [404, 404]
        assert (await other.get("/dlq/")).json()["total_count"] == 0
        assert (await other.get("/queue/")).json()["jobs"] == []
        shown = "".join([(await other.get(path)).text for path in (*reads, "/audit/")])
        assert "msg_790" not in shown and letter.correlation_id not in shown
    assert (await platform.dead_letter(letter.id)).status is ReviewState.PENDING_REVIEW, "none of them changed anything"
    theirs = platform.queue(THERE)
    assert await theirs.get(letter.id) is None and await theirs.list() == []


# --- what a job may do twice, and what it may not do at all


async def test_every_job_may_run_again_and_nothing_is_there_twice(platform: Practice) -> None:
    ours, firm = platform.samples[HERE], platform.firms.firm(HERE)
    jobs = [
        await platform.fetch("msg_789"),
        await platform.create("calendar_sync_pull", "pull", calendar_id=31),
        await platform.create("recurrence_period_generate", "p", engagement_id=ours.engagement, until="2026-03-31"),
        await platform.create("orchestration_step_execute", "o", execution_id=ours.execution, step=0),
    ]
    platform.services.messages[f"{CONNECTION}/msg_790"] = platform.services.messages[f"{CONNECTION}/msg_789"]
    operator = await platform.app.operator()
    async with platform.working():
        for job in jobs:
            await platform.ended(job.id)
        before: dict[str, object] | None = None
        for _ in range(2):
            again = [(await operator.jobs.retry(job.id, "once more")).job_id for job in jobs]
            for job_id in again:
                assert (await platform.ended(job_id)).status is Status.COMPLETED
            rows = {table: len(found) for table, found in firm.dump().items()}
            assert before in (None, rows)
            before = dict(rows)
    assert rows["messages"] == 1 and rows["works"] <= 3 and rows["appointments"] == 4


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_nothing_is_purged_before_it_is_exported_and_nothing_of_others_ever(platform: Practice) -> None:
    export, before = platform.samples[HERE].export, platform.firms.firm(HERE).dump()
    others = platform.firms.firm(THERE).dump()

    async def done(job_type: str, export_id: int) -> None:
        job = await platform.create(job_type, f"{job_type}_{export_id}", export_id=export_id)
        assert (await platform.ended(job.id)).status is Status.COMPLETED

    async with platform.working():
        too_early = await platform.create("firm_purge", "purge", export_id=export)
        assert (await platform.ended(too_early.id)).error_class == "non_retryable"
        assert platform.firms.firm(HERE).dump() == before
        await done("firm_export", export)
        platform.firms.firm(HERE).run("add_client", name="Dora", address="dora@client.example")
        too_late = await platform.create("firm_purge", "purge_late", export_id=export)
        assert "another export" in str((await platform.ended(too_late.id)).error_message), "for Dora is not in this one"
        assert len(platform.firms.firm(HERE).dump()["clients"]) == len(before["clients"]) + 1
        another = platform.firms.firm(HERE).add("add_export")
        await done("firm_export", another)
        await done("firm_purge", another)
    assert not any(platform.firms.firm(HERE).dump().values())
    assert platform.firms.firm(THERE).dump() == others


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_the_archive_of_a_firm_that_left_stays_as_it_is_whatever_runs_again(platform: Practice) -> None:
    export, jobs = platform.samples[HERE].export, []
    operator = await platform.app.operator()
    archive = platform.firms.folder / "exports" / f"firm-{HERE}-{export}.zip"
    async with platform.working():
        for job_type in ("firm_export", "firm_purge"):
            jobs.append(await platform.create(job_type, job_type, export_id=export))
            assert (await platform.ended(jobs[-1].id)).status is Status.COMPLETED
        before = archive.read_bytes()
        for job in jobs:
            again = (await operator.jobs.retry(job.id, "once more")).job_id
            assert (await platform.ended(again)).status is Status.COMPLETED
    assert archive.read_bytes() == before


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_work_is_put_away_once_though_the_first_attempt_ends_too_early(
    platform: Practice, monkeypatch: pytest.MonkeyPatch
) -> None:
    firm, engagement = platform.firms.firm(HERE), platform.samples[HERE].engagement
    for month in ("2026-01", "2026-02"):
        firm.run("add_period", engagement_id=engagement, month=month)
    for period in firm.all("periods", engagement_id=engagement):
        firm.run("add_work", period_id=period["id"])
    first, second = (work["id"] for work in firm.all("works"))
    firm.run("close_work", id=first, closed_on="2026-01-31")
    run = Firm.run

    def fail_after_removal(self: Firm, statement: str, /, **params: Any) -> None:
        run(self, statement, **params)
        if statement == "remove_closed_works":
            monkeypatch.undo()
            run(self, "close_work", id=second, closed_on="2026-02-10")  # another user does meanwhile
            raise TimeoutError

    monkeypatch.setattr(Firm, "run", fail_after_removal)
    job = await platform.create("data_archival", "archive", run_id=1, before="2026-02-28")
    operator = await platform.app.operator()

    def put_away() -> list[int]:
        files = (firm.folder / "archive").iterdir()
        return sorted(json.loads(line)["id"] for file in files for line in gzip.open(file, "rt"))

    async with platform.working():
        await until(lambda: platform.attempts(job.id))
        await operator.jobs.retry(job.id, "not in the mood to wait")
        assert (await platform.ended(job.id)).attempt_count == 2
        assert sorted(put_away() + [work["id"] for work in firm.all("works")]) == [first, second]
        again = (await operator.jobs.retry(job.id, "for what was closed meanwhile")).job_id
        await platform.ended(again)
    assert (put_away(), firm.all("works")) == ([first, second], [])
