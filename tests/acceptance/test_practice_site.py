"""The example practice: its own site, its admin API in its own words, and jobs that a program claims by hand."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from bad_bodies import check_refusals
from practice import HERE, THERE, Practice, desk, practice, until

from dutiful import ClaimLost, ReviewState, State, UsageError
from dutiful.core import ids
from dutiful.core.job import NewJob
from dutiful.core.outcome import Lost
from dutiful.core.settle import Policy, decide
from examples.practice.by_hand import ClaimableJob
from examples.practice.ingestion import maildir
from examples.practice.queue import JobQueue
from examples.practice.record import Status
from examples.practice.sample_data import CONNECTION

ADMIN = "/api/jobs/admin"
WRITTEN = {"sender": "eve@other.example", "subject": "Papers"}
NOTES = {"notes": "Fixed validation issue in source data, safe to reprocess"}


@pytest.fixture
async def platform(app_url: str, tmp_path: Path) -> AsyncIterator[Practice]:
    async with practice(app_url, tmp_path) as made:
        yield made


# --- the three gates


@pytest.mark.req("W53", "W54", "W55", "W67")
async def test_each_endpoint_needs_a_session_and_staff_and_a_manager(platform: Practice) -> None:
    letter = await platform.dead_letter(await platform.poisoned())
    one = f"{ADMIN}/dlq/{ids.public(letter.id)}"
    reads = [f"{ADMIN}/{path}" for path in ("queue/", "queue/statistics/", "dlq/", "dlq/statistics/", "audit/")]
    acts = (f"{one}/reprocess/", f"{one}/discard/")
    repair = f"/site/dlq/{ids.public(letter.id)}/repair"
    async with desk(platform) as enter:
        # max is a manager, and no staff: both are needed.
        for name, status in ((None, 401), ("sue", 403), ("max", 403)):
            who = await enter(name)
            answers = [await who.get(path) for path in (*reads, f"{one}/")]
            answers += [await who.post(path, json=NOTES) for path in acts]
            answers += [await who.post(repair, json=WRITTEN)]
            assert [answer.status_code for answer in answers] == [status] * 9, name
        mary, otto = await enter("mary"), await enter("otto")
        assert (await otto.post(repair, json=WRITTEN)).status_code == 404
        assert [(await mary.get(path)).status_code for path in (*reads, f"{one}/")] == [200] * 6
        assert [(await otto.get(path)).status_code for path in (*reads, f"{one}/")] == [200] * 5 + [404]
        assert "msg_790" not in "".join([(await otto.get(path)).text for path in reads])
        assert (await mary.post(repair, json=WRITTEN)).status_code == 204
        firm, known = platform.firms.firm(HERE), {"connection_id": CONNECTION, "external_id": "msg_790"}
        message = firm.one("message", **known)
        assert message is not None
        firm.run("read_message", id=message["id"], sender="eve@other.example", subject="Papers", client_id=None)
        assert (await mary.post(repair, json=WRITTEN)).status_code == 409, "it has been read"
        nobody = await enter(None)
        assert (await nobody.post("/site/session", json={"name": "mary", "password": "no"})).status_code == 401
        assert (await nobody.get("/site/mail")).status_code == 401
    assert (await platform.dead_letter(letter.id)).status is ReviewState.PENDING_REVIEW


async def test_what_cannot_be_a_text_is_refused_by_its_field(platform: Practice) -> None:
    async with desk(platform) as enter:
        mary = await enter("mary")
        await check_refusals(mary, "POST", "/site/session", {"name": "mary", "password": "no"})
        for path in ("/site/mail", "/site/dlq/x/repair"):
            await check_refusals(mary, "POST", path, {**WRITTEN, "damaged": False})
            for field, value in (("subject", "a\0b"), ("sender", "eve\0@other.example"), ("subject", "a\r\nTo: b")):
                refused = await mary.post(path, json={**WRITTEN, field: value})
                assert (refused.status_code, refused.json()["detail"][0]["loc"][-1]) == (422, field)
        assert (await mary.get("/site/mail")).json() == []


async def test_a_page_that_is_old_writes_nothing_into_a_message_that_was_decided(platform: Practice) -> None:
    letter = await platform.dead_letter(await platform.poisoned())
    firm = platform.firms.firm(HERE)
    row = firm.one("message", connection_id=CONNECTION, external_id="msg_790")
    assert row is not None
    kept = maildir(firm, CONNECTION).get_bytes(row["maildir_key"])
    async with desk(platform) as enter:
        mary = await enter("mary")
        discarded = await mary.post(f"{ADMIN}/dlq/{ids.public(letter.id)}/discard/", json=NOTES)
        assert discarded.status_code == 200
        refused = await mary.post(f"/site/dlq/{ids.public(letter.id)}/repair", json=WRITTEN)
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            "the dead letter of this message is discarded already: nothing was written",
        )
        other = await platform.fetch("msg_789")
        for unknown, status in ((ids.public(other.id), 404), ("nonsense", 422)):
            assert (await mary.post(f"/site/dlq/{unknown}/repair", json=WRITTEN)).status_code == status
    assert maildir(firm, CONNECTION).get_bytes(row["maildir_key"]) == kept


# --- the platform's own words


@pytest.mark.req("W44", "W47", "W48")
async def test_the_api_serves_audit_events_by_the_platforms_names(platform: Practice) -> None:
    letter = await platform.dead_letter(await platform.poisoned())
    async with desk(platform) as enter:
        mary = await enter("mary")
        assert (await mary.post(f"{ADMIN}/dlq/{ids.public(letter.id)}/acknowledge/", json=NOTES)).status_code == 200
        answer = (await mary.post(f"{ADMIN}/dlq/{ids.public(letter.id)}/reprocess/", json=NOTES)).json()
        events = (await mary.get(f"{ADMIN}/audit/")).json()["events"][::-1]
    assert [(one["event"], one["principal"], one["reason"]) for one in events] == [
        ("job_dlq_acknowledge_requested", "mary", NOTES["notes"]),
        ("job_dlq_acknowledge_success", "mary", NOTES["notes"]),
        ("job_dlq_reprocess_requested", "mary", NOTES["notes"]),
        ("job_dlq_reprocess_success", "mary", NOTES["notes"]),
    ]
    assert events[-1]["after"]["new_job"] == answer["new_job_id"]
    assert answer["message"] == "DLQ item reprocessed successfully"


@pytest.mark.req("W51", "W52")
@pytest.mark.parametrize("slash", ["/", ""])
async def test_the_queue_is_listed_and_counted_by_the_platforms_statuses(platform: Practice, slash: str) -> None:
    platform.services.hold(f"{CONNECTION}/msg_789")
    later = datetime.now(UTC) + timedelta(hours=1)
    await platform.fetch("msg_791", scheduled_at=later)
    async with desk(platform) as enter, platform.working():
        held = await platform.fetch("msg_789")
        await until(lambda: _is(platform, held.id, Status.PROCESSING))
        mary = await enter("mary")

        async def listed(status: str) -> list[tuple[str, str]]:
            jobs = (await mary.get(f"{ADMIN}/queue{slash}", params={"status": status})).json()["jobs"]
            return [(job["idempotency_key"].rpartition("_conn_")[2], job["status"]) for job in jobs]

        assert await listed("pending") == [("456_msg_791", "pending")]
        assert await listed("processing") == [("456_msg_789", "processing")]
        assert await listed("completed") == []
        counted = (await mary.get(f"{ADMIN}/queue/statistics{slash}")).json()["by_status"]
        assert counted == {"pending": 1, "processing": 1, "completed": 0, "failed": 0, "cancelled": 0}
        for word in ("asleep", "ready"):
            refused = await mary.get(f"{ADMIN}/queue{slash}", params={"status": word})
            assert refused.status_code == 422
            assert refused.json()["detail"] == (
                f"there is no status {word!r}; there are: pending, processing, completed, failed, cancelled"
            )
        assert (await (await enter(None)).get(f"{ADMIN}/queue/", params={"status": "asleep"})).status_code == 401
        platform.services.release(f"{CONNECTION}/msg_789")
        await platform.ended(held.id)


async def _is(platform: Practice, job_id: UUID, status: Status) -> bool:
    return (await platform.seen(job_id)).status is status


@pytest.mark.req("W31", "W41")
async def test_times_are_those_at_which_things_happened(platform: Practice) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    due = datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
    dead = await platform.poisoned()
    planned = await platform.fetch("msg_791", scheduled_at=due)
    after = datetime.now(UTC) + timedelta(seconds=1)
    job = await platform.seen(dead)
    assert (await platform.seen(planned.id)).scheduled_at == due
    assert job.scheduled_at == job.created_at and before < job.scheduled_at < after
    async with desk(platform) as enter:
        mary = await enter("mary")
        (item,) = (await mary.get(f"{ADMIN}/dlq/")).json()["dlq_items"]
        jobs = (await mary.get(f"{ADMIN}/queue/")).json()["jobs"]
    original, died = (datetime.fromisoformat(item[name]) for name in ("original_created_at", "created_at"))
    assert original == job.created_at
    assert original <= died and before < died < after
    listed = {one["job_id"]: datetime.fromisoformat(one["scheduled_at"]) for one in jobs}
    assert (listed[ids.public(planned.id)], listed[ids.public(dead)]) == (due, job.created_at)


# --- odd rows


@pytest.mark.req("W17", "W67")
async def test_rows_that_break_the_rules_hide_no_others(platform: Practice) -> None:
    good = await platform.fetch("msg_789")
    store = (await platform.app.client()).store
    odd: list[dict[str, Any]] = [
        {"payload": "{}", "kind": "email_ingestion_fetch"},
        {"payload": '{"tenant_id": "x", "payload_version": 1, "idempotency_key": []}', "kind": "gardening"},
        {"payload": "{}", "kind": "firm_purge", "correlation_id": "no-uuid"},
    ]
    await store.jobs.insert([NewJob(platform.app.new_id(), queue="default", tenant=str(HERE), **one) for one in odd])
    assert good.id in [job.id for job in await platform.queue().list()]
    assert len(await platform.queue().list()) == 4
    async with desk(platform) as enter:
        jobs = (await (await enter("mary")).get(f"{ADMIN}/queue/")).json()["jobs"]
    assert len(jobs) == 4
    assert await platform.queue(THERE).list() == []


# --- claimed by hand


@pytest.mark.req("W18", "W19", "W20", "W21", "W22", "W23", "W28")
async def test_a_program_claims_the_next_job_and_its_loser_gets_nothing(platform: Practice) -> None:
    await platform.fetch("msg_790")
    urgent = await platform.fetch("msg_789", priority=1)
    await platform.fetch("msg_far", priority=0, scheduled_at=datetime.now(UTC) + timedelta(hours=1))
    await platform.create("email_ingestion_fetch", "theirs", THERE, connection_id=7, external_message_id="msg_1")
    one, two = [await platform.queue().next_pending() for _ in range(2)]
    assert one is not None and two is not None and one.id == two.id == urgent.id

    assert await one.claim_for_processing(worker_id="worker-1")
    assert not await two.claim_for_processing(worker_id="worker-2")
    assert (await one.record()).status is Status.PROCESSING
    with pytest.raises(ClaimLost):
        await two.mark_completed({"fetched_count": 0})
    assert not await one.claim_for_processing(worker_id="worker-1"), "and it still holds the first claim"
    await one.mark_completed(result={"fetched_count": 10})

    done = await one.record()
    assert (done.status, done.result, done.attempt_count) == (Status.COMPLETED, {"fetched_count": 10}, 1)
    following = await platform.queue().next_pending()
    assert following is not None and following.payload["external_message_id"] == "msg_790"
    assert (await following.record()).attempt_count == 0, "a loser is not given another job"


@pytest.mark.req("W21")
async def test_the_next_job_is_found_among_more_than_a_list_shows(
    platform: Practice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.practice.queue.PAGE", 2)
    for number in range(3):
        await platform.fetch(f"msg_early_{number}")
    urgent = await platform.fetch("msg_urgent", priority=1)
    for number in range(4):
        await platform.fetch(f"msg_late_{number}")
    await platform.fetch("msg_overdue", scheduled_at=datetime.now(UTC) - timedelta(hours=1))

    order = []
    while (job := await platform.queue().next_pending()) is not None:
        assert await job.claim_for_processing("worker-1")
        order.append(job.payload["external_message_id"])

    early, late = (f"msg_early_{n}" for n in range(3)), (f"msg_late_{n}" for n in range(4))
    assert order == [urgent.payload["external_message_id"], "msg_overdue", *early, *late]


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
@pytest.mark.req("W19", "W23")
async def test_a_program_does_not_wait_for_a_job_that_another_is_claiming(platform: Practice) -> None:
    await platform.fetch("msg_789")
    job = await platform.queue().next_pending()
    assert job is not None
    other = await asyncpg.connect(platform.database_url)
    try:
        async with other.transaction():
            await other.execute("select from dutiful.ready where job_id = $1 for update", job.id)
            assert not await asyncio.wait_for(job.claim_for_processing("worker-1"), 20)
    finally:
        await other.close()
    assert await job.claim_for_processing("worker-1")


async def test_a_program_claims_exactly_the_job_that_it_names(platform: Practice) -> None:
    """Whatever its place in the queue, and also after a crash of its worker."""
    made = [await platform.fetch(message) for message in ("msg_789", "msg_790", "msg_791")]
    found = [await platform.app.find(one.id) for one in made]
    first, second, third = [ClaimableJob(platform.app, job) for job in found if job is not None]
    assert await second.claim_for_processing("worker-2")
    assert not await second.claim_for_processing("worker-1")
    assert [(await one.record()).status for one in (first, second, third)] == [
        Status.PENDING,
        Status.PROCESSING,
        Status.PENDING,
    ]
    store = (await platform.app.client()).store
    held = await store.claims.held(second.id)
    assert held is not None
    assert await store.claims.settle([decide(held, Lost(), Policy(), 3, lambda low, high: low)]) == []
    await store.promotion.promote(10, now=datetime.now(UTC) + timedelta(hours=1))
    crashed = await platform.app.find(second.id)
    assert crashed is not None and crashed.state is State.READY and crashed.crashes == 1
    assert await second.claim_for_processing("worker-3") and await first.claim_for_processing("worker-1")
    await second.mark_completed()
    await first.mark_completed()
    assert (await third.record()).attempt_count == 0


async def test_a_retry_that_is_due_is_pending_without_a_worker(platform: Practice) -> None:
    await platform.fetch("msg_789")
    job = await platform.queue().next_pending()
    assert job is not None and await job.claim_for_processing("worker-1")
    await job.mark_failed("transient", "the server is busy", should_retry=True)
    again = await until(platform.queue().next_pending)
    assert again.id == job.id and await again.claim_for_processing("worker-1")
    await again.mark_completed()
    assert (await again.record()).attempt_count == 2


@pytest.mark.req("W29", "W32", "W34", "W57", "W58", "W66")
async def test_a_program_marks_a_job_failed_and_the_policy_decides(platform: Practice) -> None:
    await platform.fetch("msg_789")
    job = await platform.queue().next_pending()
    assert job is not None and await job.claim_for_processing("worker-1")
    with pytest.raises(UsageError, match="error_class: there is no 'hopeless'; there are: transient, retryable"):
        await job.mark_failed("hopeless", "the server is busy", should_retry=True)
    asked = datetime.now(UTC)
    await job.mark_failed("transient", "the server is busy", should_retry=True)
    waiting = await job.record()
    assert (waiting.status, waiting.error_class, waiting.error_message) == (
        Status.PENDING,
        "transient",
        "the server is busy",
    )
    assert timedelta(seconds=1.5) < waiting.scheduled_at - asked < timedelta(seconds=2.6 + 5)

    await platform.fetch("msg_791")
    other = await platform.queue().next_pending()
    assert other is not None and await other.claim_for_processing("worker-1")
    await other.mark_failed("non_retryable", "Validation error: invalid payload", should_retry=False)
    letter = await platform.dead_letter(other.id)
    assert (letter.status, letter.error_class) == (ReviewState.PENDING_REVIEW, "non_retryable")
    assert letter.message == "Validation error: invalid payload"


@pytest.mark.req("W30")
async def test_the_message_of_a_job_marked_failed_is_cut_as_the_settings_say(platform: Practice) -> None:
    for limit, settings in ((500, {}), (40, {"error_message_limit": 40})):
        app = platform.another_app(**settings)
        async with app:
            await platform.fetch(f"msg_{limit}")
            job = await JobQueue(app, HERE).next_pending()
            assert job is not None and await job.claim_for_processing("worker-1")
            await job.mark_failed("non_retryable", "ä" * 600, should_retry=False)
            failed = await job.record()
        assert failed.error_message is not None and len(failed.error_message) == limit


# --- run again


@pytest.mark.req("W18", "W25", "W68")
async def test_running_a_job_again_over_http_keeps_its_key(platform: Practice) -> None:
    first = await platform.fetch("msg_789")
    async with platform.working():
        await platform.ended(first.id)
        await platform.quiet()
    async with desk(platform) as enter:
        mary = await enter("mary")
        again = (await mary.post(f"{ADMIN}/jobs/{ids.public(first.id)}/retry/", json={})).json()
        copy = await platform.seen(ids.parse_any(again["job_id"]))
        assert (copy.idempotency_key, copy.payload) == (first.idempotency_key, first.payload)
        async with platform.working():
            await platform.ended(copy.id)
            await platform.quiet()
        third = (await mary.post(f"{ADMIN}/jobs/{again['job_id']}/retry/", json={})).json()
        refused = await mary.post(f"{ADMIN}/jobs/{ids.public(first.id)}/retry/", json={})
        assert (refused.status_code, refused.json()["job_id"]) == (409, third["job_id"])
        jobs = (await mary.get(f"{ADMIN}/queue/", params={"job_type": "email_ingestion_fetch"})).json()["jobs"]
    assert {job["idempotency_key"] for job in jobs} == {first.idempotency_key}
    assert not [job for job in jobs if re.search("retry of", str(job))]
