"""The class of an error decides what comes next, whatever the handler's mode, and is stored with it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import error_jobs
import pytest
from running_workers import eventually, working

from dutiful import (
    Context,
    Dutiful,
    ErrorClass,
    Fail,
    Fixed,
    JobRecord,
    PayloadInvalid,
    RateLimited,
    Retry,
    State,
    Transient,
)
from dutiful.kind import Handle
from dutiful.testing import Clock, app_on

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
modes = pytest.mark.parametrize("mode", ["loop", "thread", "process"])


@pytest.fixture
async def failing(app: Dutiful) -> AsyncIterator[Dutiful]:
    """The app, with the kinds of error_jobs and one process for them."""
    app.configure(cpu_processes=1)
    app.kinds.update(error_jobs.app.kinds)
    yield app


async def tried(app: Dutiful, job: Handle[Any]) -> tuple[JobRecord, dict[str, Any]]:
    """The job after its first attempt, and the error of that."""

    async def settled() -> JobRecord | None:
        record = await app.find(job.id)
        return record if record and record.state not in (State.READY, State.RUNNING) else None

    record: JobRecord = await eventually(settled)
    if record.errors:
        return record, record.errors[0]
    # On a busy machine, attempts before it may be those of claims that were given back.
    error = (await (await app.client()).store.queries.attempts(job.id))[-1].error
    assert error is not None
    return record, error


async def all_tried(app: Dutiful, mode: str, *hows: str) -> list[tuple[JobRecord, dict[str, Any]]]:
    jobs = [await app.enqueue(mode, {"how": how}) for how in hows]
    return await asyncio.gather(*(tried(app, job) for job in jobs))


def hours(record: JobRecord) -> int:
    """Until it is due."""
    assert record.run_at is not None
    return round((record.run_at - datetime.now(UTC)).total_seconds() / 3600)


RETRIED = {
    "unknown": ("retryable", 1),
    "transient": ("transient", 2),
    "timeout": ("transient", 2),
    "limited": ("rate_limited", 3),
    "limited for long": ("rate_limited", 4),
    "answered 429": ("rate_limited", 5),
    "retry after": ("retryable", 6),
}


@modes
@pytest.mark.req("W29", "W56", "W62")
async def test_an_error_is_stored_with_its_class_and_retried_by_it(failing: Dutiful, mode: str) -> None:
    async with working(failing):
        for how, (record, error) in zip(RETRIED, await all_tried(failing, mode, *RETRIED), strict=True):
            assert (record.state, record.attempt) == (State.SCHEDULED, 1)
            assert (error["class"], hours(record)) == RETRIED[how], how
            assert len(error["fingerprint"]) == 16


@modes
@pytest.mark.req("W32", "W34", "W58", "W66")
async def test_what_is_not_retryable_is_a_dead_letter_at_once(failing: Dutiful, mode: str) -> None:
    async with working(failing):
        for record, error in await all_tried(failing, mode, "fail", "closed", "not found"):
            assert (record.state, record.attempt, record.max_attempts) == (State.FAILED, 1, 3)
            assert error["class"] == "non_retryable" and error["fingerprint"]


@sqlite
@pytest.mark.req("W58")
async def test_fail_and_a_payload_that_does_not_fit_are_final_whatever_the_policy_says_of_errors(app: Dutiful) -> None:
    @app.job(retry=Retry(per_error={Exception: Fixed("1h")}, classify={Exception: ErrorClass.TRANSIENT}))
    async def call(fit: bool) -> None:
        raise Fail("never") if fit else PayloadInvalid("not what it was")

    async with working(app):
        for fit in (True, False):
            record, error = await tried(app, await call.enqueue(fit))
            assert (record.state, record.attempt, error["class"]) == (State.FAILED, 1, "non_retryable")


@modes
@sqlite
@pytest.mark.req("W30")
async def test_a_message_is_cut_as_the_settings_say_and_holds_no_secret(failing: Dutiful, mode: str) -> None:
    failing.configure(error_message_limit=80)
    async with working(failing):
        [(_, error)] = await all_tried(failing, mode, "talkative")
    assert len(error["message"]) == 80 and "was refused xxx" in error["message"]
    assert "in talkative" not in error["message"] and "x" * 5_000 in error["traceback"]
    assert error_jobs.KEY[:12] not in error["message"] + error["traceback"]


@sqlite
async def test_errors_of_every_mode_that_are_alike_have_one_fingerprint(failing: Dutiful) -> None:
    async with working(failing):
        found = [await all_tried(failing, mode, "unknown", "timeout") for mode in ("loop", "thread", "process")]
    assert len({error["fingerprint"] for tries in found for _, error in tries}) == 2


@pytest.mark.req("W33", "W34", "W57", "W66")
async def test_a_job_is_a_dead_letter_when_its_attempts_are_spent(app: Dutiful) -> None:
    @app.job(retry="patient")
    async def call() -> None:
        raise Transient("no answer")

    async with app_on(app, clock=Clock()) as kit:
        job = await call.enqueue()
        await kit.drain(until="10m")
        record = await app.find(job.id)
        assert record is not None and (record.state, record.attempt) == (State.FAILED, 5)
        attempts = await kit.store.queries.attempts(job.id)
    assert record.errors is not None and record.errors[0]["class"] == "transient"
    assert [(a.outcome, (a.error or {})["class"]) for a in attempts] == [("failed", "transient")] * 4


# --- pipelines


@pytest.mark.req("W63")
async def test_a_phase_is_retried_by_the_class_of_its_error(app: Dutiful) -> None:
    calls: list[str] = []
    publish = app.pipeline("publish", retry=Retry(max_attempts=9))
    own = Retry(max_attempts=9, by_class={ErrorClass.TRANSIENT: Fixed(0), ErrorClass.RATE_LIMITED: Fixed(0)})

    @publish.phase(retry=own)
    async def upload(ctx: Context) -> None:
        calls.append("upload")
        errors: list[Exception] = [Transient("busy"), error_jobs.Answered(429, {}), Fail("never")]
        raise errors[len(calls) - 1]

    async with working(app):
        job = await publish.enqueue()
        record, error = await tried(app, job)
    assert calls == ["upload"] * 3
    assert record.state is State.FAILED and (error["class"], error["phase"]) == ("non_retryable", "upload")
    attempts = await (await app.client()).store.queries.attempts(job.id)
    assert [(a.error or {})["class"] for a in attempts] == ["transient", "rate_limited"]


@sqlite
@pytest.mark.req("W63")
async def test_a_phase_without_a_policy_goes_by_the_classes_of_its_pipeline(app: Dutiful) -> None:
    policy = Retry(by_class={ErrorClass.TRANSIENT: Fixed("2h")}, classify={KeyError: ErrorClass.NON_RETRYABLE})
    publish = app.pipeline("publish", retry=policy)

    @publish.phase
    async def upload(how: str) -> None:
        raise {"transient": Transient(), "known": KeyError(), "asked": RateLimited(retry_after="3h")}[how]

    async with working(app):
        jobs = [await publish.enqueue(how=how) for how in ("transient", "known", "asked")]
        (slow, _), (dead, error), (asked, _) = [await tried(app, job) for job in jobs]
    assert (slow.state, hours(slow)) == (State.SCHEDULED, 2)
    assert (dead.state, dead.attempt, error["class"]) == (State.FAILED, 1, "non_retryable")
    assert (asked.state, hours(asked)) == (State.SCHEDULED, 3)


@sqlite
@pytest.mark.req("W63")
async def test_an_optional_phase_that_cannot_succeed_is_not_tried_again(app: Dutiful) -> None:
    calls: list[str] = []
    publish = app.pipeline("publish")

    @publish.phase(optional=True, retry=Retry(max_attempts=5, backoff=Fixed(0)))
    async def thumbnail() -> None:
        calls.append("thumbnail")
        raise error_jobs.Answered(404, {})

    async with working(app):
        record, error = await tried(app, await publish.enqueue())
    assert calls == ["thumbnail"] and record.state is State.COMPLETED_WITH_ERRORS
    assert error["class"] == "non_retryable"
