"""The example practice: how its jobs are claimed, kept apart, retried and recorded."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from practice import HERE, THERE, Practice, practice, until

from dutiful import ErrorClass, UniqueConflict
from examples.practice.record import QueueRecord, Status
from examples.practice.sample_data import ADA, CLOSED_CALENDAR, CONNECTION, OWN_CALENDAR, raw_mail
from examples.practice.service import RETRY, practice_app


@pytest.fixture
async def platform(app_url: str, tmp_path: Path) -> AsyncIterator[Practice]:
    async with practice(app_url, tmp_path) as made:
        yield made


# --- the record


@pytest.mark.req("W28", "W31", "W69")
async def test_a_jobs_record_has_everything_about_it(platform: Practice) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    asked = await platform.fetch("msg_789")
    assert (asked.status, asked.attempt_count, asked.result) == (Status.PENDING, 0, None)
    async with platform.working():
        done = await platform.ended(asked.id)
    record = msgspec.to_builtins(done)
    assert isinstance(done.worker_id, UUID) and before < done.created_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert done.scheduled_at == done.created_at, "it was due at once"
    assert done.payload["connection_id"] == CONNECTION and done.payload["external_message_id"] == "msg_789"
    assert set(record) - {"id", "worker_id", "created_at", "scheduled_at", "payload", "correlation_id"} == {
        "tenant", "category", "job_type", "payload_version", "idempotency_key", "priority", "status", "attempt_count",
        "max_attempts", "result", "error_class", "error_message",
    }  # fmt: skip
    assert (done.tenant, done.category, done.job_type) == (HERE, "ingestion", "email_ingestion_fetch")
    assert (done.payload_version, done.idempotency_key) == ("1.0", "email_fetch_conn_456_msg_789")
    assert done.correlation_id == UUID(done.payload["correlation_id"]) == asked.correlation_id
    assert (done.priority, done.max_attempts, done.attempt_count) == (2, 5, 1)
    assert (done.status, done.error_class, done.error_message) == (Status.COMPLETED, None, None)
    assert done.result == {"bytes": len(platform.services.messages["456/msg_789"])}


@pytest.mark.req("W29", "W30")
async def test_a_failure_is_recorded_with_its_class_and_a_message_of_at_most_500_characters(platform: Practice) -> None:
    elsewhere = replace(platform.addresses, mail=f"{platform.addresses.mail}/{'m' * 470}")
    job = await platform.fetch("msg_789")
    async with platform.working(practice_app(platform.database_url, platform.firms, elsewhere)):
        failed = await platform.ended(job.id)
    assert (failed.status, failed.error_class) == (Status.FAILED, "non_retryable")
    assert failed.error_message is not None
    assert "404" in failed.error_message and len(failed.error_message) <= 500
    (error,) = (await platform.dead_letter(job.id)).errors
    assert "m" * 470 in error["traceback"], "the traceback is kept apart, and whole"


# --- one job for each key


@pytest.mark.req("W18", "W25", "W26", "W27", "W65", "W68")
async def test_a_key_is_used_once_by_each_firm_for_ever(platform: Practice) -> None:
    other = platform.another_app()
    made = await asyncio.gather(*(platform.fetch("msg_789") for _ in range(5)), return_exceptions=True)
    jobs = [one for one in made if isinstance(one, QueueRecord)]
    assert sorted(type(one).__name__ for one in made) == ["QueueRecord", *["UniqueConflict"] * 4]
    async with platform.working():
        await platform.quiet()
    assert platform.services.fetched[f"{CONNECTION}/msg_789"] == 1
    with pytest.raises(UniqueConflict) as caught:
        await platform.fetch("msg_789")
    assert caught.value.existing == jobs[0].id, "also when it has ended"
    with pytest.raises(UniqueConflict):
        await platform.create("calendar_sync_pull", f"email_fetch_conn_{CONNECTION}_msg_789", calendar_id=31)
    elsewhere = await platform.fetch("msg_789", THERE)
    assert (elsewhere.idempotency_key, elsewhere.tenant) == (jobs[0].idempotency_key, THERE)
    await other.close()


# --- claims


@pytest.mark.req("W18", "W19", "W23", "W24", "W65", "W68")
async def test_two_workers_take_different_jobs_and_no_job_is_taken_twice(platform: Practice) -> None:
    names = [f"msg_{n}" for n in range(12)]
    platform.services.messages |= {f"{CONNECTION}/{name}": raw_mail(ADA, name) for name in names}
    for name in names[:2]:
        platform.services.hold(f"{CONNECTION}/{name}")
    one, two = (platform.another_app(lanes="only=1:*") for _ in range(2))
    async with platform.working(one), platform.working(two):
        held = [await platform.fetch(name) for name in names[:2]]

        # One of them may have claimed both, ahead of time; it gives back what it has no slot for.
        await until(lambda: _fetched(platform, 2))
        running = [await platform.seen(job.id) for job in held]
        assert {job.status for job in running} == {Status.PROCESSING}
        assert len({job.worker_id for job in running}) == 2
        for name in names[2:]:
            await platform.fetch(name)
        for name in names[:2]:
            platform.services.release(f"{CONNECTION}/{name}")
        await platform.quiet()
    assert platform.services.fetched == dict.fromkeys((f"{CONNECTION}/{name}" for name in names), 1)
    assert len(platform.firms.firm(HERE).all("messages")) == len(names)


@pytest.mark.req("W20", "W21", "W69")
async def test_jobs_are_taken_when_due_by_priority_then_by_time(platform: Practice) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    waiting = await platform.fetch("msg_far", priority=0, scheduled_at=later)
    order = {"normal_1": 2, "normal_2": 2, "last": 3, "first": 1, "normal_3": 2, "overdue": 2}
    for name, priority in order.items():
        platform.services.messages[f"{CONNECTION}/{name}"] = raw_mail(ADA, name)
        due = later - timedelta(hours=2) if name == "overdue" else None
        await platform.fetch(name, priority=priority, scheduled_at=due)
    worker = platform.another_app(lanes="only=1:*", batch=1)
    async with platform.working(worker):
        await until(lambda: _fetched(platform, len(order)))
    fetched = [name.partition("/")[2] for name in platform.services.fetched]
    assert fetched == ["first", "overdue", "normal_1", "normal_2", "normal_3", "last"]
    assert (await platform.seen(waiting.id)).status is Status.PENDING


async def _fetched(platform: Practice, count: int) -> bool:
    return len(platform.services.fetched) >= count


@pytest.mark.req("W22", "W67")
async def test_a_worker_can_be_for_one_firm_only(platform: Practice) -> None:
    theirs = await platform.fetch("msg_789", THERE)
    ours = await platform.fetch("msg_789", HERE)
    worker = platform.another_app(claim_tenants=[str(HERE)])
    async with platform.working(worker):
        await platform.ended(ours.id)
    assert (await platform.seen(theirs.id, THERE)).attempt_count == 0


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_job_of_what_is_not_there_is_a_dead_letter_at_once(platform: Practice) -> None:
    ours = platform.samples[HERE]
    made = [
        await platform.create("orchestration_step_execute", "before", execution_id=ours.execution, step=-1),
        await platform.create("orchestration_step_execute", "beyond", execution_id=ours.execution, step=3),
        await platform.create("recurrence_work_create", "work", engagement_id=ours.engagement, period_id=99),
    ]
    async with platform.working():
        ended = [await platform.ended(job.id) for job in made]
    assert [(job.status, job.error_class) for job in ended] == [(Status.FAILED, "non_retryable")] * 3
    assert len(await platform.queue().list()) == 3, "none of them went on"


@pytest.mark.req("W67")
async def test_a_job_reaches_no_mailbox_and_no_calendar_of_another_firm(platform: Practice) -> None:
    visit = platform.samples[THERE].appointments[0]
    made = [
        await platform.fetch("msg_789", THERE),
        await platform.create(
            "email_ingestion_fetch", "up", THERE, connection_id=7, external_message_id="../456/msg_789"
        ),
        await platform.create("calendar_sync_pull", "pull", THERE, calendar_id=OWN_CALENDAR),
        await platform.create("calendar_sync_push", "push", THERE, calendar_id=OWN_CALENDAR, appointment_id=visit),
    ]
    before = platform.firms.firm(THERE).dump()
    async with platform.working():
        ended = [await platform.ended(job.id, THERE) for job in made]
    assert [(job.status, job.error_class) for job in ended] == [(Status.FAILED, "non_retryable")] * 4
    assert "404" in str(ended.pop(1).error_message), "no id leads to another mailbox"
    assert [str(job.error_message).partition(":")[0] for job in ended] == [
        f"firm {THERE} has no such {what}" for what in ("connection", "calendar", "calendar")
    ]
    assert platform.firms.firm(THERE).dump() == before
    assert platform.services.fetched == {} and len(platform.services.calendars[str(OWN_CALENDAR)]) == 2


# --- errors


@pytest.mark.req("W56", "W62", "W63", "W68")
async def test_errors_are_of_four_classes_for_jobs_and_the_steps_of_workflows_alike(platform: Practice) -> None:
    platform.services.slow_down(f"{CONNECTION}/msg_789", 5)
    firm = platform.firms.firm(HERE)
    (firm.folder / "documents" / "bill.txt").unlink()
    (firm.folder / "clients").write_text("in the way of the workflow's first step")
    ours = platform.samples[HERE]
    jobs = {
        "rate_limited": await platform.fetch("msg_789"),
        "transient": await platform.create(
            "calendar_sync_push", "push", calendar_id=CLOSED_CALENDAR, appointment_id=ours.appointments[1]
        ),
        "retryable": await platform.create("document_scan", "scan", document_id=ours.documents[0]),
        "retryable, too": await platform.create("orchestration_step_execute", "s", execution_id=ours.execution, step=0),
        "non_retryable": await platform.create("orchestration_step_execute", "t", execution_id=999, step=0),
    }
    async with platform.working():
        for name, job in jobs.items():
            if name == "non_retryable":
                assert (await platform.ended(job.id)).error_class == name
                continue
            errors = await until(lambda job=job: platform.attempts(job.id))  # type: ignore[misc]
            assert errors[0]["class"] == name.partition(",")[0]
            waiting = await platform.seen(job.id)
            assert (waiting.status, waiting.max_attempts) == (Status.PENDING, 5)
    policies = {kind.policy.retry for kind in platform.app.kinds.values()}
    assert policies == {RETRY}


def _delays(error_class: ErrorClass, uniform: Callable[[float, float], float], count: int = 5) -> list[float | None]:
    waits = (RETRY.delay_after(n, None, uniform, error_class=error_class, max_attempts=99) for n in range(1, count + 1))
    return [None if wait is None else wait.total_seconds() for wait in waits]


@pytest.mark.req("W33", "W57", "W58", "W59", "W60", "W61", "W62")
def test_delays_double_are_jittered_by_a_fifth_and_never_longer_than_five_minutes() -> None:
    ranges: list[tuple[float, float]] = []

    def middle(low: float, high: float) -> float:
        ranges.append((low, high))
        return 1.0

    for error_class in (ErrorClass.TRANSIENT, ErrorClass.RETRYABLE):
        assert _delays(error_class, middle) == [2, 4, 8, 16, 32]
        assert _delays(error_class, lambda low, _: low) == pytest.approx([1.6, 3.2, 6.4, 12.8, 25.6])
        assert _delays(error_class, lambda _, high: high, 10)[7:] == [300, 300, 300], "the cap holds for jitter, too"
    assert _delays(ErrorClass.RATE_LIMITED, middle) == [60, 120, 240, 300, 300]
    assert _delays(ErrorClass.NON_RETRYABLE, middle) == [None] * 5
    assert set(ranges) == {(0.8, 1.2)}
    asked = RETRY.delay_after(1, None, middle, timedelta(minutes=10), error_class=ErrorClass.RATE_LIMITED)
    assert asked == timedelta(minutes=10), "the other side knows best"
    assert RETRY.delay_after(5, None, middle, error_class=ErrorClass.TRANSIENT) is None
